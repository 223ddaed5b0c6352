package node

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/allocnode/allocnode/internal/wire"
	"github.com/allocnode/allocnode/jetstream"
)

// denying is a system whose nodes have users of their own, under their names, that lack what deny says; "app" lacks nothing.
// A subject that begins with '<' is one to subscribe to.
func denying(t *testing.T, n int, deny map[string][]string) *existing {
	t.Helper()
	return newExisting(t, n, func(o *server.Options) {
		o.Username, o.Password = "", ""
		o.Users = []*server.User{{Username: "app", Password: "secret"}}
		for name, subjects := range deny {
			p := &server.Permissions{Publish: &server.SubjectPermission{}, Subscribe: &server.SubjectPermission{}}
			for _, s := range subjects {
				if sub, ok := strings.CutPrefix(s, "<"); ok {
					p.Subscribe.Deny = append(p.Subscribe.Deny, sub)
				} else {
					p.Publish.Deny = append(p.Publish.Deny, s)
				}
			}
			o.Users = append(o.Users, &server.User{Username: name, Password: "secret", Permissions: p})
		}
	})
}

// as is a configuration with another user.
func as(cfg Config, user string) Config {
	external := *cfg.NATS
	external.User = user
	cfg.NATS = &external
	return cfg
}

// What a node is not permitted stops it, with the subject in the reason, until it has connected again and is permitted it.
// A requester's inbox does not. Checked: without Deny n1 waited without a word of why; without needed the reply subject of a client stopped a node; without the reconnect handler none came back.
func TestExternalPermissions(t *testing.T) {
	t.Parallel()
	e := denying(t, 3, map[string][]string{
		"n1": {"private.>", "$JS.API.STREAM.INFO.*"},
		"n2": {"private.>", "alloc.log.*"},
		"n3": {"private.>", "<alloc.next.>"},
	})
	base := t.TempDir()
	nodes := make(map[string]*live)
	for _, name := range names {
		nodes[name] = run(t, as(e.config(base, name, names...), name))
	}
	nodes["n1"].becomes(wire.StateStarting, "publish to $JS.API.STREAM.INFO.ALLOC_LOG")
	nodes["n2"].becomes(wire.StateStarting, "allocnode init")
	nodes["n3"].becomes(wire.StateStarting, "subscribe to alloc.next.")
	if _, err := Init(t.Context(), e.config(base, "n1", names...)); err != nil {
		t.Fatal(err)
	}
	nodes["n2"].becomes(wire.StateChecking, "publish to alloc.log.n2")
	nodes["n3"].becomes(wire.StateChecking, "subscribe to alloc.next.")
	for name, n := range nodes {
		if n.log.count("INFO serving") > 0 {
			t.Errorf("%s has served", name)
		}
	}

	e.stop()
	for _, o := range e.opts {
		for _, u := range o.Users[1:] {
			u.Permissions.Publish.Deny, u.Permissions.Subscribe.Deny = []string{"private.>"}, nil
		}
	}
	e.start()
	for _, name := range names {
		nodes[name].becomes(wire.StateServing, "")
	}
	nc := e.connect()
	if err := nc.PublishRequest("alloc.reserve.orders", "private.inbox", nil); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error {
		for _, n := range nodes {
			if n.log.count("private.inbox") > 0 {
				return nil
			}
		}
		return errors.New("no node has been denied the inbox")
	})
	must(t, nc, "alloc.reserve.orders", "")
	for name, n := range nodes {
		if s := n.Status(); s.State != wire.StateServing {
			t.Errorf("%s is %s (%q) because of a client's inbox", name, s.State, s.Reason)
		}
	}
}

