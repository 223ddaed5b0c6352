package client

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"

	"github.com/allocnode/allocnode"
)

// Reserve reserves count ids of sequence, 1 to the sequence's max_count, through the log. It waits for as long as ctx
// lasts. Errors: [allocnode.ErrBadRequest], ErrNotFound (the cluster creates no sequences on first use), ErrConflict (the
// key was used with other parameters), ErrExhausted (its Error says how many remain), ErrKeyExpired and ErrTooLarge are
// final, and nothing was carved for this call; but with ErrKeyExpired an earlier one of that key may have been answered.
// ErrUnavailable with ctx's error: ctx ended and nothing was carved. [*UnknownOutcomeError]: ctx ended and it may have been.
func (c *Client) Reserve(ctx context.Context, sequence string, count uint64, opts ...ReserveOption) (allocnode.Range, error) {
	q := call{sequence: sequence, count: count}
	if len(opts) > 0 {
		given := q // options want a pointer: only calls that have any pay for it
		for _, o := range opts {
			o(&given)
		}
		q = given
	}
	r, err := c.reserve(ctx, q)
	if err != nil {
		return allocnode.Range{}, fmt.Errorf("reserve %d ids of %q: %w", count, sequence, err)
	}
	return r, nil
}

func (c *Client) reserve(ctx context.Context, q call) (allocnode.Range, error) {
	if err := q.check(); err != nil {
		return allocnode.Range{}, err
	}
	if q.count > 1 { // no max_count is below that
		if limit, ok := c.limits.Load(q.sequence); ok && q.count > limit.(uint64) {
			return allocnode.Range{}, badRequest("count %d is above max_count %d of %s", q.count, limit, q.sequence)
		}
	}
	if ctx.Err() != nil {
		return allocnode.Range{}, &unsentError{cause: cause(ctx)}
	}
	s, gate, err := c.merge.seatOf(c, &q)
	if err != nil {
		return allocnode.Range{}, err
	}
	o, left := c.await(ctx, s, gate)
	if !left && q.key == "" {
		seats.Put(s) // whoever gave the outcome is done with it
	}
	if o.err != nil {
		return allocnode.Range{}, o.err
	}
	if q.receipt != nil {
		*q.receipt = Receipt{Seq: o.seq, Cluster: c.Cluster()}
	}
	return o.r, nil
}

// seatOf finds the seat that a call with this key had before, or puts a new one into the queue.
func (m *merger) seatOf(c *Client, q *call) (s *seat, gate chan struct{}, err error) {
	if q.key != "" {
		if s, gate, err = m.reclaim(c, q); s != nil || err != nil {
			return s, gate, err
		}
		s = &seat{call: *q, fresh: c.takeFresh(q.key)}
	} else {
		s = seats.Get().(*seat)
		*s = seat{call: *q}
	}
	s.since, s.alone = sinceOf(q.key)
	gate, err = m.enqueue(c, s)
	return s, gate, err
}

// await waits at gate, and at those that follow it, until s has its outcome or ctx ends.
func (c *Client) await(ctx context.Context, s *seat, gate chan struct{}) (o outcome, left bool) {
	for {
		if done := ctx.Done(); done == nil {
			<-gate // costs half of a choice between two
		} else {
			select {
			case <-gate:
			case <-done:
				return c.leave(ctx, s), true
			}
		}
		if s.answered.Load() {
			return s.outcome, false
		}
		gate = c.merge.gateOf(s)
	}
}

// seats keeps the places of calls that got their outcome the ordinary way. A seat whose caller left is not among them: a
// flight may still answer it. Nor is one with a key, which may be among the lost ones.
var seats = sync.Pool{New: func() any { return new(seat) }}

// leave is what a caller does whose context has ended. It takes nothing from the others: its place in a request that was
// sent stays where it is.
func (c *Client) leave(ctx context.Context, s *seat) outcome {
	why := cause(ctx)
	m := &c.merge
	m.mu.Lock()
	f := s.flight
	switch {
	case s.answered.Load():
		m.mu.Unlock()
		return s.outcome
	case f == nil:
		m.leftLocked(s)
		m.mu.Unlock()
		return outcome{err: &unsentError{cause: why, last: s.last}}
	}
	s.left = true
	f.attached--
	last, done := f.attached == 0, f.done
	if last {
		f.cancel(why)
	}
	m.mu.Unlock()
	if last {
		<-done // so that it is known whether anything was sent
	}

	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case s.answered.Load():
		return s.outcome
	case s.dropped || last && f.open == 0:
		return outcome{err: &unsentError{cause: why, last: s.last}}
	case f.landed:
		return outcome{err: &UnknownOutcomeError{Key: f.keyOf(s), Err: why}}
	}
	var unknown *UnknownOutcomeError
	if last && errors.As(f.err, &unknown) {
		why = unknown.Err
	}
	m.lost.add(f.keyOf(s), s)
	return outcome{err: &UnknownOutcomeError{Key: f.keyOf(s), Err: why}}
}

// keyOf is what names the reservation of s: the key of its item, or its place under the key of the list.
func (f *flight) keyOf(s *seat) string {
	if s.wireKey != "" {
		return s.wireKey
	}
	return f.key + "." + strconv.Itoa(s.place)
}
