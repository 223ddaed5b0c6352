package next

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/allocnode/allocnode"
	"github.com/allocnode/allocnode/internal/propose"
	"github.com/allocnode/allocnode/internal/wire"
)

// The comments that begin with "Checked:" name the guard that was taken out once, and what the test said then.

// counter is a sequence as the log has it.
type counter struct {
	hwm, max, maxCount uint64
	halted             bool
}

// fakeLog carves as the state machine does. A refill is applied when the test says so, or at once with auto; it is
// answered when it is applied, unless it is held, as a proposer does during a check.
type fakeLog struct {
	t         testing.TB
	mu        sync.Mutex // guards all below
	sequences map[string]*counter
	strict    bool // no sequence comes into being on first use
	auto      bool // apply as soon as submitted
	ops       int  // submitted
	pending   []*propose.Request
	err       *allocnode.Error // the answer to every refill, at once
}

func newLog(t testing.TB) *fakeLog { return &fakeLog{t: t, sequences: make(map[string]*counter)} }

func opOf(r *propose.Request) wire.Op {
	h := wire.Header{ClusterID: wire.ID{1}, Level: 1, Node: []byte("n1"), ID: wire.EntryID{Incarnation: wire.ID{1}, Counter: 1},
		Defaults: wire.Settings{First: 1, Max: 1, MaxCount: 1}}
	b := append(wire.AppendHeader(nil, &h), r.Ops...)
	wire.Seal(b)
	var e wire.Entry
	if err := wire.DecodeEntry(b, &e); err != nil || len(e.Ops) != 1 || r.N != 1 {
		panic("a refill is not one operation")
	}
	return e.Ops[0]
}

func (l *fakeLog) Submit(r *propose.Request) {
	l.mu.Lock()
	l.ops++
	if l.err != nil {
		err := l.err
		l.mu.Unlock()
		r.Done(propose.Result{Err: err})
		return
	}
	if !l.auto {
		l.pending = append(l.pending, r)
		for _, other := range l.pending[:len(l.pending)-1] {
			if slices.Equal(opOf(other).Name, opOf(r).Name) {
				l.t.Errorf("a second refill of %s is under way", opOf(r).Name)
			}
		}
		l.mu.Unlock()
		return
	}
	l.mu.Unlock()
	l.answer(r, l.carve(r))
}

func (l *fakeLog) answer(r *propose.Request, o wire.Outcome) {
	out := []wire.Outcome{o}
	r.Done(propose.Result{Seq: 1, Outcomes: out})
	out[0] = wire.Outcome{Start: 1, End: 1 << 40} // valid during the call only
}

// carve applies r.
func (l *fakeLog) carve(r *propose.Request) wire.Outcome {
	op := opOf(r)
	if op.Kind != wire.KindReserve || op.Count == 0 || !op.Partial || len(op.Key) > 0 {
		l.t.Errorf("a refill is %+v", op)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.sequences[string(op.Name)]
	switch {
	case s == nil && l.strict:
		return wire.Outcome{Reject: wire.RejectUnknown}
	case s == nil:
		s = l.makeLocked(string(op.Name))
	}
	switch left := s.max - s.hwm; {
	case s.halted:
		return wire.Outcome{Reject: wire.RejectHalted, Remaining: left}
	case op.Count > s.maxCount:
		return wire.Outcome{Reject: wire.RejectCount, Remaining: s.maxCount}
	case left == 0:
		return wire.Outcome{Reject: wire.RejectExhausted}
	default:
		s.hwm += min(left, op.Count)
		return wire.Outcome{Start: s.hwm - min(left, op.Count) + 1, End: s.hwm + 1}
	}
}

func (l *fakeLog) makeLocked(name string) *counter {
	s := &counter{max: allocnode.DefaultMax, maxCount: allocnode.DefaultMaxCount}
	l.sequences[name] = s
	return s
}

func (l *fakeLog) sequence(name string) *counter {
	l.mu.Lock()
	defer l.mu.Unlock()
	if s := l.sequences[name]; s != nil {
		return s
	}
	return l.makeLocked(name)
}

func (l *fakeLog) set(f func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f()
}

func (l *fakeLog) submitted() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ops
}