// init wants every node's word, or none is made; it says what stands there when it broke off, and can be repeated.
func TestInit(t *testing.T) {
	t.Parallel()
	e := denying(t, 3, map[string][]string{
		"mute": {"alloc.node.hello"}, "deaf": {"<alloc.inbox.>"}, "idle": {"$JS.API.STREAM.CREATE.*"}, "late": {"alloc.log.*"},
	})
	base := t.TempDir()
	cfg := e.config(base, "n1", names...)
	nc := e.connect()
	log, err := jetstream.NewLog(nc, cfg.logConfig(), "test")
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	fails := func(what string, cfg Config, without []string, words ...string) {
		t.Helper()
		began := time.Now()
		_, err := Init(t.Context(), cfg, without...)
		refusal(t, what, err, words...)
		if err != nil && strings.Contains(err.Error(), "elete") {
			t.Errorf("%s: it advises to delete: %v", what, err)
		}
		if took := time.Since(began); took > 30*time.Second {
			t.Errorf("%s: it took %s", what, took)
		}
	}
	holds := func(what string, want error) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		if id, err := log.Identity(ctx); !errors.Is(err, want) || id.LastSeq != 0 {
			t.Errorf("%s: the log is %+v, %v: want %v", what, id, err, want)
		}
	}

	// Checked: without missing in everyWord the log was made.
	fails("no node runs", cfg, nil, "no answer from n1, n2, n3")
	nodes := map[string]*live{"n1": run(t, e.config(base, "n1", names...)), "n2": run(t, e.config(base, "n2", names...))}
	for _, n := range nodes {
		n.becomes(wire.StateStarting, "allocnode init")
	}
	fails("one does not run", cfg, nil, "no answer from n3")
	fails("without the one that does", cfg, []string{"n1"}, "no answer from n3")
	fails("without a majority", cfg, []string{"n2", "n3"}, "more than half")
	fails("without one twice", cfg, []string{"n3", "n3"}, "twice")
	fails("without a stranger", cfg, []string{"n4"}, "n1, n2, n3")
	// Checked: without deny in Init all nodes were said to be silent.
	fails("no leave to ask", as(cfg, "mute"), nil, "permit", "publish to alloc.node.hello")
	fails("no leave to hear", as(cfg, "deaf"), nil, "permit", "subscribe to alloc.inbox.")
	holds("after refusals", jetstream.ErrNoStream)
	nodes["n3"] = run(t, e.config(base, "n3", names...))
	nodes["n3"].becomes(wire.StateStarting, "allocnode init")
	fails("no leave to create", as(cfg, "idle"), nil, "publish to $JS.API.STREAM.CREATE.ALLOC_LOG", "run init again")
	holds("without leave to create", jetstream.ErrNoStream)
	fails("no leave to append", as(cfg, "late"), nil, "publish to alloc.log.n1", "no entry yet: run init again")
	holds("without leave to append", nil)

	// What it left is taken, under the same rule.
	nodes["n3"].end()
	fails("an empty stream, and one does not run", cfg, nil, "no answer from n3")
	cluster, err := Init(t.Context(), cfg, "n3")
	if err != nil {
		t.Fatal(err)
	}
	fails("again", cfg, nil, "the log exists already", cluster.String())
	for _, name := range []string{"n1", "n2"} {
		nodes[name].becomes(wire.StateServing, "")
	}

	// An acknowledgement that was lost: what stands there decides. Checked: without the comparison another's log was its own.
	first, err := log.Get(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	i := initiation{cfg: &cfg, nc: nc, log: log}
	broke := errors.New("no acknowledgement")
	if id, err := i.settle(t.Context(), broke, first.Data); err != nil || id != cluster {
		t.Errorf("its own entry stands there: %s, %v", id, err)
	}
	_, err = i.settle(t.Context(), broke, []byte("x"))
	refusal(t, "another's entry stands there", err, "another init was first", "exists already")
}

// A stream that captures what nodes ask each other is no node. Checked: without the look at the name it was one of the
// answers, and the log was not made because of "the node  answers, but is not named".
func TestAcknowledgementIsNoHello(t *testing.T) {
	t.Parallel()
	nc := newExisting(t, 1, nil).connect()
	create := `{"name":"GRAB","subjects":["alloc.node.hello"],"storage":"memory"}`
	m, err := nc.Request("$JS.API.STREAM.CREATE.GRAB", []byte(create), 5*time.Second)
	if err != nil || strings.Contains(string(m.Data), `"error"`) {
		t.Fatalf("%v %+v", err, m)
	}
	acks, err := nc.SubscribeSync("_INBOX.>")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	answers, err := askHellos(ctx, nc, "alloc", []string{"n1"})
	if err != nil || len(answers) != 0 {
		t.Errorf("%+v, %v", answers, err)
	}
	var ack *nats.Msg
	for ack == nil || !strings.Contains(string(ack.Data), `"GRAB"`) {
		if ack, err = acks.NextMsg(liveWait); err != nil {
			t.Fatalf("the stream has not acknowledged: %v", err)
		}
	}
}
