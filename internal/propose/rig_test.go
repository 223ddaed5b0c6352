package propose

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/allocnode/allocnode"
	"github.com/allocnode/allocnode/internal/wire"
)

// The comments that begin with "Checked:" name the guard that was taken out once, and what the test said then.

// rig is a proposer between a log that does as it is told and requesters that remember what they were answered. It lives
// in a synctest bubble. When the test ends it stops the proposer, and wants exactly one answer for every request.
type rig struct {
	t      testing.TB
	p      *Proposer
	cancel context.CancelFunc
	ended  chan struct{} // Run has returned
	twins  atomic.Int64  // calls of Config.Twin

	mu        sync.Mutex // guards all below
	asked     []*asked
	entries   []entry           // as they were appended, retries too
	onAppend  func(entry) error // takes entries instead, when set
	appendErr error             // what Append returns, and then it does not keep the entry
	cursor    uint64            // what head returns
	losses    [][2]uint64       // calls of lost
	hwm, seq  uint64            // of the state machine
}

type entry struct {
	tag  uint64
	id   string
	data []byte
	at   time.Time
}

// asked is one request and its answers. Its operation number i asks for base+i ids, base being unlike all others', so
// that the width of a range tells whose it is.
type asked struct {
	req  *Request
	base uint64
	hook func(Result) // called within Done

	got []Result // Outcomes copied
	at  time.Time
}

func small() Config {
	cfg := DefaultConfig()
	cfg.Header = wire.Header{
		ClusterID: wire.ID{0xC1}, Level: wire.Level, Node: []byte("n1"), AutoCreate: true,
		ID:       wire.EntryID{Incarnation: wire.ID{0x11}},
		Defaults: wire.Settings{First: 1, Max: 1 << 53, MaxCount: 1 << 40},
	}
	cfg.MaxOps, cfg.MaxWaiting = 16, 32
	return cfg
}

// bubble runs test with a proposer that runs, its gate held.
func bubble(t *testing.T, cfg Config, test func(*rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, cfg)
		ctx, cancel := context.WithCancel(context.Background())
		r.cancel = cancel
		go func() {
			defer close(r.ended)
			if err := r.p.Run(ctx); err != nil {
				r.t.Error("Run:", err)
			}
		}()
		defer r.checkAnswers()
		defer r.stop() // also after a Fatal: the bubble wants all goroutines to end
		test(r)
	})
}

func newRig(t testing.TB, cfg Config) *rig {
	r := &rig{t: t, ended: make(chan struct{})}
	cfg.Twin = func(seq uint64) { r.unlocked("Twin"); r.twins.Add(1) }
	r.p = New(cfg, r, r.head, r.lost)
	return r
}

func (r *rig) head() (uint64, wire.Digest) {
	r.unlocked("head")
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.cursor, wire.Digest{0xD1}
}

func (r *rig) lost(seq, cursor uint64) {
	r.unlocked("lost")
	r.mu.Lock()
	defer r.mu.Unlock()
	r.losses = append(r.losses, [2]uint64{seq, cursor})
}

