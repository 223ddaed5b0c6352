package history_test

import (
	"testing"
	"time"

	"github.com/allocnode/allocnode/internal/chaos/history"
)

func status(at int64, node, incarnation string, cursor uint64, digest string) history.Status {
	return history.Status{At: at * ms, Node: node, Incarnation: incarnation, State: "serving", Cursor: cursor, Digest: digest}
}

func TestDigestsReject(t *testing.T) {
	s := good()
	s.h.Statuses = []history.Status{
		status(1, "n1", "x", 0, ""), // starting
		status(2, "n1", "x", 4, "digest-4"),
		status(3, "n2", "y", 9, "digest-9"),
		status(4, "n1", "z", 3, "digest-3"), // restarted: it reads the log again
	}
	violations, err := history.Digests(s.h, s.log)
	if err != nil {
		t.Fatal(err)
	}
	wantNone(t, violations)
	good := s.h.Statuses
	for _, tt := range []struct {
		name string
		bad  history.Status
		want string
	}{
		{"another digest", status(5, "n2", "y", 9, "digest-8"), "n2 had digest digest-8 at seq 9"},
		{"beyond the end", status(5, "n2", "y", 10, "digest-9"), "n2 had applied seq 10, the log ends at 9"},
		{"back in one incarnation", status(5, "n2", "y", 8, "digest-8"), "n2 stood at seq 9 and then at 8"},
	} {
		s.h.Statuses = append(good[:len(good):len(good)], tt.bad)
		violations, err := history.Digests(s.h, s.log)
		if err != nil {
			t.Fatalf("%s: %v", tt.name, err)
		}
		wantOne(t, tt.name, violations, history.RuleDigest, tt.want)
	}
	s.h.Statuses = nil
	if _, err := history.Digests(s.h, s.log); err == nil {
		t.Error("no status is no proof, and was taken for one")
	}
}

func TestDrainedRejects(t *testing.T) {
	nodes := []string{"n1", "n2"}
	fresh := func(node string) history.Replica {
		return history.Replica{Node: node, Cluster: "c0ffee", Cursor: 9, Digest: "digest-9", HWM: map[string]uint64{"orders": 510}}
	}
	s := good()
	wantNone(t, history.Drained(nodes, []history.Replica{fresh("n1"), fresh("n2")}, s.log))
	wantOne(t, "one was not read", history.Drained(nodes, []history.Replica{fresh("n1")}, s.log), history.RuleDrained, "n2 was not read")
	for _, tt := range []struct {
		name string
		bad  func(r *history.Replica)
		want string
	}{
		{"behind", func(r *history.Replica) { r.Cursor = 8 }, "n2 has applied seq 8, the log ends at 9"},
		{"ahead", func(r *history.Replica) { r.Cursor = 10 }, "n2 has applied seq 10"},
		{"digest", func(r *history.Replica) { r.Digest = "digest-8" }, "n2 has digest digest-8"},
		{"cluster", func(r *history.Replica) { r.Cluster = "other" }, `n2 is of cluster "other"`},
		{"hwm", func(r *history.Replica) { r.HWM["orders"] = 509 }, "n2 has hwm 509 of orders, the log 510"},
		{"a sequence less", func(r *history.Replica) { delete(r.HWM, "orders") }, "n2 has hwm 0 of orders"},
		{"a sequence more", func(r *history.Replica) { r.HWM["users"] = 1 }, "n2 has a sequence users"},
	} {
		bad := fresh("n2")
		tt.bad(&bad)
		wantOne(t, tt.name, history.Drained(nodes, []history.Replica{fresh("n1"), bad}, s.log), history.RuleDrained, tt.want)
	}
}

