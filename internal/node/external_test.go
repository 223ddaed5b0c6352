package node

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/allocnode/allocnode/internal/freeport"
	"github.com/allocnode/allocnode/internal/wire"
	"github.com/allocnode/allocnode/jetstream"
)

// existing is a NATS system that is there before allocnode: servers in this process, with JetStream, which clients share.
type existing struct {
	t       *testing.T
	opts    []*server.Options
	servers []*server.Server
	urls    []string
}

// newExisting is a system of n servers that runs; tweak changes each one's options.
func newExisting(t *testing.T, n int, tweak func(*server.Options)) *existing {
	t.Helper()
	e := &existing{t: t, servers: make([]*server.Server, n)}
	ports := freePorts(t, 2*n)
	var routes []string
	for _, p := range ports[:n] {
		routes = append(routes, fmt.Sprintf("nats://127.0.0.1:%d", p))
	}
	for i := range n {
		o := &server.Options{
			ServerName: fmt.Sprintf("s%d", i+1), Host: "127.0.0.1", Port: ports[n+i], NoLog: true, NoSigs: true,
			JetStream: true, StoreDir: t.TempDir(), SyncAlways: true, Username: "app", Password: "secret",
		}
		if n > 1 {
			o.Cluster = server.ClusterOpts{Name: "existing", Host: "127.0.0.1", Port: ports[i]}
			o.Routes = server.RoutesFromStr(strings.Join(routes, ","))
		}
		if tweak != nil {
			tweak(o)
		}
		e.opts = append(e.opts, o)
		e.urls = append(e.urls, fmt.Sprintf("nats://127.0.0.1:%d", ports[n+i]))
	}
	e.start()
	t.Cleanup(e.stop)
	return e
}

func freePorts(t *testing.T, n int) []int {
	t.Helper()
	ports, err := freeport.Take(n)
	if err != nil {
		t.Fatal(err)
	}
	return ports
}

func (e *existing) start() {
	e.t.Helper()
	for i, o := range e.opts {
		s, err := server.NewServer(o.Clone())
		if err != nil {
			e.t.Fatal(err)
		}
		e.servers[i] = s
		go s.Start()
	}
	for _, s := range e.servers {
		if !s.ReadyForConnections(20 * time.Second) {
			e.t.Fatalf("server %s is not ready", s.Name())
		}
	}
	if len(e.servers) == 1 {
		return
	}
	eventually(e.t, func() error {
		if slices.ContainsFunc(e.servers, func(s *server.Server) bool { return s.JetStreamIsLeader() }) {
			return nil
		}
		return errors.New("JetStream has no leader")
	})
}

func (e *existing) stop() {
	for _, s := range e.servers {
		s.Shutdown()
	}
	for _, s := range e.servers {
		s.WaitForShutdown()
	}
}