// take takes the first refill under way out of the log's hands; nil when there is none.
func (l *fakeLog) take() *propose.Request {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.pending) == 0 {
		return nil
	}
	r := l.pending[0]
	l.pending = slices.Delete(l.pending, 0, 1)
	return r
}

// apply applies the first refill under way, and says whether there was one.
func (l *fakeLog) apply() bool {
	r := l.take()
	if r == nil {
		return false
	}
	l.answer(r, l.carve(r))
	return true
}

// expire answers what is under way as a proposer does when there is no quorum.
func (l *fakeLog) expire(now time.Time) {
	for {
		r := l.take()
		if r == nil {
			return
		}
		if now.Before(r.Deadline) {
			l.set(func() { l.pending = append(l.pending, r) })
			return
		}
		r.Done(propose.Result{Err: allocnode.Errorf(allocnode.CodeUnknownOutcome, "the log did not answer")})
	}
}

// asked is one request and what it was answered.
type asked struct {
	Request
	answers int
	ranges  []allocnode.Range
	err     *allocnode.Error
}

func (a *asked) ids() (ids []uint64) {
	for _, r := range a.ranges {
		for id := r.Start; id < r.End; id++ {
			ids = append(ids, id)
		}
	}
	return ids
}

// rig is a pool, its log, and everything that was asked and given.
type rig struct {
	t   *testing.T
	p   *Pool
	log *fakeLog

	mu     sync.Mutex // guards all below
	all    []*asked
	given  map[string]map[uint64]bool
	floors map[string]uint64 // advances that were applied
	ticket uint64
}

// bubble runs test with a pool that runs and whose gate is open, in fake time. At the end every request must have had
// exactly one answer.
func bubble(t *testing.T, tune func(*Config), test func(*rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		cfg := DefaultConfig()
		if tune != nil {
			tune(&cfg)
		}
		g := &rig{t: t, log: newLog(t), given: make(map[string]map[uint64]bool), floors: make(map[string]uint64)}
		g.p = New(cfg, g.log)
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			if err := g.p.Run(ctx); err != nil {
				t.Error("Run:", err)
			}
		}()
		stop := sync.OnceFunc(func() { cancel(); <-ended })
		defer stop()
		g.open()
		test(g)
		g.check()
		stop()
		g.mu.Lock()
		defer g.mu.Unlock()
		for _, a := range g.all {
			if a.answers != 1 {
				t.Errorf("a request for %d of %s got %d answers", a.Count, a.Sequence, a.answers)
			}
		}
	})
}

func (g *rig) hold() { g.ticket++; g.p.Hold(g.ticket) }

func (g *rig) open() {
	g.t.Helper()
	g.hold()
	if !g.p.Open(g.ticket) {
		g.t.Errorf("the gate does not open with ticket %d", g.ticket)
	}
}

// take asks for count ids, as the service does.
func (g *rig) take(sequence string, count uint64) *asked {
	return g.takeWithin(sequence, count, 4*time.Second)
}

func (g *rig) takeWithin(sequence string, count uint64, d time.Duration) *asked {
	a := &asked{}
	a.Sequence, a.Count, a.Deadline = sequence, count, time.Now().Add(d)
	a.Done = func(ranges []allocnode.Range, err error) { g.answered(a, ranges, err) }
	g.mu.Lock()
	g.all = append(g.all, a)
	g.mu.Unlock()
	g.p.Take(&a.Request)
	return a
}

func (g *rig) answered(a *asked, ranges []allocnode.Range, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	a.answers++
	a.ranges = slices.Clone(ranges)
	if err != nil {
		if !errors.As(err, &a.err) || len(ranges) > 0 {
			g.t.Errorf("answered with %v and %v", ranges, err)
		}
		return
	}
	if g.given[a.Sequence] == nil {
		g.given[a.Sequence] = make(map[uint64]bool)
	}
	var last uint64
	for _, id := range a.ids() {
		switch {
		case g.given[a.Sequence][id]:
			g.t.Errorf("id %d of %s twice", id, a.Sequence)
		case id <= g.floors[a.Sequence]:
			g.t.Errorf("id %d of %s after an advance to %d", id, a.Sequence, g.floors[a.Sequence])
		case id <= last:
			g.t.Errorf("id %d after id %d in one answer", id, last)
		}
		last = id
		g.given[a.Sequence][id] = true
	}
	if got := uint64(len(a.ids())); got != a.Count {
		g.t.Errorf("%d ids for a request of %d", got, a.Count)
	}
}

