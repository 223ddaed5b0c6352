package client

import (
	"container/list"
	"context"
	"fmt"
	"iter"
	"sync"
	"sync/atomic"
	"time"

	"github.com/allocnode/allocnode"
)

// Sequence serves single ids of one sequence from a batch in memory. Its methods may be called from any goroutine. The ids
// that one goroutine gets from Next ascend; between goroutines, and between processes, they have no order. What is left of
// its batches when it is closed or the process ends is a gap: two of them at most, or nine at a rate that empties one in
// less than half a second.
type Sequence struct {
	batch atomic.Pointer[batch] // never nil

	c    *Client
	name string
	cfg  sequenceConfig

	mu       sync.Mutex        // guards all below
	spares   []allocnode.Range // the batches after the current one, none of them empty
	waiters  *list.List        // of *waiter. While there is one the current batch has ended and there is no spare
	fetching bool
	stop     context.CancelCauseFunc // ends the fetch
	closed   bool
	fault    error     // why there are no more ids
	until    time.Time // when to ask again after fault; zero: never
	pace     pace
	counts   SequenceStats
	wg       sync.WaitGroup // of the fetch
}

// batch is a range of ids that are given away one by one. It is never changed but for its two counters, and the whole is
// swapped as one pointer: an id taken from an old batch is still that batch's.
type batch struct {
	low  atomic.Uint64 // whoever gets this id or a later one looks after the next batch; end when that was done
	end  uint64
	_    [14]uint64    // next is alone in its pair of cache lines: all cores write it, and read what stands above
	next atomic.Uint64 // the next id; beyond end once all are gone
	_    [15]uint64
}

// waiter is one Next that has nothing to give. It gets exactly one answer.
type waiter struct {
	ch chan waited // capacity 1
}

type waited struct {
	id  uint64
	err error
}

// SequenceOption configures a [Sequence].
type SequenceOption func(*sequenceConfig)

type sequenceConfig struct {
	least, most uint64
	ahead       time.Duration
}

// WithBatch bounds the size of a batch, in ids. Default 100 and 1,000,000; least is 1 and up, most at least that. Where
// most is above the sequence's max_count, that counts.
func WithBatch(least, most uint64) SequenceOption {
	return func(c *sequenceConfig) { c.least, c.most = least, most }
}

// WithHorizon sets how long a batch should last at the rate that is observed. Default 10 s, 1 ms and up.
func WithHorizon(d time.Duration) SequenceOption { return func(c *sequenceConfig) { c.ahead = d } }

// Sequence opens a sequence. Nothing is sent before the first call that wants an id. The error is an
// [allocnode.ErrBadRequest] that says what is wrong with the name or an option, or [ErrClosed].
func (c *Client) Sequence(name string, opts ...SequenceOption) (*Sequence, error) {
	cfg := sequenceConfig{least: 100, most: allocnode.DefaultMaxCount, ahead: 10 * time.Second}
	for _, o := range opts {
		o(&cfg)
	}
	if err := allocnode.CheckName(name); err != nil {
		return nil, err
	}
	if cfg.least < 1 || cfg.most < cfg.least || cfg.most > allocnode.MaxID {
		return nil, badRequest("batches of %d to %d ids: want 1 and up, the second no less, at most %d", cfg.least,
			cfg.most, allocnode.MaxID)
	}
	if cfg.ahead < time.Millisecond {
		return nil, badRequest("horizon %s: want 1ms or more", cfg.ahead)
	}
	s := &Sequence{c: c, name: name, cfg: cfg, waiters: list.New(), pace: pace{size: cfg.least}}
	s.batch.Store(new(batch))
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, ErrClosed
	}
	c.open[s] = true
	return s, nil
}

// Next returns an id that nobody else has or will have. While the batch lasts it is one atomic operation and does not look
// at ctx; at its end it waits for the next one, which was asked for at the middle of the batch or before. Errors:
// [allocnode.ErrExhausted] when every id has been given away; ErrNotFound, ErrBadRequest and the like, as
// [Client.Reserve]; ErrUnavailable with ctx's error when ctx ended first; [ErrClosed].
func (s *Sequence) Next(ctx context.Context) (uint64, error) {
	b := s.batch.Load()
	id := b.next.Add(1) - 1
	if id < b.low.Load() {
		return id, nil
	}
	return s.slow(ctx, b, id)
}

// slow goes on from where Next took id from b, at or beyond b's low-water mark.
func (s *Sequence) slow(ctx context.Context, b *batch, id uint64) (uint64, error) {
	for {
		s.mu.Lock()
		cur := s.batch.Load()
		if id < b.end {
			if cur == b {
				s.refillLocked()
			}
			s.mu.Unlock()
			return id, nil
		}
		if cur == b && !s.advanceLocked() {
			return s.waitLocked(ctx)
		}
		b = s.batch.Load()
		s.mu.Unlock()
		id = b.next.Add(1) - 1
		if id < b.low.Load() {
			return id, nil
		}
	}
}

// advanceLocked makes the first spare the current batch, if there is one.
func (s *Sequence) advanceLocked() bool {
	if len(s.spares) == 0 {
		return false
	}
	s.installLocked(s.spares[0])
	return true
}

// installLocked swaps the current batch, which has ended, for the first spare, r.
func (s *Sequence) installLocked(r allocnode.Range) {
	s.spares = s.spares[1:]
	b := &batch{end: r.End}
	b.next.Store(r.Start)
	b.low.Store(r.End - min(s.pace.lowWater(max(r.Count(), s.counts.BatchSize), s.cfg.ahead), r.Count()))
	now := b.low.Load() == r.Start
	s.batch.Store(b)
	if now {
		s.refillLocked()
	}
}