func TestHygieneRejects(t *testing.T) {
	sample := func(at int64, goroutines, fds, rss uint64) history.Sample {
		return history.Sample{At: at, Node: "n1", Goroutines: goroutines, FDs: fds, RSS: rss}
	}
	slack := history.Slack{Goroutines: 10, FDs: 5, RSS: 1000}
	baseline, peak := sample(1, 100, 50, 5000), sample(2, 9000, 9000, 90000)
	for _, tt := range []struct {
		name   string
		end    history.Sample
		output string
		want   string
	}{
		{"back", sample(3, 110, 55, 6000), "all is well\n", ""},
		{"goroutines", sample(3, 111, 50, 5000), "", "n1 has 111 goroutines, 100 at the baseline"},
		{"descriptors", sample(3, 100, 56, 5000), "", "56 descriptors"},
		{"memory", sample(3, 100, 50, 6001), "", "6001 resident bytes"},
		{"panic", sample(3, 100, 50, 5000), "fine\npanic: runtime error\n\ngoroutine 1 [running]:\n", "panic: runtime error"},
		{"race", sample(3, 100, 50, 5000), "WARNING: DATA RACE\n", "DATA RACE"},
	} {
		violations, err := history.Hygiene([]string{"n1"}, []history.Sample{baseline, peak, tt.end}, map[string]string{"n1": tt.output}, slack)
		if err != nil {
			t.Fatalf("%s: %v", tt.name, err)
		}
		if tt.want == "" {
			wantNone(t, violations)
		} else {
			wantOne(t, tt.name, violations, history.RuleHygiene, tt.want)
		}
	}
	if _, err := history.Hygiene([]string{"n1"}, []history.Sample{baseline}, nil, slack); err == nil {
		t.Error("one sample is no comparison, and was taken for one")
	}
}

func TestLivenessRejects(t *testing.T) {
	actions, nodes := []history.Action{history.Reserve, history.Next}, []string{"n1"}
	s := good()
	violations, err := history.Liveness(s.h, 20*ms, 25*time.Millisecond, actions, nodes)
	if err != nil {
		t.Fatal(err)
	}
	wantNone(t, violations)

	s.h.Attempts[3].Answers[0].At = 46 * ms
	if violations, err = history.Liveness(s.h, 20*ms, 25*time.Millisecond, actions, nodes); err != nil {
		t.Fatal(err)
	}
	wantOne(t, "too late", violations, history.RuleLiveness, "no next succeeded within 25ms")

	s = good()
	s.h.Attempts[5].Node = "n2" // the attempt that nobody answered
	if violations, err = history.Liveness(s.h, 20*ms, 40*time.Millisecond, actions, []string{"n1", "n2"}); err != nil {
		t.Fatal(err)
	}
	wantOne(t, "a dead node", violations, history.RuleLiveness, "nothing sent to n2 succeeded")

	if violations, err = history.Liveness(s.h, 20*ms, 40*time.Millisecond, actions, []string{"n1", "n3"}); err != nil {
		t.Fatal(err)
	}
	wantOne(t, "a node that does not listen", violations, history.RuleLiveness, "no client could connect to n3")

	if _, err := history.Liveness(s.h, 62*ms, time.Second, nil, nodes); err == nil {
		t.Error("nobody tried anything, and it was taken for dead or alive")
	}
	if _, err := history.Liveness(s.h, 62*ms, time.Second, actions, nil); err == nil {
		t.Error("nobody tried, and it was taken for alive")
	}
}

func TestRecoveryAndSilence(t *testing.T) {
	s := good()
	if d, ok := history.Recovery(s.h, 15*ms); !ok || d != 10*time.Millisecond { // what began before does not count
		t.Errorf("recovery %v %v, want 10ms", d, ok)
	}
	if d, ok := history.Recovery(s.h, 50*ms); ok {
		t.Errorf("recovery %v without an acknowledgement", d)
	}
	if d := history.Silence(s.h, 0, 60*ms); d != 25*time.Millisecond {
		t.Errorf("silence %v, want 25ms: acknowledged at 25, 38 and 40", d)
	}
	if d := history.Silence(s.h, 45*ms, 60*ms); d != 15*time.Millisecond {
		t.Errorf("silence %v, want the whole 15ms", d)
	}
}
