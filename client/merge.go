package client

import (
	"context"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/allocnode/allocnode"
)

// seat is one caller's place: in the queue, then in a flight.
type seat struct {
	call
	since uint64 // where alone is set: of an attempt that another process may have made, or 0
	alone bool   // has a since of its own, so it needs a request of its own
	fresh bool   // alone, but its key was made here and is used for the first time

	outcome  // written once, under merger.mu, before answered
	answered atomic.Bool

	// Below is guarded by merger.mu.
	flight  *flight // nil while it waits in the queue
	place   int     // among the flight's seats
	wireKey string  // the key of its item in the flight; empty where the list's key names it
	left    bool    // its caller has gone
	dropped bool    // it was to go into another request, but its caller had gone
	apart   bool    // does not share an item with others
	group   uint64  // shares a request only with seats of the same group
	expired int     // how often a first attempt was refused as expired
	last    error   // why it is back in the queue
}

// outcome is what a caller gets, exactly once.
type outcome struct {
	r   allocnode.Range
	seq uint64
	err error
}

// merger makes few requests of many calls. While as many are under way as may be (lanes), what comes waits in the queue,
// and all of it goes into the next one.
type merger struct {
	mu     sync.Mutex // guards all below
	queue  []*seat
	gate   chan struct{} // what the callers of the queue wait at
	gone   int           // seats in queue whose callers have left
	calls  uint64        // that took a seat so far
	lanes  int
	groups uint64 // number of the last group made; 0 is everybody
	flying map[*flight]bool
	bounds map[string]uint64 // how many ids one shared item may ask for, where less than DefaultMaxCount was learnt
	lost   lostSeats
	closed bool
	closes chan struct{} // closed with it
}

func (m *merger) init() {
	m.gate = make(chan struct{})
	m.flying = make(map[*flight]bool)
	m.bounds = make(map[string]uint64)
	m.lost.byKey = make(map[string]*seat)
	m.closes = make(chan struct{})
}

// enqueue puts s at the end of the queue, and starts a lane for it where one is free. It returns the gate to wait at.
func (m *merger) enqueue(c *Client, s *seat) (gate chan struct{}, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return nil, ErrClosed
	}
	if m.lanes < c.cfg.inFlight {
		if !c.start(c.lane) {
			return nil, ErrClosed
		}
		m.lanes++
	}
	if s.alone {
		m.groups++
		s.group = m.groups
	}
	m.queue = append(m.queue, s)
	m.calls++
	return m.gate, nil
}

// gateOf is what s waits at, after the gate before it was opened and s had no outcome.
func (m *merger) gateOf(s *seat) chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	if s.flight == nil {
		return m.gate
	}
	return s.flight.gate
}

// giveLocked gives s its outcome, once. Its caller takes it when the gate is opened.
func (s *seat) giveLocked(o outcome) {
	s.outcome = o
	s.answered.Store(true)
}

// leftLocked takes s out of the queue. A caller that leaves costs a walk through the queue only now and then.
func (m *merger) leftLocked(s *seat) {
	s.left = true
	m.gone++
	if m.gone > len(m.queue)/2 {
		m.queue = slices.DeleteFunc(m.queue, func(s *seat) bool { return s.left })
		m.gone = 0
	}
}

// requeueLocked puts seats back, before all others, in their order. It keeps those whose callers are still there.
func (m *merger) requeueLocked(seats []*seat, why error) {
	var back []*seat
	for _, s := range seats {
		s.flight, s.wireKey = nil, ""
		if s.left {
			s.dropped = true
			continue
		}
		s.last = why
		back = append(back, s)
	}
	m.queue = append(back, m.queue...)
}

// lane sends one request after the other for as long as anything waits.
func (c *Client) lane() {
	pause := backoff{c.cfg.minBackoff, c.cfg.maxBackoff}
	for {
		ctx, f := c.merge.next(c)
		if f == nil {
			return
		}
		handedOn := false
		f.q.overdue = func() { handedOn = c.start(c.lane) }
		back := c.fly(ctx, f)
		switch {
		case handedOn:
			return
		case back:
			sleep(pause.next(), c.merge.closes)
		default:
			pause = backoff{c.cfg.minBackoff, c.cfg.maxBackoff}
			c.merge.gather(len(f.seats))
		}
	}
}

