package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/allocnode/allocnode/apply"
	"github.com/allocnode/allocnode/internal/mutant"
	"github.com/allocnode/allocnode/internal/wire"
	"github.com/allocnode/allocnode/jetstream"
)

// logReader is how a replica reads what the feed did not bring.
type logReader interface {
	Read(ctx context.Context, from uint64, fn func(jetstream.Message) error) (last uint64, err error)
	GetDirect(ctx context.Context, seq uint64) (jetstream.Message, error)
}

// deltaStore takes what each entry changed, in order. It may wait; it does not answer for the disk.
type deltaStore interface {
	Submit(ctx context.Context, d apply.Delta) error
}

// replicaEvents is who is told of what was applied. All are called from the replica's goroutine, in log order, without
// its lock. fence comes before the outcomes of the entry that raised it, and none come after it.
type replicaEvents struct {
	fence   func(reason string)
	stopped func() // after fence, when the log cannot be followed any further: what was seen came from any replica
	halt    func(reason error)
	applied func(id wire.EntryID, seq uint64, data []byte, outcomes []wire.Outcome)

	// advanced comes before applied, for each accepted advance: the id that it names.
	advanced func(sequence string, to uint64)
	checked  func(seq uint64, e *wire.Entry, op *wire.Op, agrees agreement)

	// forgotten is that a node's name was released.
	forgotten func(node string)
	differs   func(node string, cursor uint64) // node has another state than this one, at cursor
}

// agreement is what an entry's digest, its proposer's at the entry's cursor, says of the two states.
type agreement uint8

const (
	unknown  agreement = iota // this node no longer knows, or never knew, its own digest at that cursor
	agreed                    // the same state
	differed                  // one of the two is wrong
)

// replica is one node's copy of the state machine: it takes the log in order, from the feed where it can and from the
// stream where the feed has a gap, and tells what became of each entry.
//
// Invariants:
//
//  1. Entries are applied in the order of seq, each once; the delta goes to the store before anyone is told the outcomes.
//  2. Every read of the stream begins at the cursor itself, so that a log that was rewritten below it is noticed.
//  3. After a proof against the log nobody is told an outcome; after a halt nothing is applied.
type replica struct {
	log    logReader
	store  deltaStore
	events replicaEvents
	logger *slog.Logger

	witness apply.Head // what the catalog remembers beyond its state: the log must come by there

	feed  chan jetstream.Message // what the feed brings; full: the message is dropped, and the gap is read
	want  atomic.Uint64          // the log is known to reach this seq
	doubt chan struct{}          // capacity 1: read the stream
	hint  atomic.Uint64          // the feed last spoke of this seq to Wake
	woken chan struct{}          // capacity 1: look for it
	audit chan func()            // capacity 1: compare all that is remembered with the log, then call it

	first    uint64        // seq at which the log begins; 0 is 1
	patience time.Duration // how long the feed may take to bring what the log is known to hold

	mu      sync.RWMutex // guards machine: written by Run's goroutine only, read by any
	machine *apply.Machine
	head    atomic.Pointer[apply.Head]

	pauseMu sync.Mutex    // guards paused
	paused  chan struct{} // not nil: nothing is applied until it is closed

	digests [4096]wire.Digest // after the last entries, each at its seq modulo the length. Run's goroutine only
	since   uint64            // the digests are known from this seq on

	holes  int  // reads in a row that found a middle missing. Run's goroutine only
	mute   bool // a fence was told: no more outcomes. Run's goroutine only
	halted bool // nothing more is applied. Run's goroutine only
}

func newReplica(m *apply.Machine, witness apply.Head, log logReader, store deltaStore, events replicaEvents,
	logger *slog.Logger) *replica {
	r := &replica{
		log: log, store: store, events: events, logger: logger, machine: m, witness: witness,
		feed:  make(chan jetstream.Message, 4096),
		doubt: make(chan struct{}, 1),
		woken: make(chan struct{}, 1),
		audit: make(chan func(), 1),

		patience: patience,
	}
	_, r.mute = m.Fence() // told by whoever loaded the state
	r.publishHead()
	r.since = r.Head().Cursor
	r.keepDigest(*r.head.Load())
	return r
}

func (r *replica) keepDigest(h apply.Head) { r.digests[h.Cursor%uint64(len(r.digests))] = h.Digest }

// agrees holds the digest that an entry carries against this node's own.
func (r *replica) agrees(e *wire.Entry) agreement {
	cursor := r.Head().Cursor
	switch {
	case e.Cursor < r.since || e.Cursor > cursor || e.Cursor+uint64(len(r.digests)) <= cursor:
		return unknown
	case r.digests[e.Cursor%uint64(len(r.digests))] != e.Digest:
		return differed
	}
	return agreed
}

func (r *replica) publishHead() {
	head := r.machine.Head()
	r.head.Store(&head)
}

