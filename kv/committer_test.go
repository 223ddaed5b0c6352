package kv

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/allocnode/allocnode/apply"
)

// fakeStore records the runs, as first and last cursor, and fails as long as fail says.
type fakeStore struct {
	mu    sync.Mutex
	fail  func(attempt int) error
	delay time.Duration
	calls []call
}

type call struct {
	at          time.Duration
	first, last uint64
	err         error
}

var epoch = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC) // where synctest starts

func (s *fakeStore) Commit(ds []apply.Delta) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := call{at: time.Since(epoch), first: ds[0].Head.Cursor, last: ds[len(ds)-1].Head.Cursor}
	if s.fail != nil {
		c.err = s.fail(len(s.calls))
	}
	s.calls = append(s.calls, c)
	time.Sleep(s.delay) // the store's own slowness
	return c.err
}

func (s *fakeStore) runs() (out []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.calls {
		line := fmt.Sprintf("%v %d-%d", c.at, c.first, c.last)
		if c.err != nil {
			line += " failed"
		}
		out = append(out, line)
	}
	return out
}

func wantRuns(t testing.TB, s *fakeStore, want ...string) {
	t.Helper()
	if got := s.runs(); !slices.Equal(got, want) {
		t.Errorf("runs\n got %q\nwant %q", got, want)
	}
}

// start runs c; stop ends it and returns what Run returned.
func start(c *Committer) (stop func() error) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	return func() error { cancel(); return <-done }
}

func mustSubmit(t testing.TB, c *Committer, first, last uint64) {
	t.Helper()
	for _, d := range deltas(first, last, 10) {
		if err := c.Submit(t.Context(), d); err != nil {
			t.Fatal(err)
		}
	}
}

func mustFlush(t testing.TB, c *Committer) {
	t.Helper()
	if err := c.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// Checked: without the pace timer in Run, the second run starts at 0s.
func TestOneRunEachInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &fakeStore{}
		c := NewCommitter(s, CommitterConfig{})
		mustSubmit(t, c, 1, 5)
		stop := start(c)
		synctest.Wait()
		mustSubmit(t, c, 6, 6)
		synctest.Wait()
		mustSubmit(t, c, 7, 20)
		mustFlush(t, c)
		time.Sleep(time.Second)
		mustSubmit(t, c, 21, 21) // nothing to wait for
		mustFlush(t, c)
		mustFlush(t, c)
		if err := stop(); err != nil {
			t.Error(err)
		}
		wantRuns(t, s, "0s 1-5", "10ms 6-20", "1.01s 21-21")
	})
}

func TestRunsFitOneTransaction(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &fakeStore{}
		c := NewCommitter(s, CommitterConfig{})
		for at, sizes := range [][2]int{ // records, bytes of each value
			{1, MaxValue}, {1, 200_000}, {MaxRunRecords, 0}, {2, 600_000}, {1, 10}, {6000, 20}, {7001, 20},
		} {
			d := apply.Delta{Head: headAt(uint64(at + 1))}
			for i := range sizes[0] {
				d.Records = append(d.Records, apply.Record{Key: fmt.Appendf(nil, "%05d", i), Value: make([]byte, sizes[1])})
			}
			if err := c.Submit(t.Context(), d); err != nil {
				t.Fatal(err)
			}
		}
		stop := start(c)
		mustFlush(t, c)
		if err := stop(); err != nil {
			t.Error(err)
		}
		wantRuns(t, s, "0s 1-2", "10ms 3-3", "20ms 4-5", "30ms 6-6", "40ms 7-7")
		if err := c.Submit(t.Context(), apply.Delta{Records: []apply.Record{{}}}); !errors.Is(err, ErrTooLarge) {
			t.Errorf("a delta that no commit takes: %v", err)
		}
	})
}

// Hazard 3. Checked: with Run going on to the next run after a failed attempt, "6-9" appears before 1-5 is committed; with the
// run taken anew for each attempt, the retries read "1-9".
func TestRetryIsTheSameRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bad := errors.New("no space left on device")
		s := &fakeStore{fail: func(attempt int) error {
			if attempt < 8 {
				return bad
			}
			return nil
		}}
		var states []error
		c := NewCommitter(s, CommitterConfig{OnState: func(err error) { states = append(states, err) }})
		mustSubmit(t, c, 1, 5)
		stop := start(c)
		synctest.Wait()
		mustSubmit(t, c, 6, 9)
		time.Sleep(time.Second)
		if err := c.State(); err != bad || c.Backlog() != 9 {
			t.Errorf("state %v, backlog %d", err, c.Backlog())
		}
		mustFlush(t, c)
		if err := c.State(); err != nil || c.Backlog() != 0 {
			t.Errorf("state %v, backlog %d", err, c.Backlog())
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
		wantRuns(t, s, "0s 1-5 failed", "100ms 1-5 failed", "300ms 1-5 failed", "700ms 1-5 failed", "1.5s 1-5 failed",
			"3.1s 1-5 failed", "6.3s 1-5 failed", "11.3s 1-5 failed", "16.3s 1-5", "16.3s 6-9")
		if want := []error{bad, nil}; !slices.Equal(states, want) {
			t.Errorf("states %v, want %v", states, want)
		}
	})
}

