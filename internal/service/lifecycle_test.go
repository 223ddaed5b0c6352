package service

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/allocnode/allocnode"
	"github.com/allocnode/allocnode/internal/wire"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"
)

// The micro protocol, as `nats micro` speaks it.
func TestMicroProtocol(t *testing.T) {
	f := start(t, true, nil)
	f.request("alloc.reserve.a", "")
	f.request("alloc.reserve.a", "0")

	var ping micro.Ping
	f.decode("$SRV.PING.allocnode", &ping)
	if ping.Name != "allocnode" || ping.Version != "1.2.3" || ping.Metadata["node"] != "n1" ||
		ping.Metadata["cluster"] != testCluster.String() {
		t.Errorf("ping: %+v", ping)
	}
	var info micro.Info
	f.decode("$SRV.INFO", &info)
	want := map[string]string{"reserve": "alloc.reserve.>", "reserve-list": "alloc.reserve", "next": "alloc.next.>",
		"create": "alloc.create.>", "advance": "alloc.advance.>", "info": "alloc.info.>", "list": "alloc.list"}
	if len(info.Endpoints) != len(want) {
		t.Errorf("endpoints: %+v", info.Endpoints)
	}
	for _, e := range info.Endpoints {
		if e.Subject != want[e.Name] || !strings.Contains(e.QueueGroup, testCluster.String()) {
			t.Errorf("endpoint %+v: want the subject %s and the cluster id in the queue group", e, want[e.Name])
		}
	}
	var stats micro.Stats
	f.decode("$SRV.STATS.allocnode."+ping.ID, &stats)
	for _, e := range stats.Endpoints {
		var data EndpointStats
		if err := json.Unmarshal(e.Data, &data); err != nil {
			t.Fatal(err)
		}
		if e.Name == "reserve" && (data.Requests != 2 || data.Errors[allocnode.CodeBadRequest] != 1) {
			t.Errorf("data of reserve: %s", e.Data)
		}
	}
}

func (f *fixture) decode(subject string, v any) {
	f.t.Helper()
	if err := json.Unmarshal(f.request(subject, "").Data, v); err != nil {
		f.t.Fatal(err)
	}
}

// publish sends n reserves, and returns where their answers go.
func (f *fixture) publish(n int) *nats.Subscription {
	f.t.Helper()
	inbox := nats.NewInbox()
	sub, err := f.nc.SubscribeSync(inbox)
	if err != nil {
		f.t.Fatal(err)
	}
	for range n {
		if err := f.nc.PublishRequest("alloc.reserve.a", inbox, nil); err != nil {
			f.t.Fatal(err)
		}
	}
	if err := f.nc.Flush(); err != nil {
		f.t.Fatal(err)
	}
	return sub
}

// notYet fails if ch yields now. What is right never yields, however long one waits; the wait is for what is wrong.
func notYet(t *testing.T, ch <-chan error) {
	t.Helper()
	select {
	case err := <-ch:
		t.Fatalf("Drain returned %v too early", err)
	case <-time.After(50 * time.Millisecond):
	}
}

// gatedDialer makes connections that read nothing while gate is locked.
type gatedDialer struct{ gate sync.Mutex }

func (d *gatedDialer) Dial(network, address string) (net.Conn, error) {
	conn, err := net.Dial(network, address)
	return &gatedConn{Conn: conn, d: d}, err
}

type gatedConn struct {
	net.Conn
	d *gatedDialer
}

func (c *gatedConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.d.gate.Lock()
	defer c.d.gate.Unlock()
	return n, err
}

func (f *fixture) noResponders(subject string) {
	f.t.Helper()
	ctx := deadline(f.t)
	for { // the interest goes when the server has read the drain
		m, err := f.nc.RequestWithContext(ctx, subject, []byte("x"))
		if errors.Is(err, nats.ErrNoResponders) {
			return
		}
		if err != nil || ctx.Err() != nil {
			f.t.Fatalf("%s: %v, %v: want no responders", subject, m, err)
		}
	}
}

