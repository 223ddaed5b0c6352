package node

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

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

	// Streams of the hub, which the leaf node cannot ask for: one that captures all of the prefix, one that captures requests
	// alone. Checked: without readAck it went on, and the hub's clients got the stream's acknowledgement; without probe it
	// did so beside the second.
	for _, subject := range []string{"alloc.>", "alloc.reserve.*"} {
		create := fmt.Sprintf(`{"name":"GRAB","subjects":[%q],"storage":"memory"}`, subject)
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
	if s := east.Status(); s.Counters["skipped_messages"] != 0 || s.Cursor > 40 {
		t.Errorf("probes reached the log: %+v", s)
	}
}

// A second cluster that comes has not served for a moment, and the first does not any more before it could. Both look before
// they serve. Checked: with shared false, west served before it heard east.
func TestNewcomerListensFirst(t *testing.T) {
	t.Parallel()
	port := freePorts(t, 1)[0]
	hub := newExisting(t, 1, func(o *server.Options) { o.LeafNode.Host, o.LeafNode.Port = "127.0.0.1", port })
	base := t.TempDir()
	began := time.Now()
	east := run(t, leaf(t, base, "east", hub, ""))
	east.becomes(wire.StateServing, "")
	if took := time.Since(began); took > 8*time.Second { // it takes 1.5 s on an idle machine
		t.Errorf("it served after %s: it waited for an answer that nobody gives", took)
	}
	for i := range 3 {
		west := run(t, leaf(t, base, "west", hub, ""))
		west.becomes(wire.StateChecking, "another cluster, ")
		east.becomes(wire.StateChecking, "another cluster, ")
		if west.log.count("INFO serving") > 0 {
			t.Fatalf("start %d: west has served beside east", i+1)
		}
		west.end()
	}
	east.becomes(wire.StateServing, "")

	// The system that it is to join is away: it waits for it, but not for long.
	east.end()
	hub.stop()
	began = time.Now()
	east = run(t, leaf(t, base, "east", hub, ""))
	east.becomes(wire.StateServing, "")
	if took := time.Since(began); took < linkPatience || took > linkPatience+liveWait {
		t.Errorf("it served after %s, without its remote", took)
	}
}

// A node that is stopped while it asks JetStream goes no further. Checked: without the look at ctx behind checkSubjects it
// went on, greeted and checked the log.
func TestStoppedWhileItLooksForStreams(t *testing.T) {
	t.Parallel()
	port := freePorts(t, 1)[0]
	hub := newExisting(t, 1, func(o *server.Options) { o.LeafNode.Host, o.LeafNode.Port = "127.0.0.1", port })
	n := run(t, leaf(t, t.TempDir(), "east", hub, ""))
	n.becomes(wire.StateStarting, "looking for streams")
	n.end()
	if n.err != nil || n.log.count("check the log") > 0 {
		t.Errorf("it returned %v, and checked the log %d times", n.err, n.log.count("check the log"))
	}
}

// Two that run on copies of one directory, each with a log of its own, and meet over leaf nodes. Both stop, and the one that
// came later has never served. Checked: without the case for twins in hear both served, and every id came twice; without
// nameLeaf the two did not hear each other.
func TestCopiedDirectoryOverLeafNodes(t *testing.T) {
	t.Parallel()
	ports := freePorts(t, 2)
	i := 0
	hub := newExisting(t, 2, func(o *server.Options) { o.LeafNode.Host, o.LeafNode.Port = "127.0.0.1", ports[i]; i++ })
	base, other := t.TempDir(), t.TempDir()
	first := run(t, leaf(t, base, "n1", hub, ""))
	first.becomes(wire.StateServing, "")
	first.end()
	if err := os.CopyFS(filepath.Join(other, "n1"), os.DirFS(filepath.Join(base, "n1"))); err != nil {
		t.Fatal(err)
	}
	// A restart is no twin of its predecessor.
	first = run(t, leaf(t, base, "n1", hub, ""))
	first.becomes(wire.StateServing, "")
	there := hub.connect()
	must(t, there, "alloc.reserve.orders", `{"count":10}`)
	hub.opts[0], hub.opts[1] = hub.opts[1], hub.opts[0] // a server takes no second leaf node of one name
	second := run(t, leaf(t, other, "n1", hub, ""))
	for _, n := range []*live{first, second} {
		n.becomes(wire.StateChecking, "another process answers as node n1")
	}
	if second.log.count("INFO serving") > 0 {
		t.Error("the copy has served")
	}
	if r, err := try(there, "alloc.reserve.orders", ""); err == nil {
		t.Errorf("one of the two answered: %+v", r)
	}
	second.end()
	first.becomes(wire.StateServing, "")
	if first.log.count("another process answers") != 1 {
		t.Error("the first did not say once that there is another")
	}
}

// ear is one neighbors that runs, and what it told.
type ear struct {
	t    *testing.T
	n    *neighbors
	self greeting // under a new incarnation: a late word of the ear before is not taken for its own
	nc   *nats.Conn
	told chan string
	said chan greeting // what it says
	stop func()
}

