package benchmark

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
)

// What a node of a fresh cluster of three processes, and one that is alone, hold when nothing happens. The target is 80 MB.
func BenchmarkIdleMemory(b *testing.B) {
	bin := buildBinary(b)
	for _, count := range []int{1, 3} {
		b.Run(fmt.Sprintf("nodes=%d", count), func(b *testing.B) {
			for b.Loop() {
				ps := startProcesses(b, bin, b.TempDir(), count)
				time.Sleep(5 * time.Second) // what is measured is a node that has been idle
				b.ReportMetric(worstMemory(b, ps), "MB-resident")
			}
		})
	}
}

// worstMemory is what the largest of ps holds, which are ended.
func worstMemory(b *testing.B, ps []*process) (mb float64) {
	b.Helper()
	for _, p := range ps {
		mb = max(mb, residentMB(b, p.Process.Pid))
		p.kill()
	}
	return mb
}

// The same cluster with more and more sequences: 256 in flight on one of them, and on all in turn. The targets are a rate
// on all of 100,000 of at least 0.9 times that on the one of a cluster that has no other, and 200 MB for a node.
func BenchmarkGrowthSequences(b *testing.B) {
	for _, count := range []int{1, 1_000, 100_000} {
		b.Run(fmt.Sprintf("sequences=%d", count), func(b *testing.B) {
			c := startCluster(b, 3)
			nc := c.connect(b, 0)
			createSequences(b, nc, count)
			ws := map[string]work{"one": reserve(nc), "all": reserveAll(nc, count), "echo": echo(b, c.connect(b, 1), nc)}
			for b.Loop() {
				m := rounds(b, ws, 256, 5, 2*time.Second)
				b.ReportMetric(m["one"].rate, "one/s")
				b.ReportMetric(m["all"].rate, "all/s")
				b.ReportMetric(m["one"].rate/m["echo"].rate, "one×echo")
				b.ReportMetric(m["all"].rate/m["echo"].rate, "all×echo")
			}
		})
	}
}

// What a node of three processes holds after sequences were made and each was reserved from, and then nothing.
func BenchmarkGrowthMemory(b *testing.B) {
	bin := buildBinary(b)
	for _, count := range []int{1, 1_000, 100_000} {
		b.Run(fmt.Sprintf("sequences=%d", count), func(b *testing.B) {
			for b.Loop() {
				dir := b.TempDir()
				ps := startProcesses(b, bin, dir, 3)
				nc := connectTo(b, ps[0])
				createSequences(b, nc, count)
				measure(b, reserveAll(nc, count), 256, 5*time.Second)
				time.Sleep(5 * time.Second) // as a node that has been idle
				b.ReportMetric(worstMemory(b, ps), "MB-resident")
				b.ReportMetric(diskMB(b, filepath.Join(dir, "n1")), "MB-on-disk")
			}
		})
	}
}

// Requests with keys beside the same without, and three nodes beside five.
func BenchmarkGrowthKeysAndNodes(b *testing.B) {
	for _, count := range []int{3, 5} {
		b.Run(fmt.Sprintf("nodes=%d", count), func(b *testing.B) {
			c := startCluster(b, count)
			nc := c.connect(b, 0)
			ws := map[string]work{"unkeyed": reserve(nc), "keyed": reserveKeyed(nc), "echo": echo(b, c.connect(b, 1), nc)}
			for b.Loop() {
				m := rounds(b, ws, 256, 5, 2*time.Second)
				b.ReportMetric(m["unkeyed"].rate, "unkeyed/s")
				b.ReportMetric(m["keyed"].rate, "keyed/s")
				b.ReportMetric(m["unkeyed"].rate/m["echo"].rate, "unkeyed×echo")
				b.ReportMetric(m["keyed"].rate/m["unkeyed"].rate, "keyed×unkeyed")
			}
		})
	}
}

