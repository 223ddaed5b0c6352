package history_test

import (
	"slices"
	"testing"

	"github.com/allocnode/allocnode/internal/chaos/history"
)

// badHistory breaks one thing in the good story.
type badHistory struct {
	name string
	bad  func(s *story)
	want string // in the violation
}

func ok(at int64, r history.Range, seq uint64) history.Answer {
	return history.Answer{At: at * ms, Outcome: history.OK, Ranges: []history.Range{r}, Seq: seq, Cluster: "c0ffee"}
}

// The tests of bad histories. Checked: with the range before in place of the one that reaches furthest, owners without a key
// taken for one, or only the first answer of an attempt read, TestUniqueRejects failed.
func TestUniqueRejects(t *testing.T) {
	for _, tt := range []badHistory{
		{"two keys share an id", func(s *story) { s.reserve("d", 70, 71, 15, 3, 9) }, "ids [15, 16) of orders were issued twice"},
		{"a late answer of another range", func(s *story) {
			a := s.reserve("d", 70, 71, 601, 5, 9)
			a.Answers = append(a.Answers, ok(90, history.Range{12, 17}, 9))
		}, "ids [12, 16) of orders were issued twice"},
		{"next hands out a reserved id", func(s *story) {
			s.attempt(history.Attempt{Action: history.Next, Count: 1, Began: 70 * ms, Answers: []history.Answer{ok(71, history.Range{3, 4}, 0)}})
		}, "ids [3, 4)"},
		{"next hands out an id again", func(s *story) {
			s.attempt(history.Attempt{Action: history.Next, Count: 1, Began: 70 * ms, Answers: []history.Answer{ok(71, history.Range{17, 18}, 0)}})
		}, "ids [17, 18)"},
		{"the same range to two attempts without a key", func(s *story) {
			s.reserve("", 70, 71, 601, 5, 9)
			s.reserve("", 72, 73, 601, 5, 9)
		}, "ids [601, 606)"},
		{"a small range within a large one, with others between", func(s *story) {
			s.reserve("d", 70, 71, 1000, 1000, 9)
			s.reserve("e", 72, 73, 2000, 10, 9)
			s.reserve("f", 74, 75, 1990, 1, 9)
			s.reserve("g", 76, 77, 1001, 1, 9)
		}, "ids [1990, 1991)"},
		{"an owner's range repeated between", func(s *story) {
			s.reserve("d", 70, 71, 700, 10, 9)
			s.reserve("d", 72, 73, 700, 10, 9)
			s.reserve("e", 74, 75, 705, 1, 9)
		}, "ids [705, 706)"},
		{"one key, two overlapping ranges", func(s *story) {
			s.reserve("d", 70, 71, 700, 10, 9)
			s.reserve("d", 72, 73, 705, 10, 9)
		}, "ids [705, 710)"},
		{"id 0", func(s *story) { s.reserve("d", 70, 71, 0, 1, 9) }, "id 0"},
		{"more ids than asked for", func(s *story) { s.reserve("d", 70, 71, 700, 10, 9).Count = 9 }, "not the ids that were asked for"},
		{"fewer ids than asked for", func(s *story) { s.reserve("d", 70, 71, 700, 10, 9).Count = 11 }, "not the ids that were asked for"},
		{"no ids", func(s *story) { s.reserve("d", 70, 71, 700, 10, 9).Answers[0].Ranges = nil }, "not the ids that were asked for"},
	} {
		s := good()
		tt.bad(s)
		wantOne(t, tt.name, history.Unique(s.h), history.RuleUnique, tt.want)
	}
	s := good()
	s.reserve("d", 70, 71, 700, 10, 9).Sequence = "users"
	s.reserve("e", 72, 73, 700, 10, 9).Sequence = "orders" // the same ids of another sequence
	partial := s.reserve("f", 74, 75, 800, 10, 9)
	partial.Partial, partial.Count = true, 50
	wantNone(t, history.Unique(s.h))
}

