package propose

import (
	"bytes"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/allocnode/allocnode"
	"github.com/allocnode/allocnode/internal/mutant"
	"github.com/allocnode/allocnode/internal/wire"
)

// Log is where entries go. Append hands one over and returns; tag comes back with the log's acknowledgement.
type Log interface {
	Append(tag uint64, msgID string, data []byte) error
}

// Config is what a proposer needs to know. All fields but the zero-able ones of Header are required.
type Config struct {
	// Header is what every entry of this node begins with. Counter, Cursor and Digest are filled in for each.
	Header wire.Header

	InFlight   int           // entries under way at a time, 1 and up
	Retry      time.Duration // after this long without being applied an entry is appended again
	MaxWaiting int           // requests that may wait in the queue, and as many of the node's own; one more is refused
	MaxBytes   int           // encoded operations of one entry, in bytes
	MaxOps     int           // operations of one entry

	// Twin is called, from Applied, when another process goes on as this run of this node: see there.
	Twin func(seq uint64)
}

// DefaultConfig is Config without its Header. Two entries in flight were measured to be better than one or four.
func DefaultConfig() Config {
	return Config{
		InFlight:   2,
		Retry:      time.Second,
		MaxWaiting: 1 << 16,
		MaxBytes:   256 << 10,
		MaxOps:     wire.MaxEntryOps,
	}
}

// tick is how often deadlines and retries are looked at while anything waits.
const tick = 50 * time.Millisecond

// maxWaitingBytes bounds the encoded operations in the queue: what is above it when a request comes refuses it.
const maxWaitingBytes = 16 << 20

// remembered is for how many entries the cursor is kept that an acknowledgement is compared with. Two are under way at a
// time, so that the answer to an older one has been on its way for very long.
const remembered = 256

// gate says what happens to users' requests.
type gate uint8

const (
	gateHeld   gate = iota // wait: the node is checking the log
	gateOpen               // go
	gateClosed             // refused, with Proposer.refusal
)

// Proposer is one node's end of the log. See the package's invariants.
type Proposer struct {
	cfg  Config
	log  Log
	head func() (cursor uint64, digest wire.Digest)
	lost func(seq, cursor uint64)
	wake chan struct{} // capacity 1: Run has something to look at

	mu      sync.Mutex // guards all below
	gate    gate
	refusal *allocnode.Error // why, while gateClosed
	fenced  bool             // gateClosed for good
	ticket  uint64           // of the last Hold; 0 is none
	stopped bool             // Run has returned: nothing will go out any more
	queue   []*Request
	bytes   int        // of the queue's operations
	ops     int        // the queue's operations
	early   int        // so many of them let an entry go out while another is under way; 0: a lane must become free
	own     []*Request // the queue of control requests
	counter uint64     // of the last entry made
	flights map[uint64]*flight
	held    []*flight // applied while the gate was held
	swept   time.Time // when deadlines and retries were last looked at
	soonest time.Time // no request that is here has a deadline before it; zero: none is here

	// made holds the last entries by counter modulo its length. It outlives the flights: the proof that an
	// acknowledgement may bring counts also when all requesters have given up.
	made [remembered]struct{ counter, cursor uint64 }
}

// New makes a proposer whose gate is held. head gives the node's cursor and digest. lost is called when an
// acknowledgement proves that the log lost entries: it stored an entry at seq although this node had applied cursor >=
// seq before it was made.
func New(cfg Config, log Log, head func() (uint64, wire.Digest), lost func(seq, cursor uint64)) *Proposer {
	return &Proposer{
		cfg: cfg, log: log, head: head, lost: lost,
		wake:    make(chan struct{}, 1),
		flights: make(map[uint64]*flight),
		ticket:  1, // so that 0, which nobody was given, opens nothing
	}
}

// Submit takes a user's request. It never blocks; the answer, at once or later, is a call of r.Done.
func (p *Proposer) Submit(r *Request) {
	err := p.admit(r)
	if err == nil {
		err = p.enqueue(r)
	}
	if err != nil {
		r.Done(Result{Err: err})
	}
}

