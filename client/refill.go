package client

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/allocnode/allocnode"
)

// pace is how fast ids go, and so how large a batch should be. Guarded by Sequence.mu.
type pace struct {
	size    uint64    // of the last batch asked for
	rate    float64   // ids a second between the last two times that one was asked for; 0: not known yet
	granted uint64    // ids that batches have brought
	direct  uint64    // ids that did not come from batches, but should have
	used    uint64    // at the time of the last look
	looked  time.Time // when that was; zero: never
}

// maxStep is by how much one batch may be larger or smaller than the one before: a short burst should not make the
// sequence hold many ids for long.
const maxStep = 4

// look notes that used ids have gone by now.
func (p *pace) look(used uint64, now time.Time) {
	if d := now.Sub(p.looked); !p.looked.IsZero() && d > 0 {
		p.rate = float64(used-p.used) / d.Seconds()
	}
	p.used, p.looked = used, now
}

// want is how many ids the next batch should have: what is used within ahead, near the size of the one before, within
// bounds.
func (p *pace) want(ahead time.Duration, least, most uint64) uint64 {
	if p.rate > 0 {
		want := min(p.rate*ahead.Seconds(), float64(most)) // above most a float may not fit an integer
		p.size = min(max(uint64(want), p.size/maxStep), p.size*maxStep)
	}
	p.size = min(max(p.size, least), most)
	return p.size
}

// lowWater is how many ids of a batch of size should be left when the next one is asked for: half of it, or what is used
// in half of ahead if that is more. It is never 0, however small the batch: then nobody would ask.
func (p *pace) lowWater(size uint64, ahead time.Duration) uint64 {
	soon := min(p.rate*ahead.Seconds()/2, float64(size))
	return max((size+1)/2, uint64(soon))
}

// retryFault is for how long a refusal is believed that an operator may lift, such as a sequence that is not there.
const retryFault = time.Second

// fetchLocked asks for a batch, or for several where one lasts only for a moment. It wants s.fetching to be false.
func (s *Sequence) fetchLocked() {
	now := time.Now()
	s.pace.look(s.pace.granted+s.pace.direct-s.heldLocked(), now)
	count := max(s.pace.want(s.cfg.ahead, s.cfg.least, s.cfg.most), min(uint64(s.waiters.Len()), s.cfg.most))
	batches := 1
	for batches+len(s.spares) < maxSpares && float64(count)*float64(batches)+float64(s.spareLocked()) < s.pace.soon() {
		batches++
	}
	ctx, stop := context.WithCancelCause(context.Background())
	s.fetching, s.stop = true, stop
	s.counts.BatchSize = count
	s.wg.Add(1) // under s.mu and not closed: before the Wait in Close
	if !s.c.start(func() {
		defer s.wg.Done()
		defer stop(nil)
		s.fetch(ctx, count, batches)
	}) {
		s.wg.Done()
		s.fetching = false
		s.closed = true
		s.answerLocked(ErrClosed)
	}
}

// fetch gets batches. It has no deadline: callers that cannot wait leave by themselves.
func (s *Sequence) fetch(ctx context.Context, count uint64, batches int) {
	ranges := make([]allocnode.Range, batches)
	for {
		var wg sync.WaitGroup
		for i := 1; i < batches; i++ { // the client makes one request of them all
			wg.Go(func() {
				// What is wrong with these is wrong with the first, or will be found by the next fetch.
				ranges[i], _ = s.c.reserve(ctx, call{sequence: s.name, count: count, partial: true})
			})
		}
		var err error
		ranges[0], err = s.c.reserve(ctx, call{sequence: s.name, count: count, partial: true})
		wg.Wait()
		slices.SortFunc(ranges, func(a, b allocnode.Range) int { return cmp.Compare(a.Start, b.Start) })
		ranges = slices.DeleteFunc(ranges, allocnode.Range.Empty)
		switch code := codeOf(err); {
		case len(ranges) > 0:
			s.arrived(ranges)
			return
		case code == allocnode.CodeKeyExpired:
			// An earlier try may have carved a range, which is now a gap. A new reservation is as good.
		case code == allocnode.CodeBadRequest && count > 1:
			count /= 2 // above the sequence's max_count
			s.mu.Lock()
			s.cfg.most, s.cfg.least = count, min(s.cfg.least, count)
			s.mu.Unlock()
		default:
			s.failed(err)
			return
		}
		ranges, batches = make([]allocnode.Range, 1), 1
	}
}

// arrived takes batches in: first to those who wait, in their order, then as the current one, or to be the next.
func (s *Sequence) arrived(ranges []allocnode.Range) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fetching, s.stop = false, nil
	for _, r := range ranges {
		size := r.Count()
		s.counts.Refills++
		s.pace.granted += size
		if s.closed {
			s.counts.Dropped += size
			continue
		}
		for e := s.waiters.Front(); e != nil && !r.Empty(); e = s.waiters.Front() {
			s.waiters.Remove(e).(*waiter).ch <- waited{id: r.Start}
			r.Start++
		}
		if !r.Empty() {
			s.spares = append(s.spares, r)
		}
	}
	switch b := s.batch.Load(); {
	case s.closed || b.next.Load() < b.end:
	case len(s.spares) > 0:
		s.advanceLocked()
	default: // all of it is gone already, so it is past its low-water mark
		s.fetchLocked()
	}
}

// failed ends a fetch without a batch.
func (s *Sequence) failed(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fetching, s.stop = false, nil
	if s.closed {
		return
	}
	s.fault, s.until = err, time.Now().Add(retryFault)
	var e *allocnode.Error
	if errors.As(err, &e) && e.Code == allocnode.CodeExhausted && e.Remaining == 0 {
		s.until = time.Time{} // max never changes. Asking again would put a doomed entry into the log each time
	}
	s.c.logger.Debug("no batch", "sequence", s.name, "error", err)
	s.answerLocked(err)
}

// answerLocked gives every waiter err.
func (s *Sequence) answerLocked(err error) {
	for e := s.waiters.Front(); e != nil; e = s.waiters.Front() {
		s.waiters.Remove(e).(*waiter).ch <- waited{err: err}
	}
}

// heldLocked is how many ids are here and not given away.
func (s *Sequence) heldLocked() uint64 {
	b := s.batch.Load()
	return b.end - min(b.next.Load(), b.end) + s.spareLocked()
}

func (s *Sequence) spareLocked() (n uint64) {
	for _, r := range s.spares {
		n += r.Count()
	}
	return n
}

// A batch of the largest size may last for less than one round trip takes when the disks are busy. Then several are kept.
const (
	maxSpares = 8
	minSpare  = 500 * time.Millisecond
)

// soon is how many ids are used within minSpare.
func (p *pace) soon() float64 { return p.rate * minSpare.Seconds() }

// enoughLocked reports whether the spares are what should be kept: one, and at a high rate as many as last for minSpare.
func (s *Sequence) enoughLocked() bool {
	return len(s.spares) > 0 && (len(s.spares) >= maxSpares || float64(s.spareLocked()) >= s.pace.soon())
}

// SequenceStats says what a [Sequence] holds and did since it was opened.
type SequenceStats struct {
	BatchSize uint64 // of the last batch asked for, in ids
	Remaining uint64 // ids held now
	Refills   uint64 // batches that came
	Waits     uint64 // calls of Next that found no id and had to wait
	Dropped   uint64 // ids held when it was closed, and those that came later
}

// Stats is what s holds and did so far.
func (s *Sequence) Stats() SequenceStats {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.counts
	st.Remaining = s.heldLocked()
	return st
}
