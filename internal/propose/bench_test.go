package propose

import (
	"context"
	"testing"
	"time"

	"github.com/allocnode/allocnode/internal/wire"
)

// benchLog applies what is appended at once, in another goroutine. All operations have opLen bytes.
type benchLog struct {
	opLen   int
	entries chan benchEntry
}

type benchEntry struct {
	counter uint64
	ops     int
	data    []byte
}

func (l *benchLog) Append(tag uint64, _ string, data []byte) error {
	h := wire.Header{ID: wire.EntryID{Counter: tag}}
	l.entries <- benchEntry{tag, (len(data) - len(wire.AppendHeader(nil, &h))) / l.opLen, data}
	return nil
}

// BenchmarkPropose is one request from Submit to Done, with 2048 of them in flight. Requests are used again, so that what
// is counted is the proposer's own.
func BenchmarkPropose(b *testing.B) {
	const inFlight = 2048
	cfg := DefaultConfig()
	ops := wire.AppendOp(nil, &wire.Op{Kind: wire.KindReserve, Name: []byte("orders"), Count: 100})
	log := &benchLog{opLen: len(ops), entries: make(chan benchEntry, 16)}
	head := func() (uint64, wire.Digest) { return 0, wire.Digest{} }
	p := New(cfg, log, head, func(seq, cursor uint64) { b.Error(seq, cursor) })
	if !p.Open(p.Hold()) {
		b.Fatal("the gate stays held")
	}

	free := make(chan *Request, inFlight)
	for range inFlight {
		r := &Request{Ops: ops, N: 1}
		r.Done = func(res Result) {
			if res.Err != nil || len(res.Outcomes) != 1 {
				b.Error(res)
			}
			free <- r
		}
		free <- r
	}
	ctx, cancel := context.WithCancel(b.Context())
	stopped, applied := make(chan error), make(chan struct{})
	entries := 0
	go func() { stopped <- p.Run(ctx) }()
	go func() {
		defer close(applied)
		outcomes := make([]wire.Outcome, cfg.MaxOps)
		for e := range log.entries {
			entries++
			p.Applied(wire.EntryID{Counter: e.counter}, uint64(entries), e.data, outcomes[:e.ops])
			p.Acked(e.counter, uint64(entries), false, nil)
		}
	}()

	b.ReportAllocs()
	for b.Loop() {
		r := <-free
		r.Deadline = time.Now().Add(4 * time.Second)
		p.Submit(r)
	}
	for range inFlight {
		<-free
	}
	b.StopTimer()
	cancel()
	<-stopped
	close(log.entries)
	<-applied
	b.ReportMetric(float64(b.N)/float64(entries), "requests/entry")
}
