package jetstream

import (
	"errors"
	"fmt"
	"testing"
)

// The log of a recovery: its own stream, which begins where its origin says, beside the one before.
func TestRecoveredLog(t *testing.T) {
	first, nc := logTestAlone(t) // a log of epoch 1
	ctx := logTestCtx(t)
	if e, err := LatestEpoch(ctx, nc, "alloc"); err != nil || e != 1 {
		t.Fatalf("latest epoch %d, %v", e, err)
	}
	if e, err := LatestEpoch(ctx, nc, "other"); err != nil || e != 0 {
		t.Errorf("of another prefix %d, %v", e, err)
	}
	l := logTestNew(t, nc, LogConfig{Epoch: 12}, "n1")
	o := Origin{ClusterID: logTestID(1), Epoch: 12, First: 2_000_000, Recovery: logTestID(9)}
	for _, bad := range []Origin{{}, {ClusterID: o.ClusterID, Epoch: 12, First: 1, Recovery: o.Recovery},
		{ClusterID: o.ClusterID, Epoch: 11, First: 5, Recovery: o.Recovery}} {
		if _, err := l.CreateRecovered(ctx, bad); err == nil {
			t.Errorf("made %+v", bad)
		}
	}
	id, err := l.CreateRecovered(ctx, o)
	if err != nil || id.Begin() != o.First || !id.Empty() || id.Recovery != o.Recovery || id.Epoch != 12 || l.Stream() != "ALLOC_LOG_12" {
		t.Fatalf("%+v, %v, stream %s", id, err, l.Stream())
	}
	other := o
	other.Recovery = logTestID(8)
	for _, again := range []Origin{o, other} { // another recovery finds whose log it is
		if got, err := l.CreateRecovered(ctx, again); err != nil || got != id {
			t.Errorf("made again: %+v, %v", got, err)
		}
	}
	if e, err := LatestEpoch(ctx, nc, "alloc"); err != nil || e != 12 {
		t.Errorf("latest epoch %d, %v", e, err)
	}

	// Each piece goes in only behind the one before.
	if err := l.AppendAfter(ctx, o.First, "x", []byte("too far")); !errors.Is(err, ErrMoved) {
		t.Errorf("behind what is not there: %v", err)
	}
	for i := range uint64(3) {
		for _, want := range []error{nil, ErrMoved} {
			if err := l.AppendAfter(ctx, o.First-1+i, fmt.Sprint("id", i, want), fmt.Append(nil, i)); !errors.Is(err, want) {
				t.Fatalf("piece %d: %v, want %v", i, err, want)
			}
		}
	}
	logTestOK(t, l.AppendAfter(ctx, AnySeq, "any", []byte("3")))
	next := o.First
	last, err := l.Read(ctx, o.First, func(m Message) error {
		if m.Seq != next || string(m.Data) != fmt.Sprint(next-o.First) {
			t.Errorf("seq %d holds %q, want seq %d", m.Seq, m.Data, next)
		}
		next++
		return nil
	})
	if err != nil || last != o.First+3 {
		t.Errorf("read up to %d, %v", last, err)
	}
	// What the one log takes the other does not.
	if id, err := first.Identity(ctx); err != nil || !id.Empty() {
		t.Errorf("the first log: %+v, %v", id, err)
	}
	// A log of another epoch under this name, and one that does not begin where it says, are refused.
	cfg := l.recoveredConfig(o)
	cfg.FirstSeq = 7
	if _, _, err := l.checkConfig(cfg); err == nil {
		t.Error("a stream that begins elsewhere was taken")
	}
	cfg = l.recoveredConfig(Origin{ClusterID: o.ClusterID, Epoch: 3, First: o.First, Recovery: o.Recovery})
	if _, _, err := l.checkConfig(cfg); err == nil {
		t.Error("a stream of another epoch was taken")
	}
}

func TestEpochOf(t *testing.T) {
	for name, want := range map[string]uint64{
		"ALLOC_LOG": 1, "ALLOC_LOG_2": 2, "ALLOC_LOG_10": 10, "ALLOC_LOG_1": 0, "ALLOC_LOG_02": 0, "ALLOC_LOG_x": 0, "ALLOC_LOG_": 0, "OTHER": 0,
		"ALLOC_LOG_LOG": 0, "ALLOC_LOG_18446744073709551616": 0,
	} {
		if got, ok := epochOf("alloc", name); got != want && (ok || want != 0) {
			t.Errorf("%s: %d, %v: want %d", name, got, ok, want)
		}
	}
}