// Checked: without the bound in Submit, the fourth delta goes in at once.
func TestSubmitWaitsAtTheBound(t *testing.T) {
	for name, cfg := range map[string]CommitterConfig{
		"count": {MaxDeltas: 3},
		"bytes": {MaxBytes: 3 * 1013},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var bad error = errors.New("bad")
				s := &fakeStore{}
				s.fail = func(int) error { return bad }
				c := NewCommitter(s, cfg)
				submit := func(ctx context.Context, at uint64) error {
					return c.Submit(ctx, apply.Delta{Head: headAt(at), Records: []apply.Record{
						{Key: make([]byte, 500), Value: make([]byte, 500)}}})
				}
				for at := range uint64(3) {
					if err := submit(t.Context(), at+1); err != nil {
						t.Fatal(err)
					}
				}
				stop := start(c)
				cause := errors.New("gave up")
				ctx, cancel := context.WithCancelCause(t.Context())
				fourth := make(chan error, 1)
				go func() { fourth <- submit(ctx, 4) }()
				flushed := make(chan error, 1)
				go func() { flushed <- c.Flush(ctx) }()
				time.Sleep(time.Minute)
				synctest.Wait()
				select {
				case err := <-fourth:
					t.Fatalf("beyond the bound: %v", err)
				case err := <-flushed:
					t.Fatalf("flushed: %v", err)
				default:
				}
				cancel(cause)
				if err := <-fourth; err != cause {
					t.Errorf("submit: %v", err)
				}
				if err := <-flushed; err != cause {
					t.Errorf("flush: %v", err)
				}
				go func() { fourth <- submit(t.Context(), 4) }()
				s.mu.Lock()
				bad = nil
				s.mu.Unlock()
				if err := <-fourth; err != nil {
					t.Errorf("after the disk has recovered: %v", err)
				}
				mustFlush(t, c)
				if err := stop(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

func TestStopCommitsWhatIsQueued(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &fakeStore{}
		c := NewCommitter(s, CommitterConfig{})
		stop := start(c)
		mustSubmit(t, c, 1, 1)
		mustFlush(t, c)
		mustSubmit(t, c, 2, 5) // within the interval
		if err := stop(); err != nil {
			t.Error(err)
		}
		wantRuns(t, s, "0s 1-1", "0s 2-5")
		if err := c.Submit(t.Context(), deltaAt(6, 1)); err != ErrStopped {
			t.Errorf("submit: %v", err)
		}
		mustFlush(t, c)
	})
}

// Every waiter gets an answer when Run ends while the disk fails.
func TestStopWhileFailing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bad := errors.New("bad")
		s := &fakeStore{fail: func(int) error { return bad }}
		c := NewCommitter(s, CommitterConfig{MaxDeltas: 4})
		mustSubmit(t, c, 1, 2)
		stop := start(c)
		synctest.Wait()
		mustSubmit(t, c, 3, 4)
		answers := make(chan error, 2)
		go func() { answers <- c.Submit(t.Context(), deltaAt(5, 1)) }()
		go func() { answers <- c.Flush(t.Context()) }()
		time.Sleep(250 * time.Millisecond)
		if err := stop(); !errors.Is(err, bad) {
			t.Errorf("run: %v", err)
		}
		for range 2 {
			if err := <-answers; !errors.Is(err, ErrStopped) {
				t.Errorf("waiter: %v", err)
			}
		}
		wantRuns(t, s, "0s 1-2 failed", "100ms 1-2 failed", "250ms 1-4 failed")
	})
}

// Checked: without the stall timer a badger that hangs looks healthy for ever.
func TestStallIsVisible(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &fakeStore{delay: time.Minute}
		var states []error
		c := NewCommitter(s, CommitterConfig{OnState: func(err error) { states = append(states, err) }})
		stop := start(c)
		mustSubmit(t, c, 1, 1)
		time.Sleep(10 * time.Second)
		if err := c.State(); !errors.Is(err, ErrStalled) {
			t.Errorf("state %v", err)
		}
		mustFlush(t, c)
		if err := c.State(); err != nil || len(states) != 2 || states[1] != nil {
			t.Errorf("state %v, states %v", err, states)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// The two together, on a real disk.
func TestCommitterOnCatalog(t *testing.T) {
	c := newCatalog(t)
	committer := NewCommitter(c, CommitterConfig{MaxDeltas: 64})
	stop := start(committer)
	mustSubmit(t, committer, 1, 500)
	mustFlush(t, committer)
	if c.Head() != headAt(500) {
		t.Errorf("head %+v", c.Head())
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	mustLoad(t, mustOpen(t, c.dir), 500, 10)
}