// Head is the head after the last entry applied. Any goroutine may ask.
func (r *replica) Head() apply.Head { return *r.head.Load() }

// View calls fn with the machine, which must not be changed or kept. Any goroutine may call it; fn must not block.
func (r *replica) View(fn func(*apply.Machine)) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	fn(r.machine)
}

// Offer hands over a message of the feed. It does not block.
func (r *replica) Offer(msg jetstream.Message) {
	select {
	case r.feed <- msg:
	default:
		r.Expect(msg.Seq)
	}
}

// Expect says that the log reaches seq. What the feed does not bring of it soon is read from the stream.
func (r *replica) Expect(seq uint64) {
	for {
		old := r.want.Load()
		if seq <= old {
			return
		}
		if r.want.CompareAndSwap(old, seq) {
			break
		}
	}
	select {
	case r.doubt <- struct{}{}:
	default:
	}
}

// Behind reports whether the log is known to hold what was not applied yet.
func (r *replica) Behind() bool { return r.want.Load() > r.Head().Cursor }

// Wake is Offer for a feed that anybody may have written: its bytes are not looked at, and its seq is not believed. It has
// the stream read. It does not block.
func (r *replica) Wake(msg jetstream.Message) {
	r.hint.Store(msg.Seq)
	select {
	case r.woken <- struct{}{}:
	default:
	}
}

// look reads the stream, and again for some 30 ms where the replica that answered lacks what the feed spoke of. What does
// not come then was forged, or comes with the next look of the watch.
func (r *replica) look(ctx context.Context) {
	for wait := time.Millisecond; wait <= 16*time.Millisecond; wait *= 2 {
		if err := r.read(ctx); err != nil && ctx.Err() == nil {
			r.logger.Warn("read the log", "from", r.Head().Cursor, "error", err)
		}
		if r.Head().Cursor >= r.hint.Load() || r.halted {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
	}
}

// patience is how long the feed may take to bring what the log is known to hold, before it is read from the stream.
const patience = 50 * time.Millisecond

// Run takes the log until ctx ends.
func (r *replica) Run(ctx context.Context) error {
	timer := time.NewTimer(patience)
	timer.Stop()
	defer timer.Stop()
	var due uint64 // the timer runs for this seq; 0 when it does not. New doubts must not put an old one off
	doubt := func() {
		if want := r.want.Load(); due == 0 && want > r.Head().Cursor {
			due = want
			timer.Reset(r.patience)
		}
	}
	if err := r.read(ctx); err != nil && ctx.Err() == nil { // what came before the feed was subscribed
		r.logger.Warn("read the log", "from", r.Head().Cursor, "error", err)
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case msg := <-r.feed:
			r.take(ctx, msg)
		case <-r.woken:
			r.look(ctx)
		case then := <-r.audit:
			if r.compareAll(ctx) {
				then()
			}
		case <-r.doubt:
			doubt()
		case <-timer.C:
			r.fill(ctx, due)
			due = 0
			doubt()
		}
	}
}

// take applies a message of the feed, after what is missing before it.
func (r *replica) take(ctx context.Context, msg jetstream.Message) {
	if msg.Seq > r.Head().Cursor+1 && !mutant.Gap {
		r.fill(ctx, msg.Seq-1)
	}
	if msg.Seq <= r.Head().Cursor+1 || mutant.Gap {
		r.apply(ctx, msg)
	}
}