func (r *rig) Append(tag uint64, id string, data []byte) error {
	r.unlocked("Append")
	r.check()
	e := entry{tag, id, bytes.Clone(data), time.Now()}
	if r.onAppend != nil {
		return r.onAppend(e)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.appendErr != nil {
		return r.appendErr
	}
	r.entries = append(r.entries, e)
	return nil
}

// unlocked fails when the caller of a callback holds the proposer's mutex (invariant 5). Others may hold it for a moment.
func (r *rig) unlocked(callback string) bool {
	for range 100_000 {
		if r.p.mu.TryLock() {
			r.p.mu.Unlock()
			return true
		}
		runtime.Gosched()
	}
	r.t.Errorf("%s was called with the mutex held", callback)
	return false
}

// check holds the proposer to its invariants, and to what its fields promise.
func (r *rig) check() {
	p := r.p
	p.mu.Lock()
	defer p.mu.Unlock()
	places := make(map[*Request]int)
	size := 0
	for _, q := range p.queue {
		places[q]++
		size += len(q.Ops)
	}
	for _, q := range p.own {
		places[q]++
	}
	if size != p.bytes || len(p.queue) > p.cfg.MaxWaiting || len(p.own) > p.cfg.MaxWaiting {
		r.t.Errorf("queue of %d bytes counts as %d; %d and %d wait, at most %d may",
			size, p.bytes, len(p.queue), len(p.own), p.cfg.MaxWaiting)
	}
	lanes := map[bool]int{}
	look := func(f *flight) {
		waiting, ops := 0, 0
		for _, s := range f.seats {
			ops += s.n
			if s.request == nil {
				continue
			}
			waiting++
			places[s.request]++
			if s.request.N != s.n || s.request.control != f.control {
				r.t.Errorf("a seat of %d operations, control %t, holds %+v", s.n, f.control, s.request)
			}
		}
		if waiting != f.waiting || waiting == 0 || ops > p.cfg.MaxOps || f.size > p.cfg.MaxBytes {
			r.t.Errorf("flight %s: %d wait, counted as %d; %d operations, %d bytes", f.id, waiting, f.waiting, ops, f.size)
		}
	}
	for counter, f := range p.flights {
		lanes[f.control]++
		if look(f); f.id.Counter != counter || counter > p.counter {
			r.t.Errorf("flight %s stands under %d of %d", f.id, counter, p.counter)
		}
	}
	for _, f := range p.held {
		look(f)
	}
	if lanes[false] > p.cfg.InFlight || lanes[true] > p.cfg.InFlight {
		r.t.Errorf("%d users' entries and %d of the node's own under way, at most %d may be",
			lanes[false], lanes[true], p.cfg.InFlight)
	}
	for q, n := range places {
		if n != 1 {
			r.t.Errorf("request %+v is in %d places", q, n)
		}
	}
	if len(p.held) > 0 && p.gate != gateHeld {
		r.t.Errorf("%d entries are held by gate %d", len(p.held), p.gate)
	}
}

// make makes a request of n operations that has timeout left, without submitting it.
func (r *rig) make(n int, timeout time.Duration) *asked {
	r.mu.Lock()
	defer r.mu.Unlock()
	a := &asked{base: uint64(1000 * (len(r.asked) + 1))}
	r.asked = append(r.asked, a)
	a.req = &Request{N: n, Deadline: time.Now().Add(timeout), Done: func(res Result) { r.done(a, res) }}
	for i := range n {
		a.req.Ops = wire.AppendOp(a.req.Ops, &wire.Op{Kind: wire.KindReserve, Name: []byte("orders"), Count: a.base + uint64(i),
			Key: fmt.Append(nil, a.base+uint64(i))})
	}
	return a
}

func (r *rig) done(a *asked, res Result) {
	if !r.unlocked("Done") {
		return // what follows would wait for ever
	}
	res.Outcomes = slices.Clone(res.Outcomes)
	r.mu.Lock()
	a.got = append(a.got, res)
	a.at = time.Now()
	r.mu.Unlock()
	if a.hook != nil {
		a.hook(res)
	}
}

// ask submits a user's request of n operations with 4 s left, control one of the node's own.
func (r *rig) ask(n int) *asked     { return r.askFor(n, 4*time.Second) }
func (r *rig) control(n int) *asked { return r.controlFor(n, 4*time.Second) }

func (r *rig) askFor(n int, timeout time.Duration) *asked {
	a := r.make(n, timeout)
	r.p.Submit(a.req)
	return a
}

func (r *rig) controlFor(n int, timeout time.Duration) *asked {
	a := r.make(n, timeout)
	r.p.SubmitControl(a.req)
	return a
}

func (r *rig) open() {
	r.t.Helper()
	if !r.p.Open(r.p.Hold()) {
		r.t.Fatal("Open with the ticket of the last Hold: false")
	}
}

// settle waits until nothing moves, without the clock having moved.
func (r *rig) settle() {
	r.t.Helper()
	before := time.Now()
	synctest.Wait()
	if now := time.Now(); !now.Equal(before) {
		r.t.Fatalf("the clock went from %s to %s", before, now)
	}
	r.check()
}

// log returns what was appended so far.
func (r *rig) log() []entry {
	r.settle()
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.entries)
}

// sizes is how many operations the entries have, in order.
func (r *rig) sizes() (ops []int) {
	for _, e := range r.log() {
		ops = append(ops, len(r.decode(e).Ops))
	}
	return ops
}

func (r *rig) decode(e entry) *wire.Entry {
	r.t.Helper()
	var d wire.Entry
	if err := wire.DecodeEntry(e.data, &d); err != nil {
		r.t.Fatalf("entry %s: %v", e.id, err)
	}
	if d.ID.String() != e.id || d.ID.Counter != e.tag {
		r.t.Fatalf("entry %s was appended as %s, tag %d", d.ID, e.id, e.tag)
	}
	return &d
}

