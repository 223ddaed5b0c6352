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

// lastLog keeps what was appended last.
type lastLog struct {
	counter uint64
	data    []byte
}

func (l *lastLog) Append(tag uint64, _ string, data []byte) error {
	l.counter, l.data = tag, data
	return nil
}

// What an entry allocates does not grow with its requests, but for one place each that the flight has in one piece.
// Checked: with a copy of the outcomes for each request this fails.
func TestEntryAllocations(t *testing.T) {
	const n = 256
	log := &lastLog{}
	p := New(DefaultConfig(), log, func() (uint64, wire.Digest) { return 0, wire.Digest{} }, func(seq, cursor uint64) { t.Error(seq, cursor) })
	if !p.Open(p.Hold()) {
		t.Fatal("the gate stays held")
	}
	ops := wire.AppendOp(nil, &wire.Op{Kind: wire.KindReserve, Name: []byte("orders"), Count: 100})
	answered := 0
	requests := make([]Request, n)
	for i := range requests {
		requests[i] = Request{Ops: ops, N: 1, Done: func(res Result) {
			if res.Err == nil && len(res.Outcomes) == 1 {
				answered++
			}
		}}
	}
	outcomes := make([]wire.Outcome, n)
	seq, runs := uint64(0), 0
	got := testing.AllocsPerRun(100, func() {
		deadline := time.Now().Add(time.Minute)
		for i := range requests {
			requests[i].Deadline = deadline
			p.Submit(&requests[i])
		}
		p.step()
		seq++
		p.Applied(wire.EntryID{Counter: log.counter}, seq, log.data, outcomes)
		p.Acked(log.counter, seq, false, nil)
		runs++
	})
	if answered != n*runs {
		t.Fatalf("%d of %d answered", answered, n*runs)
	}
	if got > 8 {
		t.Errorf("an entry of %d requests allocates %v times, want at most 8", n, got)
	}
}
