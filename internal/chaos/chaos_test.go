//go:build linux

package chaos

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/allocnode/allocnode/internal/chaos/history"
)

func TestScheduleFollowsFromItsSeed(t *testing.T) {
	cfg := DefaultConfig()
	cfg.Seed = 7
	first, again := Schedule(cfg), Schedule(cfg)
	if !slices.Equal(first, again) {
		t.Error("one seed gives two schedules")
	}
	cfg.Seed = 8
	if slices.Equal(first, Schedule(cfg)) {
		t.Error("two seeds give one schedule")
	}
	seen, calm := map[string]int{}, 0
	for _, w := range first {
		if w.Kind == "" {
			calm++
			continue
		}
		seen[w.Kind]++
		k := kinds[slices.IndexFunc(kinds, func(k kind) bool { return k.name == w.Kind })]
		if w.Hold < k.least || w.Hold > k.most {
			t.Errorf("%s for %s, want %s to %s", w.Kind, w.Hold, k.least, k.most)
		}
	}
	for _, name := range Kinds() {
		if seen[name] == 0 {
			t.Errorf("%s never comes", name)
		}
	}
	if calm*4 < len(first)-3 || calm*4 > len(first) {
		t.Errorf("%d of %d windows are calm, want a quarter", calm, len(first))
	}
}

func TestScheduleOfSomeKinds(t *testing.T) {
	cfg := DefaultConfig()
	cfg.Only, cfg.Windows, cfg.Long = []string{"pause"}, 40, true
	longest := time.Duration(0)
	for _, w := range Schedule(cfg) {
		if w.Kind != "" && w.Kind != "pause" {
			t.Errorf("%s was not asked for", w.Kind)
		}
		longest = max(longest, w.Hold)
	}
	if longest < 15*time.Second || longest > 30*time.Second {
		t.Errorf("the longest of a long run's pauses takes %s, want up to 30 s", longest)
	}
}

// record is a history that is right, with one fault; the cases break it.
func record(edit func(h *history.History)) *evidence {
	h := &history.History{Faults: []history.Fault{{Kind: killLeader, Target: "n1", Began: 1e9, Healed: 5e9, Proof: "killed"}}}
	for i := range 20 { // a reservation each second
		at := int64(i) * 1e9
		h.Attempts = append(h.Attempts, history.Attempt{
			Process: "c1", ID: uint64(i + 1), Began: at, Action: history.Reserve, Node: "n1", Sequence: "s", Count: 1,
			Answers: []history.Answer{{At: at + 1e6, Outcome: history.OK, Ranges: []history.Range{{uint64(i + 1), uint64(i + 2)}}}},
		})
	}
	edit(h)
	return &evidence{history: h, log: &history.Log{Last: 20}}
}

