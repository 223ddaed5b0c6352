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
	next := entriesOf256(b, sequences, keyed)
	b.ReportAllocs()
	for b.Loop() {
		next()
	}
	b.ReportMetric(float64(b.N)*256/b.Elapsed().Seconds(), "reservations/s")
}

// entriesOf256 returns a function that applies one more entry of 256 reservations, to a machine whose windows are full. The
// entry is encoded each time, without its operations: its proposer's cursor is always the machine's.
func entriesOf256(t testing.TB, sequences int, keyed bool) (next func()) {
	const (
		ops       = 256
		keyWindow = 1 << 17
		ring      = keyWindow/ops + 64 // entries: more than the window holds, so that every key is new when it comes again
	)
	g := testGenesis()
	g.KeyWindow, g.EntryWindow, g.MaxSequences = keyWindow, 64, ops
	m := New()
	if _, _, err := m.Apply(1, genesisEntry(g)); err != nil {
		t.Fatal(err)
	}
	bodies := make([][]byte, ring)
	for i := range bodies {
		for j := range ops {
			op := reserveOp(fmt.Sprintf("orders.%d", j%sequences), 10, "", 0)
			if keyed {
				op.Key = binary.BigEndian.AppendUint64(make([]byte, 8), uint64(i*ops+j))
			}
			bodies[i] = wire.AppendOp(bodies[i], &op)
		}
	}
	seq := uint64(1)
	h := testHeader("n1", 2, 1)
	h.Defaults.Max = 1<<63 - 1
	var entry []byte
	next = func() {
		h.Cursor = seq
		seq++
		h.ID.Counter = seq
		entry = append(wire.AppendHeader(entry[:0], &h), bodies[seq%ring]...)
		wire.Seal(entry)
		out, _, err := m.Apply(seq, entry)
		if err != nil || len(out.Ops) != ops || out.Ops[ops-1].Reject != 0 || out.Ops[0].Repeated {
			t.Fatalf("seq %d: %d outcomes, error %v", seq, len(out.Ops), err)
		}
	}
	for range 2 * ring {
		next()
	}
	return next
}

// What applying an entry of 256 reservations allocates does not grow with them, but for the key and the value of each
// sequence that changed.
func TestApplyAllocations(t *testing.T) {
	for _, tt := range []struct {
		sequences int
		keyed     bool
		want      float64
	}{
		{1, false, 16},
		{1, true, 26},
		{256, false, 16 + 2*256 + 8},
	} {
		if got := testing.AllocsPerRun(50, entriesOf256(t, tt.sequences, tt.keyed)); got > tt.want {
			t.Errorf("%d sequences, keyed %v: %v allocations for an entry, want at most %v", tt.sequences, tt.keyed, got, tt.want)
		}
	}
}
