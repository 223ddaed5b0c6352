package benchmark

import (
	"bytes"
	"fmt"
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