func TestDrainGivesUpWithItsContext(t *testing.T) {
	f := start(t, true, nil)
	f.log.set(func() { f.log.hold = true })
	sub := f.publish(1)
	<-f.log.arrived
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	err := f.svc.Drain(ctx)
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "1 requests not answered") {
		t.Errorf("Drain: %v", err)
	}
	f.log.release()
	if _, err := sub.NextMsgWithContext(deadline(t)); err != nil {
		t.Errorf("the answer after Drain gave up: %v", err)
	}
}

// The endpoints that go through the log are swapped out and in while requests come: each is answered, those for the others
// throughout, and what lies in the log at a swap later. Seen to fail with the old service drained before the new one begins
// (no responders), now and then without the overlap of the two, and where Drain does not await the services that were
// replaced (it returns nil with a request in the log).
func TestServingSwapped(t *testing.T) {
	f := start(t, true, nil)
	f.log.set(func() { f.log.hold = true })
	sub := f.publish(3)
	for range 3 {
		<-f.log.arrived
	}
	f.log.set(func() { f.log.hold = false }) // what is held stays so
	ended := make(chan struct{})
	var asking sync.WaitGroup
	for _, subject := range []string{"alloc.info.orders", "alloc.next.orders", "alloc.list"} {
		asking.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-ended:
					if n == 0 {
						t.Errorf("%s was never asked for", subject)
					}
					return
				default:
				}
				if _, err := f.nc.Request(subject, nil, wait); err != nil {
					t.Errorf("%s: %v", subject, err)
					return
				}
			}
		})
	}
	for range 10 {
		for _, appends := range []bool{false, true} {
			if err := f.svc.StartServing(testCluster, appends); err != nil {
				t.Fatal(err)
			}
			if got := f.listens("reserve"); got != appends {
				t.Fatalf("listens to reserve: %v, want %v", got, appends)
			}
		}
	}
	close(ended)
	asking.Wait()
	drained := make(chan error, 1)
	go func() { drained <- f.svc.Drain(deadline(t)) }()
	notYet(t, drained)
	f.log.release()
	if err := <-drained; err != nil {
		t.Errorf("Drain: %v", err)
	}
	for range 3 {
		if m, err := sub.NextMsgWithContext(deadline(t)); err != nil || len(m.Header) != 0 {
			t.Errorf("%v, %v", m, err)
		}
	}
	f.noResponders("alloc.info.orders")
}

// listens reports whether the micro service shows an endpoint, and that there is one service.
func (f *fixture) listens(endpoint string) bool {
	f.t.Helper()
	inbox := nats.NewInbox()
	sub, err := f.nc.SubscribeSync(inbox)
	if err != nil {
		f.t.Fatal(err)
	}
	defer func() { _ = sub.Unsubscribe() }()
	if err := errors.Join(f.nc.PublishRequest("$SRV.INFO", inbox, nil), f.nc.Flush()); err != nil {
		f.t.Fatal(err)
	}
	m, err := sub.NextMsgWithContext(deadline(f.t))
	var info micro.Info
	if err == nil {
		err = json.Unmarshal(m.Data, &info)
	}
	if err != nil {
		f.t.Fatal(err)
	}
	return slices.ContainsFunc(info.Endpoints, func(e micro.EndpointInfo) bool { return e.Name == endpoint })
}

// Two nodes of one cluster share the requests; one that drains loses none of them.
func TestHandover(t *testing.T) {
	url := startServer(t, nil)
	a := startOn(t, url, true, nil)
	b := startOn(t, url, true, nil)
	var answered atomic.Uint64
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				_, err := a.nc.Request("alloc.reserve.a", nil, wait)
				if errors.Is(err, nats.ErrNoResponders) {
					// The server looked before b listened, and came to a when that had drained: rare, said at once, not lost.
					_, err = a.nc.Request("alloc.reserve.a", nil, wait)
				}
				if err != nil {
					t.Errorf("request: %v", err)
					return
				}
				answered.Add(1)
			}
		})
	}
	for range 3 {
		for _, f := range []*fixture{a, b} {
			if err := f.svc.Drain(deadline(t)); err != nil {
				t.Errorf("Drain: %v", err)
			}
			f.serve()
		}
	}
	close(stop)
	wg.Wait()
	if answered.Load() == 0 {
		t.Error("nothing was answered")
	}
}

