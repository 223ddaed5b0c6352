package history

import (
	"cmp"
	"math"
	"slices"
)

// placed is an operation that shows its place in its sequence's order.
type placed struct {
	began, acked int64  // acked is math.MaxInt64 where no answer came
	low, high    uint64 // the hwm before and after it
	attempt      *Attempt
}

// Order returns the operations that went back in real time: one that began after another on the same sequence had been
// acknowledged, and yet does not stand above it. Reservations, advances and infos behind a barrier count; next does not,
// since batches are unordered, and a retry counts from its key's first attempt on. log may be nil; with it, a reservation
// that nobody was told of has its place too.
//
// A general checker of linearizability searches for an order that explains the answers. Here each answer names its place:
// the hwm before it and after it. With disjoint ranges ([Unique]) that leaves one order, by hwm, and the history is
// linearizable exactly when that order never contradicts real time. So one sweep decides what a search such as Porcupine's
// would, for a million operations, and a violation is a pair of attempts rather than a window.
func Order(h *History, log *Log) []Violation {
	f := &found{rule: RuleOrder}
	all := map[string][]placed{}
	unheard := map[string]Range{} // what the log has for a key
	if log != nil {
		for i := range log.Results {
			if r := &log.Results[i]; r.Action == Reserve && r.Key != "" && r.Refused == 0 && !r.Repeated {
				unheard[r.Key] = r.Range
			}
		}
	}
	reservations := h.reservations()
	for i := range reservations {
		r := &reservations[i]
		p := placed{began: r.first(h).Began, acked: math.MaxInt64, attempt: r.first(h)}
		got, ok := unheard[r.key]
		if r.answer != nil && len(r.answer.Ranges) == 1 {
			p.acked, got, ok = r.answer.At, r.answer.Ranges[0], true
		}
		if ok && got.Start() > 0 {
			p.low, p.high = got.Start()-1, got.End()-1
			all[r.sequence] = append(all[r.sequence], p)
		}
	}
	for i := range h.Attempts {
		a := &h.Attempts[i]
		answer := a.ok()
		if answer == nil || a.Action != Advance && a.Action != Info {
			continue
		}
		p := placed{began: a.Began, acked: answer.At, low: answer.Old, high: answer.HWM, attempt: a}
		if a.Action == Info {
			p.low = answer.HWM
		}
		all[a.Sequence] = append(all[a.Sequence], p)
	}
	for _, name := range sorted(all) {
		backwards(f, name, all[name])
	}
	return f.all
}

// backwards walks operations by their beginnings, beside the same ones by their acknowledgements.
func backwards(f *found, name string, began []placed) {
	acked := slices.Clone(began)
	slices.SortFunc(began, func(a, b placed) int { return cmp.Compare(a.began, b.began) })
	slices.SortFunc(acked, func(a, b placed) int { return cmp.Compare(a.acked, b.acked) })
	var highest *placed
	done := 0
	for i := range began {
		for done < len(acked) && acked[done].acked < began[i].began {
			if highest == nil || acked[done].high > highest.high {
				highest = &acked[done]
			}
			done++
		}
		if highest != nil && began[i].low < highest.high {
			f.add([]*Attempt{highest.attempt, began[i].attempt},
				"%s had reached %d by an acknowledgement, and what began after it stands on %d", name, highest.high, began[i].low)
		}
	}
}

// Around returns the attempts on a violation's sequences that were under way at a time of its attempts, or within margin
// nanoseconds of it, in the order of time: the window to read when a checker speaks. At most most of them.
func Around(h *History, v Violation, margin int64, most int) []Attempt {
	var window []Attempt
	for i := range h.Attempts {
		a := &h.Attempts[i]
		near := slices.ContainsFunc(v.Attempts, func(c Attempt) bool {
			return a.Sequence == c.Sequence && a.Began <= c.last()+margin && a.last() >= c.Began-margin
		})
		if near && len(window) < most {
			window = append(window, *a)
		}
	}
	return window
}

// last is when the attempt was last heard of.
func (a *Attempt) last() int64 {
	if n := len(a.Answers); n > 0 {
		return a.Answers[n-1].At
	}
	return a.Began
}
