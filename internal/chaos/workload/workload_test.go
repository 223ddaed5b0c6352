package workload_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/allocnode/allocnode/internal/chaos/history"
	"github.com/allocnode/allocnode/internal/chaos/workload"
	"github.com/allocnode/allocnode/internal/freeport"
	"github.com/allocnode/allocnode/internal/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// run has one client process at work until the service has had enough requests, and returns what it wrote.
func run(t *testing.T, s *service, path, process string, resume []history.Attempt) *history.History {
	t.Helper()
	nodes := []workload.Node{{Name: "n1", URL: s.url}, {Name: "n2", URL: s.url}, {Name: "n3", URL: s.url}}
	return runAt(t, s, path, process, resume, nodes)
}

func runAt(
	t *testing.T, s *service, path, process string, resume []history.Attempt, nodes []workload.Node,
) *history.History {
	t.Helper()
	w, err := history.Open(path, process)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	cfg := workload.DefaultConfig()
	cfg.Process, cfg.Seed, cfg.History, cfg.Resume, cfg.Nodes = process, 7, w, resume, nodes
	cfg.Workers, cfg.MaxCount, cfg.KeyWindow = 24, defaults.MaxCount, keyWindow
	cfg.Pace, cfg.Timeout = time.Millisecond, 200*time.Millisecond
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	go func() {
		select {
		case <-s.enough:
		case <-ctx.Done():
			t.Error("too few requests within a minute")
		}
		cancel()
	}()
	if err := workload.Run(ctx, cfg); err != nil {
		t.Fatal(err)
	}
	h, err := history.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// judge runs all checkers of clients' answers.
func judge(t *testing.T, s *service, h *history.History) []history.Violation {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	log, err := history.Fold(s.messages)
	if err != nil {
		t.Fatal(err)
	}
	var all []history.Violation
	for _, v := range [][]history.Violation{
		history.Unique(h), history.Idempotent(h, log), history.Order(h, log), history.LogTruth(h, log),
	} {
		all = append(all, v...)
	}
	return all
}

// TestRun has the workload at a service that is right and unlucky: the checkers have nothing to say, and everything that the
// workload is there for has happened. Checked: with unknown_outcome taken for a refusal, log truth was broken; with answers
// dropped after the time-out, none was late; without since, it failed at the first key tried again.
func TestRun(t *testing.T) {
	s := startService(t, 12_000) // of the rarest outcome some ten are expected
	h := run(t, s, filepath.Join(t.TempDir(), "history.jsonl"), "c1", nil)
	for _, v := range judge(t, s, h) {
		t.Errorf("violation: %s", v)
	}
	count := h.Count(nil)
	t.Logf("%+v", count)
	for _, action := range []history.Action{history.Reserve, history.Next, history.Create, history.Advance, history.Info} {
		if c := count.Actions[action]; c.OK == 0 || c.Failed == 0 || c.Unknown == 0 {
			t.Errorf("%s: %+v, want some of each", action, c)
		}
	}
	for _, code := range []string{"conflict", "key_expired", "exhausted", "unavailable", "unknown_outcome"} {
		if count.Codes[code] == 0 {
			t.Errorf("no answer was %s", code)
		}
	}
	seen := map[string]int{}
	nodes, first := map[string]map[string]bool{}, map[string]history.Attempt{}
	counts := map[uint64]bool{}
	for i := range h.Attempts {
		a := &h.Attempts[i]
		if a.Action != history.Reserve {
			continue
		}
		if a.Outcome() == history.OK {
			counts[a.Count] = true
		}
		if n := len(a.Answers); n == 0 {
			seen["nobody read the answer"]++
		} else if n > 1 && a.Answers[0].Outcome == history.Unknown && a.Outcome() == history.OK {
			seen["late"]++
		}
		if a.Key == "" {
			seen["without a key"]++
			continue
		}
		before, again := first[a.Key]
		if !again {
			first[a.Key], nodes[a.Key] = *a, map[string]bool{}
		}
		nodes[a.Key][a.Node] = true
		switch {
		case !again:
		case a.Began < last(&before) || len(before.Answers) == 0:
			seen["sent to another node before the first answer"]++
		case before.Outcome() == history.OK && a.Outcome() == history.OK:
			seen["a retry of what was acknowledged"]++
		case before.Outcome() == history.Unknown && a.Outcome() == history.OK:
			seen["a retry of what was unknown"]++
		}
		if again && (a.Since != before.Since || a.Since == 0) {
			t.Errorf("key %s has since %d and then %d", a.Key, before.Since, a.Since)
		}
		if a.Partial && a.Outcome() == history.OK {
			seen["partial"]++
		}
	}
	for _, what := range []string{"nobody read the answer", "late", "without a key", "sent to another node before the first answer",
		"a retry of what was acknowledged", "a retry of what was unknown", "partial"} {
		if seen[what] == 0 {
			t.Errorf("never: %s (seen %v)", what, seen)
		}
	}
	for _, n := range []uint64{1, 10, 1000, defaults.MaxCount} {
		if !counts[n] {
			t.Errorf("no reservation of %d ids", n)
		}
	}
	everywhere := 0
	for _, at := range nodes {
		if len(at) == 3 {
			everywhere++
		}
	}
	if everywhere == 0 {
		t.Error("no key was asked for at all three nodes")
	}
	if s.lists == 0 {
		t.Error("no list was asked for")
	}
}

func last(a *history.Attempt) int64 {
	if n := len(a.Answers); n > 0 {
		return a.Answers[n-1].At
	}
	return a.Began
}

// TestRunAtABrokenService: what a broken service does is found in what the workload writes.
func TestRunAtABrokenService(t *testing.T) {
	for name, tt := range map[string]struct {
		fault func(n *int, op *wire.Op, o *wire.Outcome)
		want  []history.Rule
	}{
		"a range is issued twice": {func(n *int, op *wire.Op, o *wire.Outcome) {
			if *n++; *n%50 == 0 && op.Kind == wire.KindReserve && o.Reject == 0 && !o.Repeated && o.Start > 3000 {
				o.Start, o.End = o.Start-1, o.End-1
			}
		}, []history.Rule{history.RuleUnique, history.RuleLogTruth}},
		"a key has a new range": {func(_ *int, _ *wire.Op, o *wire.Outcome) {
			if o.Repeated {
				o.Start, o.End = o.Start+1<<40, o.End+1<<40
			}
		}, []history.Rule{history.RuleIdempotent, history.RuleLogTruth}},
		"an old mark": {func(n *int, op *wire.Op, o *wire.Outcome) {
			if *n++; *n%5 == 0 && op.Kind == wire.KindAdvance && o.Reject == 0 {
				o.Start = 0
			}
		}, []history.Rule{history.RuleOrder, history.RuleLogTruth}},
	} {
		t.Run(name, func(t *testing.T) {
			s := startService(t, 1500)
			n := 0
			s.mu.Lock()
			s.fault = func(op *wire.Op, o *wire.Outcome) { tt.fault(&n, op, o) }
			s.mu.Unlock()
			violations := judge(t, s, run(t, s, filepath.Join(t.TempDir(), "history.jsonl"), "c1", nil))
			broken := map[history.Rule]int{}
			for _, v := range violations {
				broken[v.Rule]++
			}
			for _, rule := range tt.want {
				if broken[rule] == 0 {
					t.Errorf("found %v, want %s among them", broken, rule)
				}
			}
		})
	}
}

// TestResume: a second process settles what the first left open. Checked: without the loop over Config.Resume keys stayed open.
func TestResume(t *testing.T) {
	s := startService(t, 1000)
	path := filepath.Join(t.TempDir(), "history.jsonl")
	h := run(t, s, path, "c1", nil)
	open := workload.Unfinished(h)
	if len(open) == 0 {
		t.Fatal("the first process left nothing open")
	}
	left := func() (keys []string) {
		h, err := history.ReadFile(path)
		if err != nil {
			t.Error(err)
		}
		unfinished := map[string]bool{}
		for _, a := range workload.Unfinished(h) {
			unfinished[a.Key] = true
		}
		for _, a := range open {
			if unfinished[a.Key] {
				keys = append(keys, a.Key)
			}
		}
		return keys
	}
	done := make(chan struct{})
	s.mu.Lock()
	s.enough = done
	s.mu.Unlock()
	go func() {
		defer close(done)
		tick := time.NewTicker(50 * time.Millisecond)
		defer tick.Stop()
		for range 600 {
			if <-tick.C; len(left()) == 0 {
				return
			}
		}
		t.Errorf("after 30 s still open: %v", left())
	}()
	h = run(t, s, path, "c2", open)
	for _, v := range judge(t, s, h) {
		t.Errorf("violation: %s", v)
	}
}

// TestStaysAtItsNode: a client that was told to ask a node asks that one or none, whatever the servers gossip. Else retries at
// another node would be retries at the same one, and a partition of a node would not be felt. It waits for one that does not
// listen yet.
// Checked: without nats.IgnoreDiscoveredServers attempts at n1 succeeded after its server was gone; without
// nats.RetryOnFailedConnect the run ended at once.
func TestStaysAtItsNode(t *testing.T) {
	later, err := freeport.One()
	if err != nil {
		t.Fatal(err)
	}
	two := startServer(t, "two", true)
	route := "nats://" + two.ClusterAddr().String()
	one := startServer(t, "one", true, route)
	three := newServer(t, "three", later, true, route)

	s := serveAt(t, two, 3000)
	gone, came := make(chan int64, 1), make(chan int64, 1)
	s.mu.Lock()
	s.at = map[int]func(){
		500: func() {
			one.Shutdown()
			one.WaitForShutdown()
			gone <- history.Now()
		},
		1000: func() {
			came <- history.Now()
			go three.Start()
		},
	}
	s.mu.Unlock()
	h := runAt(t, s, filepath.Join(t.TempDir(), "history.jsonl"), "c1", nil, []workload.Node{
		{Name: "n1", URL: one.ClientURL()}, {Name: "n2", URL: two.ClientURL()}, {Name: "n3", URL: fmt.Sprintf("nats://127.0.0.1:%d", later)},
	})
	end, start := <-gone, <-came
	answered := map[string]int{}
	for i := range h.Attempts {
		a := &h.Attempts[i]
		if a.Outcome() != history.OK {
			continue
		}
		if a.Node == "n1" && a.Began > end || a.Node == "n3" && last(a) < start {
			t.Fatalf("answered by a node that is not there: %s", a)
		}
		answered[a.Node]++
	}
	for _, node := range []string{"n1", "n2", "n3"} {
		if answered[node] == 0 {
			t.Errorf("nothing was answered at %s: %v", node, answered)
		}
	}
}

// TestHistoryFails: what cannot be recorded must not happen.
func TestHistoryFails(t *testing.T) {
	s := startService(t, 1)
	w, err := history.Open(filepath.Join(t.TempDir(), "history.jsonl"), "c1")
	if err != nil {
		t.Fatal(err)
	}
	w.Close()
	cfg := workload.DefaultConfig()
	cfg.Process, cfg.History, cfg.Nodes = "c1", w, []workload.Node{{Name: "n1", URL: s.url}}
	if err := workload.Run(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), os.ErrClosed.Error()) {
		t.Errorf("error %v, want that of the closed file", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.requests != 0 {
		t.Errorf("%d requests were sent without a record", s.requests)
	}
}

func TestValidate(t *testing.T) {
	err := workload.Run(t.Context(), workload.Config{})
	if err == nil {
		t.Fatal("an empty configuration was taken")
	}
	for _, want := range []string{"no nodes", "no prefix", "no process", "no history", "workers is 0", "pace is 0s", "timeout is 0s",
		"no sequences", "max count is 0"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%v: want %q in it", err, want)
		}
	}
}
