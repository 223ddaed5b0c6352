package service

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/allocnode/allocnode"
	"github.com/allocnode/allocnode/internal/wire"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
)

// Drain answers what was received and leaves nobody listening; serving may begin again after it.
func TestDrain(t *testing.T) {
	url := startServer(t, nil)
	f := startOn(t, url, true, nil)
	f.log.set(func() { f.log.hold = true })
	const n = 200
	sub := f.publish(n)
	<-f.log.arrived // the others may still lie in the subscription's queue

	ctx, cancel := context.WithCancel(deadline(t))
	drained := make(chan error, 1)
	go func() { drained <- f.svc.Drain(ctx) }()
	for range n - 1 {
		<-f.log.arrived
	}
	f.noResponders("alloc.reserve.a")
	select {
	case err := <-drained:
		t.Fatalf("Drain returned %v with %d requests in the log", err, n)
	default:
	}
	f.log.release()
	if err := <-drained; err != nil {
		t.Errorf("Drain: %v", err)
	}
	cancel()
	if st := f.svc.Stats()["reserve"]; st.Requests-st.Errors[allocnode.CodeBadRequest] != n { // noResponders sends bad ones
		t.Errorf("requests handled when Drain returns: %+v, want %d", st, n)
	}
	seen := make(map[uint64]bool)
	for range n {
		m, err := sub.NextMsgWithContext(deadline(t))
		if err != nil {
			t.Fatal(err)
		}
		r, err := wire.DecodeReserve(m.Data)
		if err != nil || seen[r.Range.Start] {
			t.Fatalf("answer %s, %v", m.Data, err)
		}
		seen[r.Range.Start] = true
	}
	for _, s := range []string{"reserve.a", "reserve", "next.a", "create.a", "advance.a", "info.a", "list"} {
		f.noResponders("alloc." + s)
	}
	f.noResponders("$SRV.PING.allocnode")
	f.request("alloc.status", "")
	f.request("alloc.forget.n2", "")

	if err := f.svc.Drain(deadline(t)); err != nil {
		t.Errorf("a second Drain: %v", err)
	}
	f.serve() // and again
	f.request("alloc.reserve.a", "")
}

// A handler that has answered but not returned leaves nothing pending, while requests wait behind it in the subscription's
// queue. Seen to fail (Drain returns before them) with the token released at once instead of by the barrier, and without
// the wait for idle.
func TestDrainWaitsForTheQueue(t *testing.T) {
	f := start(t, true, nil)
	gate := make(chan struct{})
	f.log.set(func() { f.log.afterwards = func() { <-gate } })
	sub := f.publish(5)
	if _, err := sub.NextMsgWithContext(deadline(t)); err != nil {
		t.Fatal(err)
	}
	drained := make(chan error, 1)
	go func() { drained <- f.svc.Drain(deadline(t)) }()
	notYet(t, drained)
	close(gate)
	if err := <-drained; err != nil {
		t.Errorf("Drain: %v", err)
	}
	if st := f.svc.Stats()["reserve"]; st.Requests != 5 {
		t.Errorf("%d of 5 requests handled when Drain returns", st.Requests)
	}
}

// Requests that the server has sent and the client has not read are received too. Seen to fail (Drain returns with requests
// in the log) without the flush before the barrier.
func TestDrainWaitsForTheWire(t *testing.T) {
	f := start(t, false, nil)
	d := &gatedDialer{}
	conn, err := nats.Connect(f.url, nats.SetCustomDialer(d))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	svc := New(conn, testConfig(), f.log, f.log, f.log, f.log, func() wire.Status { return wire.Status{} })
	if err := errors.Join(svc.Start(), svc.StartServing(testCluster, true)); err != nil {
		t.Fatal(err)
	}
	if err := conn.Flush(); err != nil {
		t.Fatal(err)
	}
	f.log.set(func() { f.log.hold = true })
	d.gate.Lock()
	f.publish(1)
	drained := make(chan error, 1)
	go func() { drained <- svc.Drain(deadline(t)) }()
	notYet(t, drained)
	d.gate.Unlock()
	<-f.log.arrived
	notYet(t, drained)
	f.log.release()
	if err := <-drained; err != nil {
		t.Errorf("Drain: %v", err)
	}
	if err := svc.Close(deadline(t)); err != nil {
		t.Errorf("Close: %v", err)
	}
}

// While the connection is away nothing can be answered: Drain and Close then say how much is left, and do not wait for it,
// also for what left before (StartServing twice). Checked: without the look in await, both waited until their context ended.
func TestDrainWhileAway(t *testing.T) {
	opts := &server.Options{Host: "127.0.0.1", Port: -1, NoSigs: true, NoLog: true}
	srv, err := server.NewServer(opts)
	if err != nil {
		t.Fatal(err)
	}
	go srv.Start()
	t.Cleanup(srv.Shutdown)
	if !srv.ReadyForConnections(wait) {
		t.Fatal("the server does not start")
	}
	away := make(chan struct{})
	conn, err := nats.Connect(srv.ClientURL(), nats.MaxReconnects(-1),
		nats.DisconnectErrHandler(func(*nats.Conn, error) { close(away) }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	log := newFakeLog()
	log.hold = true
	svc := New(conn, testConfig(), log, log, log, log, func() wire.Status { return wire.Status{} })
	if err := errors.Join(svc.Start(), svc.StartServing(testCluster, true), conn.Flush()); err != nil {
		t.Fatal(err)
	}
	ask := func() {
		if err := connect(t, srv.ClientURL()).PublishRequest("alloc.reserve.a", "anywhere", nil); err != nil {
			t.Fatal(err)
		}
		<-log.arrived
	}
	ask()
	if err := svc.StartServing(testCluster, true); err != nil {
		t.Fatal(err)
	}
	ask()
	srv.Shutdown()
	<-away

	ctx := deadline(t)
	err = svc.Drain(ctx)
	if ctx.Err() != nil || err == nil || strings.Count(err.Error(), "1 requests cannot be answered") != 2 {
		t.Errorf("drain: %v", err)
	}
	if err := svc.Close(ctx); ctx.Err() != nil || err != nil {
		t.Errorf("close: %v", err)
	}
	log.release()
}
