package kv

import (
	"fmt"
	"testing"

	"github.com/allocnode/allocnode/apply"
)

// One run of 32 deltas with 5 records of 48 bytes each, synced: what a busy node commits every 10 ms.
func BenchmarkCommit(b *testing.B) {
	c := newCatalog(b)
	run := make([]apply.Delta, 32)
	cursor := uint64(0)
	b.ReportAllocs()
	for b.Loop() {
		for i := range run {
			cursor++
			run[i] = apply.Delta{Head: headAt(cursor)}
			for j := range 5 {
				key := fmt.Appendf(nil, "key-%05d", (cursor*5+uint64(j))%20000)
				run[i].Records = append(run[i].Records, apply.Record{Key: key, Value: fmt.Appendf(nil, "%048d", cursor)})
			}
		}
		if err := c.Commit(run); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.N*32)/b.Elapsed().Seconds(), "deltas/s")
}

// A start with 130,000 records of 64 bytes.
func BenchmarkLoad(b *testing.B) {
	c := newCatalog(b)
	for at := range uint64(13) {
		d := apply.Delta{Head: headAt(at + 1)}
		for i := range 10_000 {
			d.Records = append(d.Records, apply.Record{Key: fmt.Appendf(nil, "key-%02d-%05d", at, i), Value: make([]byte, 64)})
		}
		mustCommit(b, c, []apply.Delta{d})
	}
	for b.Loop() {
		if _, err := c.Load(func(apply.Record) error { return nil }); err != nil {
			b.Fatal(err)
		}
	}
}
