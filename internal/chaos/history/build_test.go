package history_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/allocnode/allocnode/internal/chaos/history"
)

// story is a history and its log, made by hand: a good one, of which each test breaks one thing. Times are in milliseconds.
type story struct {
	h   *history.History
	log *history.Log
}

const ms = 1_000_000

func (s *story) attempt(a history.Attempt) *history.Attempt {
	a.ID = uint64(len(s.h.Attempts) + 1)
	a.Process, a.Node = "p", "n1"
	if a.Sequence == "" {
		a.Sequence = "orders"
	}
	for i := range a.Answers {
		if a.Answers[i].Outcome == history.OK && a.Answers[i].Cluster == "" {
			a.Answers[i].Cluster = s.log.Cluster
		}
	}
	s.h.Attempts = append(s.h.Attempts, a)
	return &s.h.Attempts[len(s.h.Attempts)-1]
}

// reserve is an attempt under a key, answered with [start, start+count) of seq; at 0 it is not answered.
func (s *story) reserve(key string, began, at int64, start, count, seq uint64) *history.Attempt {
	a := history.Attempt{Action: history.Reserve, Key: key, Count: count, Since: 1, Began: began * ms}
	if at > 0 {
		a.Answers = []history.Answer{{At: at * ms, Outcome: history.OK, Ranges: []history.Range{{start, start + count}}, Seq: seq}}
	}
	return s.attempt(a)
}

// granted puts a carve into the log.
func (s *story) granted(key string, start, count, seq uint64) {
	scope := ""
	if key != "" {
		scope = "key " + key + " of orders"
	}
	s.log.Results = append(s.log.Results, history.Result{
		Seq: seq, Node: "n1", Action: history.Reserve, Sequence: "orders", Key: scope, Count: count, Partial: key == "",
		Range: history.Range{start, start + count},
	})
	s.log.HWM["orders"] = max(s.log.HWM["orders"], start+count-1)
}

// good is reservations, a retry of the first that was answered late, a batch and what was taken from it, an advance, an info
// and an attempt that nobody answered.
func good() *story {
	s := &story{
		h: &history.History{}, log: &history.Log{Cluster: "c0ffee", Last: 9, HWM: map[string]uint64{}, KeyFloor: 1},
	}
	for seq := range 9 {
		s.log.Digests = append(s.log.Digests, fmt.Sprintf("digest-%d", seq+1))
	}
	s.granted("a", 1, 10, 3)
	s.granted("b", 11, 5, 4)
	s.granted("", 16, 100, 5)
	s.log.Results = append(s.log.Results, history.Result{
		Seq: 6, Node: "n1", Action: history.Reserve, Sequence: "orders", Key: "key a of orders", Count: 10, Repeated: true,
		Range: history.Range{1, 11},
	}, history.Result{
		Seq: 7, Action: history.Advance, Sequence: "orders", Count: 500, Range: history.Range{115, 500},
	})
	s.granted("c", 501, 10, 8)

	first := s.reserve("a", 10, 40, 1, 10, 3)
	first.Answers = append([]history.Answer{{At: 35 * ms, Outcome: history.Unknown, Text: "no answer in time"}}, first.Answers...)
	s.reserve("b", 20, 25, 11, 5, 4)
	s.reserve("a", 36, 38, 1, 10, 6)
	s.attempt(history.Attempt{Action: history.Next, Count: 7, Began: 41 * ms, Answers: []history.Answer{
		{At: 42 * ms, Outcome: history.OK, Ranges: []history.Range{{16, 20}, {30, 33}}},
	}})
	s.attempt(history.Attempt{Action: history.Advance, To: 500, Began: 50 * ms, Answers: []history.Answer{
		{At: 51 * ms, Outcome: history.OK, Old: 115, HWM: 500, Seq: 7},
	}})
	s.reserve("c", 52, 0, 501, 10, 0)
	s.attempt(history.Attempt{Action: history.Info, Began: 60 * ms, Answers: []history.Answer{
		{At: 61 * ms, Outcome: history.OK, HWM: 510, Seq: 9},
	}})
	return s
}

func wantNone(t *testing.T, violations []history.Violation) {
	t.Helper()
	for _, v := range violations {
		t.Errorf("violation: %s", v)
	}
}

// wantOne fails unless there are violations of the rule, and one of them has text in it.
func wantOne(t *testing.T, name string, violations []history.Violation, rule history.Rule, text string) {
	t.Helper()
	for _, v := range violations {
		if v.Rule == rule && strings.Contains(v.String(), text) {
			return
		}
	}
	t.Errorf("%s: violations %v, want one of %s with %q", name, violations, rule, text)
}

func TestGoodHistory(t *testing.T) {
	s := good()
	wantNone(t, history.Unique(s.h))
	wantNone(t, history.Idempotent(s.h, s.log))
	wantNone(t, history.Idempotent(s.h, nil))
	wantNone(t, history.Order(s.h, s.log))
	wantNone(t, history.Order(s.h, nil))
	wantNone(t, history.LogTruth(s.h, s.log))
	got := s.h.Count(s.log)
	if got.Acked != 2 || got.Issued != 22 || got.Carved != 125 || got.Gaps != 103 || got.Actions[history.Reserve].Unknown != 1 {
		t.Errorf("count: %+v", got)
	}
}
