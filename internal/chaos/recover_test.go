//go:build linux

package chaos

import (
	"slices"
	"testing"

	"github.com/allocnode/allocnode/internal/chaos/history"
)

// TestInWindow: what is asked for again after a recovery is what the log before had carved under a key that it still remembers.
// Checked: with the window's floor, repeats, or refusals not looked at, a key came that must not.
func TestInWindow(t *testing.T) {
	log := &history.Log{KeyFloor: 4}
	h := &history.History{}
	add := func(key string, seq uint64, edit func(r *history.Result, a *history.Attempt)) {
		got := history.Range{seq * 10, seq*10 + 10}
		r := history.Result{Seq: seq, Action: history.Reserve, Sequence: "orders", Key: "key " + key, Count: 10, Range: got}
		a := history.Attempt{
			Action: history.Reserve, Sequence: "orders", Key: key, Count: 10,
			Answers: []history.Answer{{Outcome: history.OK, Seq: seq, Ranges: []history.Range{got}}},
		}
		edit(&r, &a)
		log.Results = append(log.Results, r)
		h.Attempts = append(h.Attempts, a)
	}
	same := func(*history.Result, *history.Attempt) {}
	add("old", 4, same)
	add("held", 5, same)
	add("newer", 6, same)
	add("newer", 6, same) // a second answer of the same
	add("repeated", 7, func(r *history.Result, _ *history.Attempt) { r.Repeated = true })
	add("refused", 8, func(r *history.Result, _ *history.Attempt) { r.Refused = 1 })
	add("unheard", 9, func(_ *history.Result, a *history.Attempt) { a.Answers = nil })
	add("", 10, func(r *history.Result, _ *history.Attempt) { r.Key = "" })
	add("elsewhere", 11, func(_ *history.Result, a *history.Attempt) { a.Sequence = "users" })
	var got []string
	for _, a := range inWindow(h, log) {
		got = append(got, a.Key)
	}
	if want := []string{"newer", "held"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
