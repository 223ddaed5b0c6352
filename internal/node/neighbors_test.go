package node

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/allocnode/allocnode/internal/wire"
)

// leaf is a node with a JetStream domain of its own that joins hub as a leaf node.
func leaf(t *testing.T, base, name string, hub *existing, alloc string) Config {
	t.Helper()
	cfg := config(t, base, name, fmt.Sprintf(`leafnodes { remotes: [ { url: "nats-leaf://app:secret@127.0.0.1:%d" } ] }
		alloc { %s }`, hub.opts[0].LeafNode.Port, alloc))
	cfg.Server.JetStreamDomain = name
	return cfg
}

// A node that is a leaf node of an existing system serves that system's clients and its own, out of a log that nobody there
// can reach. Another cluster, or a stream, on its prefix stops it for as long as it is there.
func TestLeafNode(t *testing.T) {
	t.Parallel()
	port := freePorts(t, 1)[0]
	hub := newExisting(t, 1, func(o *server.Options) { o.LeafNode.Host, o.LeafNode.Port = "127.0.0.1", port })
	base := t.TempDir()

	bare := leaf(t, base, "bare", hub, "")
	bare.Server.JetStreamDomain = ""
	_, err := New(bare)
	refusal(t, "no domain", err, "leafnodes", "domain")

	east := run(t, leaf(t, base, "east", hub, ""))
	east.becomes(wire.StateServing, "")
	there, here := hub.connect(), east.connect()
	if r := must(t, there, "alloc.reserve.orders", `{"count":10,"key":"k1"}`); r.Start != 1 || r.End != 11 {
		t.Errorf("a client of the hub got %+v", r)
	}
	if r := must(t, here, "alloc.reserve.orders", `{"count":10,"key":"k2"}`); r.Start != 11 {
		t.Errorf("a client of the leaf node got %+v", r)
	}
	for _, subject := range []string{"$JS.API.STREAM.INFO.ALLOC_LOG", "$JS.east.API.STREAM.INFO.ALLOC_LOG"} {
		if m, err := there.Request(subject, nil, time.Second); err == nil && !strings.Contains(string(m.Data), `"error"`) {
			t.Errorf("the hub's clients reach the log: %s", m.Data)
		}
	}

	// A second cluster on the prefix: neither serves. Checked: without neighbors both went on, and the hub's client got
	// ranges of either.
	west := run(t, leaf(t, base, "west", hub, ""))
	for _, n := range []*live{east, west} {
		n.becomes(wire.StateChecking, "another cluster, ")
	}
	if s := east.Status(); !strings.Contains(s.Reason, `"west"`) || !strings.Contains(s.Reason, "prefix of its own") {
		t.Errorf("it says %q", s.Reason)
	}
	if r, err := try(there, "alloc.reserve.orders", ""); err == nil {
		t.Errorf("one of the two clusters answered: %+v", r)
	}
	// A check in between must not open it. Checked: without the look at foreign in guard.Open it served again.
	ticket := east.guard.Hold("a check")
	if east.guard.Open(ticket) {
		t.Error("a check opened the guard while another cluster is there")
	}
	west.end()
	east.becomes(wire.StateServing, "")
	if r := must(t, there, "alloc.reserve.orders", `{"count":10,"key":"k1"}`); r.Start != 1 {
		t.Errorf("afterwards the key got %+v", r)
	}
	other := run(t, leaf(t, base, "south", hub, "prefix: ids"))
	other.becomes(wire.StateServing, "")
	must(t, there, "ids.reserve.orders", "")

	// A stream of the hub, which the leaf node cannot ask for. Checked: without captured it went on, and the hub's clients
	// got the stream's acknowledgement.
	create := `{"name":"GRAB","subjects":["alloc.>"],"storage":"memory"}`
	m, err := there.Request("$JS.API.STREAM.CREATE.GRAB", []byte(create), 5*time.Second)
	if err != nil || strings.Contains(string(m.Data), `"error"`) {
		t.Fatalf("%v %+v", err, m)
	}
	east.becomes(wire.StateChecking, `the stream "GRAB" captures`)
	m, err = there.Request("$JS.API.STREAM.DELETE.GRAB", nil, 5*time.Second)
	if err != nil || strings.Contains(string(m.Data), `"error"`) {
		t.Fatalf("%v %+v", err, m)
	}
	east.becomes(wire.StateServing, "")
}
