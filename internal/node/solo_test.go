package node

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/allocnode/allocnode"
	"github.com/allocnode/allocnode/internal/wire"
	"github.com/allocnode/allocnode/jetstream"
	"github.com/allocnode/allocnode/kv"
)

// A node that is alone: what it gave out before a restart is not given out after it, and a key gets its range again.
func TestAloneRestart(t *testing.T) {
	t.Parallel()
	base := t.TempDir()
	n := run(t, config(t, base, "solo", ""))
	nc := n.connect()
	first := must(t, nc, "alloc.reserve.orders", `{"count":1000,"key":"k1"}`)
	if first.rng() != (allocnode.Range{Start: 1, End: 1001}) || first.Seq == 0 || first.Cluster.IsZero() {
		t.Fatalf("%+v", first)
	}
	if r := must(t, nc, "alloc.reserve.orders", ""); r.Start != 1001 {
		t.Errorf("%+v", r)
	}
	<-n.Ready()
	s := n.Status()
	if !s.Ready || s.Role != wire.RoleAlone || s.Sequences != 1 || s.Cluster != first.Cluster {
		t.Errorf("status %+v", s)
	}

	// Another process on the directory. (The lock is the kernel's, so another file descriptor is as good.) Checked: without
	// LockDir only kv's lock of the catalog was left.
	run(t, config(t, base, "solo", "")).ended("is in use by")
	if r := must(t, nc, "alloc.reserve.orders", ""); r.Start != 1002 {
		t.Errorf("after the attempt of another: %+v", r)
	}
	nc.Close()
	n.end()
	if n.err != nil {
		t.Errorf("stopped in order, it returned %v", n.err)
	}

	n = run(t, config(t, base, "solo", ""))
	nc = n.connect()
	if r := must(t, nc, "alloc.reserve.orders", `{"count":1000,"key":"k1"}`); r.rng() != first.rng() || r.Cluster != first.Cluster {
		t.Errorf("the key got %+v: want %+v", r, first)
	}
	if r := must(t, nc, "alloc.reserve.orders", `{"key":"k2"}`); r.Start != 1003 {
		t.Errorf("hwm did not continue: %+v", r)
	}
	n.end()

	// The other mode is refused before nats-server, which would delete the stream, has started.
	cfg := config(t, base, "solo", `cluster { name: c, listen: "127.0.0.1:-1", routes: ["nats://127.0.0.1:1"] }
		alloc { nodes: [solo, b, c] }`)
	run(t, cfg).ended("other mode")
	// So is another node's name on this directory, and another cluster_id. Checked: without the comparison before the
	// server's start it came up with another cluster's JetStream.
	cfg = config(t, base, "solo", "")
	cfg.Name = "duo"
	cfg.Server.ServerName = ""
	run(t, cfg).ended("another node")
	cfg = config(t, base, "solo", "")
	cfg.ClusterID = wire.ID{1}
	run(t, cfg).ended("cluster_id is set to 01")
}