// fill reads the stream from the cursor until the state reaches seq, ctx ends, or nothing more is applied.
func (r *replica) fill(ctx context.Context, seq uint64) {
	for wait := 5 * time.Millisecond; r.Head().Cursor < seq && !r.halted; wait = min(2*wait, time.Second) {
		before := r.Head().Cursor
		// A replica that answers may lag, or none may answer: then the same is asked again, more and more slowly.
		if err := r.read(ctx); err != nil && ctx.Err() == nil {
			r.logger.Warn("read the log", "from", before, "to", seq, "error", err)
		}
		if r.Head().Cursor > before {
			wait = 5 * time.Millisecond
		}
		if r.Head().Cursor >= seq || r.halted {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
	}
}

var errHalted = errors.New("halted")

// apply folds one message in, and tells what became of it.
func (r *replica) apply(ctx context.Context, msg jetstream.Message) {
	if r.halted || !r.awaitResumed(ctx) {
		return
	}
	out, delta, err := r.foldWhole(msg)
	if errors.Is(err, wire.ErrCorrupt) {
		out, delta, err = r.reread(ctx, msg.Seq, err)
	}
	var rewritten *apply.ReplayError
	switch {
	case errors.As(err, &rewritten):
		r.stop(fmt.Sprintf("the log was rewritten: at seq %d stands another entry than this node applied there", rewritten.Seq))
		return
	case err != nil:
		r.halted = true
		r.events.halt(err)
		return
	case out.Replay:
		return
	case r.contradicted(delta.Head):
		r.stop(fmt.Sprintf("the log was rewritten: the state at seq %d is another than the one that this node's catalog remembers",
			msg.Seq))
		return
	}
	r.keepDigest(delta.Head)
	if err := r.store.Submit(ctx, delta); err != nil {
		// The delta is lost to the store: nothing may follow it there. The log has the entry.
		r.halted = true
		if ctx.Err() == nil {
			r.events.halt(err)
		}
		return
	}
	if out.Fence {
		fence, _ := r.machine.Fence()
		r.fence(fence.Reason)
	}
	if out.Entry == nil || out.Duplicate || r.mute {
		return
	}
	agrees := r.agrees(out.Entry)
	if agrees == differed { // before the outcomes: this node may be the one that is wrong
		r.events.differs(string(out.Entry.Node), out.Entry.Cursor)
	}
	for i := range out.Ops {
		op := &out.Entry.Ops[i]
		switch {
		case out.Ops[i].Reject != wire.Accepted:
		case op.Kind == wire.KindCheck:
			r.events.checked(msg.Seq, out.Entry, op, agrees)
		case op.Kind == wire.KindForget:
			r.events.forgotten(string(op.Name))
		case op.Kind == wire.KindAdvance:
			r.events.advanced(string(op.Name), op.Count)
		}
	}
	r.events.applied(out.Entry.ID, msg.Seq, out.Data, out.Ops)
}

// Pause stops applying before the next entry, until Resume. What cannot be stored must not pile up in memory, and an
// entry past it must not be answered.
func (r *replica) Pause() {
	r.pauseMu.Lock()
	defer r.pauseMu.Unlock()
	if r.paused == nil {
		r.paused = make(chan struct{})
	}
}

// Resume ends Pause.
func (r *replica) Resume() {
	r.pauseMu.Lock()
	defer r.pauseMu.Unlock()
	if r.paused != nil {
		close(r.paused)
		r.paused = nil
	}
}

// awaitResumed waits while paused, and reports false when ctx ended first.
func (r *replica) awaitResumed(ctx context.Context) bool {
	for {
		r.pauseMu.Lock()
		paused := r.paused
		r.pauseMu.Unlock()
		if paused == nil {
			return true
		}
		select {
		case <-paused:
		case <-ctx.Done():
			return false
		}
	}
}

// contradicted reports whether a rebuilt state has come to where the lost one was, and is another. The catalog finds it
// too, but only when it commits, and by then the node could have answered.
func (r *replica) contradicted(h apply.Head) bool {
	w := r.witness
	return h.Cursor == w.Cursor && h.Epoch == w.Epoch && h.ClusterID == w.ClusterID && h.Digest != w.Digest &&
		w.Digest != wire.Digest{} // another state's: this one is rebuilt in its place
}

// foldWhole is fold, which tells damaged bytes from others than those applied: one replica's damage at a seq that was
// applied long ago is no rewritten log.
func (r *replica) foldWhole(msg jetstream.Message) (apply.Outcomes, apply.Delta, error) {
	out, delta, err := r.fold(msg)
	var rewritten *apply.ReplayError
	if errors.As(err, &rewritten) {
		if damaged(msg.Data) {
			err = fmt.Errorf("entry at seq %d: %w", msg.Seq, wire.ErrCorrupt)
		}
	}
	return out, delta, err
}

func damaged(entry []byte) bool {
	return errors.Is(wire.DecodeEntry(entry, &wire.Entry{}), wire.ErrCorrupt)
}

func (r *replica) fold(msg jetstream.Message) (apply.Outcomes, apply.Delta, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	out, delta, err := r.machine.Apply(msg.Seq, msg.Data)
	r.publishHead()
	return out, delta, err
}

// rereads is how many other copies of an entry with a bad checksum are tried. Any replica may answer each, so that this
// many answers come from one damaged replica of three with a probability below one in a hundred thousand.
const rereads = 30

// reread tries to fold in other copies of a message whose bytes were damaged.
func (r *replica) reread(ctx context.Context, seq uint64, first error) (out apply.Outcomes, delta apply.Delta, err error) {
	r.logger.Error("the entry is damaged: read it from other replicas", "seq", seq, "error", first)
	err = first
	for range rereads {
		tryCtx, cancel := context.WithTimeout(ctx, time.Second)
		msg, getErr := r.log.GetDirect(tryCtx, seq)
		cancel()
		if getErr != nil {
			continue
		}
		if out, delta, err = r.foldWhole(msg); !errors.Is(err, wire.ErrCorrupt) {
			return out, delta, err
		}
	}
	return out, delta, err
}

// fence tells the proof, once, and no outcomes from then on. Entries are applied further: the state stays a witness.
func (r *replica) fence(reason string) {
	if !r.mute {
		r.mute = true
		r.events.fence(reason)
	}
}

// stop is fence where the log itself cannot be followed any further.
func (r *replica) stop(reason string) {
	r.halted = true
	r.fence(reason)
	r.events.stopped()
}
