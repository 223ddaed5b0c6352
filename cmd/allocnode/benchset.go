package main

import (
	"cmp"
	"math/bits"
	"slices"
	"sync"
	"time"

	"github.com/allocnode/allocnode"
)

// idSet is the ids that a bench got, as intervals, and those that it got more than once. Neighbours become one interval, so
// that its size follows the gaps between what came and not how much came.
type idSet struct {
	mu      sync.Mutex        // guards all below
	have    []allocnode.Range // ascending, disjoint, with gaps between
	fresh   []allocnode.Range // not in have yet, as they came
	twice   uint64            // ids that came again, each time counted
	example []allocnode.Range // the first few of those
}

const (
	leastFold   = 1 << 12 // ranges to gather before they are folded in
	maxExamples = 5
)

func (s *idSet) add(ranges ...allocnode.Range) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fresh = append(s.fresh, ranges...)
	if len(s.fresh) >= max(leastFold, len(s.have)) {
		s.foldLocked()
	}
}

// foldLocked sorts what is fresh into have.
func (s *idSet) foldLocked() {
	all := append(s.have, s.fresh...)
	s.fresh = s.fresh[:0]
	slices.SortFunc(all, func(a, b allocnode.Range) int { return cmp.Compare(a.Start, b.Start) })
	out := all[:0]
	for _, r := range all {
		if len(out) == 0 || r.Start > out[len(out)-1].End {
			out = append(out, r)
			continue
		}
		last := &out[len(out)-1]
		if both := (allocnode.Range{Start: r.Start, End: min(r.End, last.End)}); !both.Empty() {
			s.twice += both.Count()
			if len(s.example) < maxExamples {
				s.example = append(s.example, both)
			}
		}
		last.End = max(last.End, r.End)
	}
	s.have = out
}

// result is how many different ids came, how often one came again, and the first of those.
func (s *idSet) result() (ids, twice uint64, example []allocnode.Range) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.foldLocked()
	for _, r := range s.have {
		ids += r.Count()
	}
	return ids, s.twice, s.example
}

// latencies counts durations in buckets whose width is at most 1/64 of their value, so that a bench of any length takes the
// same memory. The largest is kept exactly.
type latencies struct {
	buckets [64 * 58]uint64 // 64 for the durations below 64 ns, then 64 for each power of two
	n       uint64
	max     time.Duration
}

const subBits = 6

func (l *latencies) add(d time.Duration) {
	d = max(d, 0)
	l.buckets[bucketOf(uint64(d))]++
	l.n++
	l.max = max(l.max, d)
}

func bucketOf(v uint64) int {
	shift := max(bits.Len64(v)-subBits-1, 0)
	return shift<<subBits + int(v>>shift)
}

// bucketTop is the largest value of a bucket.
func bucketTop(i int) uint64 {
	shift := max(i>>subBits-1, 0)
	return uint64(i-shift<<subBits+1)<<shift - 1
}

func (l *latencies) merge(o *latencies) {
	for i, n := range o.buckets {
		l.buckets[i] += n
	}
	l.n += o.n
	l.max = max(l.max, o.max)
}

// quantile is the duration that a share q, 0 to 1, of all did not exceed, too long by 1/64 of it at most. 0 of none.
func (l *latencies) quantile(q float64) time.Duration {
	rank := min(uint64(q*float64(l.n)), l.n-min(l.n, 1))
	for i, n := range l.buckets {
		if n > rank {
			return min(time.Duration(bucketTop(i)), l.max)
		}
		rank -= n
	}
	return l.max
}
