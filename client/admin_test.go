package client_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/allocnode/allocnode"
	"github.com/allocnode/allocnode/client"
)

func TestAdmin(t *testing.T) {
	f := newFake(t)
	c := f.client()
	ctx := deadline(t)

	s, err := c.Create(ctx, "orders", client.Settings{First: 100, MaxCount: 50})
	if want := (client.Settings{First: 100, Max: allocnode.DefaultMax, MaxCount: 50}); err != nil ||
		s.Settings != want || s.Seq == 0 {
		t.Errorf("create: %+v, %v, want %+v", s, err, want)
	}
	if _, err := c.Create(ctx, "orders", client.Settings{First: 7}); !errors.Is(err, allocnode.ErrConflict) {
		t.Errorf("create with other settings: %v", err)
	}
	if _, err := c.Info(ctx, "none"); !errors.Is(err, allocnode.ErrNotFound) {
		t.Errorf("info of none: %v", err)
	}
	if a, err := c.Advance(ctx, "orders", 5000); err != nil || a.Old != 99 || a.HWM != 5000 || a.Seq == 0 {
		t.Errorf("advance: %+v, %v", a, err)
	}
	i, err := c.Info(ctx, "orders", client.Consistent())
	if err != nil || i.Sequence != "orders" || i.Settings != s.Settings || i.HWM != 5000 ||
		i.Remaining != allocnode.DefaultMax-5000 || i.Seq == 0 {
		t.Errorf("info: %+v, %v", i, err)
	}
	if seq, err := c.Resume(ctx, "orders"); err != nil || seq == 0 {
		t.Errorf("resume: %d, %v", seq, err)
	}
	if seq, err := c.Forget(ctx, "n1"); err != nil || seq != 7 {
		t.Errorf("forget: %d, %v", seq, err)
	}
	if _, err := c.Forget(ctx, "n2"); !errors.Is(err, allocnode.ErrNotFound) {
		t.Errorf("forget of a stranger: %v", err)
	}
	nodes, err := c.Status(ctx)
	if err != nil || len(nodes) != 1 || nodes[0].Name != "n1" || !nodes[0].Ready ||
		nodes[0].Cluster != f.cluster.String() || nodes[0].Cursor != 9 || len(nodes[0].Raw) == 0 {
		t.Errorf("status: %+v, %v", nodes, err)
	}
}

// What is wrong for sure is refused before it is sent.
func TestAdminRefusedHere(t *testing.T) {
	c := newClient(t, connect(t, newServer(t))) // where nobody would answer
	ctx := deadline(t)
	for what, call := range map[string]func() error{
		"create name":     func() error { _, err := c.Create(ctx, "a b", client.Settings{}); return err },
		"create max":      func() error { _, err := c.Create(ctx, "a", client.Settings{Max: allocnode.MaxID + 1}); return err },
		"create first":    func() error { _, err := c.Create(ctx, "a", client.Settings{First: 9, Max: 8}); return err },
		"advance name":    func() error { _, err := c.Advance(ctx, "", 1); return err },
		"advance too far": func() error { _, err := c.Advance(ctx, "a", allocnode.MaxID+1); return err },
		"info name":       func() error { _, err := c.Info(ctx, "a.>"); return err },
		"resume name":     func() error { _, err := c.Resume(ctx, ".a"); return err },
		"forget name":     func() error { _, err := c.Forget(ctx, "n.1"); return err },
	} {
		if err := call(); !errors.Is(err, allocnode.ErrBadRequest) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// The list goes on over its pages, in order, and may be left at any point.
func TestList(t *testing.T) {
	f := newFake(t)
	c := f.client()
	const n = 10 // the fake's pages hold three
	for i := range n {
		if _, err := c.Create(deadline(t), fmt.Sprint("s", i), client.Settings{MaxCount: 5}); err != nil {
			t.Fatal(err)
		}
	}
	for _, stop := range []int{n, 4} {
		got := 0
		for s, err := range c.List(deadline(t), client.Consistent()) {
			if err != nil || s.Sequence != fmt.Sprint("s", got) {
				t.Fatalf("sequence %d: %+v, %v", got, s, err)
			}
			if got++; got == stop {
				break
			}
		}
		if got != stop {
			t.Errorf("%d sequences, want %d", got, stop)
		}
	}
	d := f.client() // learns how much may be asked for
	if _, err := d.Info(deadline(t), "s3"); err != nil {
		t.Fatal(err)
	}
	n0 := len(f.requests())
	if _, err := d.Reserve(deadline(t), "s3", 6); !errors.Is(err, allocnode.ErrBadRequest) || len(f.requests()) != n0 {
		t.Errorf("above max_count: %v, %d requests", err, len(f.requests())-n0)
	}
}

// Every node of every cluster on the prefix is heard; what is no node's answer is not taken for one.
func TestStatusOfMany(t *testing.T) {
	url := newServer(t)
	nc := connect(t, url)
	for i := range 5 {
		reply := fmt.Sprintf(`{"name":"n%d","state":"fenced","reason":"why","role":"follower","cursor":%d}`, 5-i, i)
		if i == 2 {
			reply = `{"stream":"CAPTURE","seq":7}`
		}
		if _, err := nc.Subscribe("alloc.status", func(m *nats.Msg) { m.Respond([]byte(reply)) }); err != nil {
			t.Fatal(err)
		}
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	nodes, err := newClient(t, connect(t, url)).Status(deadline(t))
	if err != nil || len(nodes) != 4 {
		t.Fatalf("%+v, %v", nodes, err)
	}
	for i, want := range []string{"n1", "n2", "n4", "n5"} {
		if nodes[i].Name != want || nodes[i].Ready || nodes[i].Reason != "why" {
			t.Errorf("node %d: %+v, want %s", i, nodes[i], want)
		}
	}
}
