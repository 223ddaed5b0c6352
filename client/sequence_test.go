package client_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/allocnode/allocnode"
	"github.com/allocnode/allocnode/client"
	"github.com/allocnode/allocnode/internal/wire"
)

func open(tb testing.TB, c *client.Client, name string, opts ...client.SequenceOption) *client.Sequence {
	tb.Helper()
	s, err := c.Sequence(name, opts...)
	if err != nil {
		tb.Fatal(err)
	}
	return s
}

// takeMany lets goroutines take n ids each, and checks that they are distinct and ascend within each.
func takeMany(t *testing.T, s *client.Sequence, goroutines, n int) {
	t.Helper()
	all := make([][]uint64, goroutines)
	var wg sync.WaitGroup
	for g := range all {
		wg.Go(func() {
			ids := make([]uint64, 0, n)
			for range n {
				id, err := s.Next(context.Background())
				if err != nil {
					t.Errorf("goroutine %d: %v", g, err)
					return
				}
				if len(ids) > 0 && id <= ids[len(ids)-1] {
					t.Errorf("goroutine %d: %d after %d", g, id, ids[len(ids)-1])
				}
				ids = append(ids, id)
			}
			all[g] = ids
		})
	}
	wg.Wait()
	seen := make(map[uint64]bool, goroutines*n)
	for _, ids := range all {
		for _, id := range ids {
			if seen[id] || id == 0 {
				t.Fatalf("id %d came twice", id)
			}
			seen[id] = true
		}
	}
	if len(seen) != goroutines*n {
		t.Errorf("%d ids, want %d", len(seen), goroutines*n)
	}
}

// Hazard 9. Seen to fail (ids that came twice) with the current batch changed in place, its end before its counter.
func TestNextManyGoroutines(t *testing.T) {
	f := newFake(t)
	s := open(t, f.client(), "ids", client.WithBatch(10, 10))
	takeMany(t, s, 16, 25_000)
	if _, err := s.Next(deadline(t)); err != nil { // the 400,001st
		t.Error(err)
	}
	if st := s.Stats(); st.Refills < 40_000 || st.BatchSize != 10 || st.Remaining > 90 {
		t.Errorf("stats %+v", st)
	}
}

// A thousand callers outrun batches of ten for ten seconds. They wait; none gets an error.
func TestNextOutrun(t *testing.T) {
	f := newFake(t)
	s := open(t, f.client(), "ids", client.WithBatch(10, 10))
	const goroutines = 1000
	ctx := deadline(t)
	all := make([][]uint64, goroutines)
	var wg sync.WaitGroup
	for g := range goroutines {
		wg.Go(func() {
			for end := time.Now().Add(10 * time.Second); time.Now().Before(end); {
				id, err := s.Next(ctx)
				if err != nil {
					t.Error(err)
					return
				}
				all[g] = append(all[g], id)
			}
		})
	}
	wg.Wait()
	ids := slices.Concat(all...)
	slices.Sort(ids)
	if n := len(slices.Compact(slices.Clone(ids))); n != len(ids) || n < 10*goroutines {
		t.Errorf("%d ids, %d of them different", len(ids), n)
	}
	if st := s.Stats(); st.Waits == 0 {
		t.Errorf("stats %+v: a thousand callers never waited for batches of ten", st)
	}
}

// Hazard 7: a refill whose answers get lost is asked for again under its key, one at a time, whatever becomes of those who
// wait. So what it carved is carved once, and no id of it is lost. Checked: with a deadline
// on the refill it is the callers who get its unknown outcome.
func TestLostRefillsLeakNothing(t *testing.T) {
	f := newFake(t)
	var lost atomic.Bool
	lost.Store(true)
	f.on(func(int, *wire.ReserveRequest) what { return what{mute: lost.Load()} })
	s := open(t, f.client(client.WithRetryAfter(5*time.Millisecond)), "ids", client.WithBatch(50, 50))
	for range 10 {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
		if id, err := s.Next(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%d, %v", id, err)
		}
		cancel()
	}
	lost.Store(false)
	for want := uint64(1); want <= 20; want++ {
		if id, err := s.Next(deadline(t)); err != nil || id != want {
			t.Errorf("%d, %v, want %d", id, err, want)
		}
	}
	if hwm := f.hwm("ids"); hwm != 50 {
		t.Errorf("%d ids were carved, for a batch of 50", hwm)
	}
}

