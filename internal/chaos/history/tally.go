package history

import (
	"slices"
	"time"
)

// Count is how attempts of one action ended.
type Count struct{ Tried, OK, Failed, Unknown int }

// Tally is a history in figures.
type Tally struct {
	Actions map[Action]Count
	Acked   int            // reservations (keys, or attempts without one) that were acknowledged
	Issued  uint64         // ids that somebody was told are his, each counted once
	Carved  uint64         // ids that the log carved; 0 without a log
	Gaps    uint64         // ids carved and never issued: lost replies, rests of batches
	Codes   map[string]int // refusals by code
}

// Count adds a history up. log may be nil.
func (h *History) Count(log *Log) Tally {
	t := Tally{Actions: map[Action]Count{}, Codes: map[string]int{}}
	for i := range h.Attempts {
		a := &h.Attempts[i]
		c := t.Actions[a.Action]
		c.Tried++
		switch a.Outcome() {
		case OK:
			c.OK++
		case Failed:
			c.Failed++
		default:
			c.Unknown++
		}
		t.Actions[a.Action] = c
		for n := range a.Answers {
			if code := a.Answers[n].Code; code != "" {
				t.Codes[code]++
			}
		}
		if ok := a.ok(); ok != nil && a.Action == Next {
			t.Issued += size(ok.Ranges)
		}
	}
	reservations := h.reservations()
	for i := range reservations {
		if r := &reservations[i]; r.answer != nil {
			t.Acked++
			t.Issued += size(r.answer.Ranges)
		}
	}
	if log != nil {
		for i := range log.Results {
			if r := &log.Results[i]; r.Action == Reserve && r.Refused == 0 && !r.Repeated {
				t.Carved += r.Range.End() - r.Range.Start()
			}
		}
		t.Gaps = t.Carved - min(t.Carved, t.Issued)
	}
	return t
}

func size(ranges []Range) (ids uint64) {
	for _, r := range ranges {
		ids += r.End() - r.Start()
	}
	return ids
}

// Recovery is how long after from (by [Now]) the first reservation was acknowledged that also began after it. It is false if
// none was.
func Recovery(h *History, from int64) (time.Duration, bool) {
	first := int64(-1)
	for i := range h.Attempts {
		a := &h.Attempts[i]
		if a.Action != Reserve || a.Began < from {
			continue
		}
		if ok := a.ok(); ok != nil && (first < 0 || ok.At < first) {
			first = ok.At
		}
	}
	return time.Duration(first - from), first >= 0
}

// Silence is the longest time between from and to (by [Now]) in which no reservation was acknowledged.
func Silence(h *History, from, to int64) time.Duration {
	var acks []int64
	for i := range h.Attempts {
		a := &h.Attempts[i]
		if ok := a.ok(); a.Action == Reserve && ok != nil && ok.At > from && ok.At < to {
			acks = append(acks, ok.At)
		}
	}
	return time.Duration(longestGap(acks, from, to))
}

func longestGap(at []int64, from, to int64) (longest int64) {
	slices.Sort(at)
	for _, t := range append(at, to) {
		longest, from = max(longest, t-from), t
	}
	return longest
}
