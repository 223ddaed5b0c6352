package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/allocnode/allocnode"
)

// What a bench prints for people, against a node.
func TestBench(t *testing.T) {
	url := startNode(t, nil)
	const rest = `requests in .*: \d+ requests/s, \d+ ids/s, 0 retries\nlatency: p50 .*, p90 .*, p99 .*, p99.9 .*, max .*\n`
	for _, tc := range []struct{ args, want string }{
		{"bench reserve --count 300 --clients 8",
			`reserve bench: 8 clients, 8 connections, 1 ids a request\n300 ` + rest + `300 ids, none twice\n`},
		{"bench next orders --count 300 --clients 8 --connections 1 --batch 7",
			`next orders: 8 clients, 1 connections, 7 ids a request\n300 ` + rest + `2100 ids, none twice\n`},
		{"bench reserve orders --duration 100ms --batch 1000",
			`reserve orders: 1 clients, .*\n\d+ ` + rest + `\d+000 ids, none twice\n`},
	} {
		out, err := command(append(strings.Fields(tc.args), "--server", url)...)
		if err != nil || !regexp.MustCompile("^"+tc.want+"$").MatchString(out) {
			t.Errorf("%s printed %q, %v; want %s", tc.args, out, err, tc.want)
		}
	}
	out, err := command("bench", "next", "--json", "--count", "50", "--batch", "2", "--server", url)
	var got map[string]any
	if err := errors.Join(err, json.Unmarshal([]byte(out), &got)); err != nil {
		t.Fatalf("%s: %v", out, err)
	}
	if got["requests"] != 50.0 || got["ids"] != 100.0 || got["twice"] != 0.0 || len(got["latency_us"].(map[string]any)) != 5 {
		t.Errorf("got %v", got)
	}
}

// What ends a bench early: an error of the cluster, which is printed after what was measured; Ctrl-C, which is no error.
func TestBenchEndsEarly(t *testing.T) {
	url := startNode(t, nil)
	if _, err := command("create", "tiny", "--max", "100", "--server", url); err != nil {
		t.Fatal(err)
	}
	// The first client that finds it exhausted ends the others, whose last answer may not be counted.
	out, err := command("bench", "reserve", "tiny", "--clients", "3", "--server", url)
	want := regexp.MustCompile(`(?s)\n(98|99|100) requests in .*\n(98|99|100) ids, none twice`)
	if !errors.Is(err, allocnode.ErrExhausted) || !want.MatchString(out) {
		t.Errorf("exhausted: %q, %v", out, err)
	}

	ctx, interrupt := context.WithCancel(context.Background())
	defer interrupt()
	root := newRoot()
	var printed bytes.Buffer
	root.SetOut(&printed)
	root.SetErr(&printed)
	root.SetArgs([]string{"bench", "next", "--count", "10000000000", "--server", url})
	time.AfterFunc(300*time.Millisecond, interrupt) // as main does at a Ctrl-C
	if err := root.ExecuteContext(ctx); err != nil || !strings.Contains(printed.String(), ", interrupted: ") ||
		!strings.Contains(printed.String(), "none twice") {
		t.Errorf("interrupted: %q, %v", printed.String(), err)
	}
}

func TestBenchFlags(t *testing.T) {
	for args, want := range map[string]string{
		"bench other": "reserve or next", "bench reserve a b": "one argument too many", "bench reserve a!": "bad_request",
		"bench reserve --clients 0": "--clients 0: want 1 to", "bench next --clients 100001": "want 1 to 100000",
		"bench next --clients 2 --connections 3": "want 1 to the number of clients, 2",
		"bench next --clients 20000":             "--connections says how many",
		"bench next --count 0":                   "--count 0: want 1 to", "bench next --duration -1s": "want more than 0",
		"bench next --batch 0": "--batch 0: want 1 to", "bench next --timeout 0s": "--timeout 0s",
	} {
		if out, err := command(strings.Fields(args)...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %q, %v; want %s", args, out, err, want)
		}
	}
}

// A cluster that gives an id twice, to whichever client and however much later, is found out.
// Checked: with verdict returning nil, or fold not comparing with what it has, it fails.
func TestBenchFindsDuplicates(t *testing.T) {
	var given atomic.Uint64
	d := func(context.Context) ([]allocnode.Range, error) {
		n := given.Add(1)
		if n == 20_000 {
			n = 77 // long ago
		}
		return []allocnode.Range{{Start: 3 * n, End: 3*n + 3}}, nil
	}
	r := trial{draws: []draw{d, d}, batch: 3, count: 30_000, duration: time.Minute, timeout: time.Minute}
	m, err := r.do(context.Background(), func(uint64, time.Duration) {})
	if err != nil || m.requests != 30_000 || m.ids != 3*29_999 || m.twice != 3 {
		t.Errorf("%d requests, %d ids, %d twice, %v", m.requests, m.ids, m.twice, err)
	}
	if err := m.verdict(); err == nil || !strings.Contains(err.Error(), "3 ids came twice, among them 231 to 233") {
		t.Errorf("verdict %v", err)
	}
}