// admit refuses what could never stand in an entry. An operation that replicas do not understand must not reach the log
// from any caller: all of them would halt at it, for good.
func (p *Proposer) admit(r *Request) *allocnode.Error {
	if r.N > p.cfg.MaxOps || len(r.Ops) > p.cfg.MaxBytes {
		return allocnode.Errorf(allocnode.CodeTooLarge, "%d operations of %d bytes: one request may have %d of %d bytes",
			r.N, len(r.Ops), p.cfg.MaxOps, p.cfg.MaxBytes)
	}
	if err := wire.CheckOps(r.Ops, r.N); err != nil {
		return allocnode.Errorf(allocnode.CodeBadRequest, "malformed: %v", err)
	}
	return nil
}

// SubmitControl takes a request of the node's own: it goes out, and is answered, also while the gate is held or closed.
func (p *Proposer) SubmitControl(r *Request) {
	r.control = true
	p.Submit(r)
}

func (p *Proposer) enqueue(r *Request) *allocnode.Error {
	p.mu.Lock()
	defer p.mu.Unlock()
	q := &p.queue
	if r.control {
		q = &p.own
	}
	switch {
	case p.stopped:
		return allocnode.Errorf(allocnode.CodeUnavailable, "the node is stopping")
	case !r.control && p.gate == gateClosed:
		return p.refusal
	case len(*q) >= p.cfg.MaxWaiting || !r.control && p.bytes > maxWaitingBytes:
		return allocnode.Errorf(allocnode.CodeUnavailable, "%d requests wait already", len(*q))
	}
	*q = append(*q, r)
	if !r.control {
		p.bytes += len(r.Ops)
		p.ops += r.N
	}
	if p.soonest.IsZero() || r.Deadline.Before(p.soonest) {
		p.soonest = r.Deadline
	}
	// Whoever came before has woken Run, or waits for a lane or the gate, and they do.
	if len(*q) == 1 || p.early > 0 && p.ops >= p.early {
		p.early = 0
		p.wakeLocked()
	}
	return nil
}

func (p *Proposer) wakeLocked() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// Run builds entries and appends them until ctx ends. Then it gives every request that is still here its answer.
func (p *Proposer) Run(ctx context.Context) error {
	timer := time.NewTimer(tick)
	defer timer.Stop()
	for {
		busy := p.step()
		if busy {
			timer.Reset(tick)
		}
		select {
		case <-ctx.Done():
			p.stop()
			return nil
		case <-p.wake:
		case <-timer.C:
		}
	}
}

// step appends what may go out now, once, and answers what is too late. It reports whether anything is left that a
// deadline or a retry could concern.
func (p *Proposer) step() (busy bool) {
	now := time.Now()
	var due answers
	var again []*flight
	p.mu.Lock()
	if now.Sub(p.swept) >= tick { // not for every request that comes: it looks at all of them
		p.swept = now
		p.expireLocked(now, &due)
		again = p.retriesLocked(now)
	}
	fresh := p.takeLocked(now)
	busy = len(p.queue)+len(p.own)+len(p.flights)+len(p.held) > 0
	p.mu.Unlock()

	due.give()
	for _, f := range again {
		p.append(f)
	}
	for _, f := range fresh {
		if p.encode(f) {
			p.append(f)
		}
	}
	return busy
}

// append hands a flight to the log. An error is not an answer: the flight stays, and is appended again.
func (p *Proposer) append(f *flight) {
	if err := p.log.Append(f.id.Counter, f.id.String(), f.data); err != nil {
		p.Acked(f.id.Counter, 0, false, err)
	}
}

