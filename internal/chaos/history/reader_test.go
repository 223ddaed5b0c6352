package history_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"

	"github.com/allocnode/allocnode/internal/chaos/history"
)

func open(t *testing.T, path, process string) *history.Writer {
	t.Helper()
	w, err := history.Open(path, process)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.Close() })
	return w
}

func write(t *testing.T, w *history.Writer, records ...history.Record) {
	t.Helper()
	for _, r := range records {
		if err := w.Write(r); err != nil {
			t.Fatal(err)
		}
	}
}

func read(t *testing.T, path string) *history.History {
	t.Helper()
	h, err := history.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func TestRoundTrip(t *testing.T) {
	path := filepath.Join(t.TempDir(), "history.jsonl")
	w, faults := open(t, path, "c1"), open(t, path, "run")
	write(t, w,
		history.Record{Kind: history.KindBegin, At: 5, ID: 1, Action: history.Reserve, Node: "n1", Sequence: "orders",
			Key: `{"k":"begin`, Count: 10, Partial: true, Since: 3},
		history.Record{Kind: history.KindEnd, At: 9, ID: 1, Outcome: history.Unknown, Text: "no answer in time"},
		history.Record{Kind: history.KindEnd, At: 12, ID: 1, Outcome: history.OK, Ranges: []history.Range{{1, 11}}, Seq: 17, Cluster: "c0ffee"},
		history.Record{Kind: history.KindBegin, At: 4, ID: 2, Action: history.Advance, Node: "n2", Sequence: "orders", To: 7},
		history.Record{Kind: history.KindStatus, At: 6, Node: "n1", Incarnation: "x", State: "serving", Cursor: 8, Digest: "d"},
		history.Record{Kind: history.KindSample, At: 7, Node: "n1", Goroutines: 1, FDs: 2, RSS: 3},
		history.Record{Kind: history.KindComment, At: 8, Text: "calm"},
	)
	id, err := faults.Fault("partition", "n1 | n2 n3", "3 links cut")
	if err != nil {
		t.Fatal(err)
	}
	if err := faults.Healed(id, "312 frames dropped"); err != nil {
		t.Fatal(err)
	}
	h := read(t, path)
	want := []history.Attempt{
		{Process: "c1", ID: 2, Began: 4, Action: history.Advance, Node: "n2", Sequence: "orders", To: 7},
		{Process: "c1", ID: 1, Began: 5, Action: history.Reserve, Node: "n1", Sequence: "orders", Key: `{"k":"begin`, Count: 10,
			Partial: true, Since: 3, Answers: []history.Answer{
				{At: 9, Outcome: history.Unknown, Text: "no answer in time"},
				{At: 12, Outcome: history.OK, Ranges: []history.Range{{1, 11}}, Seq: 17, Cluster: "c0ffee"},
			}},
	}
	if !reflect.DeepEqual(h.Attempts, want) {
		t.Errorf("attempts\n%+v, want\n%+v", h.Attempts, want)
	}
	if got := h.Attempts[1].Outcome(); got != history.OK {
		t.Errorf("outcome %s: a late answer settles it", got)
	}
	if len(h.Faults) != 1 || h.Faults[0].Proof != "3 links cut; 312 frames dropped" || h.Faults[0].Healed < h.Faults[0].Began {
		t.Errorf("faults %+v", h.Faults)
	}
	if len(h.Statuses) != 1 || h.Statuses[0].Cursor != 8 || len(h.Samples) != 1 || h.Samples[0].RSS != 3 || len(h.Comments) != 1 || h.Torn != 0 {
		t.Errorf("statuses %+v, samples %+v, comments %+v, torn %d", h.Statuses, h.Samples, h.Comments, h.Torn)
	}
}

// TestTornLines cuts a history at each byte, as a SIGKILL may, and has another process go on.
func TestTornLines(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "whole.jsonl")
	begin := func(id uint64) history.Record {
		return history.Record{Kind: history.KindBegin, At: int64(id), ID: id, Action: history.Reserve, Sequence: "orders", Key: `{"k":"x`, Count: 1}
	}
	write(t, open(t, path, "c1"), begin(1), begin(2))
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	first := bytes.IndexByte(whole, '\n') + 1
	for cut := first + 1; cut < len(whole); cut++ {
		path := filepath.Join(dir, fmt.Sprint("cut-", cut))
		if err := os.WriteFile(path, whole[:cut], 0o600); err != nil {
			t.Fatal(err)
		}
		complete := cut == len(whole)-1 // only the line's end is missing
		check := func(attempts int) {
			t.Helper()
			torn := 1
			if complete {
				torn, attempts = 0, attempts+1
			}
			if h := read(t, path); len(h.Attempts) != attempts || h.Torn != torn {
				t.Errorf("cut at %d: %d attempts, %d torn: want %d and %d", cut, len(h.Attempts), h.Torn, attempts, torn)
			}
		}
		check(1)
		write(t, open(t, path, "c2"), begin(1), begin(2))
		check(3)
	}
}

