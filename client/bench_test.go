package client_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/allocnode/allocnode/client"
)

// Next against a bare atomic addition in the same loop: one goroutine, and all cores on one variable.
func BenchmarkNext(b *testing.B) {
	var n atomic.Uint64
	b.Run("atomic/one", func(b *testing.B) {
		for b.Loop() {
			n.Add(1)
		}
	})
	f := newFake(b)
	b.Run("next/one", func(b *testing.B) {
		s := open(b, f.client(), "one", client.WithBatch(1_000_000, 1_000_000))
		ctx := context.Background()
		b.ReportAllocs()
		for b.Loop() {
			if _, err := s.Next(ctx); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("atomic/all", func(b *testing.B) {
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				n.Add(1)
			}
		})
	})
	b.Run("next/all", func(b *testing.B) {
		s := open(b, f.client(), "all", client.WithBatch(1_000_000, 1_000_000))
		ctx := context.Background()
		b.ReportAllocs()
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				if _, err := s.Next(ctx); err != nil {
					b.Error(err)
					return
				}
			}
		})
	})
}

// Reserve by many callers at once, against request and reply with a plain echo at the same concurrency on the same server.
// A real node, alone, sync always; how many merged requests may be in flight is varied.
func BenchmarkReserve(b *testing.B) {
	n := newNode(b)
	echo := connect(b, n.url)
	if _, err := echo.Subscribe("echo", func(m *nats.Msg) { m.Respond(m.Data) }); err != nil {
		b.Fatal(err)
	}
	for _, callers := range []int{1, 256, 4096} {
		b.Run(fmt.Sprintf("echo/callers=%d", callers), func(b *testing.B) {
			nc := connect(b, n.url)
			each(b, callers, func() error {
				_, err := nc.RequestWithContext(context.Background(), "echo", []byte("1"))
				return err
			})
		})
		for _, inFlight := range []int{1, 2, 4} {
			b.Run(fmt.Sprintf("reserve/inflight=%d/callers=%d", inFlight, callers), func(b *testing.B) {
				c := newClient(b, connect(b, n.url), client.WithInFlight(inFlight))
				each(b, callers, func() error {
					_, err := c.Reserve(context.Background(), "orders", 1)
					return err
				})
				st := c.Stats()
				b.ReportMetric(float64(st.Calls)/float64(st.Requests), "calls/request")
				b.ReportMetric(float64(st.Retries), "retries")
			})
		}
	}
}

// each shares b.N calls among callers.
func each(b *testing.B, callers int, call func() error) {
	b.ReportAllocs()
	var left atomic.Int64
	left.Store(int64(b.N))
	var wg sync.WaitGroup
	b.ResetTimer()
	for range callers {
		wg.Go(func() {
			for left.Add(-1) >= 0 {
				if err := call(); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "calls/s")
}