// TestVerdict holds each thing that must keep a run from passing against the verdict. Checked: a fault without proof that
// counts as proved, and a bound that is not looked at, each made a case pass.
func TestVerdict(t *testing.T) {
	none := func(*history.History) {}
	silence := func(until int) func(h *history.History) {
		return func(h *history.History) {
			for i := range h.Attempts {
				if a := &h.Attempts[i]; a.Began >= 1e9 && a.Began < int64(until)*1e9 {
					a.Answers = nil
				}
			}
		}
	}
	for _, tc := range []struct {
		name string
		edit func(h *history.History)
		set  func(r *Report)
		want Verdict
		why  string
	}{
		{"all is well", none, func(*Report) {}, Passed, ""},
		{"a violation", none, func(r *Report) { r.Violations = []string{"unique: id 7"} }, Violated, "id 7"},
		{"a script", none, func(r *Report) { r.Scripts = []ScriptReport{{Name: "s", Text: "both serve"}} }, Violated, "both serve"},
		{"no proof", func(h *history.History) { h.Faults[0].Proof = "" }, func(*Report) {}, Inconclusive, "no proof of effect: kill-leader of n1"},
		{"never healed", func(h *history.History) { h.Faults[0].Healed = 0 }, func(*Report) {}, Inconclusive, "no proof of effect"},
		{"slow failover", silence(13), func(*Report) {}, Violated, "from kill -9 of the leader"},
		{"failover in time", silence(9), func(*Report) {}, Passed, ""},
		{"slow recovery", silence(19), func(r *Report) { r.cfg.Recovery = 10 * time.Second }, Violated, "until the first acknowledgement"},
		{"no recovery", silence(99), func(*Report) {}, Violated, "nothing was acknowledged"},
		{"harness", none, func(r *Report) { r.Harness = []string{"window 3"} }, Inconclusive, "window 3"},
		{"partial", none, func(r *Report) { r.Missing = []string{"loop devices"} }, Inconclusive, "loop devices"},
		{"control", none, func(r *Report) { r.Control = "" }, Inconclusive, "positive control"},
		{"few operations", none, func(r *Report) { r.cfg.MinAcked = 21 }, Inconclusive, "20 reservations acknowledged, want 21"},
		{"few leaders", none, func(r *Report) { r.LeaderChanges = 2 }, Inconclusive, "2 changes of leader, want 3"},
		{"violated and partial", none, func(r *Report) { r.Missing, r.Violations = []string{"tap"}, []string{"v"} }, Violated, "v"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			cfg := DefaultConfig()
			cfg.MinAcked = 1
			r := newReport(cfg)
			r.Control, r.LeaderChanges = "flagged", 3
			tc.set(r)
			r.measure(record(tc.edit))
			r.finish()
			if r.Verdict != tc.want {
				t.Errorf("the verdict is %s, want %s: %q", r.Verdict, tc.want, r.Why)
			}
			if why := strings.Join(r.Why, "\n"); !strings.Contains(why, tc.why) || tc.why == "" && why != "" {
				t.Errorf("it says %q, want %q", why, tc.why)
			}
		})
	}
	for verdict, want := range map[Verdict]int{Passed: 0, Violated: 1, Inconclusive: 3, "": 3} {
		if got := verdict.Exit(); got != want {
			t.Errorf("%q exits with %d, want %d", verdict, got, want)
		}
	}
}

// TestUnharmed keeps what kv caught from being taken for a crash, and nothing else. Checked against the line that a node wrote.
func TestUnharmed(t *testing.T) {
	const crash = "panic: runtime error: index out of range\n"
	got := unharmed("INF ready\nERR kv: state dropped, to be rebuilt from the log reason=\"table 000001.sst: panic: nil\"\n" + crash)
	if got != "INF ready\n"+crash {
		t.Errorf("got %q", got)
	}
}

// TestReportNamesNoDirectory: what is published of a run must not name the machine's paths. Checked: without plain it failed.
func TestReportNamesNoDirectory(t *testing.T) {
	cfg := DefaultConfig()
	cfg.Dir = "/somewhere/allocnode-chaos-1"
	r := newReport(cfg)
	text := func(what string) string { return what + ": " + cfg.Dir + "/campaign/n1/disk" }
	r.Control, r.Scripts = text("control"), []ScriptReport{{Name: "s", Text: text("script")}}
	r.Violations, r.Harness, r.Notes = []string{text("violation")}, []string{text("harness")}, []string{text("note")}
	r.Unproved = []string{text("unproved")}
	r.finish()
	b, err := json.Marshal(r)
	if err != nil || strings.Contains(string(b), cfg.Dir) || !strings.Contains(string(b), "script: campaign/n1/disk") {
		t.Errorf("error %v, report %s", err, b)
	}
}

func TestSpread(t *testing.T) {
	var s Spread
	for _, ms := range []int{30, 10, 20} {
		s.add(time.Duration(ms) * time.Millisecond)
	}
	if s.N != 3 || s.P50 != 20 || s.Max != 30 {
		t.Errorf("got %+v", s)
	}
}

func TestValidateNamesEveryFault(t *testing.T) {
	cfg := DefaultConfig()
	cfg.Nodes, cfg.Only, cfg.Scripts, cfg.Clients = 4, []string{"earthquake"}, []string{"hamlet"}, 0
	err := cfg.Validate()
	for _, want := range []string{"root, dir and self", "nodes is 4", "earthquake", "hamlet", "clients is 0"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in %v", want, err)
		}
	}
}