// Many requesters, with Done called from goroutines of the log: each gets its own range, once. Run it with -race.
func TestConcurrent(t *testing.T) {
	f := start(t, true, nil)
	clients, each := 8, 200
	got := make([]map[uint64]string, clients)
	var wg sync.WaitGroup
	for c := range clients {
		nc := connect(t, f.url)
		got[c] = make(map[uint64]string)
		wg.Go(func() {
			for i := range each {
				seq := fmt.Sprintf("s%d", i%3)
				m, err := nc.Request("alloc.reserve."+seq, []byte(fmt.Sprintf(`{"count":%d}`, 1+i%5)), wait)
				if err != nil {
					t.Error(err)
					return
				}
				r, err := wire.DecodeReserve(m.Data)
				if err != nil || r.Sequence != seq || r.Range.Count() != uint64(1+i%5) {
					t.Errorf("answer %s, %v", m.Data, err)
					return
				}
				for id := r.Range.Start; id < r.Range.End; id++ {
					got[c][id*3+uint64(i%3)] = seq
				}
			}
		})
	}
	wg.Wait()
	all := make(map[uint64]bool)
	for _, m := range got {
		for id := range m {
			if all[id] {
				t.Fatalf("id %d of s%d twice", id/3, id%3)
			}
			all[id] = true
		}
	}
	if len(all) != clients*each*3 { // 1 to 5, 3 on average
		t.Errorf("%d ids, want %d", len(all), clients*each*3)
	}
}

// Every goroutine of the service and of its subscriptions ends with Close. Seen to fail without outbox.close.
func TestCloseEndsGoroutines(t *testing.T) {
	url := startServer(t, nil)
	nc := connect(t, url)
	log := newFakeLog()
	if _, err := nc.Request("nobody", nil, wait); !errors.Is(err, nats.ErrNoResponders) { // makes the client's own subscription
		t.Fatal(err)
	}
	before := serviceGoroutines()
	for range 3 {
		s := New(nc, testConfig(), log, log, log, log, func() wire.Status { return wire.Status{} })
		if err := errors.Join(s.Start(), s.StartOperators(testCluster), s.StartServing(testCluster, true)); err != nil {
			t.Fatal(err)
		}
		if _, err := nc.Request("alloc.create.a", nil, wait); err != nil {
			t.Fatal(err)
		}
		if err := s.Close(deadline(t)); err != nil {
			t.Fatal(err)
		}
		if err := s.Close(deadline(t)); err != nil {
			t.Fatal(err)
		}
	}
	// nats.go removes a drained subscription a little later, from a goroutine of its own.
	for end := time.Now().Add(wait); serviceGoroutines() > before || nc.NumSubscriptions() > 1; runtime.Gosched() {
		if time.Now().After(end) {
			buf := make([]byte, 1<<20)
			t.Fatalf("goroutines left:\n%s", buf[:runtime.Stack(buf, true)])
		}
	}
}

// serviceGoroutines counts the goroutines that run this package's code, micro's, or a subscription's.
func serviceGoroutines() (n int) {
	buf := make([]byte, 1<<20)
	for g := range strings.SplitSeq(string(buf[:runtime.Stack(buf, true)]), "\n\n") {
		if strings.Contains(g, "service.(*") || strings.Contains(g, "nats.go/micro.") || strings.Contains(g, "waitForMsgs") {
			n++
		}
	}
	return n
}

// The connection breaks: what is in flight ends without an answer, Drain says so, and nothing hangs.
func TestConnectionClosed(t *testing.T) {
	f := start(t, true, nil)
	f.log.set(func() { f.log.hold = true })
	if err := f.nc.PublishRequest("alloc.reserve.a", nats.NewInbox(), nil); err != nil {
		t.Fatal(err)
	}
	<-f.log.arrived
	f.conn.Close()
	f.log.release()
	if err := f.svc.Drain(deadline(t)); !errors.Is(err, nats.ErrConnectionClosed) {
		t.Errorf("Drain: %v", err)
	}
	if st := f.svc.Stats()["reserve"]; st.Unsent != 1 {
		t.Errorf("counters: %+v", st)
	}
	f.svc = New(f.conn, testConfig(), f.log, f.log, f.log, f.log, nil) // the one closed in Cleanup would report the same
}