func listen(t *testing.T, e *existing, shared bool, linked func() bool) *ear {
	t.Helper()
	r := &ear{t: t, nc: e.connect(), told: make(chan string, 64), said: make(chan greeting, 1024)}
	r.self = greeting{Node: "n1", Cluster: wire.ID{1}, Catalog: wire.ID{2}, Incarnation: wire.NewID()}
	serving := func() bool { return false }
	r.n = newNeighbors(e.connect(), "alloc", r.self, shared, linked, serving, func(why string) { r.told <- why })
	if _, err := r.nc.Subscribe("alloc.node.cluster", func(m *nats.Msg) {
		if h, ok := readGreeting(m.Data); ok && h.greeting.Incarnation == r.self.Incarnation {
			r.said <- h.greeting
		}
	}); err != nil {
		t.Fatal(err)
	}
	if err := r.nc.Flush(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.n.Run(ctx) }()
	r.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(r.stop)
	r.next(func(g greeting) bool { return g.Number == 1 })
	return r
}

// say greets as another.
func (r *ear) say(g greeting) {
	r.t.Helper()
	text, err := json.Marshal(g)
	if err != nil {
		r.t.Fatal(err)
	}
	if err := r.nc.Publish("alloc.node.cluster", append(text[:len(text)-1], `,"of_a_later_version":{"x":1}}`...)); err != nil {
		r.t.Fatal(err)
	}
}

// next waits for a greeting of the node that is as wanted.
func (r *ear) next(want func(greeting) bool) (g greeting) {
	r.t.Helper()
	for after := time.After(liveWait); ; {
		select {
		case g = <-r.said:
			if want(g) {
				return g
			}
		case <-after:
			r.t.Fatal("no such greeting")
		}
	}
}

// tells wants the next word to hold words; "" wants that nothing was told until the node's next two greetings.
func (r *ear) tells(words string) {
	r.t.Helper()
	if words == "" {
		at := r.next(func(greeting) bool { return true }).Number
		r.next(func(g greeting) bool { return g.Number > at+1 && !g.Answer })
		select {
		case why := <-r.told:
			r.t.Fatalf("told %q", why)
		default:
		}
		return
	}
	select {
	case why := <-r.told:
		if !strings.Contains(why, words) {
			r.t.Fatalf("told %q: want %q", why, words)
		}
	case <-time.After(liveWait):
		r.t.Fatalf("told nothing: want %q", words)
	}
}

func TestTwin(t *testing.T) {
	t.Parallel()
	e := newExisting(t, 1, nil)
	twin := greeting{Node: "n1", Cluster: wire.ID{1}, Catalog: wire.ID{2}, Incarnation: wire.ID{9}}
	knows := func(g greeting) bool { return g.Heard == twin.Incarnation }

	// The predecessor's last words, however often they come: nothing in them was said after this run began. They are
	// answered, and what is an answer is not. Checked: without the look at Heard it stopped here.
	r := listen(t, e, false, nil)
	r.say(twin)
	if g := r.next(knows); !g.Answer {
		t.Errorf("not answered at once: %+v", g)
	}
	for range 5 {
		r.say(twin)
	}
	r.tells("")
	// Another catalog under the name, which a log in common refuses. Checked: without the condition it stopped here.
	other := twin
	other.Catalog, other.Heard = wire.ID{4}, r.self.Incarnation
	r.say(other)
	r.tells("")
	// It serves: the log is not in common.
	other.Serving = true
	r.say(other)
	r.tells("another process answers as node n1")

	r.stop()
	r = listen(t, e, false, nil)
	twin.Heard = r.self.Incarnation
	r.say(twin)
	r.tells("another process answers as node n1")

	// An answer is not answered, or two would go on for ever. Checked: without the look at Answer it was.
	r.stop()
	r = listen(t, e, false, nil)
	foreign := greeting{Node: "n1", Cluster: wire.ID{7}, Incarnation: wire.ID{8}, Answer: true}
	r.say(foreign)
	r.tells("another cluster")
	if g := r.next(func(greeting) bool { return true }); g.Answer {
		t.Errorf("an answer was answered: %+v", g)
	}
	// A flood of greetings is answered a few times: 1,000 within far less than a second here. Checked: without answerPause
	// each was.
	foreign.Answer = false
	for range 1000 {
		r.say(foreign)
	}
	if err := r.nc.Flush(); err != nil {
		t.Fatal(err)
	}
	r.next(func(g greeting) bool { return !g.Answer })
	if n, most := len(r.said), 2+int(2*greetEvery/answerPause); n > most {
		t.Errorf("a flood got %d answers, at most %d wanted", n, most)
	}
}

// Where others may be there, a node that has not heard itself is not sure; nor before what it joins is joined.
// Checked: without the look at from it was sure before it was linked.
func TestListening(t *testing.T) {
	t.Parallel()
	var joined atomic.Bool
	r := listen(t, newExisting(t, 1, nil), true, joined.Load)
	r.tells("")
	joined.Store(true)
	select {
	case why := <-r.told:
		if why != "" {
			t.Errorf("told %q", why)
		}
	case <-time.After(liveWait):
		t.Error("it goes on listening")
	}

	// Checked: with the answers counted it was sure after three of those.
	own := greeting{Node: "n1", Cluster: wire.ID{1}, Incarnation: wire.ID{3}, Number: 1, Answer: true}
	n := newNeighbors(r.nc, "alloc", own, true, nil, nil, nil)
	n.from = 1
	for range greetBack {
		n.hear(heard{greeting: own})
	}
	if n.listening == "" {
		t.Error("its own answers made it sure")
	}
	own.Answer = false
	for range greetBack {
		n.hear(heard{greeting: own})
	}
	if n.listening != "" {
		t.Error("its own greetings do not make it sure")
	}
}