// Checked: without the rule for conflicts, for another count, or for keys without since (each way), it failed.
func TestIdempotentRejects(t *testing.T) {
	for _, tt := range []badHistory{
		{"a retry gets another range", func(s *story) { s.reserve("a", 70, 71, 601, 10, 9) }, "has two ranges"},
		{"a late answer names another range", func(s *story) {
			a := &s.h.Attempts[1]
			a.Answers = append(a.Answers, ok(99, history.Range{601, 606}, 9))
		}, "has two ranges"},
		{"another count gets the range", func(s *story) {
			s.reserve("a", 70, 71, 1, 10, 9).Count = 11
		}, "another count, and no conflict"},
		{"another count gets a range", func(s *story) { s.reserve("a", 70, 71, 601, 11, 9) }, "has two ranges"},
		{"a conflict for the same bytes", func(s *story) {
			a := s.reserve("a", 70, 0, 0, 10, 0)
			a.Answers = []history.Answer{{At: 71 * ms, Outcome: history.Failed, Code: "conflict"}}
		}, "every attempt was the same"},
		{"a key without since gets another range within the window", func(s *story) {
			s.reserve("d", 70, 71, 601, 10, 9).Since = 0
			s.reserve("d", 72, 73, 701, 10, 9).Since = 0
			s.granted("d", 601, 10, 9)
		}, "has two ranges"},
	} {
		s := good()
		tt.bad(s)
		wantOne(t, tt.name, history.Idempotent(s.h, s.log), history.RuleIdempotent, tt.want)
	}
	s := good() // a key that the window has forgotten may be new, where its sender does not say since when it knows
	s.reserve("d", 70, 71, 601, 10, 8).Since = 0
	s.reserve("d", 72, 73, 701, 10, 9).Since = 0
	s.granted("d", 601, 10, 8)
	s.granted("d", 701, 10, 9)
	other := s.reserve("a", 80, 0, 0, 11, 0)
	other.Answers = []history.Answer{{At: 81 * ms, Outcome: history.Failed, Code: "conflict"}}
	wantNone(t, history.Idempotent(s.h, s.log))
	wantNone(t, history.Order(s.h, s.log))
}

// Checked: with the last acknowledgement in place of the highest, beginnings in place of acknowledgements, or infos that show no
// mark, it failed.
func TestOrderRejects(t *testing.T) {
	for _, tt := range []badHistory{
		{"a later reservation below an earlier one", func(s *story) {
			s.reserve("d", 70, 71, 700, 10, 9)
			s.reserve("e", 72, 73, 600, 10, 9)
		}, "orders had reached 709 by an acknowledgement, and what began after it stands on 599"},
		{"one below, with others begun between", func(s *story) {
			s.reserve("d", 70, 80, 700, 10, 9)
			s.reserve("e", 71, 75, 650, 10, 9)
			s.reserve("f", 76, 77, 600, 10, 9)
		}, "reached 659"},
		{"one below what was acknowledged before the last", func(s *story) {
			s.reserve("d", 70, 80, 700, 10, 9)
			s.reserve("e", 71, 81, 650, 10, 9)
			s.reserve("f", 82, 83, 670, 10, 9)
		}, "reached 709"},
		{"a reservation below an advance", func(s *story) { s.reserve("d", 70, 71, 400, 10, 9) }, "reached 510"},
		{"an advance that does not know a reservation", func(s *story) {
			s.attempt(history.Attempt{Action: history.Advance, To: 900, Began: 70 * ms, Answers: []history.Answer{
				{At: 71 * ms, Outcome: history.OK, Old: 505, HWM: 900, Seq: 9},
			}})
		}, "stands on 505"},
		{"an info of before", func(s *story) {
			s.attempt(history.Attempt{Action: history.Info, Began: 70 * ms, Answers: []history.Answer{
				{At: 71 * ms, Outcome: history.OK, HWM: 500, Seq: 9},
			}})
		}, "stands on 500"},
		{"a reservation below an info", func(s *story) {
			s.h.Attempts[6].Answers[0].HWM = 800
			s.reserve("d", 70, 71, 700, 10, 9)
		}, "reached 800"},
		{"an unheard reservation that the log has too low", func(s *story) {
			s.reserve("d", 70, 0, 0, 10, 0)
			s.granted("d", 450, 10, 9)
		}, "stands on 449"},
	} {
		s := good()
		tt.bad(s)
		violations := history.Order(s.h, s.log)
		wantOne(t, tt.name, violations, history.RuleOrder, tt.want)
		if len(violations) > 0 {
			if around := history.Around(s.h, violations[0], 1*ms, 50); len(around) < 2 {
				t.Errorf("%s: the window around it has %d attempts", tt.name, len(around))
			}
		}
	}
	s := good()
	s.reserve("d", 70, 80, 700, 10, 9)
	s.reserve("e", 71, 75, 900, 10, 9) // under way together: either order will do
	s.reserve("f", 74, 79, 800, 10, 9)
	s.reserve("a", 90, 91, 1, 10, 9) // a retry of what was there first
	wantNone(t, history.Order(s.h, s.log))
}

