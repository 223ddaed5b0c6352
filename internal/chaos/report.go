//go:build linux

package chaos

import (
	"debug/buildinfo"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/allocnode/allocnode/internal/chaos/history"
)

// Verdict is what a run says.
type Verdict string

// The verdicts. Their order is that of a program's exit status: see [Verdict.Exit].
const (
	Passed       Verdict = "passed"
	Violated     Verdict = "violated"     // a promise was broken
	Inconclusive Verdict = "inconclusive" // too little was seen, or injected, to say so
)

// Exit is the exit status of a program: 0, 1 or 3.
func (v Verdict) Exit() int {
	switch v {
	case Passed:
		return 0
	case Violated:
		return 1
	}
	return 3
}

// Spread is some durations, in milliseconds.
type Spread struct {
	N   int   `json:"n"`
	P50 int64 `json:"p50_ms"`
	Max int64 `json:"max_ms"`
	all []time.Duration
}

func (s *Spread) add(d time.Duration) {
	s.all = append(s.all, d)
	slices.Sort(s.all)
	s.N, s.P50, s.Max = len(s.all), s.all[len(s.all)/2].Milliseconds(), s.all[len(s.all)-1].Milliseconds()
}

// KindReport is one kind of fault.
type KindReport struct {
	Faults      int    `json:"faults"`
	Proved      int    `json:"proved"`
	Unavailable Spread `json:"unavailable"` // longest time without an acknowledged reservation, from the beginning until recovery
	Recovery    Spread `json:"recovery"`    // from the healing to the first acknowledged reservation
	Serving     Spread `json:"serving"`     // from the healing until all nodes served
	First       Spread `json:"first"`       // from the beginning to the first acknowledged reservation
}

// ActionReport is how attempts ended.
type ActionReport struct{ Tried, OK, Failed, Unknown int }

// ScriptReport is one script.
type ScriptReport struct {
	Name   string  `json:"name"`
	Passed bool    `json:"passed"`
	Text   string  `json:"text"` // what was seen, or what went wrong
	Took   float64 `json:"seconds"`
}

// Report is what a run found.
type Report struct {
	Verdict Verdict  `json:"verdict"`
	Why     []string `json:"why,omitempty"` // it did not pass
	Seed    uint64   `json:"seed"`
	Nodes   int      `json:"nodes"`

	NATSServer string `json:"nats_server"`    // version that the nodes are built with
	Tags       string `json:"tags,omitempty"` // build tags of the nodes: a mutant

	Took float64 `json:"seconds"`

	Actions       map[string]ActionReport `json:"actions,omitempty"`
	Acked         int                     `json:"acked"`  // reservations
	Issued        uint64                  `json:"issued"` // ids
	Gaps          uint64                  `json:"gaps"`   // ids that were carved and that nobody was told of
	Entries       uint64                  `json:"entries"`
	Copies        int                     `json:"copies"`  // entries that stood in the log before
	Skipped       int                     `json:"skipped"` // messages of the log that are no entries
	LeaderChanges int                     `json:"leader_changes"`
	Kinds         map[string]*KindReport  `json:"kinds,omitempty"`
	Scripts       []ScriptReport          `json:"scripts,omitempty"`
	Control       string                  `json:"control,omitempty"` // how the positive control was flagged

	Violations []string `json:"violations,omitempty"`
	Unproved   []string `json:"unproved,omitempty"` // faults without an effect
	Missing    []string `json:"missing,omitempty"`  // what this machine cannot inject
	Harness    []string `json:"harness,omitempty"`  // what of the campaign itself failed

	Notes []string `json:"notes,omitempty"` // what is no violation and should be known

	cfg   Config
	begin time.Time
}

func newReport(cfg Config) *Report {
	return &Report{Seed: cfg.Seed, Tags: cfg.Tags, Nodes: cfg.Nodes, Kinds: map[string]*KindReport{}, cfg: cfg, begin: time.Now()}
}

func (r *Report) kind(name string) *KindReport {
	k, ok := r.Kinds[name]
	if !ok {
		k = &KindReport{}
		r.Kinds[name] = k
	}
	return k
}

func (r *Report) serving(kind string, took time.Duration) { r.kind(kind).Serving.add(took) }

// measure takes the figures out of the history, and holds them against the bounds.
func (r *Report) measure(e *evidence) {
	t := e.history.Count(e.log)
	r.Actions = map[string]ActionReport{}
	for a, c := range t.Actions {
		r.Actions[string(a)] = ActionReport(c)
	}
	r.Acked, r.Issued, r.Gaps, r.Entries = t.Acked, t.Issued, t.Gaps, e.log.Last
	r.Copies, r.Skipped = e.log.Copies, e.log.Skipped
	for _, f := range e.history.Faults {
		k := r.kind(f.Kind)
		k.Faults++
		if f.Proof == "" || f.Healed == 0 {
			r.Unproved = append(r.Unproved, f.Kind+" of "+f.Target)
			continue
		}
		k.Proved++
		recovery, ok := history.Recovery(e.history, f.Healed)
		if !ok {
			r.Violations = append(r.Violations, fmt.Sprintf("liveness: nothing was acknowledged after %s of %s", f.Kind, f.Target))
			continue
		}
		k.Recovery.add(recovery)
		k.Unavailable.add(history.Silence(e.history, f.Began, f.Healed+recovery.Nanoseconds()))
		if recovery > r.cfg.Recovery {
			r.Violations = append(r.Violations, fmt.Sprintf("liveness: %s until the first acknowledgement after %s of %s, at most %s",
				round(recovery), f.Kind, f.Target, r.cfg.Recovery))
		}
		first, _ := history.Recovery(e.history, f.Began)
		k.First.add(first)
		if f.Kind == killLeader && first > r.cfg.Failover {
			r.Violations = append(r.Violations, fmt.Sprintf("liveness: %s from kill -9 of the leader %s to the first acknowledgement, at most %s",
				round(first), f.Target, r.cfg.Failover))
		}
	}
}

