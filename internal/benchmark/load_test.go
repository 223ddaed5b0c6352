package benchmark

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	natsjs "github.com/nats-io/nats.go/jetstream"
)

// work is one thing that a client does and waits for.
type work func() error

func reserve(nc *nats.Conn) work {
	return func() error { return reserveOn(nc, "alloc.reserve.orders", nil) }
}

// reserveOn asks once, and wants a range.
func reserveOn(nc *nats.Conn, subject string, body []byte) error {
	m, err := nc.Request(subject, body, 5*time.Second)
	if err == nil && !bytes.Contains(m.Data, []byte(`"start":`)) {
		err = fmt.Errorf("%s: %s", subject, m.Data)
	}
	return err
}

func echo(b *testing.B, responder, nc *nats.Conn) work {
	b.Helper()
	sub, err := responder.Subscribe("echo", func(m *nats.Msg) { _ = m.Respond(m.Data) })
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = sub.Unsubscribe() })
	if err := responder.Flush(); err != nil {
		b.Fatal(err)
	}
	return func() error {
		_, err := nc.Request("echo", nil, 5*time.Second)
		return err
	}
}

// publish is a bare acknowledged publish to an R3 stream in file storage.
func publish(b *testing.B, nc *nats.Conn) work {
	b.Helper()
	js := stream(b, nc, natsjs.StreamConfig{Name: "BARE", Subjects: []string{"bare"}})
	payload := make([]byte, 100)
	return func() error {
		_, err := js.Publish(context.Background(), "bare", payload)
		return err
	}
}

// counter adds one to a NATS counter (ADR-49).
func counter(b *testing.B, nc *nats.Conn) work {
	b.Helper()
	js := stream(b, nc, natsjs.StreamConfig{Name: "COUNTER", Subjects: []string{"counter.*"}, AllowMsgCounter: true, AllowDirect: true})
	return func() error {
		_, err := js.PublishMsg(context.Background(), &nats.Msg{Subject: "counter.orders", Header: nats.Header{"Nats-Incr": {"1"}}})
		return err
	}
}

func stream(b *testing.B, nc *nats.Conn, cfg natsjs.StreamConfig) natsjs.JetStream {
	b.Helper()
	js, err := natsjs.New(nc)
	if err != nil {
		b.Fatal(err)
	}
	cfg.Storage, cfg.Replicas = natsjs.FileStorage, 3
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if _, err := js.CreateStream(ctx, cfg); err != nil {
		b.Fatal(err)
	}
	return js
}

// figures of one round.
type figures struct {
	rate     float64 // per second
	p50, p99 time.Duration
}

// measure keeps inFlight of w under way for at least d, after a tenth of it as warm-up. Every call is counted. With many
// under way only some are timed: at a million calls a second, timing each of them takes a fifth of the machine.
func measure(b *testing.B, w work, inFlight int, d time.Duration) figures {
	b.Helper()
	var stop, counting atomic.Bool
	var failure atomic.Pointer[error]
	type worker struct {
		calls int
		took  []time.Duration
		_     [64]byte // a cache line of its own
	}
	workers, every := make([]worker, inFlight), max(1, inFlight/64)
	var running sync.WaitGroup
	for i := range workers {
		running.Go(func() {
			me := &workers[i]
			for n := i; !stop.Load(); n++ {
				var start time.Time
				if n%every == 0 {
					start = time.Now()
				}
				if err := w(); err != nil {
					failure.CompareAndSwap(nil, &err)
					return
				}
				if counting.Load() {
					me.calls++
					if n%every == 0 {
						me.took = append(me.took, time.Since(start))
					}
				}
			}
		})
	}
	time.Sleep(d / 10) // warm-up
	counting.Store(true)
	start := time.Now()
	time.Sleep(d) // the time that is measured
	counting.Store(false)
	took := time.Since(start)
	stop.Store(true)
	running.Wait()
	if err := failure.Load(); err != nil {
		b.Fatal(*err)
	}
	var calls int
	var latencies []time.Duration
	for i := range workers {
		calls += workers[i].calls
		latencies = append(latencies, workers[i].took...)
	}
	if len(latencies) == 0 {
		b.Fatal("nothing was done in a round")
	}
	slices.Sort(latencies)
	return figures{
		rate: float64(calls) / took.Seconds(),
		p50:  latencies[len(latencies)/2],
		p99:  latencies[len(latencies)*99/100],
	}
}

// rounds measures all of ws in turn, several times, so that a disturbance of the machine meets each of them, and returns
// the medians.
func rounds(b *testing.B, ws map[string]work, inFlight, n int, d time.Duration) map[string]figures {
	b.Helper()
	runs := make(map[string][]figures)
	for range n {
		for name, w := range ws {
			runs[name] = append(runs[name], measure(b, w, inFlight, d))
		}
	}
	out := make(map[string]figures)
	for name, fs := range runs {
		out[name] = figures{
			rate: median(fs, func(f figures) float64 { return f.rate }),
			p50:  time.Duration(median(fs, func(f figures) float64 { return float64(f.p50) })),
			p99:  time.Duration(median(fs, func(f figures) float64 { return float64(f.p99) })),
		}
	}
	return out
}

func median[T any](xs []T, of func(T) float64) float64 {
	vs := make([]float64, len(xs))
	for i, x := range xs {
		vs[i] = of(x)
	}
	slices.Sort(vs)
	return vs[len(vs)/2]
}
