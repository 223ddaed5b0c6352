package apply

import (
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/allocnode/allocnode/internal/wire"
)

// BenchmarkApply applies entries of 256 reservations, with the windows of a cluster that has run for a while. One
// operation of the benchmark is one entry.
func BenchmarkApply(b *testing.B) {
	for _, keyed := range []bool{false, true} {
		for _, sequences := range []int{1, 256} {
			b.Run(fmt.Sprintf("sequences=%d/keyed=%v", sequences, keyed), func(b *testing.B) { benchmarkApply(b, sequences, keyed) })
		}
	}
}

func benchmarkApply(b *testing.B, sequences int, keyed bool) {
	const (
		ops       = 256
		keyWindow = 1 << 17
		ring      = keyWindow/ops + 64 // entries: more than the window holds, so that every key is new when it comes again
	)
	g := testGenesis()
	g.KeyWindow, g.EntryWindow, g.MaxSequences = keyWindow, 64, ops
	m := New()
	if _, _, err := m.Apply(1, genesisEntry(g)); err != nil {
		b.Fatal(err)
	}
	entries := make([][]byte, ring)
	for i := range entries {
		h := testHeader("n1", uint64(i)+2, 1)
		h.Defaults.Max = 1<<63 - 1
		e := wire.AppendHeader(nil, &h)
		for j := range ops {
			op := reserveOp(fmt.Sprintf("orders.%d", j%sequences), 10, "", 0)
			if keyed {
				op.Key = binary.BigEndian.AppendUint64(make([]byte, 8), uint64(i*ops+j))
			}
			e = wire.AppendOp(e, &op)
		}
		wire.Seal(e)
		entries[i] = e
	}
	seq := uint64(1)
	next := func() {
		seq++
		out, _, err := m.Apply(seq, entries[seq%ring])
		if err != nil || len(out.Ops) != ops || out.Ops[ops-1].Reject != 0 || out.Ops[0].Repeated {
			b.Fatalf("seq %d: %d outcomes, error %v", seq, len(out.Ops), err)
		}
	}
	for range 2 * ring {
		next()
	}
	b.SetBytes(int64(len(entries[0])))
	b.ReportAllocs()
	for b.Loop() {
		next()
	}
	b.ReportMetric(float64(b.N)*ops/b.Elapsed().Seconds(), "reservations/s")
}
