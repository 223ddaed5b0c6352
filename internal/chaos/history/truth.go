package history

import (
	"cmp"
	"slices"
	"sort"
)

// LogTruth compares what clients were told with the log. It returns: answers that do not stand in the log at the seq they
// name with that range (advances with their marks, creates too), or come from another cluster; ids of a next that no batch
// of a node holds; an info below the hwm that the log had at its seq, or above the last; reservations that were refused by
// every attempt and yet stand in the log; keys refused as expired that the window still covered.
func LogTruth(h *History, log *Log) []Violation {
	f := &found{rule: RuleLogTruth}
	t := readTruth(log)
	for i := range h.Attempts {
		a := &h.Attempts[i]
		for n := range a.Answers {
			answer := &a.Answers[n]
			if answer.Code == "key_expired" && a.Since >= log.KeyFloor {
				f.add([]*Attempt{a}, "key_expired, though the window reaches back to seq %d", log.KeyFloor)
			}
			if answer.Outcome != OK {
				continue
			}
			if answer.Cluster != log.Cluster {
				f.add([]*Attempt{a}, "an answer of cluster %q, the log is of %s", answer.Cluster, log.Cluster)
			}
			t.check(f, a, answer)
		}
	}
	reservations := h.reservations()
	for i := range reservations {
		r := &reservations[i]
		seq, carved := t.carved[r.key]
		if r.key == "" || !carved {
			continue
		}
		refused := !slices.ContainsFunc(r.attempts, func(n int) bool { return h.Attempts[n].Outcome() != Failed })
		if refused {
			f.add([]*Attempt{r.first(h)}, "%s was refused each time, and stands in the log at seq %d", r.key, seq)
		}
	}
	return f.all
}

// told is an answer as the log must have it.
type told struct {
	seq           uint64
	action        Action
	sequence, key string
	count         uint64
	partial       bool
	got           Range
}

// mark is a sequence's hwm from a seq on.
type mark struct{ seq, hwm uint64 }

// truth is the log, arranged for questions.
type truth struct {
	log     *Log
	told    map[told]bool
	carved  map[string]uint64  // seq at which a key was first given a range
	marks   map[string][]mark  // by sequence, in order
	batches map[string][]Range // by sequence, in order: what each node holds for next, one refill after the other joined
}

func readTruth(log *Log) *truth {
	t := &truth{
		log: log, told: map[told]bool{}, carved: map[string]uint64{}, marks: map[string][]mark{}, batches: map[string][]Range{},
	}
	type holder struct{ sequence, node string }
	held := map[holder][]Range{}
	for i := range log.Results {
		r := &log.Results[i]
		if r.Refused != 0 {
			continue
		}
		t.told[told{r.Seq, r.Action, r.Sequence, r.Key, r.asked(), r.Partial, r.Range}] = true
		switch {
		case r.Action == Advance:
			t.marks[r.Sequence] = append(t.marks[r.Sequence], mark{r.Seq, r.Range.End()})
		case r.Action == Reserve && !r.Repeated:
			t.marks[r.Sequence] = append(t.marks[r.Sequence], mark{r.Seq, r.Range.End() - 1})
			if r.Key != "" {
				if _, twice := t.carved[r.Key]; !twice {
					t.carved[r.Key] = r.Seq
				}
			} else if r.Partial {
				at := holder{r.Sequence, r.Node}
				if all := held[at]; len(all) > 0 && all[len(all)-1].End() == r.Range.Start() {
					all[len(all)-1][1] = r.Range.End() // a node joins what follows on, and answers across the seam
				} else {
					held[at] = append(all, r.Range)
				}
			}
		}
	}
	for at, all := range held {
		t.batches[at.sequence] = append(t.batches[at.sequence], all...)
	}
	for _, all := range t.batches {
		slices.SortFunc(all, func(a, b Range) int { return cmp.Compare(a.Start(), b.Start()) })
	}
	return t
}

// asked is the count as the request had it; a create has none.
func (r *Result) asked() uint64 {
	if r.Action == Create {
		return 0
	}
	return r.Count
}

func (t *truth) check(f *found, a *Attempt, answer *Answer) {
	want := told{seq: answer.Seq, action: a.Action, sequence: a.Sequence}
	switch a.Action {
	case Reserve:
		want.count, want.partial = a.Count, a.Partial
		if a.Key != "" {
			want.key = keyScope(a.Sequence, a.Key)
		}
		if len(answer.Ranges) == 1 {
			want.got = answer.Ranges[0]
		}
	case Advance:
		want.count, want.got = a.To, Range{answer.Old, answer.HWM}
	case Create:
	case Next:
		for _, r := range answer.Ranges {
			if !within(t.batches[a.Sequence], r) {
				f.add([]*Attempt{a}, "ids [%d, %d) of %s lie in no batch of a node", r.Start(), r.End(), a.Sequence)
			}
		}
		return
	case Info:
		at, last := t.hwm(a.Sequence, answer.Seq), t.hwm(a.Sequence, t.log.Last)
		if answer.HWM < at || answer.HWM > max(last, t.log.HWM[a.Sequence]) {
			f.add([]*Attempt{a}, "hwm %d of %s, the log had %d at seq %d and ends with %d",
				answer.HWM, a.Sequence, at, answer.Seq, last)
		}
		return
	default:
		return
	}
	if !t.told[want] {
		f.add([]*Attempt{a}, "%s of %s [%d, %d) does not stand in the log at seq %d; there: %v",
			a.Action, a.Sequence, want.got.Start(), want.got.End(), answer.Seq, t.at(answer.Seq, a.Sequence))
	}
}

// within reports whether one of the disjoint ranges, which are in order, holds all of r.
func within(ranges []Range, r Range) bool {
	i := sort.Search(len(ranges), func(i int) bool { return ranges[i].Start() > r.Start() }) - 1
	return i >= 0 && r.End() <= ranges[i].End()
}

// hwm is the sequence's hwm at seq; 0 before it was first raised.
func (t *truth) hwm(sequence string, seq uint64) uint64 {
	marks := t.marks[sequence]
	i := sort.Search(len(marks), func(i int) bool { return marks[i].seq > seq }) - 1
	if i < 0 {
		return 0
	}
	return marks[i].hwm
}

// at is what the log has at seq for a sequence, for a message.
func (t *truth) at(seq uint64, sequence string) (there []Result) {
	results := t.log.Results
	i := sort.Search(len(results), func(i int) bool { return results[i].Seq >= seq })
	for ; i < len(results) && results[i].Seq == seq && len(there) < 4; i++ {
		if results[i].Sequence == sequence {
			there = append(there, results[i])
		}
	}
	return there
}