func (e *existing) connect() *nats.Conn {
	e.t.Helper()
	nc, err := nats.Connect(strings.Join(e.urls, ","), nats.UserInfo("app", "secret"), nats.MaxReconnects(-1),
		nats.ReconnectWait(50*time.Millisecond), nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
	if err != nil {
		e.t.Fatal(err)
	}
	e.t.Cleanup(nc.Close)
	return nc
}

// config is a node beside the system.
func (e *existing) config(base, name string, nodes ...string) Config {
	cfg := DefaultConfig()
	cfg.Name, cfg.DataDir, cfg.Nodes, cfg.Logger = name, filepath.Join(base, name), nodes, quiet
	cfg.NATS = &jetstream.External{URLs: e.urls, User: "app", Password: "secret", DurabilityAcknowledged: true}
	return cfg
}

// refusal wants err to hold words.
func refusal(t *testing.T, what string, err error, words ...string) {
	t.Helper()
	for _, w := range words {
		if err == nil || !strings.Contains(err.Error(), w) {
			t.Errorf("%s: %v: want %q in it", what, err, w)
		}
	}
}

// A node beside an existing NATS waits for init, serves, comes back by itself after the system was down, and believes
// nothing that a client of the same account puts on its feed.
func TestExternal(t *testing.T) {
	t.Parallel()
	e := newExisting(t, 3, nil)
	base := t.TempDir()

	// Only init makes the log. Checked: without byInit in bootstrap the three made it as soon as all were there.
	nodes := make(map[string]*live)
	for _, name := range names {
		nodes[name] = run(t, e.config(base, name, names...))
	}
	for _, name := range names {
		nodes[name].becomes(wire.StateStarting, "allocnode init")
	}
	nc := e.connect()
	cluster, err := Init(t.Context(), e.config(base, "n1", names...))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		nodes[name].becomes(wire.StateServing, "")
		if s := nodes[name].Status(); s.Role != wire.RoleExternal || s.Cluster != cluster {
			t.Errorf("%+v: want cluster %s", s, cluster)
		}
	}
	if r := must(t, nc, "alloc.reserve.orders", `{"count":10,"key":"k1"}`); r.Start != 1 || r.End != 11 || r.Cluster != cluster {
		t.Errorf("%+v", r)
	}
	if _, err := try(nc, "alloc.next.orders", ""); err != nil {
		t.Error(err)
	}
	_, err = Init(t.Context(), e.config(t.TempDir(), "n1", names...))
	refusal(t, "a second init", err, "the log exists", cluster.String())

	forge(t, nc, nodes["n2"])
	stopped := nodes["n3"]
	stopped.end()

	// The whole system goes down and comes back: each node checks the log again, because its feed was subscribed anew.
	// Checked: without the reconnect handler in replicate no line says so.
	before := nodes["n1"].log.count("because=connected to NATS again")
	e.stop()
	away := run(t, e.config(base, "n3", names...)) // it waits, as the two that run do, and can be stopped
	away.becomes(wire.StateStarting, "waiting for the existing NATS")
	away.end()
	if away.err != nil {
		t.Errorf("stopped while it waited for NATS, n3 returned %v", away.err)
	}
	nodes["n3"] = run(t, e.config(base, "n3", names...))
	began := time.Now()
	nodes["n2"].end() // there is nobody to drain: it must not wait for the end of its patience
	if took := time.Since(began); took > 3*time.Second || nodes["n2"].err != nil {
		t.Errorf("stopped while NATS was away, n2 took %s and returned %v", took, nodes["n2"].err)
	}
	e.start()
	nodes["n2"] = run(t, e.config(base, "n2", names...))
	eventually(t, func() error {
		if nodes["n1"].log.count("because=connected to NATS again") == before {
			return errors.New("n1 has not checked the log again")
		}
		return nil
	})
	for _, name := range names {
		nodes[name].becomes(wire.StateServing, "")
	}
	if r := must(t, nc, "alloc.reserve.orders", `{"count":10,"key":"k1"}`); r.Start != 1 || r.End != 11 {
		t.Errorf("the key got %+v after the restart", r)
	}

	// The catalog of a node beside an existing NATS is for no other, and remembers: a lost stream is not made anew.
	for _, name := range names {
		nodes[name].end()
	}
	n3 := config(t, base, "n3", "")
	run(t, n3).ended("other mode")
	m, err := nc.Request("$JS.API.STREAM.DELETE.ALLOC_LOG", nil, 5*time.Second)
	if err != nil || !strings.Contains(string(m.Data), `"success":true`) {
		t.Fatalf("%v %+v", err, m)
	}
	// Checked: without remembersNothing the log was made anew.
	_, err = Init(t.Context(), e.config(base, "n1", names...))
	refusal(t, "init where the data remember", err, "remember cluster "+cluster.String())
	// Checked: without count in everyWord too.
	run(t, e.config(base, "n1", names...)).becomes(wire.StateStarting, "the log is gone")
	_, err = Init(t.Context(), e.config(t.TempDir(), "n2", names...))
	refusal(t, "init while a node remembers", err, "the node n1 has applied seq")
	_, err = Init(t.Context(), e.config(t.TempDir(), "n2", names...), "n1")
	refusal(t, "init without the node that remembers", err, "the node n1 has applied seq")
	if strings.Contains(err.Error(), "elete") {
		t.Errorf("it advises to delete: %v", err)
	}
}

// forge puts an entry that the log never took on the feed, as the next one, and as one far beyond the end.
// Checked: with Offer in the place of Wake in replicate, the nodes applied it, and fenced as soon as the log went on.
func forge(t *testing.T, nc *nats.Conn, n *live) {
	t.Helper()
	p := n.link.get()
	head := p.replica.Head()
	entry := wire.AppendHeader(nil, &wire.Header{
		ClusterID: p.cluster, Level: wire.Level, Node: []byte("n1"), AutoCreate: true, Cursor: head.Cursor, Digest: head.Digest,
		ID:       wire.EntryID{Incarnation: wire.NewID(), Counter: 1},
		Defaults: wire.Settings{First: 1, Max: 1 << 40, MaxCount: 1 << 20},
	})
	entry = wire.AppendOp(entry, &wire.Op{Kind: wire.KindReserve, Name: []byte("forged"), Count: 1000})
	wire.Seal(entry)
	for _, seq := range []uint64{head.Cursor + 1, 1 << 60} {
		m := nats.NewMsg("alloc.feed." + p.cluster.String())
		m.Data = entry
		m.Header.Set("Nats-Stream", "ALLOC_LOG")
		m.Header.Set("Nats-Subject", "alloc.log.n1")
		m.Header.Set("Nats-Sequence", fmt.Sprint(seq))
		m.Header.Set("Nats-Last-Sequence", fmt.Sprint(seq-1))
		if err := nc.PublishMsg(m); err != nil {
			t.Fatal(err)
		}
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error {
		if p.replica.hint.Load() == 1<<60 || n.Status().Sequences > 1 {
			return nil
		}
		return errors.New("the forged messages have not come")
	})
	// Entries go on being applied, and the forged one is none of them.
	last := must(t, nc, "alloc.reserve.orders", `{"key":"after the forgery"}`)
	eventually(t, func() error {
		if c := p.replica.Head().Cursor; c < last.Seq {
			return fmt.Errorf("%s has applied seq %d of %d", n.name, c, last.Seq)
		}
		return nil
	})
	if s := n.Status(); s.State != wire.StateServing || s.Sequences != 1 {
		t.Errorf("%+v", s)
	}
}