// A node that is alone, with more and more entries behind it: until it serves with an empty catalog, and again with the
// catalog that this left. The targets for a million are 10 s and 1 s.
//
// The logs are older than JetStream's window of duplicates: the server keeps the id of every message of that window in
// memory, and a million of them within its 30 s are more than a cluster takes.
func BenchmarkGrowthLog(b *testing.B) {
	bin, base, sizes := buildBinary(b), b.TempDir(), []int{10_000, 100_000, 1_000_000}
	data := func(entries int) string { return filepath.Join(base, strconv.Itoa(entries)) }
	for _, entries := range sizes {
		writeLogFast(b, data(entries), entries)
	}
	time.Sleep(31 * time.Second) // more than duplicateWindow of jetstream
	for _, entries := range sizes {
		b.Run(fmt.Sprintf("entries=%d", entries), func(b *testing.B) {
			for b.Loop() {
				dir := filepath.Join(b.TempDir(), "data")
				if err := os.CopyFS(dir, os.DirFS(data(entries))); err != nil {
					b.Fatal(err)
				}
				syscall.Sync() // or the node's own syncs wait for these files
				for _, what := range []string{"replay", "restart"} {
					start := time.Now()
					p := startProcess(b, bin, filepath.Join(b.TempDir(), "log"), "--data", dir, "--listen", "127.0.0.1:0")
					awaitLine(b, p.log, `"ready"`)
					b.ReportMetric(time.Since(start).Seconds(), "s-"+what)
					nc := connectTo(b, p)
					m, err := nc.Request("alloc.info.orders", nil, 5*time.Second)
					if want := fmt.Sprintf(`"hwm":%d,`, entries*1000); err != nil || !bytes.Contains(m.Data, []byte(want)) { // each carved 1,000
						b.Fatalf("after the %s: %v %s", what, err, m.Data)
					}
					nc.Close()
					b.ReportMetric(residentMB(b, p.Process.Pid), "MB-"+what)
					p.terminate(b)
				}
				b.ReportMetric(diskMB(b, dir), "MB-on-disk")
			}
		})
	}
}

// sequenceName is that of the i-th.
func sequenceName(i int) string { return fmt.Sprintf("orders.c%06d", i) }

// createSequences reserves one id of each of count sequences, which makes them, 100 in a request.
func createSequences(b *testing.B, nc *nats.Conn, count int) {
	b.Helper()
	const each = 100
	var items sync.WaitGroup
	lanes := make(chan struct{}, 8)
	for from := 0; from < count; from += each {
		lanes <- struct{}{}
		items.Go(func() {
			defer func() { <-lanes }()
			var list []string
			for i := from; i < min(from+each, count); i++ {
				list = append(list, fmt.Sprintf(`{"sequence":%q,"count":1}`, sequenceName(i)))
			}
			m, err := nc.Request("alloc.reserve", []byte(`{"requests":[`+strings.Join(list, ",")+`]}`), 5*time.Second)
			if err != nil || bytes.Contains(m.Data, []byte(`"error"`)) || bytes.Count(m.Data, []byte(`"start":`)) != len(list) {
				b.Errorf("create sequences: %v %.300s", err, m.Data)
			}
		})
	}
	items.Wait()
	if b.Failed() {
		b.FailNow()
	}
}

// reserveAll reserves from count sequences in turn.
func reserveAll(nc *nats.Conn, count int) work {
	subjects := make([]string, count)
	for i := range subjects {
		subjects[i] = "alloc.reserve." + sequenceName(i*7919%count) // not in the order in which they were made
	}
	var turn atomic.Uint64
	return func() error { return reserveOn(nc, subjects[turn.Add(1)%uint64(count)], nil) }
}

// reserveKeyed reserves with a key that is new each time.
func reserveKeyed(nc *nats.Conn) work {
	var turn atomic.Uint64
	run := time.Now().UnixNano()
	return func() error {
		return reserveOn(nc, "alloc.reserve.orders", fmt.Appendf(nil, `{"count":1,"key":"%x-%x"}`, run, turn.Add(1)))
	}
}

// writeLogFast is writeLog to memory where there is a file system of it, copied to dir: a million syncs would take minutes.
func writeLogFast(b *testing.B, dir string, entries int) {
	b.Helper()
	fast, err := os.MkdirTemp("/dev/shm", "allocnode-bench-")
	if err != nil {
		writeLog(b, dir, entries)
		return
	}
	defer os.RemoveAll(fast)
	data := filepath.Join(fast, "data")
	writeLog(b, data, entries)
	if err := os.CopyFS(dir, os.DirFS(data)); err != nil {
		b.Fatal(err)
	}
}

// connectTo is a client of p, at the address that it logged.
func connectTo(b *testing.B, p *process) *nats.Conn {
	b.Helper()
	nc, err := nats.Connect(clientURL(b, p.log))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(nc.Close)
	return nc
}

// clientURL is where a node takes clients, by its log.
func clientURL(b *testing.B, path string) string {
	b.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		b.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		var l struct{ URL string }
		if json.Unmarshal([]byte(line), &l) == nil && l.URL != "" {
			return l.URL
		}
	}
	b.Fatalf("%s names no address", path)
	return ""
}

// diskMB is the size of all files below dir.
func diskMB(b *testing.B, dir string) float64 {
	b.Helper()
	var bytes int64
	err := filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if err == nil {
			bytes += info.Sys().(*syscall.Stat_t).Blocks * 512 // badger's files have holes
		}
		return err
	})
	if err != nil {
		b.Fatal(err)
	}
	return float64(bytes) / (1 << 20)
}
