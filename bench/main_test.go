package main

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/allocnode/allocnode/bench/load"
	"github.com/allocnode/allocnode/bench/report"
	"github.com/allocnode/allocnode/bench/systems"
)

// fake is a system of one row whose ids are what next gives.
type fake struct {
	name    string
	next    func() uint64
	start   error
	events  *[]string // "name starts", "name stops", in order
	started func()
}

func (f fake) system() systems.System {
	return systems.System{
		Name: f.name,
		Rows: []systems.Row{{Name: f.name, Durability: "none", Copies: 1, Dialled: systems.Shared}},
		Start: func(_ context.Context, e systems.Env) (map[string]systems.Open, func(), error) {
			*f.events = append(*f.events, f.name+" starts")
			if f.started != nil {
				f.started()
			}
			if err := os.WriteFile(filepath.Join(e.Dir, "data"), nil, 0o600); err != nil {
				return nil, func() {}, err
			}
			open := func(_ context.Context, callers int) (*load.Load, error) {
				draw := func(_ context.Context, ids []load.ID) error {
					time.Sleep(time.Millisecond) // what a call costs: a caller without a pause would keep millions of ids
					ids[0].Lo = f.next()
					return nil
				}
				return &load.Load{Draws: slices.Repeat([]load.Draw{draw}, callers), Counter: "ids"}, nil
			}
			return map[string]systems.Open{f.name: open}, func() { *f.events = append(*f.events, f.name+" stops") }, f.start
		},
	}
}

func counter() func() uint64 {
	n := new(atomic.Uint64)
	return func() uint64 { return n.Add(1) }
}

func settings(t *testing.T) config {
	t.Helper()
	return config{
		duration: 20 * time.Millisecond, rounds: 2, only: regexp.MustCompile(""), out: filepath.Join(t.TempDir(), "out"),
		dir: t.TempDir(), callers: []int{1, 4}, conns: 2, pool: 3,
	}
}

func conducted(
	t *testing.T, ctx context.Context, cfg config, all ...systems.System,
) (code int, r *report.Report, stdout, stderr string) {
	t.Helper()
	r = &report.Report{Date: time.Date(2026, 12, 1, 10, 30, 0, 0, time.UTC), Duration: cfg.duration, Rounds: cfg.rounds}
	var out, errs bytes.Buffer
	code = conduct(ctx, cfg, all, r, &out, &errs)
	left, err := os.ReadDir(cfg.dir)
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	return code, r, out.String(), errs.String()
}

func TestRounds(t *testing.T) {
	var events []string
	cfg := settings(t)
	a, b := fake{name: "a", next: counter(), events: &events}, fake{name: "b", next: counter(), events: &events}
	code, r, stdout, stderr := conducted(t, t.Context(), cfg, a.system(), b.system())
	if code != 0 {
		t.Fatalf("exit code %d: %s", code, stderr)
	}
	want := []string{"a starts", "a stops", "b starts", "b stops", "a starts", "a stops", "b starts", "b stops"}
	if !slices.Equal(events, want) {
		t.Errorf("got %v, want %v", events, want)
	}
	for _, c := range r.Cells {
		if m, ok := c.Median(); !ok || len(c.Rounds) != 2 || m.Checked < m.Calls {
			t.Errorf("%s, %d in flight: %+v", c.System, c.Callers, c.Rounds)
		}
		if want := min(c.Callers, 2); c.Conns != want {
			t.Errorf("%d callers have %d connections, want %d", c.Callers, c.Conns, want)
		}
	}
	if !strings.Contains(stdout, "| a ") || !strings.Contains(stdout, "## What it must show") {
		t.Errorf("printed:\n%s", stdout)
	}
	var back report.Report
	text := map[string][]byte{}
	for _, ext := range []string{".md", ".json", ".svg"} {
		data, err := os.ReadFile(filepath.Join(cfg.out, "2026-12-01T1030"+ext))
		if err != nil {
			t.Fatal(err)
		}
		text[ext] = data
	}
	if err := json.Unmarshal(text[".json"], &back); err != nil || len(back.Cells) != 4 {
		t.Errorf("%d cells in the file, %v", len(back.Cells), err)
	}
	if !bytes.Contains(text[".md"], []byte("(2026-12-01T1030.svg)")) {
		t.Error("the table does not show the plot")
	}
	if err := xml.Unmarshal(text[".svg"], new(struct{})); err != nil {
		t.Errorf("plot: %v", err)
	}
	if files, err := os.ReadDir(cfg.out); err != nil || len(files) != 3 {
		t.Errorf("written: %v, %v", files, err)
	}
}

// A system that does not start is an error in the table and of the command; the others are measured. Checked: with its
// rounds left out instead, the table did not say why.
func TestSystemThatDoesNotStart(t *testing.T) {
	var events []string
	broken := fake{name: "broken", next: counter(), start: errors.New("initdb: not found"), events: &events}
	sound := fake{name: "sound", next: counter(), events: &events}
	code, r, stdout, stderr := conducted(t, t.Context(), settings(t), broken.system(), sound.system())
	if code != 1 {
		t.Errorf("exit code %d", code)
	}
	if n := strings.Count(stdout, "ERROR: initdb: not found"); n != 2 || !strings.Contains(stderr, "initdb: not found") {
		t.Errorf("%d errors in\n%s\n%s", n, stdout, stderr)
	}
	if !slices.Contains(events, "broken stops") {
		t.Errorf("it was not stopped: %v", events)
	}
	for _, c := range r.Cells {
		if _, ok := c.Median(); ok != (c.System == "sound") {
			t.Errorf("%s has %+v", c.System, c.Rounds)
		}
	}
}