// gather lets the n callers that were just answered run for as long as they come back with more, so that all of them share
// the next request. What it costs is a turn of the scheduler for each turn in which the queue grows, and one more.
func (m *merger) gather(n int) {
	for had := -1; ; {
		m.mu.Lock()
		has := len(m.queue)
		m.mu.Unlock()
		if has <= had || has >= n {
			return
		}
		had = has
		runtime.Gosched()
	}
}

// next freezes what waits into a flight. With nothing to do it returns nil, and the caller's lane is free.
func (m *merger) next(c *Client) (context.Context, *flight) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.gone > 0 {
		m.queue = slices.DeleteFunc(m.queue, func(s *seat) bool { return s.left })
		m.gone = 0
	}
	if len(m.queue) == 0 || m.closed {
		m.lanes--
		return nil, nil
	}
	f := m.freezeLocked(c)
	c.stats.requests.Add(1)
	return m.launchLocked(f), f
}

// launchLocked readies f to be asked until the context ends.
func (m *merger) launchLocked(f *flight) context.Context {
	ctx, cancel := context.WithCancelCause(context.Background())
	f.running, f.cancel, f.done = true, cancel, make(chan struct{})
	m.flying[f] = true
	return ctx
}

// fly asks f until it has landed, or nobody waits for it any more. It reports whether its callers are back in the queue
// because nothing could be sent.
func (c *Client) fly(ctx context.Context, f *flight) (unsent bool) {
	m := &c.merge
	for again := true; again; {
		err := c.ask(ctx, &f.q)

		m.mu.Lock()
		f.err, f.open = err, f.q.open
		f.cancel(nil)
		done := f.done
		again, unsent = c.landLocked(f, err)
		if again {
			ctx = m.launchLocked(f)
		}
		landed := f.landed
		m.mu.Unlock()
		if landed {
			close(f.gate)
		}
		close(done)
	}
	return unsent
}

// close ends everything. Flights answer their own callers.
func (m *merger) close() {
	m.mu.Lock()
	if m.closed {
		m.mu.Unlock()
		return
	}
	m.closed = true
	close(m.closes)
	for f := range m.flying {
		f.cancel(ErrClosed)
	}
	for _, s := range m.queue {
		s.giveLocked(outcome{err: &unsentError{cause: ErrClosed, last: s.last}})
	}
	m.queue = nil
	close(m.gate)
	m.mu.Unlock()
}

// lostSeats are the places of callers that left while their request was under way, by the key that they were told: so
// that the same call can be asked again. The oldest are forgotten first.
type lostSeats struct {
	byKey map[string]*seat
	ring  []lostSeat // oldest first from next on, once it is full
	next  int
}

type lostSeat struct {
	key string
	s   *seat
}

// maxLost is how many are remembered.
const maxLost = 4096

func (l *lostSeats) add(key string, s *seat) {
	if len(l.ring) < maxLost {
		l.ring = append(l.ring, lostSeat{key, s})
	} else {
		old := &l.ring[l.next]
		if l.byKey[old.key] == old.s {
			delete(l.byKey, old.key)
		}
		*old = lostSeat{key, s}
		l.next = (l.next + 1) % maxLost
	}
	l.byKey[key] = s
}

// reclaim finds the seat that a call with this key had before, and takes it again: it gets what the request brings or
// brought. nil, nil, nil: there is none.
func (m *merger) reclaim(c *Client, q *call) (*seat, chan struct{}, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.lost.byKey[q.key]
	if s == nil || s.dropped {
		return nil, nil, nil
	}
	if s.sequence != q.sequence || s.count != q.count || s.partial != q.partial {
		return nil, nil, allocnode.Errorf(allocnode.CodeConflict, "the key was used for another sequence, count or partial")
	}
	if m.closed {
		return nil, nil, ErrClosed
	}
	f := s.flight
	if !f.landed && !f.running {
		f.q.overdue = nil // its lane has gone on long ago
		ctx := m.launchLocked(f)
		if !c.start(func() { c.fly(ctx, f) }) {
			return nil, nil, ErrClosed
		}
	}
	delete(m.lost.byKey, q.key)
	m.calls++
	s.left = false
	f.attached++
	return s, f.gate, nil
}

// lastTrouble is why what waits in the queue has not been sent, if it was tried.
func (c *Client) lastTrouble() error {
	m := &c.merge
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, s := range m.queue {
		if s.last != nil {
			return s.last
		}
	}
	return nil
}