// refillLocked asks for the next batch, unless there is one or it is on its way. The mark is then moved to the end, so
// that the ids in between cost no more than the others.
func (s *Sequence) refillLocked() {
	b := s.batch.Load()
	if !s.fetching && !s.enoughLocked() && s.faultLocked() == nil {
		s.fetchLocked()
	}
	b.low.Store(b.end)
}

// waitLocked waits in line for an id. It unlocks s.mu.
func (s *Sequence) waitLocked(ctx context.Context) (uint64, error) {
	err := s.faultLocked()
	switch {
	case err != nil:
	case ctx.Err() != nil:
		err = &unsentError{cause: cause(ctx)}
	}
	if err != nil {
		s.mu.Unlock()
		return 0, s.wrap(err)
	}
	w := &waiter{ch: make(chan waited, 1)}
	e := s.waiters.PushBack(w)
	s.counts.Waits++
	if !s.fetching {
		s.fetchLocked()
	}
	s.mu.Unlock()

	var got waited
	select {
	case got = <-w.ch:
	case <-ctx.Done():
		s.mu.Lock()
		s.waiters.Remove(e)
		s.mu.Unlock()
		select {
		case got = <-w.ch: // it came just now: the id must not be lost
		default:
			got.err = &unsentError{cause: cause(ctx), last: s.c.lastTrouble()}
		}
	}
	if got.err != nil {
		return 0, s.wrap(got.err)
	}
	return got.id, nil
}

func (s *Sequence) wrap(err error) error { return fmt.Errorf("next id of %q: %w", s.name, err) }

// faultLocked is why there are no more ids, for as long as that is believed.
func (s *Sequence) faultLocked() error {
	switch {
	case s.closed:
		return ErrClosed
	case s.fault != nil && !s.until.IsZero() && time.Now().After(s.until):
		s.fault = nil
	}
	return s.fault
}

// Take returns n ids in one piece: from the batch where they fit, otherwise by a reservation of their own. n is 1 to the
// sequence's max_count. Unlike those of Next, ids taken one after the other need not ascend. Errors are those of
// [Client.Reserve]; an [*UnknownOutcomeError] is of that reservation.
func (s *Sequence) Take(ctx context.Context, n uint64) (allocnode.Range, error) {
	if r, ok := s.takeHere(n); ok {
		return r, nil
	}
	s.mu.Lock()
	closed := s.closed
	if !closed && !s.fetching && len(s.spares) == 0 && s.faultLocked() == nil && n > 0 && n <= s.cfg.most {
		s.pace.direct += n // what comes from batches next time
		s.fetchLocked()
	}
	s.mu.Unlock()
	if closed {
		return allocnode.Range{}, fmt.Errorf("take %d ids of %q: %w", n, s.name, ErrClosed)
	}
	return s.c.Reserve(ctx, s.name, n)
}

// takeHere takes n ids from the current batch or the one after it.
func (s *Sequence) takeHere(n uint64) (allocnode.Range, bool) {
	if n == 0 {
		return allocnode.Range{}, false
	}
	for {
		b := s.batch.Load()
		if r, ok := s.takeFrom(b, n); ok {
			return r, true
		}
		s.mu.Lock()
		if s.batch.Load() != b { // one has come in between: who waited for it is told a moment before it is there
			s.mu.Unlock()
			continue
		}
		defer s.mu.Unlock()
		if len(s.spares) == 0 || s.spares[0].Count() < n {
			return allocnode.Range{}, false
		}
		first := &s.spares[0]
		r := allocnode.Range{Start: first.Start, End: first.Start + n}
		first.Start += n
		if first.Empty() {
			s.spares = s.spares[1:]
			s.refillLocked()
		}
		return r, true
	}
}

// takeFrom takes n ids from b, if they fit.
func (s *Sequence) takeFrom(b *batch, n uint64) (allocnode.Range, bool) {
	for {
		start := b.next.Load()
		if start >= b.end || n > b.end-start {
			return allocnode.Range{}, false
		}
		if !b.next.CompareAndSwap(start, start+n) {
			continue
		}
		if start+n > b.low.Load() {
			s.mu.Lock()
			if s.batch.Load() == b {
				s.refillLocked()
			}
			s.mu.Unlock()
		}
		return allocnode.Range{Start: start, End: start + n}, true
	}
}

// All yields ids as [Sequence.Next] returns them, until the loop is left. An error is yielded once, with id 0, and is the
// last.
func (s *Sequence) All(ctx context.Context) iter.Seq2[uint64, error] {
	return func(yield func(uint64, error) bool) {
		for {
			id, err := s.Next(ctx)
			if !yield(id, err) || err != nil {
				return
			}
		}
	}
}

// Close ends the calls that wait, with [ErrClosed], and returns when the sequence's goroutine has ended. Ids that it still
// holds become a gap. A second Close does nothing.
func (s *Sequence) Close() error {
	s.mu.Lock()
	s.closed = true
	s.counts.Dropped += s.heldLocked()
	s.spares = nil
	s.batch.Store(new(batch))
	if s.stop != nil {
		s.stop(ErrClosed)
	}
	s.answerLocked(ErrClosed)
	s.mu.Unlock()
	s.wg.Wait()
	s.c.mu.Lock()
	delete(s.c.open, s)
	s.c.mu.Unlock()
	return nil
}