// What is left of a node's directory decides: the state is rebuilt, another catalog is refused until it is forgotten, and a
// log that is gone is not made anew.
func TestAloneLosesFiles(t *testing.T) {
	t.Parallel()
	base := t.TempDir()
	dir := filepath.Join(base, "solo")
	n := run(t, config(t, base, "solo", ""))
	key := `{"count":10,"key":"k1"}`
	first := must(t, n.connect(), "alloc.reserve.orders", key)
	n.end()

	remove(t, dir, "catalog", "badger")
	n = run(t, config(t, base, "solo", ""))
	if r := must(t, n.connect(), "alloc.reserve.orders", key); r.rng() != first.rng() {
		t.Errorf("after the state was lost, the key got %+v: want %+v", r, first)
	}
	n.end()

	// Checked: without refusal's and apply's comparison of the catalog it served at once.
	remove(t, dir, "catalog")
	n = run(t, config(t, base, "solo", ""))
	n.becomes(wire.StateChecking, "allocnode forget solo")
	nc := n.connect()
	if _, err := try(nc, "alloc.reserve.orders", ""); err == nil {
		t.Error("a refused node reserved")
	}
	must(t, nc, "alloc.forget.solo", "")
	n.becomes(wire.StateServing, "")
	if r := must(t, nc, "alloc.reserve.orders", key); r.rng() != first.rng() {
		t.Errorf("after the catalog was lost, the key got %+v: want %+v", r, first)
	}
	if r := must(t, nc, "alloc.reserve.orders", `{"key":"k2"}`); r.Start != 11 {
		t.Errorf("hwm did not continue: %+v", r)
	}
	n.end()

	// Nor does nats-server get hold of the files in the other mode, in which it would delete them; with them gone the log
	// would be made anew. Checked: without the comparison in run, the node started; with a look at the folder alone too,
	// since here it is there, emptied.
	remove(t, dir, "catalog")
	if err := os.Mkdir(filepath.Join(dir, "catalog"), 0o700); err != nil {
		t.Fatal(err)
	}
	clustered := config(t, base, "solo", "")
	clustered.Server = &server.Options{ServerName: "solo", Cluster: server.ClusterOpts{Name: "c", Host: "127.0.0.1", Port: -1},
		Routes: []*url.URL{{Scheme: "nats", Host: "127.0.0.1:1"}}}
	clustered.Nodes = []string{"solo", "b", "c"}
	run(t, clustered).ended("holds the log of a node that ran alone: it cannot be started in a cluster")
	n = run(t, config(t, base, "solo", ""))
	n.becomes(wire.StateChecking, "allocnode forget solo")
	must(t, n.connect(), "alloc.forget.solo", "")
	n.becomes(wire.StateServing, "")
	n.end()

	// Checked: without the rule for a node that remembers, the log was made anew and ids began at 1.
	remove(t, dir, "jetstream")
	n = run(t, config(t, base, "solo", ""))
	n.becomes(wire.StateFenced, "the log is gone: there is no stream, but this node has applied seq")
	if s := n.api("STREAM.INFO.ALLOC_LOG", nil); !strings.Contains(s, "stream not found") {
		t.Errorf("there is a stream: %s", s)
	}
	if _, err := try(n.connect(), "alloc.reserve.orders", ""); err == nil {
		t.Error("a fenced node reserved")
	}
	n.end()
	if n.err != nil {
		t.Errorf("stopped in order, it returned %v", n.err)
	}
}

// The stream is taken away from under a node that serves.
// Checked: without the watch's Begin the node went on as serving; for the comparisons see TestCheckFindsContradictions.
func TestAloneStreamIsTakenAway(t *testing.T) {
	for name, c := range map[string]struct {
		do    func(n *live)
		words string
	}{
		"purged":  {func(n *live) { n.api("STREAM.PURGE.ALLOC_LOG", nil) }, "purged"},
		"deleted": {func(n *live) { n.api("STREAM.DELETE.ALLOC_LOG", nil) }, "there is no stream"},
		"made anew, empty": {func(n *live) {
			nc, err := n.server.LogConn()
			if err != nil {
				n.t.Fatal(err)
			}
			defer nc.Close()
			log, err := jetstream.NewLog(nc, jetstream.DefaultLogConfig(), "x")
			if err != nil {
				n.t.Fatal(err)
			}
			defer log.Close()
			cluster := n.Status().Cluster
			n.api("STREAM.DELETE.ALLOC_LOG", nil)
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			defer cancel()
			if _, err := log.Create(ctx, cluster, 1); err != nil {
				n.t.Fatal(err)
			}
		}, "made anew"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := run(t, config(t, t.TempDir(), "solo", ""))
			nc := n.connect()
			must(t, nc, "alloc.reserve.orders", `{"key":"k"}`)
			c.do(n)
			n.becomes(wire.StateFenced, c.words)
			if r, err := try(nc, "alloc.reserve.orders", ""); err == nil {
				t.Errorf("a fenced node reserved %+v", r)
			}
			if name == "made anew, empty" {
				if s := n.api("STREAM.INFO.ALLOC_LOG", nil); !strings.Contains(s, `"messages":0`) {
					t.Errorf("something was written into it: %s", s)
				}
			}
			// The status subject is answered, and says why.
			m, err := nc.Request("alloc.status", nil, 5*time.Second)
			if err != nil || !strings.Contains(string(m.Data), c.words) {
				t.Errorf("status %s, %v", m.Data, err)
			}
		})
	}
}

