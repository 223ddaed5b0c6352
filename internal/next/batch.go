package next

import (
	"time"

	"github.com/allocnode/allocnode"
)

// batch is what the node holds of one sequence. The pool's mutex guards it.
//
// Invariants: held is the number of ids in ranges, which are not empty, ascend, and are not adjacent; wanted is the sum of
// Count over waiting, each of which is at most most; low is at least 1.
type batch struct {
	name    string
	ranges  []allocnode.Range
	held    uint64
	waiting list // in the order of their arrival
	wanted  uint64

	floor     uint64           // no id at or below it is ever installed: an advance, or what was held already
	refilling bool             // such a batch is never dropped
	exhausted bool             // the log has nothing left, for ever: max never changes
	refused   *allocnode.Error // the log's word, until again
	again     time.Time        // no refill is asked for before

	size uint64    // ids in the last refill asked for
	low  uint64    // at or below it the next refill is asked for
	most uint64    // bound on a refill and on a request: Config.Most, or less where max_count was learnt
	used uint64    // ids given away since asked
	from time.Time // when the last refill was asked for; zero when it failed, which says nothing of the rate

	touched bool      // somebody took since last was set
	last    time.Time // when somebody last took, as of the last look at idle batches
}

// give moves r.Count ids, which b must hold, to r.
func (b *batch) give(r *Request) {
	r.got = r.one[:0]
	need := r.Count
	empty := 0
	for i := range b.ranges {
		first := &b.ranges[i]
		n := min(need, first.Count())
		r.got = append(r.got, allocnode.Range{Start: first.Start, End: first.Start + n})
		first.Start += n
		if first.Empty() {
			empty++
		}
		if need -= n; need == 0 {
			break
		}
	}
	if empty > 0 {
		b.ranges = b.ranges[:copy(b.ranges, b.ranges[empty:])] // a few ranges at most
	}
	b.held -= r.Count
	b.used += r.Count
	b.touched = true
}

// install adds what a refill brought, as far as it lies above the floor.
func (b *batch) install(r allocnode.Range) {
	r.Start = max(r.Start, b.floor+1)
	if r.Empty() {
		return
	}
	b.floor = r.End - 1
	b.held += r.Count()
	if n := len(b.ranges); n > 0 && b.ranges[n-1].End == r.Start {
		b.ranges[n-1].End = r.End
		return
	}
	b.ranges = append(b.ranges, r)
}

// advance drops what is held at or below to.
func (b *batch) advance(to uint64) {
	b.floor = max(b.floor, to)
	keep := b.ranges[:0]
	b.held = 0
	for _, r := range b.ranges {
		if r.Start = max(r.Start, to+1); !r.Empty() {
			keep = append(keep, r)
			b.held += r.Count()
		}
	}
	b.ranges = keep
}

// refusal is why r gets no ids, where the log has said so; nil where it has not, or b holds enough.
func (b *batch) refusal(r *Request, now time.Time) *allocnode.Error {
	switch {
	case r.Count <= b.held:
		return nil
	case b.exhausted:
		err := allocnode.Errorf(allocnode.CodeExhausted, "%d ids asked of %s, %d remain here", r.Count, b.name, b.held)
		err.Remaining = b.held
		return err
	case b.refused != nil && now.Before(b.again):
		return b.refused
	}
	return nil
}

// idleLonger reports whether b may rather be dropped than o.
func (b *batch) idleLonger(o *batch) bool {
	if b.touched != o.touched {
		return o.touched
	}
	return b.last.Before(o.last)
}

// maxStep is by how much one refill may be larger or smaller than the one before.
const maxStep = 4

// nextSize is how many ids to ask for now: what the horizon uses at the rate since the last refill, near the last size,
// and at least what is waited for. It sets the low-water mark too: half of the size, or what half the horizon uses where
// a bound on the size keeps a batch from lasting that long. The mark is never 0: then nobody would ask.
func (b *batch) nextSize(cfg Config, now time.Time) uint64 {
	soon := 0.0
	if d := now.Sub(b.from).Seconds(); !b.from.IsZero() && d > 0 {
		horizon := float64(b.used) / d * cfg.Horizon.Seconds()
		soon = horizon / 2
		want := uint64(min(horizon, float64(b.most)))
		b.size = min(max(want, b.size/maxStep), b.size*maxStep)
	}
	b.used, b.from = 0, now
	b.size = min(max(b.size, cfg.Least), b.most)
	b.low = max((b.size+1)/2, uint64(min(soon, float64(b.size))))
	if b.wanted > b.held {
		return min(max(b.size, b.wanted-b.held), b.most)
	}
	return b.size
}

// list is requests in a line, linked through themselves, so that to wait and to be answered allocates nothing.
type list struct{ first, last *Request }

func (l *list) push(r *Request) {
	r.next = nil
	if l.first == nil {
		l.first = r
	} else {
		l.last.next = r
	}
	l.last = r
}

func (l *list) pop() *Request {
	r := l.first
	l.first, r.next = r.next, nil
	if l.first == nil {
		l.last = nil
	}
	return r
}
