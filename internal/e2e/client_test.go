package e2e

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/allocnode/allocnode"
	goclient "github.com/allocnode/allocnode/client"
	"github.com/allocnode/allocnode/internal/wire"
)

// The Go client against real nodes, which are other processes: so what this process uses, the client uses.

func newGoClient(t *testing.T, nc *nats.Conn, opts ...goclient.Option) *goclient.Client {
	t.Helper()
	c, err := goclient.New(nc, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return c
}

func soon(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

// idSet fails the test when an id comes twice.
type idSet struct {
	t    *testing.T
	mu   sync.Mutex // guards seen
	seen map[uint64]bool
}

func newIDSet(t *testing.T) *idSet { return &idSet{t: t, seen: make(map[uint64]bool)} }

func (s *idSet) add(id uint64) {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if id == 0 || s.seen[id] {
		s.t.Fatalf("id %d came twice", id)
	}
	s.seen[id] = true
}

// lossy stands between a client and the cluster: what the client sends reaches the cluster only when told, and the answer
// reaches the client only when told.
type lossy struct {
	url     string
	mu      sync.Mutex        // guards all below
	pass    bool              // requests reach the cluster
	deliver bool              // answers reach the client
	answers []allocnode.Range // that the cluster gave
}

// newLossy hands what comes on alloc.reserve to the cluster over nc.
func newLossy(t *testing.T, nc *nats.Conn) *lossy {
	t.Helper()
	srv, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: -1, NoSigs: true, NoLog: true})
	if err != nil {
		t.Fatal(err)
	}
	srv.Start()
	t.Cleanup(func() { srv.Shutdown(); srv.WaitForShutdown() })
	if !srv.ReadyForConnections(patience) {
		t.Fatal("the server does not start")
	}
	l := &lossy{url: srv.ClientURL(), pass: true}
	front := connect(t, l.url)
	_, err = front.Subscribe("alloc.reserve.>", func(m *nats.Msg) {
		l.mu.Lock()
		pass := l.pass
		l.mu.Unlock()
		if !pass {
			return
		}
		reply, err := nc.Request(m.Subject, m.Data, 2*time.Second)
		if err != nil {
			return // the client asks again
		}
		a, err := wire.DecodeReserveList(reply.Data, 1) // one call, as the client sends it: a list of one
		if err != nil || a.Results[0].Err != nil {
			return
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		l.answers = append(l.answers, a.Results[0].Range)
		if l.deliver {
			_ = m.Respond(reply.Data) // at the end of the test nobody may be there
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := front.Flush(); err != nil {
		t.Fatal(err)
	}
	return l
}

// set changes what gets through, and returns how many answers the cluster has given.
func (l *lossy) set(pass, deliver bool) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pass, l.deliver = pass, deliver
	return len(l.answers)
}

// answered waits for one more answer than n.
func (l *lossy) answered(t *testing.T, n int) {
	t.Helper()
	eventually(t, "the cluster answers", func() error {
		l.mu.Lock()
		defer l.mu.Unlock()
		if len(l.answers) <= n {
			return errors.New("no further answer")
		}
		return nil
	})
}

// TestClientLostReply loses the reply to a reservation, and then, one after the other, kills each node and starts it again,
// has the retries answered while it is down and loses those answers too: so the node that carved was down at one of them,
// and another knew. Ten thousand other keyed reservations go by. The retry that at last gets through brings the same range.
// Then: an operator advances while two clients hold batches. Checked: with a new key for each try (freeze in ask) it fails.
func TestClientLostReply(t *testing.T) {
	c := startCluster(t)
	nc := connect(t, c.urls...)
	l := newLossy(t, nc)
	lc := newGoClient(t, connect(t, l.url), goclient.WithRetryAfter(50*time.Millisecond))
	type result struct {
		r   allocnode.Range
		err error
	}
	got := make(chan result, 1)
	go func() {
		r, err := lc.Reserve(soon(t), "orders", 10)
		got <- result{r, err}
	}()
	l.answered(t, 0)
	l.set(false, false)
	for i := range c.names {
		c.nodes[i].kill()
		l.answered(t, l.set(true, false))
		l.set(false, false)
		c.start(i)
		c.awaitServing(nc)
	}
	busy := newGoClient(t, connect(t, c.urls...))
	var clients sync.WaitGroup
	for g := range 100 {
		clients.Go(func() {
			for i := range 100 {
				if _, err := busy.Reserve(soon(t), "orders", 1, goclient.WithKey(fmt.Sprintf("%d-%d", g, i))); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	clients.Wait()
	l.set(true, true)
	r := <-got
	want := allocnode.Range{Start: 1, End: 11}
	if r.err != nil || r.r != want {
		t.Errorf("the retry got %v, %v, want %v", r.r, r.err, want)
	}
	l.mu.Lock()
	for _, a := range l.answers {
		if a != want {
			t.Errorf("the cluster answered with %v", a)
		}
	}
	if len(l.answers) < 5 {
		t.Errorf("%d answers: the first, one with each node down, and the last were to come", len(l.answers))
	}
	l.mu.Unlock()

	t.Run("advance", func(t *testing.T) {
		ids := newIDSet(t)
		var holders []*goclient.Sequence
		for i := range 2 {
			s, err := newGoClient(t, connect(t, c.urls[i])).Sequence("held", goclient.WithBatch(10, 10))
			if err != nil {
				t.Fatal(err)
			}
			holders = append(holders, s)
			ids.add(next(t, s))
		}
		a, err := busy.Advance(soon(t), "held", 5000)
		if err != nil || a.HWM != 5000 {
			t.Fatalf("%+v, %v", a, err)
		}
		for _, s := range holders {
			above := 0
			for range 60 {
				id := next(t, s)
				ids.add(id)
				if id > a.Old && id <= 5000 {
					t.Errorf("id %d lies between the marks %d and 5000", id, a.Old)
				}
				if id > 5000 {
					above++
				}
			}
			if above < 30 {
				t.Errorf("%d of 60 ids above the advance", above)
			}
		}
	})
}

func next(t *testing.T, s *goclient.Sequence) uint64 {
	t.Helper()
	id, err := s.Next(soon(t))
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// cpuTime is what this process has used so far.
func cpuTime(t *testing.T) time.Duration {
	t.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// errorsByDeadline wants Next to wait for all of its time, no longer, and to use next to no CPU meanwhile.
func errorsByDeadline(t *testing.T, s *goclient.Sequence) {
	t.Helper()
	const wait, late = 3 * time.Second, 2 * time.Second
	ctx, cancel := context.WithTimeout(t.Context(), wait)
	defer cancel()
	used, begin := cpuTime(t), time.Now()
	id, err := s.Next(ctx)
	if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, allocnode.ErrUnavailable) {
		t.Errorf("without a quorum: id %d, %v", id, err)
	}
	if took := time.Since(begin); took < wait || took > wait+late {
		t.Errorf("it gave up after %s, not %s", took, wait)
	}
	if cpu := cpuTime(t) - used; cpu > wait/10 {
		t.Errorf("%s of CPU time in %s of waiting", cpu, wait)
	}
}

// TestClientWithoutQuorum opens a sequence before there is a cluster, and goes on with it through the loss of a majority.
// Checked: without the pause in lane the CPU time is above its bound; with a Next that does not look at its context it hangs.
func TestClientWithoutQuorum(t *testing.T) {
	c := newCluster(t)
	c.start(0)
	nc := connect(t, c.urls...)
	eventually(t, "the first node's server is up", func() error {
		if !nc.IsConnected() {
			return errors.New("not connected")
		}
		return nil
	})
	s, err := newGoClient(t, nc).Sequence("orders")
	if err != nil {
		t.Fatal(err)
	}
	errorsByDeadline(t, s)
	c.start(1)
	c.start(2)
	ids := newIDSet(t)
	ids.add(next(t, s)) // it asked all the time

	c.awaitServing(nc)
	c.nodes[1].kill()
	c.nodes[2].kill()
	for { // what it holds is given away still
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		id, err := s.Next(ctx)
		cancel()
		if err != nil {
			break
		}
		ids.add(id)
	}
	errorsByDeadline(t, s)
	c.start(1)
	for range 1000 {
		ids.add(next(t, s))
	}
}