// apply brings one entry to the state machine, as the node's apply loop does, and tells the proposer. A second copy is
// told too, with the outcomes of a first one, which is worse than what the node does.
func (r *rig) apply(e entry) {
	r.t.Helper()
	d := r.decode(e)
	outcomes := make([]wire.Outcome, 0, len(d.Ops))
	r.mu.Lock()
	r.seq++
	for _, op := range d.Ops {
		var o wire.Outcome
		if op.Kind == wire.KindReserve {
			o.Start, o.End = r.hwm+1, r.hwm+1+op.Count
			r.hwm += op.Count
		}
		outcomes = append(outcomes, o)
	}
	seq := r.seq
	r.mu.Unlock()
	r.p.Applied(d.ID, seq, e.data, outcomes)
	for i := range outcomes { // the caller's slice is used again
		outcomes[i] = wire.Outcome{Reject: 99, Start: 99, End: 99}
	}
}

// applyLast applies the entry appended last.
func (r *rig) applyLast() {
	r.t.Helper()
	log := r.log()
	if len(log) == 0 {
		r.t.Fatal("nothing was appended")
	}
	r.apply(log[len(log)-1])
}

func (r *rig) stop() {
	r.cancel()
	<-r.ended
}

// answered is the answers of a so far.
func (r *rig) answered(a *asked) []Result {
	synctest.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(a.got)
}

func (r *rig) wantNone(all ...*asked) {
	r.t.Helper()
	for _, a := range all {
		if got := r.answered(a); len(got) != 0 {
			r.t.Errorf("request %d was answered: %+v", a.base, got)
		}
	}
}

// wantRange wants one answer: a range for each operation, of the width that it asked for.
func (r *rig) wantRange(all ...*asked) {
	r.t.Helper()
	for _, a := range all {
		r.answered(a)
		if err := a.isRange(); err != nil {
			r.t.Fatal(err)
		}
	}
}

func (a *asked) isRange() error {
	if len(a.got) != 1 {
		return fmt.Errorf("request %d has %d answers: %+v", a.base, len(a.got), a.got)
	}
	got := a.got[0]
	if got.Err != nil || got.Seq == 0 || len(got.Outcomes) != a.req.N {
		return fmt.Errorf("request %d of %d operations: %+v", a.base, a.req.N, got)
	}
	for i, o := range got.Outcomes {
		if o.Reject != 0 || o.End-o.Start != a.base+uint64(i) {
			return fmt.Errorf("request %d: operation %d got another's outcome: %+v", a.base, i, o)
		}
	}
	return nil
}

// wantCode wants one answer: an error of code.
func (r *rig) wantCode(code allocnode.Code, all ...*asked) {
	r.t.Helper()
	for _, a := range all {
		got := r.answered(a)
		if len(got) != 1 || codeOf(got[0]) != code || got[0].Outcomes != nil || got[0].Seq != 0 {
			r.t.Fatalf("request %d: %+v, want one answer of %s", a.base, got, code)
		}
	}
}

func codeOf(res Result) allocnode.Code {
	var e *allocnode.Error
	if errors.As(res.Err, &e) {
		return e.Code
	}
	return ""
}

// checkAnswers wants one answer for every request, and nothing left behind. Run has returned.
func (r *rig) checkAnswers() {
	r.t.Helper()
	r.mu.Lock()
	for _, a := range r.asked {
		if len(a.got) != 1 {
			r.t.Errorf("request %d has %d answers after the stop: %+v", a.base, len(a.got), a.got)
		} else if a.got[0].Err == nil {
			if err := a.isRange(); err != nil {
				r.t.Error(err)
			}
		} else if codeOf(a.got[0]) == "" {
			r.t.Errorf("request %d: the error %v has no code", a.base, a.got[0].Err)
		}
	}
	r.mu.Unlock()
	queued, inFlight := r.p.Waiting()
	if queued != 0 || inFlight != 0 || len(r.p.flights) != 0 || len(r.p.held) != 0 || r.p.bytes != 0 {
		r.t.Errorf("left after the stop: %d queued, %d in flight, %d flights, %d held, %d bytes",
			queued, inFlight, len(r.p.flights), len(r.p.held), r.p.bytes)
	}
}
