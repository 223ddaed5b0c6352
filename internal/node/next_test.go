package node

import (
	"errors"
	"testing"
	"time"

	"github.com/allocnode/allocnode"
	"github.com/allocnode/allocnode/internal/wire"
	"github.com/nats-io/nats.go"
)

// nextID asks for one id.
func nextID(nc *nats.Conn, sequence string) (uint64, error) {
	m, err := nc.Request("alloc.next."+sequence, nil, 5*time.Second)
	if err != nil {
		return 0, err
	}
	r, err := wire.DecodeNext(m.Data, 1)
	if err != nil {
		return 0, err
	}
	return r.Ranges[0].Start, nil
}

// The majority is lost: a node goes on to the end of its batch, also once it knows of the loss; then it says unavailable
// within the deadline, and comes back by itself.
func TestNextWithoutMajority(t *testing.T) {
	c := newTrio(t)
	c.start(names...)
	c.serve(names...)
	survivor := c.leader()
	nc := c.nodes[survivor].connect()
	seen := make(map[uint64]bool)
	take := func() error {
		began := time.Now()
		id, err := nextID(nc, "orders")
		if took := time.Since(began); took > 4500*time.Millisecond {
			t.Errorf("the answer took %s", took)
		}
		if err == nil && seen[id] {
			t.Fatalf("id %d twice", id)
		}
		seen[id] = true
		return err
	}
	for range 300 { // from all nodes, so that each has a batch
		if err := take(); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range names {
		if name != survivor {
			c.stop(name)
		}
	}
	eventually(t, func() error {
		if role := c.nodes[survivor].Status().Role; role != wire.RoleUnknown {
			return errors.New("it is still " + role)
		}
		return nil
	})
	if err := take(); err != nil {
		t.Errorf("the node knows that it is alone, and has ids left: %v", err)
	}
	var end error
	for end == nil {
		end = take()
	}
	if !errors.Is(end, allocnode.ErrUnavailable) {
		t.Errorf("at the end of the batch: %v", end)
	}
	for _, name := range names {
		if name != survivor {
			c.start(name)
		}
	}
	eventually(t, take)
}

// An advance drops what every node's batch holds.
func TestNextAfterAdvance(t *testing.T) {
	c := newTrio(t)
	c.start(names...)
	c.serve(names...)
	nc := c.nodes["n1"].connect()
	for range 100 {
		if _, err := nextID(nc, "orders"); err != nil {
			t.Fatal(err)
		}
	}
	must(t, nc, "alloc.advance.orders", "100000")
	c.alike() // so every node has applied it
	for range 100 {
		if id, err := nextID(nc, "orders"); err != nil || id <= 100000 {
			t.Fatalf("id %d, %v", id, err)
		}
	}
}

// A restart begins without a batch: what the last run held of one is a gap, since how far it had come is not known.
// Checked: with the mutant BatchDisk the second run begins with the ids of the first.
func TestNextAfterRestart(t *testing.T) {
	t.Parallel()
	base := t.TempDir()
	seen := make(map[uint64]bool)
	for i := range 3 {
		n := run(t, config(t, base, "solo", ""))
		nc := n.connect()
		<-n.Ready()
		for range 150 { // more than one batch
			id, err := nextID(nc, "orders")
			if err != nil {
				t.Fatal(err)
			}
			if seen[id] {
				t.Fatalf("run %d gave id %d again", i+1, id)
			}
			seen[id] = true
		}
		nc.Close()
		n.end()
	}
}
