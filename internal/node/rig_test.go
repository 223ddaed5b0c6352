package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/allocnode/allocnode/apply"
	"github.com/allocnode/allocnode/internal/next"
	"github.com/allocnode/allocnode/internal/propose"
	"github.com/allocnode/allocnode/internal/wire"
	"github.com/allocnode/allocnode/jetstream"
)

// The comments that begin with "Checked:" name the guard that was taken out once, and what the test said then.

var quiet = slog.New(slog.DiscardHandler)

// fakeLog is one stream as its leader has it, for several nodes in one synctest bubble.
type fakeLog struct {
	mu      sync.Mutex // guards all below
	id      jetstream.Identity
	entries [][]byte // of seq 1 and up
	err     error    // of Identity, Get, Read and GetDirect
	vanish  bool     // appends are lost without an answer
	deaf    bool     // the feed brings nothing
	feeds   map[string]func(jetstream.Message)
	reads   []uint64            // where each Read began
	pace    time.Duration       // how long each message of a Read takes
	direct  map[uint64][][]byte // what GetDirect and Read give in place of an entry, one copy after the other
	asked   func(seq uint64)    // called in each Get, without the lock
	stale   []uint64            // last seqs that the next Identity answers give, as of a deposed leader
	hole    uint64              // no Read and no Get gives this seq
	deposed uint64              // not 0: Identity and Get are answered by a deposed leader, whose log ends there
	ids     map[string]uint64   // where each message id stands: JetStream's own window
}

var names = []string{"n1", "n2", "n3"}

func catalogOf(name string) wire.ID { return wire.ID{0: 0xCA, 1: name[1]} }

func newFakeLog() *fakeLog {
	f := &fakeLog{
		id: jetstream.Identity{
			Created: time.Unix(1_800_000_000, 12345), ClusterID: wire.ID{0xC1}, Epoch: 1, FirstSeq: 1, Leader: "n2",
		},
		feeds: make(map[string]func(jetstream.Message)), direct: make(map[uint64][][]byte), ids: make(map[string]uint64),
	}
	f.entries = append(f.entries, f.entry("n1", 0, f.genesis()))
	return f
}

func (f *fakeLog) genesis() *wire.Op {
	return &wire.Op{Kind: wire.KindGenesis, Genesis: &wire.Genesis{
		Epoch: f.id.Epoch, Created: f.id.Created.UnixNano(), Nodes: names, KeyWindow: 100, EntryWindow: 200, MaxSequences: 100,
	}}
}

// entry is an entry of a run of node that made only this one, when it had applied the log up to cursor.
func (f *fakeLog) entry(node string, cursor uint64, ops ...*wire.Op) []byte {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.entryLocked(node, cursor, ops...)
}

func (f *fakeLog) entryLocked(node string, cursor uint64, ops ...*wire.Op) []byte {
	m := apply.New()
	for i, e := range f.entries[:min(cursor, uint64(len(f.entries)))] {
		if _, _, err := m.Apply(uint64(i+1), slices.Clone(e)); err != nil {
			panic(err)
		}
	}
	b := wire.AppendHeader(nil, &wire.Header{
		ClusterID: f.id.ClusterID, Level: wire.Level, Node: []byte(node), Cursor: cursor, Digest: m.Head().Digest, AutoCreate: true,
		ID:       wire.EntryID{Incarnation: wire.NewID(), Counter: 1},
		Defaults: wire.Settings{First: 1, Max: 1 << 40, MaxCount: 1 << 20},
	})
	for _, op := range ops {
		b = wire.AppendOp(b, op)
	}
	wire.Seal(b)
	return b
}

func reserveOp(n uint64) *wire.Op {
	return &wire.Op{Kind: wire.KindReserve, Name: []byte("orders"), Count: n}
}

func checkOp(node string, ask bool) *wire.Op {
	return &wire.Op{Kind: wire.KindCheck, Name: []byte(node), Check: &wire.Check{CatalogID: catalogOf(node), Ask: ask}}
}

// put appends data and tells every node.
func (f *fakeLog) put(data []byte) (seq uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.putLocked(data)
}

func (f *fakeLog) putLocked(data []byte) uint64 {
	f.entries = append(f.entries, data)
	seq := uint64(len(f.entries))
	if !f.deaf {
		for _, offer := range f.feeds {
			offer(jetstream.Message{Seq: seq, Data: slices.Clone(data)})
		}
	}
	return seq
}

func (f *fakeLog) last() uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return uint64(len(f.entries))
}

// with changes the log.
func (f *fakeLog) with(fn func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	fn()
}

func (f *fakeLog) Identity(ctx context.Context) (jetstream.Identity, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	id := f.id
	id.LastSeq = uint64(len(f.entries))
	if len(f.stale) > 0 {
		id.LastSeq, f.stale = f.stale[0], f.stale[1:]
	}
	if f.deposed > 0 {
		id.LastSeq = f.deposed
	}
	return id, f.err
}

