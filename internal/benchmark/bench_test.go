package benchmark

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
)

// One client that waits for each answer: a reservation against a bare R3 publish. The target is a ratio of p50 of at most
// 1.3.
func BenchmarkLatency(b *testing.B) {
	c := startCluster(b, 3)
	nc := c.connect(b, 0)
	ws := map[string]work{"reserve": reserve(nc), "publish": publish(b, nc)}
	for b.Loop() {
		m := rounds(b, ws, 1, 5, 2*time.Second)
		b.ReportMetric(float64(m["reserve"].p50.Microseconds()), "reserve-p50-µs")
		b.ReportMetric(float64(m["publish"].p50.Microseconds()), "publish-p50-µs")
		b.ReportMetric(float64(m["reserve"].p50)/float64(m["publish"].p50), "p50-ratio")
	}
}

// Many in flight over one connection: reservations against a NATS counter stream and an echo. The target at 256 is three
// times the counter.
func BenchmarkThroughput(b *testing.B) {
	for _, inFlight := range []int{16, 256, 2048} {
		b.Run(fmt.Sprintf("inflight=%d", inFlight), func(b *testing.B) {
			c := startCluster(b, 3)
			nc := c.connect(b, 0)
			ws := map[string]work{"reserve": reserve(nc), "counter": counter(b, nc), "echo": echo(b, c.connect(b, 1), nc)}
			for b.Loop() {
				m := rounds(b, ws, inFlight, 5, 2*time.Second)
				b.ReportMetric(m["reserve"].rate, "reserve/s")
				b.ReportMetric(m["counter"].rate, "counter/s")
				b.ReportMetric(m["echo"].rate, "echo/s")
				b.ReportMetric(m["reserve"].rate/m["counter"].rate, "×counter")
				b.ReportMetric(m["reserve"].rate/m["echo"].rate, "×echo")
			}
		})
	}
}

// From nothing to serving. The targets are 2 s alone and 15 s for three.
func BenchmarkFreshStart(b *testing.B) {
	for _, count := range []int{1, 3} {
		b.Run(fmt.Sprintf("nodes=%d", count), func(b *testing.B) {
			var took []time.Duration
			for b.Loop() {
				for range 3 {
					start := time.Now()
					startCluster(b, count)
					took = append(took, time.Since(start))
				}
			}
			b.ReportMetric(median(took, time.Duration.Seconds), "s-to-serving")
		})
	}
}

// A node whose catalog is empty and whose log holds 100,000 entries. The target is 5 s until it serves.
func BenchmarkReplay(b *testing.B) {
	const entries = 100_000
	for b.Loop() {
		dir := b.TempDir()
		writeLog(b, dir, entries)
		start := time.Now()
		n := startAlone(b, dir)
		took := time.Since(start)
		nc, err := nats.Connect(n.ClientURL())
		if err != nil {
			b.Fatal(err)
		}
		m, err := nc.Request("alloc.info.orders", nil, 5*time.Second)
		if err != nil || !bytes.Contains(m.Data, []byte(`"hwm":100000000,`)) { // every entry carved its 1,000 ids
			b.Fatalf("after the replay: %v %s", err, m.Data)
		}
		nc.Close()
		b.ReportMetric(took.Seconds(), "s-to-serving")
		b.ReportMetric(entries/took.Seconds(), "entries/s")
	}
}

// What a node of a fresh cluster of three processes, and one that is alone, hold when nothing happens. The target is 80 MB.
func BenchmarkIdleMemory(b *testing.B) {
	bin := filepath.Join(b.TempDir(), "allocnode")
	if out, err := exec.Command("go", "build", "-o", bin, "../../cmd/allocnode").CombinedOutput(); err != nil {
		b.Fatalf("build: %v\n%s", err, out)
	}
	for _, count := range []int{1, 3} {
		b.Run(fmt.Sprintf("nodes=%d", count), func(b *testing.B) {
			for b.Loop() {
				dir := b.TempDir()
				routes := freePorts(b, count)
				var worst float64
				procs := make([]*exec.Cmd, count)
				for i := range count {
					path := filepath.Join(dir, fmt.Sprintf("n%d.conf", i+1))
					if err := os.WriteFile(path, []byte(configFor(dir, i, routes)), 0o600); err != nil {
						b.Fatal(err)
					}
					procs[i] = exec.Command(bin, "serve", "--config", path, "--log-format", "json")
					log, err := os.Create(path + ".log")
					if err != nil {
						b.Fatal(err)
					}
					procs[i].Stderr = log
					if err := procs[i].Start(); err != nil {
						b.Fatal(err)
					}
					b.Cleanup(func() { _ = procs[i].Process.Kill(); _ = procs[i].Wait() })
				}
				for i := range procs {
					awaitLine(b, filepath.Join(dir, fmt.Sprintf("n%d.conf.log", i+1)), `"ready"`)
				}
				time.Sleep(5 * time.Second) // what is measured is a node that has been idle
				for _, p := range procs {
					worst = max(worst, residentMB(b, p.Process.Pid))
					_ = p.Process.Kill()
					_ = p.Wait()
				}
				b.ReportMetric(worst, "MB-resident")
			}
		})
	}
}

// awaitLine looks for want in a file that another process writes, every 20 ms.
func awaitLine(b *testing.B, path, want string) {
	b.Helper()
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if text, err := os.ReadFile(path); err == nil && strings.Contains(string(text), want) {
			return
		}
	}
	text, _ := os.ReadFile(path)
	b.Fatalf("%s does not say %s:\n%s", path, want, text)
}

func residentMB(b *testing.B, pid int) float64 {
	b.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		b.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		if kb, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			n, err := strconv.ParseFloat(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(kb), "kB")), 64)
			if err != nil {
				b.Fatal(err)
			}
			return n / 1024
		}
	}
	b.Fatalf("no VmRSS of process %d", pid)
	return 0
}