// plain takes the run's directory off the paths in a text: a report may be published, and that is no place for names of the
// machine that made it.
func (r *Report) plain(text string) string {
	if r.cfg.Dir == "" {
		return text
	}
	return strings.ReplaceAll(text, r.cfg.Dir+"/", "")
}

// finish makes the verdict.
func (r *Report) finish() {
	r.Took = time.Since(r.begin).Seconds()
	r.Control = r.plain(r.Control)
	for i := range r.Scripts {
		r.Scripts[i].Text = r.plain(r.Scripts[i].Text)
	}
	for _, list := range [][]string{r.Violations, r.Unproved, r.Harness, r.Notes} {
		for i := range list {
			list[i] = r.plain(list[i])
		}
	}
	violated := len(r.Violations) > 0
	r.Why = append(r.Why, r.Violations...)
	for _, s := range r.Scripts {
		if !s.Passed {
			violated = true
			r.Why = append(r.Why, "script "+s.Name+": "+s.Text)
		}
	}
	for _, m := range r.Missing {
		r.Why = append(r.Why, "partial, cannot be injected here: "+m)
	}
	for _, u := range r.Unproved {
		r.Why = append(r.Why, "no proof of effect: "+u)
	}
	r.Why = append(r.Why, r.Harness...)
	if len(r.Missing) == 0 {
		r.enough()
	}
	switch {
	case violated:
		r.Verdict = Violated
	case len(r.Why) > 0:
		r.Verdict = Inconclusive
	default:
		r.Verdict = Passed
	}
}

// enough says what there was too little of.
func (r *Report) enough() {
	if r.Acked < r.cfg.MinAcked {
		r.Why = append(r.Why, fmt.Sprintf("%d reservations acknowledged, want %d", r.Acked, r.cfg.MinAcked))
	}
	if r.LeaderChanges < r.cfg.MinLeaders {
		r.Why = append(r.Why, fmt.Sprintf("%d changes of leader, want %d", r.LeaderChanges, r.cfg.MinLeaders))
	}
	if r.cfg.Control && r.Control == "" {
		r.Why = append(r.Why, "the positive control was not flagged: the power loss has no teeth")
	}
}

func (r *Report) write(dir string) error {
	b, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "report.json"), append(b, '\n'), 0o600); err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	return nil
}

// Table writes the report for people.
func (r *Report) Table(to io.Writer) error {
	w := tabwriter.NewWriter(to, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "\nACTION\tTRIED\tOK\tFAILED\tUNKNOWN\n")
	for _, a := range sorted(r.Actions) {
		c := r.Actions[a]
		fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%d\n", a, c.Tried, c.OK, c.Failed, c.Unknown)
	}
	fmt.Fprintf(w, "\nFAULT\tFAULTS\tPROVED\tUNAVAILABLE P50\tMAX\tRECOVERY P50\tMAX\tALL SERVE P50\tMAX\n")
	for _, name := range sorted(r.Kinds) {
		k := r.Kinds[name]
		fmt.Fprintf(w, "%s\t%d\t%d\t%d ms\t%d ms\t%d ms\t%d ms\t%d ms\t%d ms\n", name, k.Faults, k.Proved,
			k.Unavailable.P50, k.Unavailable.Max, k.Recovery.P50, k.Recovery.Max, k.Serving.P50, k.Serving.Max)
	}
	if len(r.Scripts) > 0 {
		fmt.Fprintf(w, "\nSCRIPT\tPASSED\tSECONDS\tWHAT WAS SEEN\n")
		for _, s := range r.Scripts {
			fmt.Fprintf(w, "%s\t%t\t%.1f\t%s\n", s.Name, s.Passed, s.Took, s.Text)
		}
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for _, n := range r.Notes {
		if _, err := fmt.Fprintf(to, "\nnote: %s", n); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintf(to, "\nseed %d, %d nodes%s, nats-server %s, %.0f s: %d reservations acknowledged, %d ids issued, %d lost to gaps, %d entries (%d copies, %d no entries), "+
		"%d changes of leader\npositive control: %s\n%s\n", r.Seed, r.Nodes, tagged(r.Tags), r.NATSServer, r.Took, r.Acked, r.Issued, r.Gaps, r.Entries, r.Copies, r.Skipped,
		r.LeaderChanges, cmpOr(r.Control, "not flagged"), strings.Join(append([]string{strings.ToUpper(string(r.Verdict))}, r.Why...), "\n  "))
	return err
}

func tagged(tags string) string {
	if tags == "" {
		return ""
	}
	return " built with " + tags
}

func cmpOr(a, b string) string {
	if a == "" {
		return b
	}
	return a
}

func sorted[V any](m map[string]V) (keys []string) {
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// natsServer is the version of nats-server in a binary.
func natsServer(binary string) (string, error) {
	info, err := buildinfo.ReadFile(binary)
	if err != nil {
		return "", err
	}
	for _, m := range info.Deps {
		if m.Path == "github.com/nats-io/nats-server/v2" {
			return m.Version, nil
		}
	}
	return "", fmt.Errorf("%s holds no nats-server", binary)
}
