package benchmark

import (
	"bytes"
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/allocnode/allocnode/client"
)

func newClient(b *testing.B, nc *nats.Conn, opts ...client.Option) *client.Client {
	b.Helper()
	c, err := client.New(nc, opts...)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = c.Close() })
	return c
}

// spin runs loop, which makes n calls, on every one of goroutines, and returns the time for one call of each.
func spin(goroutines, n int, loop func(n int)) time.Duration {
	var running sync.WaitGroup
	start := time.Now()
	for range goroutines {
		running.Go(func() { loop(n) })
	}
	running.Wait()
	return time.Since(start)
}

// Next while its batch lasts against a bare atomic addition in the same loop, by one goroutine and by one for each core on
// one variable. The target is a ratio of 1.2 at most, and no allocation. The batch is a billion ids, so that this is the
// price of Next itself; BenchmarkClientNextWorst is the one across refills.
func BenchmarkClientNext(b *testing.B) {
	const calls = 1_000_000
	c := newClient(b, startCluster(b, 1).connect(b, 0))
	ctx := context.Background()
	const batch = 2_000_000_000
	if _, err := c.Create(ctx, "huge", client.Settings{MaxCount: batch}); err != nil {
		b.Fatal(err)
	}
	s, err := c.Sequence("huge", client.WithBatch(batch, batch))
	if err != nil {
		b.Fatal(err)
	}
	var n atomic.Uint64
	add := func(calls int) {
		for range calls {
			n.Add(1)
		}
	}
	next := func(calls int) {
		for range calls {
			if _, err := s.Next(ctx); err != nil {
				b.Error(err)
				return
			}
		}
	}
	next(1)
	allocs := testing.AllocsPerRun(1000, func() { next(1) })
	for b.Loop() {
		for name, goroutines := range map[string]int{"one": 1, "all": runtime.GOMAXPROCS(0)} {
			var bare, ours []time.Duration
			var ratios []float64 // of neighbours in time: what else the machine does meets both
			for i := range 101 {
				bare = append(bare, spin(goroutines, calls, add))
				ours = append(ours, spin(goroutines, calls, next))
				ratios = append(ratios, float64(ours[i])/float64(bare[i]))
			}
			took := func(d time.Duration) float64 { return float64(d) / calls }
			b.ReportMetric(median(ours, took), "next-ns-"+name)
			b.ReportMetric(median(bare, took), "add-ns-"+name)
			b.ReportMetric(median(ratios, func(r float64) float64 { return r }), "×add-"+name)
		}
		b.ReportMetric(allocs, "allocs/next")
	}
}

// longest is the slowest of the calls that one goroutine makes within a time, and how many were slower than limit.
type longest struct {
	calls, slow int
	worst       time.Duration
}

const slowCall = 10 * time.Millisecond

// watch makes calls for d, and times each from the end of the one before: whatever holds a caller up is in it.
func watch(b *testing.B, d time.Duration, call func() error) (l longest) {
	last := time.Now()
	for end := last.Add(d); last.Before(end); l.calls++ {
		if err := call(); err != nil {
			b.Error(err)
			return l
		}
		now := time.Now()
		took := now.Sub(last)
		last = now
		if took > slowCall {
			l.slow++
		}
		l.worst = max(l.worst, took)
	}
	return l
}

// Next across refills at the default settings, as fast as one goroutine goes, for 30 s against three nodes. The target is
// that no call takes more than 10 ms. The same loop with a bare addition, in the same process beside the same idle nodes,
// says what of it is the machine's and the scheduler's.
func BenchmarkClientNextWorst(b *testing.B) {
	const warm, counted = 3 * time.Second, 30 * time.Second
	c := newClient(b, startCluster(b, 3).connect(b, 0))
	ctx := context.Background()
	for b.Loop() {
		s, err := c.Sequence("orders")
		if err != nil {
			b.Fatal(err)
		}
		next := func() error { _, err := s.Next(ctx); return err }
		watch(b, warm, next)
		before := s.Stats()
		ours := watch(b, counted, next)
		after := s.Stats()
		_ = s.Close()
		var n atomic.Uint64
		bare := watch(b, counted, func() error { n.Add(1); return nil })
		b.ReportMetric(float64(ours.worst.Microseconds())/1000, "worst-ms")
		b.ReportMetric(float64(ours.slow), "above-10ms")
		b.ReportMetric(float64(ours.calls)/counted.Seconds(), "next/s")
		b.ReportMetric(float64(after.Refills-before.Refills), "refills")
		b.ReportMetric(float64(after.Waits-before.Waits), "waits")
		b.ReportMetric(float64(bare.worst.Microseconds())/1000, "bare-worst-ms")
		b.ReportMetric(float64(bare.slow), "bare-above-10ms")
	}
}

// Reserve by many callers at once through one client, which merges them, against an echo at the same concurrency over
// the same kind of connection. The target at 4,096 callers is five times the echo's rate.
func BenchmarkClientMerged(b *testing.B) {
	for _, callers := range []int{256, 4096} {
		b.Run(fmt.Sprintf("callers=%d", callers), func(b *testing.B) {
			c := startCluster(b, 3)
			cl := newClient(b, c.connect(b, 0))
			ctx := context.Background()
			merged := func() error { _, err := cl.Reserve(ctx, "orders", 1); return err }
			ws := map[string]work{"merged": merged, "echo": echo(b, c.connect(b, 1), c.connect(b, 0))}
			for b.Loop() {
				m := rounds(b, ws, callers, 5, 2*time.Second)
				st := cl.Stats()
				b.ReportMetric(m["merged"].rate, "reserve/s")
				b.ReportMetric(m["echo"].rate, "echo/s")
				b.ReportMetric(m["merged"].rate/m["echo"].rate, "×echo")
				b.ReportMetric(float64(m["merged"].p99.Microseconds()), "reserve-p99-µs")
				b.ReportMetric(float64(m["echo"].p99.Microseconds()), "echo-p99-µs")
				b.ReportMetric(float64(st.Calls)/float64(st.Requests), "calls/request")
			}
		})
	}
}

// nodeNext asks a node for one id of its batch, as any NATS client would.
func nodeNext(nc *nats.Conn) work {
	return func() error {
		m, err := nc.Request("alloc.next.orders", nil, 5*time.Second)
		if err == nil && !bytes.Contains(m.Data, []byte(`"id":`)) {
			err = fmt.Errorf("next: %s", m.Data)
		}
		return err
	}
}

// alloc.next against an echo, over the same connection. The targets at 256 in flight are 0.8 times the echo's rate, and 1.5
// times its p99.
func BenchmarkNodeNext(b *testing.B) {
	for _, inFlight := range []int{1, 16, 256} {
		b.Run(fmt.Sprintf("inflight=%d", inFlight), func(b *testing.B) {
			c := startCluster(b, 3)
			nc := c.connect(b, 0)
			ws := map[string]work{"next": nodeNext(nc), "echo": echo(b, c.connect(b, 1), nc)}
			for b.Loop() {
				m := rounds(b, ws, inFlight, 5, 2*time.Second)
				b.ReportMetric(m["next"].rate, "next/s")
				b.ReportMetric(m["echo"].rate, "echo/s")
				b.ReportMetric(m["next"].rate/m["echo"].rate, "×echo")
				b.ReportMetric(float64(m["next"].p99.Microseconds()), "next-p99-µs")
				b.ReportMetric(float64(m["echo"].p99.Microseconds()), "echo-p99-µs")
				b.ReportMetric(float64(m["next"].p99)/float64(m["echo"].p99), "p99×echo")
			}
		})
	}
}
