package client

import (
	"testing"
	"time"
)

// A batch grows to what ten seconds use, by steps, and shrinks again; it stays within its bounds.
func TestPace(t *testing.T) {
	p := pace{size: 100}
	now := time.Unix(1000, 0)
	var used uint64
	look := func(rate uint64) uint64 {
		now, used = now.Add(time.Second), used+rate
		p.look(used, now)
		return p.want(10*time.Second, 100, 1_000_000)
	}
	if got := look(0); got != 100 || p.rate != 0 {
		t.Errorf("first batch %d, rate %v", got, p.rate)
	}
	for _, want := range []uint64{400, 1600, 6400, 10_000, 10_000} {
		if got := look(1000); got != want {
			t.Errorf("growing to %d, want %d", got, want)
		}
	}
	for _, want := range []uint64{2500, 625, 156, 100, 100} {
		if got := look(1); got != want {
			t.Errorf("shrinking to %d, want %d", got, want)
		}
	}
	for range 20 {
		look(1 << 60)
	}
	if p.size != 1_000_000 {
		t.Errorf("at full speed %d, want the most", p.size)
	}
	if p.look(used, now); p.rate == 0 {
		t.Error("a second look at the same moment took the rate for zero")
	}
}

func TestLowWater(t *testing.T) {
	for _, tc := range []struct {
		rate float64
		size uint64
		want uint64
	}{
		{0, 1, 1}, {0, 2, 1}, {0, 3, 2}, {0, 100, 50}, {10, 100, 50}, {15, 100, 75}, {1e12, 100, 100}, {1e12, 1, 1},
	} {
		p := pace{rate: tc.rate}
		if got := p.lowWater(tc.size, 10*time.Second); got != tc.want {
			t.Errorf("rate %v, batch of %d: %d, want %d", tc.rate, tc.size, got, tc.want)
		}
	}
}

func TestKeysCarrySince(t *testing.T) {
	for _, since := range []uint64{0, 1, 1<<64 - 1} {
		k := newKey(since)
		if got, ok := sinceOf(k); !ok || got != since || len(k) > 49 {
			t.Errorf("%s: %d, %v, want %d", k, got, ok, since)
		}
	}
	for _, k := range []string{"", "orders", newKey(1)[:32], newKey(1)[:33], newKey(1) + ".3", newKey(1<<64-1) + "0",
		"z" + newKey(1)[1:]} {
		if _, ok := sinceOf(k); ok {
			t.Errorf("%q is taken for one of ours", k)
		}
	}
	if a, b := newKey(1), newKey(1); a == b {
		t.Error("two keys are alike")
	}
}

// The oldest are forgotten first, and only they.
func TestLostSeats(t *testing.T) {
	var l lostSeats
	l.byKey = make(map[string]*seat)
	seats := make([]*seat, 3*maxLost)
	for i := range seats {
		seats[i] = &seat{}
		l.add(newKey(uint64(i)), seats[i])
	}
	if len(l.byKey) != maxLost || len(l.ring) != maxLost {
		t.Fatalf("%d remembered, want %d", len(l.byKey), maxLost)
	}
	for k, s := range l.byKey {
		if since, _ := sinceOf(k); since < 2*maxLost || s != seats[since] {
			t.Errorf("%s is remembered", k)
		}
	}
}
