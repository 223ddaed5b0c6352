package service

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/allocnode/allocnode/internal/next"
	"github.com/nats-io/nats.go"
)

// inFlight is how many requests wait for their answers at a time.
const inFlight = 256

// load sends n requests, inFlight at a time, and returns how long each took, sorted, and all of them together.
func load(b *testing.B, nc *nats.Conn, subject, body string, n int) (each []time.Duration, all time.Duration) {
	per := make([][]time.Duration, inFlight)
	begin := time.Now()
	var wg sync.WaitGroup
	for i := range inFlight {
		wg.Go(func() {
			for range n / inFlight {
				start := time.Now()
				if _, err := nc.Request(subject, []byte(body), wait); err != nil {
					b.Error(err)
					return
				}
				per[i] = append(per[i], time.Since(start))
			}
		})
	}
	wg.Wait()
	all = time.Since(begin)
	each = slices.Concat(per...)
	slices.Sort(each)
	return each, all
}

// compare sends requests to subject and to a bare echo, in turns, so that what else the machine does meets both. The echo
// answers with as many bytes as subject does.
func compare(b *testing.B, f *fixture, subject, body string) {
	m := f.request(subject, body)
	if len(m.Header) > 0 {
		b.Fatalf("%s: %s", subject, m.Data)
	}
	if _, err := f.conn.QueueSubscribe("echo.>", "q", func(r *nats.Msg) { _ = f.conn.Publish(r.Reply, m.Data) }); err != nil {
		b.Fatal(err)
	}
	f.flush()
	const rounds, n = 5, 100 * inFlight
	for b.Loop() {
		var rates, tails []float64 // subject's against the echo's
		for range rounds {
			each, took := load(b, f.nc, subject, body, n)
			echo, echoTook := load(b, f.nc, "echo.orders", body, n)
			if b.Failed() {
				return
			}
			rates = append(rates, float64(echoTook)/float64(took))
			tails = append(tails, float64(each[len(each)*99/100])/float64(echo[len(echo)*99/100]))
		}
		slices.Sort(rates)
		slices.Sort(tails)
		b.ReportMetric(rates[rounds/2], "rate×echo")
		b.ReportMetric(tails[rounds/2], "p99×echo")
	}
}

// BenchmarkReserve is the endpoint with a log that answers at once, beside a bare echo.
func BenchmarkReserve(b *testing.B) {
	f := start(b, true, nil)
	f.log.set(func() { f.log.instant = true })
	compare(b, f, "alloc.reserve.orders", "10")
}

// BenchmarkNext is the endpoint on a real pool whose log answers at once, beside a bare echo. The targets are a rate of 0.8
// and a p99 of 1.5 times the echo's.
func BenchmarkNext(b *testing.B) {
	f := start(b, false, nil)
	startPool(b, f)
	compare(b, f, "alloc.next.orders", "")
}

// startPool puts a pool into f's service, and has that serve. The pool's refills go through f's log.
func startPool(t testing.TB, f *fixture) {
	p := next.New(next.DefaultConfig(), f.log)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	p.Hold(1)
	p.Open(1)
	f.svc.taker = p
	f.serve()
}