// What is wrong with the existing NATS, or with what was said of it, is refused with the reason.
func TestExternalRefusals(t *testing.T) {
	t.Parallel()
	base := t.TempDir()
	e := newExisting(t, 1, nil)
	cfg := e.config(base, "n1")
	cfg.NATS.DurabilityAcknowledged = false
	_, err := New(cfg)
	refusal(t, "no acknowledgement", err, "durability_acknowledged", "sync_interval: always")
	_, err = Init(t.Context(), cfg)
	refusal(t, "init without it", err, "durability_acknowledged")

	cfg = e.config(base, "n1")
	cfg.NATS.Password = "guess"
	run(t, cfg).ended("refuses the credentials")

	cfg = e.config(base, "n1")
	cfg.NATS.URLs = []string{fmt.Sprintf("nats://127.0.0.1:%d", freePorts(t, 1)[0])}
	_, err = Init(t.Context(), cfg)
	refusal(t, "init where there is none", err, "is it up, and reachable")

	cfg = e.config(base, "n1")
	cfg.NATS.User, cfg.NATS.Password, cfg.NATS.Creds = "", "", filepath.Join(base, "none.creds")
	run(t, cfg).ended("none.creds")

	// One server: init says so, and a stream with one replica is refused. Checked: without ErrOneServer and without the
	// case for byInit in bootstrap, the one showed JetStream's own words and the other was fenced and stayed.
	alone := run(t, e.config(base, "n1"))
	alone.becomes(wire.StateStarting, "allocnode init")
	_, err = Init(t.Context(), e.config(base, "n1"))
	alone.end()
	refusal(t, "init on one server", err, "three servers or more")
	nc := e.connect()
	log, err := jetstream.NewLog(nc, jetstream.DefaultLogConfig(), "other")
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	if _, err := log.Create(t.Context(), wire.NewID(), 1); err != nil {
		t.Fatal(err)
	}
	run(t, e.config(base, "n1")).ended("num_replicas is 1: want 3")
	_, err = Init(t.Context(), e.config(base, "n1"))
	refusal(t, "init over a stream", err, "exists", "num_replicas")

	cfg = e.config(base, "n1")
	cfg.ClusterID = wire.ID{1}
	_, err = Init(t.Context(), cfg)
	refusal(t, "init with a cluster_id", err, "not made anew")
	cfg = DefaultConfig()
	cfg.DataDir = base
	_, err = Init(t.Context(), cfg)
	refusal(t, "init without nats", err, "alloc { nats")

	small := newExisting(t, 1, func(o *server.Options) { o.MaxPayload = 1 << 16 })
	run(t, small.config(base, "n1")).ended("max_payload 65536")
}

// A connection that is away keeps nothing for later, and its return is for ever, also past refusals.
// Checked: without IgnoreAuthErrorAbort the connection was closed; without ReconnectBufSize the entry was published on the
// way back.
func TestExternalConnectionReturns(t *testing.T) {
	t.Parallel()
	e := newExisting(t, 1, nil)
	back := make(chan struct{}, 8)
	nc, err := e.config(t.TempDir(), "n1").NATS.Connect(t.Context(), "test", "alloc.inbox.n1", quiet,
		nats.ReconnectHandler(func(*nats.Conn) { back <- struct{}{} }))
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	if inbox := nc.NewInbox(); !strings.HasPrefix(inbox, "alloc.inbox.n1.") {
		t.Errorf("inbox %s", inbox)
	}
	e.stop()
	eventually(t, func() error {
		if !nc.IsReconnecting() {
			return errors.New("the loss was not noticed")
		}
		return nil
	})
	if err := nc.Publish("late", []byte("x")); !errors.Is(err, nats.ErrReconnectBufExceeded) {
		t.Errorf("published while away: %v", err)
	}
	e.opts[0].Password = "changed"
	e.start()
	eventually(t, func() error {
		if nc.IsClosed() || errors.Is(nc.LastError(), nats.ErrAuthorization) {
			return nil
		}
		return fmt.Errorf("not refused yet: %v", nc.LastError())
	})
	// Two more refusals: by then nats.go would have given up.
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	<-ctx.Done() // of nats.go's reconnect wait of 250 ms several pass
	if nc.IsClosed() {
		t.Fatalf("closed for good after refusals: %v", nc.LastError())
	}
	e.stop()
	e.opts[0].Password = "secret"
	e.start()
	select {
	case <-back:
	case <-time.After(liveWait):
		t.Fatalf("it does not come back: %v", nc.LastError())
	}
}
