package load

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

var options = Options{Warm: time.Second, Duration: 10 * time.Second, Grace: 2 * time.Second, Keep: 1000}

// takes is a call that is answered after d, with the next id.
func takes(n *atomic.Uint64, d func(n uint64) time.Duration) Draw {
	return func(ctx context.Context, ids []ID) error {
		for i := range ids {
			ids[i].Lo = n.Add(1)
			select {
			case <-time.After(d(ids[i].Lo)):
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		return nil
	}
}

func always(d time.Duration) func(uint64) time.Duration {
	return func(uint64) time.Duration { return d }
}

func within(t *testing.T, what string, got, want float64) {
	t.Helper()
	if got < want*0.995 || got > want*1.005 {
		t.Errorf("%s is %v, want %v", what, got, want)
	}
}

func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n atomic.Uint64
		slow := func(n uint64) time.Duration { // two of 100 take ten times as long
			if n%50 == 0 {
				return 10 * time.Millisecond
			}
			return time.Millisecond
		}
		f, ids, err := Run(t.Context(), &Load{Draws: slices.Repeat([]Draw{takes(&n, slow)}, 10), Counter: "c"}, options)
		if err != nil {
			t.Fatal(err)
		}
		within(t, "rate", f.Rate, 10*1000/1.18)
		within(t, "p50", float64(f.P50), 1e6)
		within(t, "p99", float64(f.P99), 10e6)
		within(t, "p999", float64(f.P999), 10e6)
		if f.Cut != 0 || len(ids) < options.Keep || len(ids) > options.Keep+10 {
			t.Errorf("%d cut off, %d ids kept", f.Cut, len(ids))
		}
	})
}

func TestSends(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n atomic.Uint64
		var under, most int // one sender: nothing else touches them
		send := func(context.Context) (func(context.Context) (ID, error), error) {
			under++
			most = max(most, under)
			answer := time.After(time.Millisecond)
			return func(context.Context) (ID, error) {
				<-answer
				under--
				return ID{Lo: n.Add(1)}, nil
			}, nil
		}
		f, _, err := Run(t.Context(), &Load{Sends: []Send{send}, Window: 8, Counter: "c"}, options)
		if err != nil {
			t.Fatal(err)
		}
		within(t, "rate", f.Rate, 8000)
		within(t, "p50", float64(f.P50), 1e6)
		if most != 8 || under != 0 {
			t.Errorf("%d were under way, %d are not awaited", most, under)
		}
	})
}

func TestChunk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n atomic.Uint64
		f, ids, err := Run(t.Context(), &Load{Draws: []Draw{takes(&n, always(time.Millisecond))}, Chunk: 16, Counter: "c"}, options)
		if err != nil {
			t.Fatal(err)
		}
		within(t, "rate", f.Rate, 1000)
		within(t, "p50 of one call", float64(f.P50), 1e6)
		for i, id := range ids {
			if id.Lo != uint64(i+1) {
				t.Fatalf("id %d is kept as %d", i+1, id.Lo)
			}
		}
	})
}

// What has no answer counts in the percentiles. Checked: without the sample in fail, p999 was 1 ms.
func TestCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n atomic.Uint64
		draws := slices.Repeat([]Draw{takes(&n, always(time.Hour))}, 40)
		draws = append(draws, takes(&n, always(time.Millisecond)))
		f, _, err := Run(t.Context(), &Load{Draws: draws}, options)
		if err != nil {
			t.Fatal(err)
		}
		within(t, "rate", f.Rate, 1000)
		if f.Cut != 40 || f.P999 < 12*time.Second {
			t.Errorf("%d cut off, p999 %v", f.Cut, f.P999)
		}
	})
}

// Calls that take longer than the window are awaited. Checked: without Patience, no call was answered.
func TestSlow(t *testing.T) {
	const took = 2995 * time.Millisecond // not a multiple of the pause in Run, which would look while they are answered
	synctest.Test(t, func(t *testing.T) {
		var n atomic.Uint64
		o := options
		o.Warm, o.Duration = 0, time.Second
		f, _, err := Run(t.Context(), &Load{Draws: slices.Repeat([]Draw{takes(&n, always(took))}, 30)}, o)
		if err != nil {
			t.Fatal(err)
		}
		within(t, "p999", float64(f.P999), float64(took)) // the calls begun at its end are cut off earlier
		within(t, "rate", f.Rate, 10)                     // all 30, at the next look
	})
}

func TestFailures(t *testing.T) {
	broken := errors.New("broken")
	for _, tt := range []struct {
		name string
		draw Draw
		want string
		most time.Duration
	}{
		{"a call fails", func(context.Context, []ID) error { return broken }, "broken", time.Second},
		{"no call is answered", takes(new(atomic.Uint64), always(time.Hour)), "no call was answered", time.Minute},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				start := time.Now()
				_, _, err := Run(t.Context(), &Load{Draws: []Draw{tt.draw}}, options)
				if err == nil || !strings.Contains(err.Error(), tt.want) {
					t.Errorf("got %v, want %s", err, tt.want)
				}
				if took := time.Since(start); took > tt.most {
					t.Errorf("it took %v", took)
				}
			})
		})
	}
}

func TestInterrupted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		interrupt := errors.New("interrupt")
		time.AfterFunc(5*time.Second, func() { cancel(interrupt) })
		start := time.Now()
		_, _, err := Run(ctx, &Load{Draws: []Draw{takes(new(atomic.Uint64), always(time.Millisecond))}}, options)
		if !errors.Is(err, interrupt) || time.Since(start) > 6*time.Second {
			t.Errorf("got %v after %v", err, time.Since(start))
		}
	})
}

// A caller that does not listen to its context does not hold up everything. Checked: without endAfter, Run did not return.
func TestCallerDoesNotEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		_, _, err := Run(t.Context(), &Load{Draws: []Draw{func(context.Context, []ID) error { <-release; return nil }}}, options)
		if err == nil || !strings.Contains(err.Error(), "did not end") {
			t.Errorf("got %v", err)
		}
		close(release)
	})
}

// Checked: without the comparison of neighbours the id went unnoticed.
func TestUniqueCatchesADuplicate(t *testing.T) {
	var u Unique
	defer u.Close()
	for counter, ids := range map[string][]ID{"good": {{0, 3}, {0, 1}, {1, 1}}, "bad": {{0, 9}, {0, 8}}} {
		if err := u.Add(counter, ids); err != nil {
			t.Fatal(err)
		}
	}
	if found, err := u.Check(); err != nil || len(found) != 0 {
		t.Fatalf("found %v, %v", found, err)
	}
	if err := u.Add("good", []ID{{0, 8}, {0, 9}}); err != nil { // of another counter
		t.Fatal(err)
	}
	if err := u.Add("bad", []ID{{0, 7}, {0, 9}}); err != nil {
		t.Fatal(err)
	}
	found, err := u.Check()
	if err != nil || len(found) != 1 || found["bad"] == nil || !strings.Contains(found["bad"].Error(), "0:9 twice") {
		t.Errorf("found %v, %v", found, err)
	}
	if err := u.Add("good", []ID{{0, 20}, {}}); err == nil {
		t.Error("an answer without an id was taken")
	}
}