// A request that brings another number of ids than it asked for ends the bench.
func TestBenchShortAnswer(t *testing.T) {
	d := func(context.Context) ([]allocnode.Range, error) { return []allocnode.Range{{Start: 1, End: 3}}, nil }
	r := trial{draws: []draw{d}, batch: 3, count: 10, duration: time.Minute, timeout: time.Minute}
	_, err := r.do(context.Background(), func(uint64, time.Duration) {})
	if err == nil || !strings.Contains(err.Error(), "2 came") {
		t.Errorf("got %v", err)
	}
}

// The set against a plain map.
func TestIDSet(t *testing.T) {
	for seed := range uint64(50) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		var s idSet
		seen := make(map[uint64]bool)
		var twice uint64
		for range 300 {
			start := 1 + rnd.Uint64N(2000)
			r := allocnode.Range{Start: start, End: start + 1 + rnd.Uint64N(4)}
			for id := r.Start; id < r.End; id++ {
				if seen[id] {
					twice++
				}
				seen[id] = true
			}
			s.add(r)
			if rnd.IntN(20) == 0 {
				s.result() // folds
			}
		}
		if ids, again, example := s.result(); ids != uint64(len(seen)) || again != twice ||
			len(example) != min(int(twice), maxExamples) {
			t.Errorf("seed %d: %d ids, %d twice, %v; want %d, %d", seed, ids, again, example, len(seen), twice)
		}
		for i := 1; i < len(s.have); i++ {
			if s.have[i-1].End >= s.have[i].Start {
				t.Errorf("seed %d: %s and %s are not apart", seed, s.have[i-1], s.have[i])
			}
		}
	}
}

// Quantiles against a sorted list: never too short, too long by 1/64 at most.
func TestLatencies(t *testing.T) {
	var l, a, b latencies
	if l.quantile(0.5) != 0 {
		t.Error("a quantile of nothing")
	}
	rnd := rand.New(rand.NewPCG(1, 2))
	var all []time.Duration
	for i := range 10_000 {
		d := time.Duration(rnd.Uint64() >> (2 + rnd.UintN(61)))
		all = append(all, d)
		if i%2 == 0 {
			a.add(d)
		} else {
			b.add(d)
		}
	}
	l.merge(&a)
	l.merge(&b)
	slices.Sort(all)
	for _, q := range []float64{0, 0.1, 0.5, 0.9, 0.99, 0.999, 1} {
		want := all[min(int(q*10_000), 9_999)]
		if got := l.quantile(q); got < want || got > want+want/64 {
			t.Errorf("quantile %v: %d, want %d", q, got, want)
		}
	}
	if l.n != 10_000 || l.max != all[9_999] {
		t.Errorf("%d, max %d", l.n, l.max)
	}
}

func TestBar(t *testing.T) {
	var out bytes.Buffer
	b := bar{out: &out, count: 1000, duration: time.Hour}
	b.draw(500, time.Second)
	if want := "\r[===============               ]  50%  500 requests, 500/s"; out.String() != want {
		t.Errorf("%q, want %q", out.String(), want)
	}
	out.Reset()
	b.draw(2, time.Hour)
	b.clear()
	if s := out.String(); !strings.HasPrefix(s, "\r["+strings.Repeat("=", 30)+"] 100%  2 requests, 0/s ") ||
		!strings.HasSuffix(s, " \r") {
		t.Errorf("%q", s)
	}
}

// Nothing that the bar writes reaches the last column, on whatever terminal, and as it is made narrower. Checked: with room
// that does not ask for the columns, it does.
func TestBarFitsTheTerminal(t *testing.T) {
	var out bytes.Buffer
	columns := 0
	b := bar{out: &out, columns: func() int { return columns }, count: 1 << 40, duration: time.Hour}
	for _, columns = range []int{200, 80, 61, 60, 59, 40, 30, 20, 5, 1, 0} {
		b.draw(1<<39, time.Minute)
		line := strings.Trim(out.String(), "\r")
		if len(line) > max(columns-1, 0) {
			t.Errorf("%d columns: %q", columns, line)
		}
		if bar := strings.Contains(line, "[="); bar != (columns > 55) {
			t.Errorf("%d columns: a bar %v in %q", columns, bar, line)
		}
		out.Reset()
	}
	columns = 50
	b.draw(1, time.Minute)
	columns = 10
	out.Reset()
	b.clear()
	if want := "\r" + strings.Repeat(" ", 9) + "\r"; out.String() != want {
		t.Errorf("cleared with %q", out.String())
	}
}

// A bench that was over before it began has measured nothing, and says so.
func TestBenchOfNothing(t *testing.T) {
	url := startNode(t, nil)
	for _, format := range []string{"--json=false", "--json"} {
		out, err := command("bench", "next", "--duration", "1ns", format, "--server", url)
		if err == nil || !strings.Contains(err.Error(), "nothing was measured: --duration 1ns was over") {
			t.Errorf("%s: %q, %v", format, out, err)
		}
	}
}
