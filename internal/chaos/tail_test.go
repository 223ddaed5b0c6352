//go:build linux

package chaos

import (
	"strings"
	"testing"

	"github.com/allocnode/allocnode/internal/chaos/history"
	"github.com/allocnode/allocnode/internal/wire"
)

func lostTail() *tail {
	t := &tail{issued: 1201, held: wire.Status{Name: "n3", Cursor: 2, Digest: "d2"}, after: map[string]wire.Status{}}
	for _, name := range []string{"n1", "n2", "n3"} {
		t.after[name] = wire.Status{Name: name, State: wire.StateFenced, Reason: "the log lost entries: n3 had applied seq 124"}
	}
	return t
}

func wholeTail() *tail {
	t := lostTail()
	t.log = &history.Log{Last: 3, Digests: []string{"d1", "d2", "d3"}}
	t.answers = []answer{{Start: 1201, End: 1211}, {Start: 1211, End: 1221}}
	for name := range t.after {
		t.after[name] = wire.Status{Name: name, State: wire.StateServing, Ready: true, Cursor: 3, Digest: "d3"}
	}
	return t
}

// TestTailJudged has both ends that are allowed, and breaks each. Checked: without the comparison of answers with what was
// issued, of answers with fences, of reasons, of the third's digest, or of each node's, a case passed that must not.
func TestTailJudged(t *testing.T) {
	nodes := []string{"n1", "n2", "n3"}
	edit := func(name string, change func(s *wire.Status)) func(*tail) {
		return func(t *tail) {
			s := t.after[name]
			change(&s)
			t.after[name] = s
		}
	}
	for _, tt := range []struct {
		name  string
		begin func() *tail
		bad   func(*tail)
		want  string // of the error; with "ok: " of what was seen
	}{
		{"lost", lostTail, func(*tail) {}, "ok: ENTRIES WERE LOST; nobody answered; n1 is fenced"},
		{"whole", wholeTail, func(*tail) {}, "ok: NOTHING WAS LOST"},
		{"whole, the third was elected in time", wholeTail, func(t *tail) { t.answers = nil }, "ok: NOTHING WAS LOST"},
		{"an old range", wholeTail, func(t *tail) { t.answers[0] = answer{Start: 1191, End: 1201} }, "ids issued twice"},
		{"a range that overlaps the end", wholeTail, func(t *tail) { t.answers[0] = answer{Start: 1200, End: 1210} }, "ids issued twice"},
		{"one range for two keys", wholeTail, func(t *tail) { t.answers[1] = t.answers[0] }, "ids issued twice"},
		{"an empty range", wholeTail, func(t *tail) { t.answers[1].End = 1211 }, "ids issued twice"},
		{"answered, and then fenced", lostTail, func(t *tail) { t.answers = []answer{{Start: 1201, End: 1211}} }, "who could not know"},
		{"fenced for another reason", lostTail, edit("n2", func(s *wire.Status) { s.Reason = "another cluster answers" }), "not the true reason"},
		{"one of three fenced", wholeTail, edit("n2", func(s *wire.Status) { *s = lostTail().after["n2"] }), "n2 is fenced"},
		{"two of three fenced", lostTail, edit("n2", func(s *wire.Status) { s.State, s.Ready = wire.StateServing, true }), "neither all are fenced"},
		{"one is gone", lostTail, func(t *tail) { delete(t.after, "n3") }, "n3 does not answer"},
		{"lost, and nobody noticed", wholeTail, func(t *tail) { t.log.Digests[1] = "other" }, "lost what was there up to seq 2"},
		{"lost, and shorter", wholeTail, func(t *tail) { t.held.Cursor = 4 }, "lost what was there up to seq 4"},
		{"nothing was held", wholeTail, func(t *tail) { t.held.Cursor = 0 }, "lost what was there"},
		{"one has another digest", wholeTail, edit("n1", func(s *wire.Status) { s.Digest = "other" }), "n1 is serving with digest other"},
		{"one is behind", wholeTail, edit("n3", func(s *wire.Status) { s.Cursor, s.Digest = 2, "d2" }), "n3 is serving with digest d2 at seq 2"},
		{"one is behind, with the last digest", wholeTail, edit("n3", func(s *wire.Status) { s.Cursor = 2 }), "n3 is serving with digest d3 at seq 2"},
		{"one does not serve", wholeTail, edit("n3", func(s *wire.Status) { s.Ready, s.State = false, wire.StateChecking }), "n3 is checking"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			seen := tt.begin()
			tt.bad(seen)
			what, err := seen.judge(nodes)
			got := "ok: " + what
			if err != nil {
				got = err.Error()
			}
			if !strings.Contains(got, tt.want) {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}