// Hazard 5: whatever a batch's size, and though each refill returns while ids of the batch before are left, the next one
// is always asked for in time: nobody waits but the very first. Seen to fail with the mark of each new batch at its end, with
// a lowWater that is 0 for a batch of one, and without the fetch in arrived.
func TestPrefetchNeverStops(t *testing.T) {
	for size := uint64(1); size <= 6; size++ {
		f := newFake(t)
		s := open(t, f.client(), "ids", client.WithBatch(size, size))
		for i := range 20 * size {
			if id, err := s.Next(deadline(t)); err != nil || id != i+1 {
				t.Fatalf("size %d: id %d, %v, want %d", size, id, err, i+1)
			}
			until(t, "no batch is on its way", func() bool { return !s.Fetching() })
		}
		if st := s.Stats(); st.Waits != 1 || st.Refills < 20 {
			t.Errorf("size %d: %+v: want one wait", size, st)
		}
	}
}

// At the end what is left is given away, then ErrExhausted, and the cluster is not asked again (hazard 6).
func TestNextExhausted(t *testing.T) {
	f := newFake(t)
	c := f.client()
	if _, err := c.Create(deadline(t), "ids", client.Settings{First: 5, Max: 29}); err != nil {
		t.Fatal(err)
	}
	s := open(t, c, "ids", client.WithBatch(10, 10))
	want := uint64(5)
	for id, err := range s.All(deadline(t)) {
		if err != nil {
			if !errors.Is(err, allocnode.ErrExhausted) || id != 0 {
				t.Errorf("at the end: %d, %v", id, err)
			}
			break
		}
		if id != want {
			t.Errorf("id %d, want %d", id, want)
		}
		want++
	}
	if want != 30 {
		t.Errorf("the last id was %d, want 29", want-1)
	}
	until(t, "nothing is under way", func() bool { return !s.Fetching() })
	n := len(f.requests())
	for range 100 {
		if _, err := s.Next(deadline(t)); !errors.Is(err, allocnode.ErrExhausted) {
			t.Fatal(err)
		}
	}
	if got := len(f.requests()); got != n {
		t.Errorf("%d requests after exhaustion", got-n)
	}
}

// A refusal that an operator may lift is believed for a while, so that a loop of calls does not flood the log.
func TestNextNotFound(t *testing.T) {
	f := newFake(t)
	f.on(func(int, *wire.ReserveRequest) what {
		return what{refuse: allocnode.Errorf(allocnode.CodeNotFound, "there is no sequence")}
	})
	s := open(t, f.client(), "ids")
	begin := time.Now()
	for range 1000 {
		if _, err := s.Next(deadline(t)); !errors.Is(err, allocnode.ErrNotFound) {
			t.Fatal(err)
		}
	}
	if n, most := len(f.requests()), 1+int(time.Since(begin)/time.Second); n > most {
		t.Errorf("%d requests, want at most %d", n, most)
	}
	f.on(nil)
	until(t, "it is asked for again", func() bool { _, err := s.Next(deadline(t)); return err == nil })
}

// A batch is never larger than the sequence allows, though the client does not know by how much.
func TestBatchAboveMaxCount(t *testing.T) {
	f := newFake(t)
	f.limit = 7
	s := open(t, f.client(), "ids", client.WithBatch(1000, 100_000))
	takeMany(t, s, 4, 100)
	if st := s.Stats(); st.BatchSize > 7 {
		t.Errorf("stats %+v", st)
	}
}