// Checked: without the rule for clusters, expired keys, or the upper bound of an info, with batches never joined, or joined
// across nodes, it failed.
func TestLogTruthRejects(t *testing.T) {
	for _, tt := range []badHistory{
		{"an acknowledged reservation is not in the log", func(s *story) { s.reserve("d", 70, 71, 601, 10, 9) },
			"reserve of orders [601, 611) does not stand in the log at seq 9"},
		{"the log has another range", func(s *story) { s.log.Results[1].Range = history.Range{12, 17} }, "[11, 16) does not stand"},
		{"the log has another key", func(s *story) { s.log.Results[1].Key = "key z of orders" }, "[11, 16) does not stand"},
		{"the log has it at another seq", func(s *story) { s.log.Results[1].Seq = 5 }, "[11, 16) does not stand"},
		{"the log refused it", func(s *story) { s.log.Results[1].Refused = 1 }, "[11, 16) does not stand"},
		{"a late answer is not in the log", func(s *story) {
			a := &s.h.Attempts[5]
			a.Answers = append(a.Answers, ok(99, history.Range{601, 611}, 8))
		}, "[601, 611) does not stand"},
		{"another cluster", func(s *story) { s.h.Attempts[1].Answers[0].Cluster = "other" }, `an answer of cluster "other"`},
		{"an advance's mark", func(s *story) { s.h.Attempts[4].Answers[0].HWM = 501 }, "advance of orders [115, 501)"},
		{"a create", func(s *story) {
			s.attempt(history.Attempt{Action: history.Create, Began: 70 * ms, Answers: []history.Answer{{At: 71 * ms, Outcome: history.OK, Seq: 9}}})
		}, "create of orders"},
		{"an id that no batch holds", func(s *story) {
			s.h.Attempts[3].Answers[0].Ranges = []history.Range{{16, 20}, {114, 117}}
		}, "ids [114, 117) of orders lie in no batch"},
		{"an id of a keyed reservation as next", func(s *story) {
			s.h.Attempts[3].Answers[0].Ranges = []history.Range{{501, 508}}
		}, "lie in no batch"},
		{"batches of two nodes as one", func(s *story) {
			s.granted("", 601, 10, 9)
			s.granted("", 611, 10, 9)
			s.log.Results[len(s.log.Results)-1].Node = "n2"
			s.h.Attempts[3].Answers[0].Ranges = []history.Range{{607, 614}}
		}, "ids [607, 614)"},
		{"an info below the log", func(s *story) { s.h.Attempts[6].Answers[0].HWM = 509 }, "hwm 509 of orders, the log had 510 at seq 9"},
		{"an info above the log", func(s *story) { s.h.Attempts[6].Answers[0].HWM = 511 }, "hwm 511 of orders"},
		{"refused, and carved", func(s *story) {
			s.h.Attempts[5].Answers = []history.Answer{{At: 53 * ms, Outcome: history.Failed, Code: "unavailable"}}
		}, "key c of orders was refused each time, and stands in the log at seq 8"},
		{"expired within the window", func(s *story) {
			s.h.Attempts[5].Answers = []history.Answer{{At: 53 * ms, Outcome: history.Failed, Code: "key_expired"}}
		}, "the window reaches back to seq 1"},
	} {
		s := good()
		tt.bad(s)
		wantOne(t, tt.name, history.LogTruth(s.h, s.log), history.RuleLogTruth, tt.want)
	}
	s := good() // a node joins what it reserved next, and answers across the seam
	s.granted("", 601, 10, 9)
	s.granted("", 611, 10, 9)
	s.h.Attempts[3].Answers[0].Ranges = []history.Range{{607, 614}}
	s.h.Attempts[6].Answers[0].Seq = 8 // an info may say its seq too low, never too high
	// Refused at one node and not heard of from another is unknown.
	lost := s.reserve("c", 54, 0, 0, 10, 0)
	lost.Answers = []history.Answer{{At: 55 * ms, Outcome: history.Failed, Code: "unavailable"}}
	wantNone(t, history.LogTruth(s.h, s.log))
}

// TestManyViolations: a broken run must not end in a report of a million lines.
func TestManyViolations(t *testing.T) {
	s := good()
	for i := range int64(1000) {
		s.reserve("", 100+i, 101+i, 1, 10, 3)
	}
	if n := len(history.Unique(s.h)); n == 0 || n > 100 {
		t.Errorf("%d violations: want some, at most 100", n)
	}
	slices.Reverse(s.h.Attempts) // a checker may rest on the order of time, but not to crash
	_ = history.Order(s.h, s.log)
}