func (f *fakeLog) Get(ctx context.Context, seq uint64) (jetstream.Message, error) {
	f.mu.Lock()
	asked := f.asked
	f.mu.Unlock()
	if asked != nil {
		asked(seq)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.deposed > 0 && seq > f.deposed {
		return jetstream.Message{}, jetstream.ErrNoMessage
	}
	return f.getLocked(seq)
}

func (f *fakeLog) getLocked(seq uint64) (jetstream.Message, error) {
	switch {
	case f.err != nil:
		return jetstream.Message{}, f.err
	case seq == 0 || seq > uint64(len(f.entries)) || seq == f.hole:
		return jetstream.Message{}, jetstream.ErrNoMessage
	}
	return jetstream.Message{Seq: seq, Data: slices.Clone(f.entries[seq-1])}, nil
}

func (f *fakeLog) GetDirect(ctx context.Context, seq uint64) (jetstream.Message, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	msg, err := f.getLocked(seq)
	if copies := f.direct[seq]; err == nil && len(copies) > 0 {
		msg.Data, f.direct[seq] = slices.Clone(copies[0]), copies[1:]
	}
	return msg, err
}

func (f *fakeLog) Read(ctx context.Context, from uint64, fn func(jetstream.Message) error) (uint64, error) {
	f.with(func() { f.reads = append(f.reads, from) })
	for seq := from; ; seq++ {
		f.mu.Lock()
		first, hole, last, pace := f.id.FirstSeq, f.hole, uint64(len(f.entries)), f.pace
		f.mu.Unlock()
		if from < first {
			return seq - 1, &jetstream.PurgedError{Want: from, First: first}
		}
		if seq == hole && last > hole {
			return seq - 1, &jetstream.GapError{Want: hole, Got: hole + 1}
		}
		if pace > 0 {
			select {
			case <-ctx.Done():
				return seq - 1, context.Cause(ctx)
			case <-time.After(pace):
			}
		}
		msg, err := f.GetDirect(ctx, seq)
		if errors.Is(err, jetstream.ErrNoMessage) {
			return seq - 1, nil
		}
		if err == nil {
			err = fn(msg)
		}
		if err != nil {
			return seq - 1, err
		}
	}
}

// unit is one node without server, catalog and service: what Node.assemble puts together.
type unit struct {
	t       *testing.T
	f       *fakeLog
	name    string
	guard   *guard
	prop    *propose.Proposer
	pool    *next.Pool
	replica *replica
	checker *checker
	store   *fakeStore
	lag     atomic.Pointer[lagWatch]
	silent  atomic.Bool   // what lag hears of the watch
	conns   atomic.Uint64 // how often the connection was made anew

	cancel context.CancelFunc
	ended  sync.WaitGroup
}

// fakeStore takes deltas, or blocks while it is told to.
type fakeStore struct {
	mu     sync.Mutex // guards all below
	deltas []apply.Delta
	block  chan struct{}
	err    error
	took   func(apply.Delta)
}

func (s *fakeStore) Submit(ctx context.Context, d apply.Delta) error {
	s.mu.Lock()
	block := s.block
	s.mu.Unlock()
	if block != nil {
		select {
		case <-block:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return s.err
	}
	s.deltas = append(s.deltas, d)
	if s.took != nil {
		s.took(d)
	}
	return nil
}

type unitOption func(*unitOptions)

type unitOptions struct {
	machine *apply.Machine
	witness apply.Head
	catalog wire.ID
}

// remembering starts a node with the state of the log's first n entries, as they are now.
func (f *fakeLog) remembering(t *testing.T, n int) unitOption {
	m := f.machine(t, n)
	return func(o *unitOptions) { o.machine = m }
}

// diverged starts a node that has applied the log's first n entries, and whose state is another all the same: more was carved
// of orders.
func (f *fakeLog) diverged(t *testing.T, n int, more byte) unitOption {
	t.Helper()
	m := f.machine(t, n)
	r := apply.NewRestorer()
	for rec := range m.Records() {
		if string(rec.Key) == "sorders" {
			rec.Value = slices.Clone(rec.Value)
			rec.Value[len(rec.Value)-2] += more // the hwm, below 128
		}
		if err := r.Add(rec); err != nil {
			t.Fatal(err)
		}
	}
	head := m.Head()
	head.Digest[0] ^= more
	other, err := r.Machine(head)
	if err != nil {
		t.Fatal(err)
	}
	return func(o *unitOptions) { o.machine = other }
}

func (f *fakeLog) machine(t *testing.T, n int) *apply.Machine {
	t.Helper()
	f.mu.Lock()
	entries := slices.Clone(f.entries[:n]) // nodes that run already may append meanwhile
	f.mu.Unlock()
	m := apply.New()
	for i, e := range entries {
		if _, _, err := m.Apply(uint64(i+1), slices.Clone(e)); err != nil {
			t.Fatal(err)
		}
	}
	return m
}

// start runs a node until the test ends, or stop.
func (f *fakeLog) start(t *testing.T, name string, opts ...unitOption) *unit {
	t.Helper()
	o := unitOptions{machine: apply.New(), catalog: catalogOf(name)}
	for _, opt := range opts {
		opt(&o)
	}
	u := &unit{t: t, f: f, name: name, guard: newGuard(), store: &fakeStore{}}
	cfg := propose.DefaultConfig()
	cfg.Header = wire.Header{
		ClusterID: f.id.ClusterID, Level: wire.Level, Node: []byte(name), AutoCreate: true,
		ID:       wire.EntryID{Incarnation: wire.NewID()},
		Defaults: wire.Settings{First: 1, Max: 1 << 40, MaxCount: 1 << 20},
	}
	cfg.Twin = func(seq uint64) { u.guard.Fence(fmt.Sprintf("a copy of this process made the entry at %d", seq)) }
	u.prop = propose.New(cfg, &ownLog{u, func() error { return u.checker.mayAppend() }},
		func() (uint64, wire.Digest) { h := u.replica.Head(); return h.Cursor, h.Digest },
		func(seq, cursor uint64) { u.guard.Fence(fmt.Sprintf("the log lost entries: %d at %d", cursor, seq)) })
	u.pool = next.New(next.DefaultConfig(), u.prop)
	u.guard.setGates(u.prop, u.pool)
	u.replica = newReplica(o.machine, o.witness, f, u.store, replicaEvents{
		fence:    func(reason string) { u.guard.Fence(reason) },
		stopped:  func() { u.checker.Suspect() },
		halt:     func(err error) { u.guard.HaltForGood(err.Error()) },
		advanced: u.pool.Advanced,
		applied: func(id wire.EntryID, seq uint64, data []byte, outcomes []wire.Outcome) {
			if l := u.lag.Load(); l != nil && id.Incarnation == cfg.Header.ID.Incarnation {
				l.Applied()
			}
			u.prop.Applied(id, seq, data, outcomes)
		},
		checked:   func(seq uint64, e *wire.Entry, op *wire.Op, a agreement) { u.checker.Observe(seq, e, op, a) },
		forgotten: func(node string) { u.checker.Forgotten(node) },
		differs:   func(node string, cursor uint64) { u.checker.Differs(node, cursor) },
	}, quiet)
	u.checker = newChecker(name, cfg.Header.ID.Incarnation, o.catalog, o.witness, f, u.replica, u.prop, u.guard, quiet)
	u.checker.conns = u.conns.Load
	f.with(func() { f.feeds[name] = u.replica.Offer })

	ctx, cancel := context.WithCancel(context.Background())
	u.cancel = cancel
	u.checker.Begin("start")
	for _, run := range []func(context.Context) error{u.prop.Run, u.pool.Run, u.replica.Run, u.checker.Run} {
		u.ended.Go(func() {
			if err := run(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	t.Cleanup(u.stop)
	return u
}

// stop ends the node, and wants its goroutines to end.
func (u *unit) stop() {
	u.f.with(func() { delete(u.f.feeds, u.name) })
	u.cancel()
	u.ended.Wait()
}

// Append is the log as the node's proposer has it.
func (u *unit) Append(tag uint64, id string, data []byte) error {
	u.f.mu.Lock()
	if u.f.vanish || u.f.err != nil {
		u.f.mu.Unlock()
		return nil
	}
	seq, duplicate := u.f.ids[id]
	if !duplicate {
		seq = u.f.putLocked(slices.Clone(data))
		u.f.ids[id] = seq
	}
	u.f.mu.Unlock()
	u.prop.Acked(tag, seq, duplicate, nil)
	u.checker.Stored(seq)
	u.replica.Expect(seq)
	return nil
}

// ask submits a reservation and returns where its answer will stand.
func (u *unit) ask(n uint64) <-chan propose.Result {
	answers := make(chan propose.Result, 2) // a second answer would not be lost
	u.prop.Submit(&propose.Request{
		Ops: wire.AppendOp(nil, reserveOp(n)), N: 1, Deadline: time.Now().Add(4 * time.Second),
		Done: func(r propose.Result) {
			r.Outcomes = slices.Clone(r.Outcomes)
			answers <- r
		},
	})
	return answers
}

// state wants the node to be in a state, with a reason that holds words.
func (u *unit) state(want, words string) {
	u.t.Helper()
	wantState(u.t, u.name, u.guard.State, want, words)
}

// pass lets the bubble's time pass.
func pass(d time.Duration) {
	time.Sleep(d) // of the bubble: it ends when everything else waits
	synctest.Wait()
}

// ops counts the operations of a kind in the log, for which want holds.
func (f *fakeLog) ops(t *testing.T, kind wire.Kind, want func(*wire.Entry, *wire.Op) bool) (n int) {
	t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	for i, data := range f.entries {
		var e wire.Entry
		if err := wire.DecodeEntry(data, &e); err != nil {
			t.Fatalf("entry %d: %v", i+1, err)
		}
		for j := range e.Ops {
			if e.Ops[j].Kind == kind && want(&e, &e.Ops[j]) {
				n++
			}
		}
	}
	return n
}

// contradictions counts the proofs that node has published.
func (f *fakeLog) contradictions(t *testing.T, node string) int {
	t.Helper()
	return f.ops(t, wire.KindCheck, func(e *wire.Entry, op *wire.Op) bool {
		return string(e.Node) == node && op.Check.Verdict == wire.VerdictContradiction
	})
}
