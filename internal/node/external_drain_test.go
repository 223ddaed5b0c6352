package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/allocnode/allocnode/internal/next"
	"github.com/allocnode/allocnode/internal/propose"
	"github.com/allocnode/allocnode/internal/service"
	"github.com/allocnode/allocnode/internal/wire"
)

// serving is the part of a node beside an existing NATS that serves, over nc.
func serving(t *testing.T, cfg Config, nc *nats.Conn) *Node {
	t.Helper()
	n := &Node{cfg: cfg, logger: quiet, guard: newGuard(), ready: make(chan struct{})}
	prop := propose.New(propose.DefaultConfig(), nil, func() (uint64, wire.Digest) { return 0, wire.Digest{} }, nil)
	pool := next.New(next.DefaultConfig(), prop)
	n.guard.setGates(prop, pool)
	lead := newLead(nil, "alloc", wire.ID{1}, "n1", func() bool { return false }, n.guard.Serving)
	n.link.set(&parts{prop: prop, cluster: wire.ID{1}, svc: nc, lead: lead})
	n.svc = service.New(nc, n.serviceConfig(), &n.link, operators{&n.link}, &n.link, &n.link, n.Status)
	if err := n.svc.Start(); err != nil {
		t.Fatal(err)
	}
	n.drainWhenBack(nc)
	return n
}

// nobody wants a client to hear at once that nobody serves. An answer is a subscription that is still known on both sides.
func nobody(t *testing.T, client *nats.Conn) {
	t.Helper()
	eventually(t, func() error {
		_, err := client.Request("alloc.reserve.orders", nil, 5*time.Second)
		switch {
		case errors.Is(err, nats.ErrNoResponders):
			return nil
		case errors.Is(err, nats.ErrTimeout):
			t.Fatal("a request went to nobody")
		}
		return fmt.Errorf("answered, %v", err)
	})
}

// What the node must not serve any more while its connection is away, it does not serve when that is back: clients hear at
// once that nobody is there, and do not wait for an answer. Checked: with the service drained while the connection was away
// (no IsReconnecting in serve), the server went on sending requests to a subscription that nats.go had forgotten.
func TestExternalDrainWhileAway(t *testing.T) {
	t.Parallel()
	e := newExisting(t, 1, nil)
	cfg := e.config(t.TempDir(), "n1")
	nc, err := cfg.dial(t.Context(), "service", quiet)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	n := serving(t, cfg, nc)
	n.guard.Open(n.guard.Hold("test"))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- n.serve(ctx) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	select {
	case <-n.ready:
	case <-time.After(liveWait):
		t.Fatal("it does not serve")
	}
	e.stop()
	eventually(t, func() error {
		if !nc.IsReconnecting() {
			return errors.New("the loss was not noticed")
		}
		return nil
	})
	n.guard.Foreign("another cluster")
	eventually(t, func() error {
		if len(n.guard.changed) > 0 {
			return errors.New("serve has not looked yet")
		}
		return nil
	})
	e.start()
	client := e.connect()
	eventually(t, func() error {
		if nc.IsConnected() {
			return nil
		}
		return errors.New("not back yet")
	})
	nobody(t, client)
}

// What is being drained when the connection is lost must not come back with it. nats.go sees to that; the other case, above,
// it does not, so this holds it to it.
func TestExternalLostWhileDraining(t *testing.T) {
	t.Parallel()
	e := newExisting(t, 1, nil)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var deaf atomic.Bool // nothing that is sent arrives
	links, unsub := make(chan net.Conn, 16), make(chan struct{}, 64)
	go func() {
		for {
			near, err := l.Accept()
			if err != nil {
				return
			}
			far, err := net.Dial("tcp", e.servers[0].Addr().String())
			if err != nil {
				near.Close()
				continue
			}
			links <- near
			go func() { _, _ = io.Copy(near, far); near.Close() }()
			go func() {
				defer far.Close()
				buf := make([]byte, 1<<16)
				for {
					n, err := near.Read(buf)
					if err != nil {
						return
					}
					if !deaf.Load() {
						_, _ = far.Write(buf[:n])
					} else if bytes.Contains(buf[:n], []byte("UNSUB")) {
						unsub <- struct{}{}
					}
				}
			}()
		}
	}()
	cfg := e.config(t.TempDir(), "n1")
	cfg.NATS.URLs = []string{"nats://" + l.Addr().String()}
	nc, err := cfg.dial(t.Context(), "service", quiet)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	n := serving(t, cfg, nc)
	if err := n.svc.StartServing(wire.ID{1}, true); err != nil {
		t.Fatal(err)
	}
	deaf.Store(true)
	drained := make(chan struct{})
	go func() {
		defer close(drained)
		n.drain(t.Context())
	}()
	select {
	case <-unsub:
	case <-time.After(liveWait):
		t.Fatal("it does not drain")
	}
	deaf.Store(false)
	(<-links).Close()
	select {
	case <-drained:
	case <-time.After(liveWait):
		t.Fatal("drain does not return")
	}
	nobody(t, e.connect())
}