// Without a quorum Next errors by its deadline and never before, and the process idles; then it recovers by itself.
func TestNextWithoutQuorum(t *testing.T) {
	for _, mode := range []string{"silent", "unavailable", "no responders"} {
		t.Run(mode, func(t *testing.T) {
			f := &fake{}
			url := newServer(t)
			if mode != "no responders" {
				f = newFakeOn(t, url)
				f.on(func(int, *wire.ReserveRequest) what {
					if mode == "silent" {
						return what{lose: true}
					}
					return what{refuse: allocnode.Errorf(allocnode.CodeUnavailable, "no quorum")}
				})
			}
			c := newClient(t, connect(t, url), client.WithRetryAfter(100*time.Millisecond))
			s := open(t, c, "ids")
			runtime.GC()
			const wait = 500 * time.Millisecond
			used, begin := cpuTime(t), time.Now()
			ctx, cancel := context.WithTimeout(context.Background(), wait)
			defer cancel()
			_, err := s.Next(ctx)
			if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, allocnode.ErrUnavailable) {
				t.Errorf("got %v", err)
			}
			if d := time.Since(begin); d < wait {
				t.Errorf("gave up after %s", d)
			}
			if d := cpuTime(t) - used; d > wait/5 {
				t.Errorf("%s of CPU time in %s of waiting", d, wait)
			}
			if mode == "no responders" {
				newFakeOn(t, url)
			} else {
				f.on(nil)
			}
			if _, err := s.Next(deadline(t)); err != nil {
				t.Errorf("after it has come back: %v", err)
			}
		})
	}
}

