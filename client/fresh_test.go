package client_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/allocnode/allocnode"
	"github.com/allocnode/allocnode/client"
)

// A client that has had no answer yet does not send a reservation that could be carved twice: its keys carry a since from the
// start. Where the window has moved on, the first attempt is repeated; a stored key that was used by another process is not.
// Checked: with a since of 0 the stored key got a second range; without fresh the new key was refused.
func TestNewClientBesideAnOldLog(t *testing.T) {
	f := newFake(t)
	f.window = 4
	first := f.client()
	key := first.NewKey()
	was, err := first.Reserve(deadline(t), "orders", 10, client.WithKey(key))
	if err != nil {
		t.Fatal(err)
	}
	if r, err := f.client().Reserve(deadline(t), "orders", 10, client.WithKey(key)); err != nil || r != was {
		t.Errorf("while it is remembered: %v, %v, want %v", r, err, was)
	}
	for range 8 {
		if _, err := first.Reserve(deadline(t), "other", 1); err != nil {
			t.Fatal(err)
		}
	}
	if r, err := f.client().Reserve(deadline(t), "orders", 1); err != nil || r.Start != 11 {
		t.Errorf("a new client: %v, %v", r, err)
	}
	c := f.client()
	own := c.NewKey()
	if r, err := c.Reserve(deadline(t), "orders", 1, client.WithKey(own)); err != nil || r.Start != 12 {
		t.Errorf("a new client's own key: %v, %v", r, err)
	}
	if r, err := c.Reserve(deadline(t), "orders", 1, client.WithKey(own)); err != nil || r.Start != 12 {
		t.Errorf("again: %v, %v", r, err)
	}
	if r, err := f.client().Reserve(deadline(t), "orders", 10, client.WithKey(key)); !errors.Is(err, allocnode.ErrKeyExpired) {
		t.Errorf("the stored key, forgotten: %v, %v", r, err)
	}
}

// Where the user may not listen for answers, nothing is asked: it would be carried out, and what it got lost. Checked: without listen's look the reservation was carved.
func TestForbiddenInbox(t *testing.T) {
	opts := &server.Options{Host: "127.0.0.1", Port: -1, NoSigs: true, NoLog: true}
	opts.Users = []*server.User{
		{Username: "service", Password: "s"},
		{Username: "app", Password: "a", Permissions: &server.Permissions{
			Publish:   &server.SubjectPermission{Allow: []string{"alloc.>"}},
			Subscribe: &server.SubjectPermission{Allow: []string{"_INBOX.app.>"}},
		}},
	}
	srv, err := server.NewServer(opts)
	if err != nil {
		t.Fatal(err)
	}
	srv.Start()
	t.Cleanup(func() { srv.Shutdown(); srv.WaitForShutdown() })
	f := newFakeOn(t, strings.Replace(srv.ClientURL(), "nats://", "nats://service:s@", 1))
	url := strings.Replace(srv.ClientURL(), "nats://", "nats://app:a@", 1)

	refused := make(chan struct{}, 64)
	nc := connect(t, url, nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) { refused <- struct{}{} }))
	c, err := client.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	ctx, cancel := context.WithCancel(deadline(t))
	defer cancel()
	done := make(chan error, 1)
	go func() { _, err := c.Reserve(ctx, "orders", 1); done <- err }()
	for range 2 { // it is tried again
		select {
		case <-refused:
		case <-ctx.Done():
		}
	}
	cancel()
	if err := <-done; !errors.Is(err, allocnode.ErrUnavailable) || !errors.Is(err, nats.ErrPermissionViolation) {
		t.Errorf("got %v", err)
	}
	if got := f.requests(); len(got) != 0 {
		t.Errorf("requests %q", got)
	}

	c, err = client.New(connect(t, url, nats.CustomInboxPrefix("_INBOX.app")))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	if r, err := c.Reserve(deadline(t), "orders", 1); err != nil || r.Start != 1 {
		t.Errorf("with the right inbox: %v, %v", r, err)
	}
}
