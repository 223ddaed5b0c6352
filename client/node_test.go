package client_test

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/allocnode/allocnode"
	"github.com/allocnode/allocnode/client"
	"github.com/allocnode/allocnode/internal/freeport"
	"github.com/allocnode/allocnode/internal/node"
)

// realNode is a node that is alone, on a port and a directory of its own, which can be restarted.
type realNode struct {
	tb   testing.TB
	dir  string
	port int
	url  string
	stop func()
}

func newNode(tb testing.TB) *realNode {
	tb.Helper()
	port, err := freeport.One()
	if err != nil {
		tb.Fatal(err)
	}
	n := &realNode{tb: tb, dir: tb.TempDir(), port: port}
	n.url = "nats://" + net.JoinHostPort("127.0.0.1", strconv.Itoa(n.port))
	n.start()
	tb.Cleanup(func() { n.stop() })
	return n
}

func (n *realNode) start() {
	n.tb.Helper()
	cfg := node.DefaultConfig()
	cfg.DataDir, cfg.Host, cfg.Port, cfg.Version = n.dir, "127.0.0.1", n.port, "0.0.1"
	cfg.Logger = slog.New(slog.DiscardHandler)
	nd, err := node.New(cfg)
	if err != nil {
		n.tb.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- nd.Run(ctx) }()
	n.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			n.tb.Error(err)
		}
	})
	select {
	case <-nd.Ready():
	case err := <-done:
		n.tb.Fatalf("the node ended: %v", err)
	case <-deadline(n.tb).Done():
		n.tb.Fatalf("the node does not get ready: %+v", nd.Status())
	}
}

// A reply is lost; the node restarts; ten thousand other keyed reservations go by; the retry gets the same range.
func TestLostReplyAcrossRestart(t *testing.T) {
	n := newNode(t)
	between := connect(t, newServer(t)) // where the client is: all its requests go through a proxy
	upstream := connect(t, n.url)
	var dropped, restarted atomic.Bool
	lost := make(chan string, 1)
	_, err := between.Subscribe("alloc.reserve.>", func(m *nats.Msg) {
		if dropped.Load() && !restarted.Load() {
			return // lost on the way
		}
		reply, err := upstream.RequestWithContext(deadline(t), m.Subject, m.Data)
		if err != nil {
			return // the client asks again
		}
		if dropped.CompareAndSwap(false, true) {
			lost <- string(reply.Data)
			return
		}
		m.Respond(reply.Data)
	})
	if err != nil {
		t.Fatal(err)
	}
	c := newClient(t, connect(t, between.ConnectedUrl()), client.WithRetryAfter(20*time.Millisecond))
	got := make(chan result, 1)
	go func() {
		r, err := c.Reserve(deadline(t), "orders", 10)
		got <- result{r, err}
	}()
	first := <-lost
	n.stop()
	n.start()

	busy := newClient(t, connect(t, n.url))
	var wg sync.WaitGroup
	for g := range 100 {
		wg.Go(func() {
			for i := range 100 {
				if _, err := busy.Reserve(deadline(t), "orders", 1, client.WithKey(fmt.Sprintf("%d-%d", g, i))); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	restarted.Store(true)
	r := <-got
	if want := (allocnode.Range{Start: 1, End: 11}); r.err != nil || r.r != want ||
		!strings.Contains(first, `"start":1,"end":11`) {
		t.Errorf("the retry got %v, %v; the reply that was lost was %s", r.r, r.err, first)
	}
}

// The client and a real node agree on every call, and on ids of more than 53 bits.
func TestAgainstANode(t *testing.T) {
	n := newNode(t)
	c := newClient(t, connect(t, n.url))
	ctx := deadline(t)
	if s, err := c.Create(ctx, "big", client.Settings{First: 1 << 53, Max: allocnode.MaxID,
		MaxCount: 500}); err != nil || s.First != 1<<53 {
		t.Errorf("create: %+v, %v", s, err)
	}
	var rec client.Receipt
	if r, err := c.Reserve(ctx, "big", 2, client.WithReceipt(&rec)); err != nil || r.Start != 1<<53 || rec.Seq == 0 {
		t.Errorf("reserve: %v, %v, %+v", r, err, rec)
	}
	s := open(t, c, "big", client.WithBatch(1000, 1000)) // above max_count
	if id, err := s.Next(ctx); err != nil || id != 1<<53+2 {
		t.Errorf("next: %d, %v", id, err)
	}
	if a, err := c.Advance(ctx, "big", 1<<60); err != nil || a.HWM != 1<<60 {
		t.Errorf("advance: %+v, %v", a, err)
	}
	if i, err := c.Info(ctx, "big", client.Consistent()); err != nil || i.HWM < 1<<60 || i.MaxCount != 500 {
		t.Errorf("info: %+v, %v", i, err)
	}
	if seq, err := c.Resume(ctx, "big"); err != nil || seq == 0 {
		t.Errorf("resume: %d, %v", seq, err)
	}
	var names []string
	for i, err := range c.List(ctx, client.Consistent()) {
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, i.Sequence)
	}
	if len(names) != 1 || names[0] != "big" {
		t.Errorf("list: %v", names)
	}
	nodes, err := c.Status(ctx)
	if err != nil || len(nodes) != 1 || !nodes[0].Ready || nodes[0].Cluster != c.Cluster() {
		t.Errorf("status: %+v, %v", nodes, err)
	}
}

// Many callers and sequences at once, merged, against a real log: no id twice.
func TestMergedAgainstANode(t *testing.T) {
	n := newNode(t)
	c := newClient(t, connect(t, n.url))
	var ids [4]taken
	var wg sync.WaitGroup
	for g := range 256 {
		wg.Go(func() {
			for i := range 20 {
				r, err := c.Reserve(deadline(t), fmt.Sprint("s", g%4), uint64(1+i))
				if err != nil || r.Count() != uint64(1+i) {
					t.Errorf("%v, %v", r, err)
					return
				}
				ids[g%4].add(t, r)
			}
		})
	}
	wg.Wait()
	if st := c.Stats(); st.Requests*4 > st.Calls {
		t.Errorf("%+v: little was merged", st)
	}
}
