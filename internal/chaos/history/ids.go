package history

import (
	"cmp"
	"slices"
)

// reservation is one claim on ids through the log: all attempts under one key, or one attempt without a key.
type reservation struct {
	sequence string
	key      string // with its scope; "" without one
	attempts []int  // indexes into History.Attempts, by Began
	acked    int    // index of the attempt with the first ok answer, or -1
	answer   *Answer
}

func (r *reservation) first(h *History) *Attempt { return &h.Attempts[r.attempts[0]] }

// reservations groups the attempts to reserve, in the order of their first attempts.
func (h *History) reservations() []reservation {
	var all []reservation
	byKey := map[string]int{}
	for i := range h.Attempts {
		a := &h.Attempts[i]
		if a.Action != Reserve {
			continue
		}
		key, at := "", len(all)
		if a.Key != "" {
			key = keyScope(a.Sequence, a.Key)
			if known, ok := byKey[key]; ok {
				at = known
			}
			byKey[key] = at
		}
		if at == len(all) {
			all = append(all, reservation{sequence: a.Sequence, key: key, acked: -1})
		}
		r := &all[at]
		r.attempts = append(r.attempts, i)
		if ok := a.ok(); ok != nil && (r.answer == nil || ok.At < r.answer.At) {
			r.acked, r.answer = i, ok
		}
	}
	return all
}

// issued is a range that somebody was told is his.
type issued struct {
	Range
	owner   string // key with its scope; "" for an attempt without one
	attempt int
}

func (i issued) sameOwner(o issued) bool {
	return i.owner == o.owner && (i.owner != "" || i.attempt == o.attempt)
}

// Unique returns the ids that belong to two reservations. Every range counts that was ever answered: late, to a retry,
// through next, to a client that is dead by now. It also returns answers that are no answer: id 0, an empty range, fewer
// or more ids than were asked for.
func Unique(h *History) []Violation {
	f := &found{rule: RuleUnique}
	bySequence := map[string][]issued{}
	for i := range h.Attempts {
		a := &h.Attempts[i]
		if a.Action != Reserve && a.Action != Next {
			continue
		}
		owner := ""
		if a.Key != "" {
			owner = keyScope(a.Sequence, a.Key)
		}
		for n := range a.Answers {
			if a.Answers[n].Outcome != OK {
				continue
			}
			if why := misshapen(a, &a.Answers[n]); why != "" {
				f.add([]*Attempt{a}, "%s", why)
			}
			for _, r := range a.Answers[n].Ranges {
				bySequence[a.Sequence] = append(bySequence[a.Sequence], issued{r, owner, i})
			}
		}
	}
	for _, name := range sorted(bySequence) {
		overlaps(f, h, name, bySequence[name])
	}
	return f.all
}

// misshapen says what is wrong with the ranges of an ok answer.
func misshapen(a *Attempt, n *Answer) string {
	var ids uint64
	for _, r := range n.Ranges {
		if r.Start() == 0 || r.End() <= r.Start() {
			return "an empty range, or id 0"
		}
		ids += r.End() - r.Start()
	}
	fewer := a.Partial && ids > 0 && ids < a.Count
	if ids != a.Count && !fewer || a.Action == Reserve && len(n.Ranges) != 1 {
		return "not the ids that were asked for"
	}
	return ""
}

// overlaps walks the ranges of one sequence by their starts, and compares each with the one before it that reaches furthest.
// The same range told again to the same owner is one reservation.
func overlaps(f *found, h *History, name string, all []issued) {
	slices.SortFunc(all, func(a, b issued) int {
		return cmp.Or(cmp.Compare(a.Start(), b.Start()), cmp.Compare(a.End(), b.End()),
			cmp.Compare(a.owner, b.owner), cmp.Compare(a.attempt, b.attempt))
	})
	furthest := -1
	for i := range all {
		if i > 0 && all[i].Range == all[i-1].Range && all[i].sameOwner(all[i-1]) {
			continue
		}
		if furthest >= 0 && all[i].Start() < all[furthest].End() {
			before := &all[furthest]
			f.add([]*Attempt{&h.Attempts[before.attempt], &h.Attempts[all[i].attempt]},
				"ids [%d, %d) of %s were issued twice", all[i].Start(), min(all[i].End(), before.End()), name)
		}
		if furthest < 0 || all[i].End() > all[furthest].End() {
			furthest = i
		}
	}
}

// Idempotent returns the keys that were given two ranges, or one under another count, and those refused as used otherwise
// although nobody did. log may be nil. With it, a key without since may get a new range after the log's window had forgotten
// it, as is documented; a key with since never.
func Idempotent(h *History, log *Log) []Violation {
	f := &found{rule: RuleIdempotent}
	grants := map[string]int{} // of a key, as the log has them
	if log != nil {
		for i := range log.Results {
			if r := &log.Results[i]; r.Action == Reserve && r.Key != "" && r.Refused == 0 && !r.Repeated {
				grants[r.Key]++
			}
		}
	}
	reservations := h.reservations()
	for i := range reservations {
		r := &reservations[i]
		if r.key == "" {
			continue
		}
		first := r.first(h)
		others := false // some attempt asked for something else
		for _, n := range r.attempts {
			a := &h.Attempts[n]
			others = others || a.Count != first.Count || a.Partial != first.Partial
		}
		for _, n := range r.attempts {
			a := &h.Attempts[n]
			for k := range a.Answers {
				answer := &a.Answers[k]
				switch {
				case answer.Code == "conflict" && !others:
					f.add([]*Attempt{first, a}, "%s: a conflict, though every attempt was the same", r.key)
				case answer.Outcome != OK || r.acked < 0:
				case a.Since == 0 && grants[r.key] > 1:
				case !slices.Equal(answer.Ranges, r.answer.Ranges):
					f.add([]*Attempt{&h.Attempts[r.acked], a}, "%s has two ranges, %v and %v",
						r.key, r.answer.Ranges, answer.Ranges)
				case a.Count != h.Attempts[r.acked].Count || a.Partial != h.Attempts[r.acked].Partial:
					f.add([]*Attempt{&h.Attempts[r.acked], a}, "%s: another count, and no conflict", r.key)
				}
			}
		}
	}
	return f.all
}

// sorted is the keys of m in order: a report is the same at each run of a checker.
func sorted[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