// takeLocked makes flights of the requests that may go out now: one of the node's own and one of the users'. They never
// share an entry, so that the node's own does not wait for a free lane.
func (p *Proposer) takeLocked(now time.Time) (fresh []*flight) {
	users, own, fullest, slow := 0, 0, 0, false
	for _, f := range p.flights {
		if f.control {
			own++
			continue
		}
		users++
		fullest = max(fullest, f.ops)
		slow = slow || now.Sub(f.launched) >= tick
	}
	if len(p.own) > 0 && own < p.cfg.InFlight {
		fresh = append(fresh, p.launchLocked(now, &p.own))
		if own++; len(p.own) > 0 && own < p.cfg.InFlight {
			p.wakeLocked()
		}
	}
	// While an entry is under way, the next goes out only when it is as full, or the other is slow. Else a busy node would
	// cut what it gets into ever smaller entries, each of which costs the cluster the same syncs.
	p.early = 0
	switch {
	case len(p.queue) == 0 || p.gate != gateOpen || users >= p.cfg.InFlight:
	case p.ops >= fullest || slow:
		f := p.launchLocked(now, &p.queue)
		p.bytes -= f.size
		p.ops -= f.ops
		fresh = append(fresh, f)
		if users++; users < p.cfg.InFlight {
			if p.early = max(fullest, f.ops); p.ops >= p.early {
				p.wakeLocked()
			}
		}
	default:
		p.early = fullest
	}
	return fresh
}

// launchLocked takes the first requests of q, as many as one entry may hold, and puts their entry among the flights. It
// stands there before it is appended: the log may bring it back at once.
func (p *Proposer) launchLocked(now time.Time, q *[]*Request) *flight {
	n, ops, size := 0, 0, 0
	for _, r := range *q {
		if ops+r.N > p.cfg.MaxOps || size+len(r.Ops) > p.cfg.MaxBytes {
			break
		}
		n, ops, size = n+1, ops+r.N, size+len(r.Ops)
	}
	taken, left := (*q)[:n], (*q)[n:]
	p.counter++
	f := &flight{
		id:      wire.EntryID{Incarnation: p.cfg.Header.ID.Incarnation, Counter: p.counter},
		seats:   make([]seat, n),
		waiting: n,
		ops:     ops,
		size:    size,
		control: taken[0].control,
		again:   now.Add(p.cfg.Retry),

		launched: now,
	}
	for i, r := range taken {
		f.seats[i] = seat{r, r.N}
	}
	p.flights[f.id.Counter] = f
	clear(taken) // the array stays, what it held shall not
	if len(left) == 0 {
		left = (*q)[:0]
	}
	*q = left
	return f
}

// encode makes the bytes of a new flight, whose cursor and digest are the node's of this moment. It reports false when
// all its requests have been answered meanwhile: then it need not go out.
func (p *Proposer) encode(f *flight) bool {
	h := p.cfg.Header
	h.ID = f.id
	h.Cursor, h.Digest = p.head()
	data := wire.AppendHeader(make([]byte, 0, 256+f.size), &h)

	p.mu.Lock()
	if f.waiting == 0 {
		p.mu.Unlock()
		return false
	}
	for _, s := range f.seats {
		if s.request == nil {
			// Given up before its bytes were taken: its place is filled with an operation that changes nothing, so that
			// the others keep theirs.
			for range s.n {
				data = wire.AppendOp(data, &wire.Op{Kind: wire.KindBarrier})
			}
			continue
		}
		data = append(data, s.request.Ops...)
	}
	p.mu.Unlock()
	wire.Seal(data) // over up to MaxBytes: not under the mutex

	p.mu.Lock()
	defer p.mu.Unlock()
	m := &p.made[f.id.Counter%remembered]
	m.counter, m.cursor = f.id.Counter, h.Cursor
	f.data = data
	return true
}

// Applied tells what became of the entry whose bytes are data, from the node's apply loop, in log order. Entries of other
// nodes and other runs are none of ours. outcomes is copied where it must outlive the call.
//
// An entry that bears an id of this run, and is not the one made under it, is of a copy of this process: a machine that
// was restored from an image of its memory, say. Both would answer one another's entries, so nobody is answered, and
// Config.Twin is called.
func (p *Proposer) Applied(id wire.EntryID, seq uint64, data []byte, outcomes []wire.Outcome) {
	if id.Incarnation != p.cfg.Header.ID.Incarnation && !mutant.NoIncarnation {
		return
	}
	p.mu.Lock()
	f := p.flights[id.Counter]
	if f == nil {
		p.mu.Unlock()
		return // given up: the range is a gap
	}
	if !bytes.Equal(f.data, data) && !mutant.NoIncarnation { // one that is not encoded yet has none
		p.mu.Unlock()
		p.cfg.Twin(seq)
		return
	}
	delete(p.flights, id.Counter)
	f.seq, f.outcomes = seq, outcomes
	land := f.control || p.gate == gateOpen
	if !land { // the gate is held: a closed one has no users' flights left
		f.outcomes = slices.Clone(outcomes)
		p.held = append(p.held, f)
	}
	p.wakeLocked()
	p.mu.Unlock()
	if land {
		f.land()
	}
}