// cpuTime is what the process has used so far.
func cpuTime(t *testing.T) time.Duration {
	t.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// Callers give up while ids are on their way to them: none comes twice, and none gets lost. Seen to fail without the second
// look at the waiter's channel.
func TestNextStormOfCancels(t *testing.T) {
	f := newFake(t)
	s := open(t, f.client(client.WithRetryAfter(5*time.Millisecond)), "ids", client.WithBatch(10, 10))
	f.on(func(n int, _ *wire.ReserveRequest) what { return what{mute: n%5 == 0} })
	var ids taken
	var wg sync.WaitGroup
	for range 64 {
		wg.Go(func() {
			for range 300 {
				ctx, cancel := context.WithTimeout(context.Background(), rand.N(200*time.Microsecond))
				id, err := s.Next(ctx)
				cancel()
				switch {
				case err == nil:
					ids.add(t, allocnode.Range{Start: id, End: id + 1})
				case !errors.Is(err, context.DeadlineExceeded):
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	for range 20 {
		id, err := s.Next(deadline(t))
		if err != nil {
			t.Fatal(err)
		}
		ids.add(t, allocnode.Range{Start: id, End: id + 1})
	}
	until(t, "no batch is on its way", func() bool { return !s.Fetching() })
	if got, want := uint64(len(ids.seen)), f.hwm("ids")-s.Stats().Remaining; got != want {
		t.Errorf("%d ids were given away, want %d", got, want)
	}
}

// Ten thousand sequences leave nothing behind, and neither does the client.
func TestNothingOutlivesClose(t *testing.T) {
	f := newFake(t)
	nc := connect(t, f.url)
	if _, err := nc.RTT(); err != nil {
		t.Fatal(err)
	}
	before := goleak.IgnoreCurrent()
	subs, fds := nc.NumSubscriptions(), openFiles(t)
	c, err := client.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for g := range 100 {
		wg.Go(func() {
			for i := range 100 {
				s, err := c.Sequence(fmt.Sprintf("s%d-%d", g, i))
				if err != nil {
					t.Error(err)
					return
				}
				if id, err := s.Next(deadline(t)); err != nil || id != 1 {
					t.Errorf("%d, %v", id, err)
				}
				if i%2 == 0 {
					s.Close()
				}
			}
		})
	}
	wg.Wait()
	if n := c.Stats().Sequences; n != 5000 {
		t.Errorf("%d sequences are open", n)
	}
	if n := nc.NumSubscriptions(); n != subs+1 {
		t.Errorf("%d subscriptions for ten thousand sequences", n-subs)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if n := nc.NumSubscriptions(); n != subs {
		t.Errorf("%d subscriptions are left", n-subs)
	}
	if n := openFiles(t); n > fds {
		t.Errorf("%d files are left open", n-fds)
	}
	if err := goleak.Find(before); err != nil {
		t.Error(err)
	}
}

func openFiles(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if errors.Is(err, os.ErrNotExist) {
		return 0 // this system does not say
	}
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// An operator advances the sequence while two clients hold batches: those stay theirs, and what comes after lies above.
func TestAdvanceWhileBatchesAreHeld(t *testing.T) {
	f := newFake(t)
	a, b := open(t, f.client(), "ids", client.WithBatch(10, 10)), open(t, f.client(), "ids", client.WithBatch(10, 10))
	var ids taken
	next := func(s *client.Sequence) uint64 {
		id, err := s.Next(deadline(t))
		if err != nil {
			t.Fatal(err)
		}
		ids.add(t, allocnode.Range{Start: id, End: id + 1})
		return id
	}
	next(a)
	next(b)
	adv, err := f.client().Advance(deadline(t), "ids", 5000)
	if err != nil || adv.HWM != 5000 {
		t.Fatalf("%+v, %v", adv, err)
	}
	for _, s := range []*client.Sequence{a, b} {
		var above int
		for range 50 {
			id := next(s)
			if id > adv.Old && id <= 5000 {
				t.Errorf("id %d lies between the marks %d and 5000", id, adv.Old)
			}
			if id > 5000 {
				above++
			}
		}
		if above < 30 {
			t.Errorf("%d of 50 ids above the advance", above)
		}
	}
}

// Who waited for a batch has its first id a moment before the batch is there; what is taken next comes from it all the same.
// Checked: without the second look at the batch in takeHere some ranges were reserved on their own.
func TestTakeBehindAWait(t *testing.T) {
	c := newFake(t).client()
	for i := range 2000 {
		s := open(t, c, fmt.Sprintf("s%d", i), client.WithBatch(100, 100))
		id, err := s.Next(deadline(t))
		if err != nil {
			t.Fatal(err)
		}
		if r, err := s.Take(deadline(t), 10); err != nil || r.Start != id+1 {
			t.Fatalf("behind id %d of sequence %d: %v, %v", id, i, r, err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestTake(t *testing.T) {
	f := newFake(t)
	s := open(t, f.client(), "ids", client.WithBatch(50, 50))
	var ids taken
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for i := range 200 {
				n := uint64(1 + (g+i)%60) // above the batch too
				r, err := s.Take(deadline(t), n)
				if err != nil || r.Count() != n {
					t.Errorf("take %d: %v, %v", n, r, err)
					return
				}
				ids.add(t, r)
				id, err := s.Next(deadline(t))
				if err != nil {
					t.Error(err)
					return
				}
				ids.add(t, allocnode.Range{Start: id, End: id + 1})
			}
		})
	}
	wg.Wait()
	if n := len(f.requests()); n > 2000 {
		t.Errorf("%d requests: nothing came from batches", n)
	}
	for _, n := range []uint64{0, allocnode.MaxID + 1} {
		if _, err := s.Take(deadline(t), n); !errors.Is(err, allocnode.ErrBadRequest) {
			t.Errorf("take %d: %v", n, err)
		}
	}
}

func TestSequenceOptions(t *testing.T) {
	c := newFake(t).client()
	for _, name := range []string{"", "a..b", "*"} {
		if _, err := c.Sequence(name); !errors.Is(err, allocnode.ErrBadRequest) {
			t.Errorf("%q: %v", name, err)
		}
	}
	for _, o := range []client.SequenceOption{
		client.WithBatch(0, 1), client.WithBatch(2, 1), client.WithBatch(1, allocnode.MaxID+1), client.WithHorizon(0),
	} {
		if _, err := c.Sequence("ids", o); !errors.Is(err, allocnode.ErrBadRequest) {
			t.Errorf("an option out of bounds: %v", err)
		}
	}
}

// Close while a batch is on its way and callers wait for it: each gets its answer, and the goroutine has ended.
func TestSequenceClose(t *testing.T) {
	f := newFake(t)
	arrived := make(chan struct{}, 100)
	f.on(func(int, *wire.ReserveRequest) what { arrived <- struct{}{}; return what{lose: true} })
	s := open(t, f.client(), "ids")
	errs := make(chan error, 10)
	for range 10 {
		go func() { _, err := s.Next(context.Background()); errs <- err }()
	}
	<-arrived
	until(t, "all wait", func() bool { return s.Stats().Waits == 10 })
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	for range 10 {
		if err := <-errs; !errors.Is(err, client.ErrClosed) {
			t.Error(err)
		}
	}
	if s.Close() != nil {
		t.Error("a second close")
	}
}