// The catalog cannot be written, and can again; then it contradicts the log.
// Checked: without Pause the entry was applied while it could not be stored; without Begin in storeState the node stayed
// as it was after the recovery.
func TestAloneCatalogFails(t *testing.T) {
	t.Parallel()
	n := run(t, config(t, t.TempDir(), "solo", ""))
	nc := n.connect()
	must(t, nc, "alloc.reserve.orders", `{"count":5,"key":"a"}`)
	n.becomes(wire.StateServing, "")

	n.storeState(errors.New("disk full"))
	n.becomes(wire.StateHalted, "the catalog cannot be written: disk full")
	if r, err := try(nc, "alloc.reserve.orders", ""); err == nil {
		t.Errorf("halted, it reserved %+v", r)
	}
	// An entry comes all the same; it stands in the log and waits there.
	before := n.Status().Cursor
	log, err := n.server.LogConn()
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	if _, err := log.Request("alloc.log.other", []byte("garbage"), 5*time.Second); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error { // the watch has seen it
		if s := n.Status(); s.Last <= before {
			return fmt.Errorf("the log is known up to seq %d", s.Last)
		}
		return nil
	})
	if s := n.Status(); s.Cursor != before {
		t.Errorf("seq %d was applied while the catalog could not be written", s.Cursor)
	}

	n.storeState(nil)
	n.becomes(wire.StateServing, "")
	if r := must(t, nc, "alloc.reserve.orders", `{"count":5,"key":"b"}`); r.Start != 6 {
		t.Errorf("%+v", r)
	}
	n.storeState(fmt.Errorf("commit: %w", kv.ErrContradiction))
	n.becomes(wire.StateFenced, "contradicts the witness")
	n.storeState(nil) // what a committer says that gets another answer
	n.becomes(wire.StateFenced, "contradicts the witness")
}

// An operator's accounts, another prefix, and sequences that halt when they are exhausted.
func TestAloneConfigured(t *testing.T) {
	t.Parallel()
	base := t.TempDir()
	text := `accounts {
			APP { jetstream: enabled, users: [ { user: app, password: app } ] }
			OTHER { users: [ { user: other, password: other } ] }
		}
		alloc { prefix: "ids.v1", account: APP, genesis { on_exhaustion: halt } }`
	n := run(t, config(t, base, "solo", text))
	n.becomes(wire.StateServing, "")
	nc := n.connect(nats.UserInfo("app", "app"))
	must(t, nc, "ids.v1.create.small", `{"max":10}`)
	if r := must(t, nc, "ids.v1.reserve.small", `{"count":8,"key":"a"}`); r.Start != 1 || r.End != 9 {
		t.Errorf("%+v", r)
	}
	refused(t, nc, "ids.v1.reserve.small", "3", allocnode.ErrExhausted)
	refused(t, nc, "ids.v1.reserve.small", "1", allocnode.ErrExhausted) // it fits, but the sequence is halted
	must(t, nc, "ids.v1.resume.small", "")
	if r := must(t, nc, "ids.v1.reserve.small", `{"count":2,"key":"b"}`); r.Start != 9 || r.End != 11 {
		t.Errorf("%+v", r)
	}
	if _, err := n.connect(nats.UserInfo("other", "other")).Request("ids.v1.reserve.small", nil, time.Second); err == nil {
		t.Error("the service answers in another account")
	}

	// A stream of the clients' that captures the subjects: refused at the next start, with the stream's name.
	// Checked: without checkSubjects the node served, and a request was answered by JetStream.
	if m, err := nc.Request("$JS.API.STREAM.CREATE.GREEDY", []byte(`{"name":"GREEDY","subjects":["ids.v1.>"],"storage":"file"}`),
		5*time.Second); err != nil || strings.Contains(string(m.Data), `"error"`) {
		t.Fatalf("create a stream: %s, %v", m.Data, err)
	}
	n.end()
	run(t, config(t, base, "solo", text)).ended("stream GREEDY captures the service subject ids.v1.reserve")
}

// Stopped in the middle of the start: before the log exists, since the others do not answer.
func TestStopDuringBootstrap(t *testing.T) {
	t.Parallel()
	base := t.TempDir()
	n := run(t, config(t, base, "solo", `alloc { cluster_id: "000102030405060708090a0b0c0d0e0f" }`))
	n.becomes(wire.StateStarting, "cluster_id is set, so it is not created")
	refusedOrSilent(t, n.connect())
	n.end()
	if n.err != nil {
		t.Errorf("it returned %v", n.err)
	}
	if _, err := os.Stat(filepath.Join(base, "solo", "jetstream", "ALLOC", "streams", "ALLOC_LOG")); err == nil {
		t.Error("a stream was made")
	}
	// And before anything: ctx has ended when Run begins.
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	late, err := New(config(t, base, "solo", ""))
	if err != nil {
		t.Fatal(err)
	}
	if err := late.Run(ctx); err == nil {
		t.Error("Run with a context that has ended returned nil: it did not start")
	}
}

func refusedOrSilent(t *testing.T, nc *nats.Conn) {
	t.Helper()
	if r, err := try(nc, "alloc.reserve.orders", ""); err == nil {
		t.Errorf("reserved %+v", r)
	}
}