// Acked tells how the log answered an append: stored at seq, known already, or err. It is a hint for the retry, and a
// witness: an entry stored at or below the cursor its proposer had proves that the log lost entries.
func (p *Proposer) Acked(tag, seq uint64, duplicate bool, err error) {
	p.mu.Lock()
	if f := p.flights[tag]; f != nil && err != nil {
		f.again = time.Now().Add(min(p.cfg.Retry, 2*tick))
	}
	m := p.made[tag%remembered]
	p.mu.Unlock()
	if err == nil && !duplicate && m.counter == tag && seq <= m.cursor {
		p.lost(seq, m.cursor)
	}
}

// Hold keeps users' requests and answers back until Open is called with the ticket that Hold returned, or Refuse.
func (p *Proposer) Hold() (ticket uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ticket++
	if !p.fenced {
		p.gate, p.refusal = gateHeld, nil
	}
	return p.ticket
}

// Open lets users' requests go, and gives the answers that were held. It does nothing and returns false when Hold, Refuse
// or Fence was called after the Hold that gave the ticket: whatever was found safe then may no longer be.
func (p *Proposer) Open(ticket uint64) bool {
	var landed []*flight
	p.mu.Lock()
	open := p.gate == gateHeld && ticket == p.ticket
	if open {
		p.gate = gateOpen
		landed, p.held = p.held, nil
		p.wakeLocked()
	}
	p.mu.Unlock()
	for _, f := range landed {
		f.land()
	}
	return open
}

// Refuse answers every user's request with err from now on, until Hold. Those that are in an entry get unknown_outcome:
// the entry may stand in the log.
func (p *Proposer) Refuse(err *allocnode.Error) { p.close(err, false) }

// Fence is Refuse for good: no Hold or Open changes it.
func (p *Proposer) Fence(err *allocnode.Error) { p.close(err, true) }

func (p *Proposer) close(err *allocnode.Error, fence bool) {
	var due answers
	p.mu.Lock()
	p.closeLocked(err, fence, &due)
	p.mu.Unlock()
	due.give()
}

func (p *Proposer) closeLocked(err *allocnode.Error, fence bool, due *answers) {
	if !p.fenced {
		p.gate, p.refusal, p.fenced = gateClosed, err, fence
	}
	p.queue = due.dropIf(p.queue, always, err)
	p.bytes, p.ops = 0, 0
	for _, f := range p.flights {
		if !f.control {
			f.giveUp(due, always, err.Message)
			delete(p.flights, f.id.Counter)
		}
	}
	for _, f := range p.held {
		f.giveUp(due, always, err.Message)
	}
	p.held = nil
}

// Waiting is how many requests have no answer yet: in the queue, and in entries.
func (p *Proposer) Waiting() (queued, inFlight int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, f := range p.flights {
		inFlight += f.waiting
	}
	for _, f := range p.held {
		inFlight += f.waiting
	}
	return len(p.queue) + len(p.own), inFlight
}

// stop answers everything that is left. What comes later is refused by Submit. All under one lock: between closing the
// gate and stopping, another goroutine could hold the gate and submit what nobody would ever answer.
func (p *Proposer) stop() {
	err := allocnode.Errorf(allocnode.CodeUnavailable, "the node is stopping")
	var due answers
	p.mu.Lock()
	p.stopped = true
	p.closeLocked(err, false, &due)
	p.own = due.dropIf(p.own, always, err)
	for _, f := range p.flights {
		f.giveUp(&due, always, err.Message)
		delete(p.flights, f.id.Counter)
	}
	p.mu.Unlock()
	due.give()
}