// An id that comes twice, at another concurrency of the same round, makes both an error. Checked: without checker.check the
// command succeeded.
func TestDuplicateIsAnError(t *testing.T) {
	var events []string
	n := new(atomic.Uint64)
	again := fake{name: "again", events: &events, next: func() uint64 {
		if id := n.Add(1); id != 30 { // a call or two are the warm-up's, whose ids nobody keeps
			return id + 1000
		}
		return 1010 // as the eleventh before
	}}
	cfg := settings(t)
	cfg.rounds, cfg.callers, cfg.duration = 1, []int{1}, 100*time.Millisecond
	again.started = func() { n.Store(0) }
	s := again.system()
	s.Rows[0].Only = []int{1} // such a row has no warm-up
	code, _, stdout, _ := conducted(t, t.Context(), cfg, s)
	if code != 1 || !strings.Contains(stdout, "ERROR: counter ids handed out id 0:1010 twice") {
		t.Errorf("exit code %d\n%s", code, stdout)
	}
}

// Checked: without the look at the context after a round, the next system was started.
func TestInterrupt(t *testing.T) {
	var events []string
	ctx, cancel := context.WithCancel(t.Context())
	a := fake{name: "a", next: counter(), events: &events, started: cancel}
	b := fake{name: "b", next: counter(), events: &events}
	cfg := settings(t)
	code, _, _, stderr := conducted(t, ctx, cfg, a.system(), b.system())
	if code != 130 || !strings.Contains(stderr, "interrupted") {
		t.Errorf("exit code %d: %s", code, stderr)
	}
	if !slices.Equal(events, []string{"a starts", "a stops"}) {
		t.Errorf("got %v", events)
	}
	if _, err := os.Stat(cfg.out); err == nil {
		t.Error("half a run was written as a result")
	}
}

func TestOnly(t *testing.T) {
	var events []string
	cfg := settings(t)
	cfg.only, cfg.out = regexp.MustCompile("^b"), ""
	a, b := fake{name: "a", next: counter(), events: &events}, fake{name: "b", next: counter(), events: &events}
	code, r, _, _ := conducted(t, t.Context(), cfg, a.system(), b.system())
	if code != 0 || len(r.Cells) != 2 || slices.Contains(events, "a starts") {
		t.Errorf("exit code %d, %d cells, %v", code, len(r.Cells), events)
	}
	cfg.only = regexp.MustCompile("neither")
	if code, _, _, _ := conducted(t, t.Context(), cfg, a.system(), b.system()); code != 2 {
		t.Errorf("exit code %d", code)
	}
}

func TestFlags(t *testing.T) {
	c, err := parse([]string{"-concurrency", "256, 1,256", "-only", "etcd|Redis", "-rounds", "5"}, io.Discard)
	if err != nil || !slices.Equal(c.callers, []int{1, 256}) || c.rounds != 5 || c.procs != 2*runtime.NumCPU() || !c.only.MatchString("etcd Put") {
		t.Errorf("got %+v, %v", c, err)
	}
	for _, args := range [][]string{
		{"-concurrency", "0"}, {"-concurrency", ""}, {"-concurrency", "1,x"}, {"-concurrency", "100001"}, {"-only", "("}, {"-rounds", "0"},
		{"-duration", "1ms"}, {"-duration", "1h"}, {"-conns", "0"}, {"-pool", "1001"}, {"-procs", "0"}, {"more"}, {"-unknown"},
	} {
		if code := run(t.Context(), args, io.Discard, io.Discard); code != 2 {
			t.Errorf("%v: exit code %d", args, code)
		}
	}
}

// Every ratio finds its rows among those of the systems, and follows their figures.
func TestTargets(t *testing.T) {
	r := &report.Report{}
	figures := map[string]report.Round{systems.Reserve: {Rate: 1000, P50: 100}, systems.Next: {Rate: 1e9, P50: 1}}
	for _, s := range systems.All() {
		for _, row := range s.Rows {
			for _, n := range []int{1, 16, 256, 2048} {
				one, ok := figures[row.Name]
				if !ok {
					one = report.Round{Rate: 100, P50: 100}
				}
				if row.For(n) {
					r.Cells = append(r.Cells, &report.Cell{System: row.Name, Callers: n, Rounds: []report.Round{one}})
				}
			}
		}
	}
	verdicts := func() map[string]int {
		m := map[string]int{}
		for _, x := range targets(r) {
			m[x.Verdict()]++
		}
		return m
	}
	// The hundredfold of compare-and-swap and the tenth part of 100,000 sequences are missed with these.
	if got, want := verdicts(), map[string]int{"met": 11, "missed": 3, "not measured": 2}; !equal(got, want) {
		t.Errorf("got %v, want %v: %+v", got, want, targets(r))
	}
	for _, c := range r.Cells {
		if c.System == systems.ReserveMany {
			c.Rounds[0].Rate = 900
		}
		if c.System == systems.NATSCAS {
			c.Rounds[0].Rate = 10
		}
	}
	if got, want := verdicts(), map[string]int{"met": 14, "not measured": 2}; !equal(got, want) {
		t.Errorf("got %v, want %v: %+v", got, want, targets(r))
	}
	for _, c := range r.Cells {
		if c.System == systems.ULID && c.Callers == 256 {
			c.Rounds[0].Rate = 2e9
		}
		if c.System == systems.Publish {
			c.Rounds[0].P50 = 50
		}
	}
	if got, want := verdicts(), map[string]int{"met": 12, "missed": 2, "not measured": 2}; !equal(got, want) {
		t.Errorf("got %v, want %v: %+v", got, want, targets(r))
	}
}

func equal(a, b map[string]int) bool { return fmt.Sprint(a) == fmt.Sprint(b) }