// advance applies an advance here, and in the log.
func (g *rig) advance(sequence string, to uint64) {
	s := g.log.sequence(sequence)
	g.log.set(func() { s.hwm = max(s.hwm, to) })
	g.advanced(sequence, to)
}

func (g *rig) advanced(sequence string, to uint64) {
	g.p.Advanced(sequence, to)
	g.mu.Lock()
	defer g.mu.Unlock()
	g.floors[sequence] = max(g.floors[sequence], to)
}

// check looks at what must hold at any time.
func (g *rig) check() {
	g.t.Helper()
	g.p.mu.Lock()
	defer g.p.mu.Unlock()
	waiting := 0
	for name, b := range g.p.batches {
		var held, wanted, top uint64
		for _, r := range b.ranges {
			if r.Empty() || r.Start <= top {
				g.t.Fatalf("%s: ranges %v", name, b.ranges)
			}
			held, top = held+r.Count(), r.End
		}
		for r := b.waiting.first; r != nil; r = r.next {
			wanted += r.Count
			waiting++
			if (r.next == nil) != (r == b.waiting.last) {
				g.t.Fatalf("%s: the line does not end with its last", name)
			}
		}
		switch {
		case held != b.held || wanted != b.wanted:
			g.t.Fatalf("%s: held %d is %d, wanted %d is %d", name, b.held, held, b.wanted, wanted)
		case top > 0 && b.floor < top-1:
			g.t.Fatalf("%s: floor %d below what is held, %v", name, b.floor, b.ranges)
		case b.low < 1 || b.low > max(b.size, 1):
			g.t.Fatalf("%s: low %d of size %d", name, b.low, b.size)
		case g.p.gate == gateOpen && b.waiting.first != nil && b.waiting.first.Count <= b.held:
			g.t.Fatalf("%s: %d held, and a request for %d waits", name, b.held, b.waiting.first.Count)
		case g.p.gate == gateOpen && b.waiting.first != nil && !b.refilling && b.again.IsZero():
			g.t.Fatalf("%s: requests wait, and no refill is under way", name)
		}
	}
	if waiting != g.p.waiting {
		g.t.Fatalf("%d requests wait, counted %d", waiting, g.p.waiting)
	}
}

// refilling says that a batch at or below its mark has a refill under way.
func (g *rig) refilling(name string) {
	g.t.Helper()
	g.check()
	g.p.mu.Lock()
	defer g.p.mu.Unlock()
	if b := g.p.batches[name]; b.held <= b.low && !b.refilling {
		g.t.Fatalf("%s: %d held, low %d, and no refill is under way", name, b.held, b.low)
	}
}

// want says that a was answered with these ids, by now.
func (g *rig) want(a *asked, ids ...uint64) {
	g.t.Helper()
	g.check()
	g.mu.Lock()
	defer g.mu.Unlock()
	if a.answers != 1 || a.err != nil || !slices.Equal(a.ids(), ids) {
		g.t.Fatalf("%d answers, %v, %v: want ids %v", a.answers, a.ranges, a.err, ids)
	}
}

// refused says that a was answered with an error, by now.
func (g *rig) refused(a *asked, code allocnode.Code) *allocnode.Error {
	g.t.Helper()
	g.check()
	g.mu.Lock()
	defer g.mu.Unlock()
	if a.answers != 1 || a.err == nil || a.err.Code != code {
		g.t.Fatalf("%d answers, %v, %v: want %s", a.answers, a.ranges, a.err, code)
	}
	return a.err
}

func (g *rig) waits(a *asked) {
	g.t.Helper()
	g.check()
	g.mu.Lock()
	defer g.mu.Unlock()
	if a.answers != 0 {
		g.t.Fatalf("%d answers, %v, %v: want none yet", a.answers, a.ranges, a.err)
	}
}

// apply applies the one refill that must be under way.
func (g *rig) apply() {
	g.t.Helper()
	if !g.log.apply() {
		g.t.Fatal("no refill is under way")
	}
	g.check()
}

// pass lets time go by.
func (g *rig) pass(d time.Duration) {
	time.Sleep(d) // in a bubble: fake time
	synctest.Wait()
}
