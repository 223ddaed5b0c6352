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
	halt    func(reason error)
	applied func(id wire.EntryID, seq uint64, outcomes []wire.Outcome)
	checked func(seq uint64, e *wire.Entry, op *wire.Op)
}

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

	feed  chan jetstream.Message // what the feed brings; full: the message is dropped, and the gap is read
	want  atomic.Uint64          // the log is known to reach this seq
	doubt chan struct{}          // capacity 1: read the stream

	mu      sync.RWMutex // guards machine: written by Run's goroutine only, read by any
	machine *apply.Machine
	head    atomic.Pointer[apply.Head]

	pauseMu sync.Mutex    // guards paused
	paused  chan struct{} // not nil: nothing is applied until it is closed

	mute   bool // a fence was told: no more outcomes. Run's goroutine only
	halted bool // nothing more is applied. Run's goroutine only
}

func newReplica(m *apply.Machine, log logReader, store deltaStore, events replicaEvents, logger *slog.Logger) *replica {
	r := &replica{
		log: log, store: store, events: events, logger: logger, machine: m,
		feed:  make(chan jetstream.Message, 4096),
		doubt: make(chan struct{}, 1),
	}
	r.publishHead()
	return r
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

// patience is how long the feed may take to bring what the log is known to hold, before it is read from the stream.
const patience = 50 * time.Millisecond

// Run takes the log until ctx ends.
func (r *replica) Run(ctx context.Context) error {
	timer := time.NewTimer(patience)
	timer.Stop()
	defer timer.Stop()
	if err := r.read(ctx); err != nil && ctx.Err() == nil { // what came before the feed was subscribed
		r.logger.Warn("read the log", "from", r.Head().Cursor, "error", err)
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case msg := <-r.feed:
			r.take(ctx, msg)
		case <-r.doubt:
			if r.want.Load() > r.Head().Cursor {
				timer.Reset(patience)
			}
		case <-timer.C:
			if want := r.want.Load(); want > r.Head().Cursor {
				r.fill(ctx, want)
			}
		}
	}
}

// take applies a message of the feed, after what is missing before it.
func (r *replica) take(ctx context.Context, msg jetstream.Message) {
	if msg.Seq > r.Head().Cursor+1 {
		r.fill(ctx, msg.Seq-1)
	}
	if msg.Seq <= r.Head().Cursor+1 {
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

// read applies what one answering replica has of the log, from the cursor on.
func (r *replica) read(ctx context.Context) error {
	tryCtx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	_, err := r.log.Read(tryCtx, max(r.Head().Cursor, 1), func(msg jetstream.Message) error {
		r.apply(ctx, msg)
		if r.halted {
			return errHalted
		}
		return context.Cause(ctx)
	})
	var purged *jetstream.PurgedError
	switch {
	case errors.As(err, &purged):
		r.stop(fmt.Sprintf("the log was purged: it begins at seq %d, this node has applied seq %d", purged.First, r.Head().Cursor))
		return nil
	case errors.Is(err, errHalted):
		return nil
	}
	return err
}

// apply folds one message in, and tells what became of it.
func (r *replica) apply(ctx context.Context, msg jetstream.Message) {
	if r.halted || !r.awaitResumed(ctx) {
		return
	}
	out, delta, err := r.fold(msg)
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
	}
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
	for i := range out.Ops {
		if op := &out.Entry.Ops[i]; op.Kind == wire.KindCheck && out.Ops[i].Reject == wire.Accepted {
			r.events.checked(msg.Seq, out.Entry, op)
		}
	}
	r.events.applied(out.Entry.ID, msg.Seq, out.Ops)
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
		if out, delta, err = r.fold(msg); !errors.Is(err, wire.ErrCorrupt) {
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
}