func TestMalformed(t *testing.T) {
	for name, lines := range map[string]string{
		"an end without a begin":      `{"k":"end","t":1,"p":"c","id":1,"o":"ok"}`,
		"an end of another process":   `{"k":"begin","t":1,"p":"c","id":1,"a":"next"}` + "\n" + `{"k":"end","t":1,"p":"d","id":1,"o":"ok"}`,
		"two begins":                  `{"k":"begin","t":1,"p":"c","id":1}` + "\n" + `{"k":"begin","t":1,"p":"c","id":1}`,
		"a healing without a fault":   `{"k":"healed","t":1,"p":"c","id":1}`,
		"two healings":                `{"k":"fault","t":1,"p":"c","id":1}` + strings.Repeat("\n"+`{"k":"healed","t":2,"p":"c","id":1}`, 2),
		"a record of an unknown kind": `{"k":"what","t":1}`,
	} {
		if _, err := history.Read(strings.NewReader(lines + "\n")); !errors.Is(err, history.ErrMalformed) {
			t.Errorf("%s: error %v, want malformed", name, err)
		}
	}
}

// TestManyWriters: lines of several writers on one file do not mix.
func TestManyWriters(t *testing.T) {
	path := filepath.Join(t.TempDir(), "history.jsonl")
	const writers, each = 8, 200
	var all sync.WaitGroup
	for i := range writers {
		w := open(t, path, fmt.Sprint("c", i))
		all.Go(func() {
			for range each {
				r := history.Record{Kind: history.KindBegin, ID: w.NextID(), Action: history.Reserve, Key: strings.Repeat("k", 128)}
				if err := w.Write(r); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	if h := read(t, path); len(h.Attempts) != writers*each || h.Torn != 0 {
		t.Errorf("%d attempts, %d torn: want %d and none", len(h.Attempts), h.Torn, writers*each)
	}
}

// TestKilledWriter kills a process in the middle of its writing, again and again, beside one that goes on: nothing that was
// written is lost, and of each process at most the line at hand.
func TestKilledWriter(t *testing.T) {
	if path := os.Getenv("HISTORY_WRITER"); path != "" {
		go func() { // it must not outlive the test, whatever becomes of that
			_, _ = io.Copy(io.Discard, os.Stdin)
			os.Exit(1)
		}()
		w := open(t, path, os.Getenv("HISTORY_PROCESS"))
		for {
			write(t, w, history.Record{Kind: history.KindBegin, ID: w.NextID(), Action: history.Reserve, Key: strings.Repeat("k", 128)})
			os.Stdout.Close() // the parent waits for that
		}
	}
	path := filepath.Join(t.TempDir(), "history.jsonl")
	own := open(t, path, "own")
	const kills, each = 5, 200 << 10 // bytes, of both
	wrote := 0
	size := func() int64 {
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		return info.Size()
	}
	for i := range kills {
		child := exec.Command(os.Args[0], "-test.run=^TestKilledWriter$")
		child.Env = append(os.Environ(), "HISTORY_WRITER="+path, fmt.Sprint("HISTORY_PROCESS=c", i))
		stdin, err := child.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		defer stdin.Close()
		stdout, err := child.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := child.Start(); err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, stdout) // until it is at work
		for start := size(); size() < start+each; wrote++ {
			write(t, own, history.Record{Kind: history.KindBegin, ID: own.NextID(), Action: history.Next})
		}
		if err := child.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = child.Wait() // killed
	}
	h := read(t, path)
	last, count := map[string]uint64{}, map[string]uint64{}
	for _, a := range h.Attempts {
		last[a.Process] = max(last[a.Process], a.ID)
		count[a.Process]++
	}
	if h.Torn > kills || count["own"] != uint64(wrote) || len(count) != kills+1 {
		t.Errorf("%d torn, %d of our %d records, %d processes", h.Torn, count["own"], wrote, len(count))
	}
	for process, n := range count {
		if n != last[process] {
			t.Errorf("%s: %d records up to id %d", process, n, last[process])
		}
	}
}

// TestClockIsShared: a process that this one starts has the same clock, between two looks of this one.
func TestClockIsShared(t *testing.T) {
	if path := os.Getenv("HISTORY_CLOCK"); path != "" {
		write(t, open(t, path, "child"), history.Record{Kind: history.KindComment, Text: "now"})
		return
	}
	path := filepath.Join(t.TempDir(), "history.jsonl")
	before := history.Now()
	child := exec.Command(os.Args[0], "-test.run=^TestClockIsShared$")
	child.Env = append(os.Environ(), "HISTORY_CLOCK="+path)
	if out, err := child.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	h := read(t, path)
	if len(h.Comments) != 1 || h.Comments[0].At <= before || h.Comments[0].At >= history.Now() {
		t.Errorf("the child wrote at %+v, between %d and now", h.Comments, before)
	}
}

// bigStory is a million records of a busy run, and its log: reservations, some of them tried twice, in one sequence of ten.
func bigStory(records int) (lines []byte, log *history.Log) {
	var b bytes.Buffer
	log = &history.Log{Cluster: "c0ffee", HWM: map[string]uint64{}}
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	for i := range records / 2 {
		sequence := fmt.Sprint("s", i%10)
		start := log.HWM[sequence] + 1
		log.HWM[sequence] += 10
		log.Last++
		key := fmt.Sprintf("client-%d-%032x", i%8, i)
		log.Results = append(log.Results, history.Result{
			Seq: log.Last, Node: "n1", Action: history.Reserve, Sequence: sequence, Key: "key " + key + " of " + sequence,
			Count: 10, Range: history.Range{start, start + 10},
		})
		line(`{"k":"begin","t":%d,"p":"c","id":%d,"a":"reserve","n":"n1","s":"%s","key":"%s","c":10,"since":1}`, 10*i, i+1, sequence, key)
		line(`{"k":"end","t":%d,"p":"c","id":%d,"o":"ok","r":[[%d,%d]],"seq":%d,"cluster":"c0ffee"}`, 10*i+25, i+1, start, start+10, log.Last)
	}
	return b.Bytes(), log
}

// BenchmarkMillion reads and judges a million records.
func BenchmarkMillion(b *testing.B) {
	lines, log := bigStory(1_000_000)
	b.SetBytes(int64(len(lines)))
	for b.Loop() {
		h, err := history.Read(bytes.NewReader(lines))
		if err != nil {
			b.Fatal(err)
		}
		if len(h.Attempts) != 500_000 {
			b.Fatalf("%d attempts", len(h.Attempts))
		}
		for _, v := range [][]history.Violation{
			history.Unique(h), history.Idempotent(h, log), history.Order(h, log), history.LogTruth(h, log),
		} {
			if len(v) != 0 {
				b.Fatal(v[0])
			}
		}
	}
}
