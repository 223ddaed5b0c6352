package node

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/allocnode/allocnode"
	"github.com/allocnode/allocnode/apply"
	"github.com/allocnode/allocnode/internal/wire"
	"github.com/allocnode/allocnode/kv"
)

// trio is a cluster of three nodes on the loopback interface.
type trio struct {
	t     *testing.T
	base  string
	ports []int
	nodes map[string]*live
}

func newTrio(t *testing.T) *trio {
	c := &trio{t: t, base: t.TempDir(), nodes: make(map[string]*live)}
	c.ports = freePorts(t, len(names))
	return c
}

// config is a node's file; listen is the port that others reach it at.
func (c *trio) config(base, name string, listen int, alloc string) Config {
	var routes []string
	for _, p := range c.ports {
		routes = append(routes, fmt.Sprintf("nats://127.0.0.1:%d", p))
	}
	return config(c.t, base, name, fmt.Sprintf(`system_account: SYS
		accounts { SYS { users: [ { user: sys, password: sys } ] } }
		cluster { name: trio, listen: "127.0.0.1:%d", routes: [%s] }
		alloc { nodes: [n1, n2, n3], %s }`, listen, strings.Join(routes, ", "), alloc))
}

func (c *trio) dir(name string) string { return filepath.Join(c.base, name) }

func (c *trio) start(which ...string) {
	c.t.Helper()
	for _, name := range which {
		c.nodes[name] = run(c.t, c.config(c.base, name, c.ports[slices.Index(names, name)], ""))
	}
}

func (c *trio) stop(which ...string) {
	c.t.Helper()
	for _, name := range which {
		n := c.nodes[name]
		n.end()
		// A nats-server that is stopped before the log's group has elected anybody asks for a leader three times more, 5 s each.
		late := n.err != nil && strings.Contains(n.err.Error(), "grace was cut short") && n.log.count("catchup aborted, no leader") > 0
		if n.err != nil && !late {
			c.t.Errorf("stopped in order, %s returned %v", name, n.err)
		}
	}
}

func (c *trio) serve(which ...string) {
	c.t.Helper()
	for _, name := range which {
		c.nodes[name].becomes(wire.StateServing, "")
	}
}

// alike waits until all three have applied the same, and wants equal digests there.
func (c *trio) alike() {
	c.t.Helper()
	eventually(c.t, func() error {
		var all []wire.Status
		for _, name := range names {
			all = append(all, c.nodes[name].Status())
		}
		for _, s := range all {
			switch {
			case s.Cursor == all[0].Cursor && s.Digest != all[0].Digest:
				c.t.Fatalf("at seq %d %s has digest %s, %s has %s", s.Cursor, s.Name, s.Digest, all[0].Name, all[0].Digest)
			case s.Cursor != all[0].Cursor:
				return fmt.Errorf("%s is at seq %d, %s at %d", s.Name, s.Cursor, all[0].Name, all[0].Cursor)
			}
		}
		return nil
	})
}

// leader waits for the stream's leader, as the nodes that run see it.
func (c *trio) leader() (name string) {
	c.t.Helper()
	eventually(c.t, func() error {
		for n, l := range c.nodes {
			if s := l.Status(); s.State == wire.StateServing && s.Role == wire.RoleLeader {
				name = n
				return nil
			}
		}
		return errors.New("no serving node is the leader")
	})
	return name
}

// traffic is clients that reserve, each under a key that it repeats until it has the range.
type traffic struct {
	t      *testing.T
	mu     sync.Mutex // guards all below
	ranges []allocnode.Range
	done   map[int]int // reservations, by client
	errs   map[string]int
	stop   chan struct{}
	group  sync.WaitGroup
}

func (c *trio) traffic(sequence string, clients int) *traffic {
	l := &traffic{t: c.t, done: make(map[int]int), errs: make(map[string]int), stop: make(chan struct{})}
	var conns []*nats.Conn
	for _, name := range names {
		conns = append(conns, c.nodes[name].connect())
	}
	for i := range clients {
		l.group.Go(func() {
			for n := 0; ; n++ {
				body := fmt.Sprintf(`{"count":%d,"key":"%s-%d-%d"}`, 1+i%7, sequence, i, n)
				for try1 := 0; ; try1++ {
					r, err := try(conns[(i+try1)%len(conns)], "alloc.reserve."+sequence, body)
					if err == nil {
						l.got(i, r, uint64(1+i%7))
						break
					}
					l.failed(err)
					select {
					case <-l.stop:
						// The range of this one may be a gap; the sum is not compared then.
						return
					case <-time.After(20 * time.Millisecond):
					}
				}
				select {
				case <-l.stop:
					return
				default:
				}
			}
		})
	}
	return l
}

func (l *traffic) got(client int, r reply, want uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if r.rng().Count() != want {
		l.t.Errorf("client %d asked for %d and got %s", client, want, r.rng())
	}
	l.ranges = append(l.ranges, r.rng())
	l.done[client]++
}

func (l *traffic) failed(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var e *allocnode.Error
	switch {
	case errors.As(err, &e) && (e.Code == allocnode.CodeUnavailable || e.Code == allocnode.CodeUnknownOutcome):
		l.errs[string(e.Code)]++
	case errors.Is(err, nats.ErrNoResponders), errors.Is(err, nats.ErrTimeout):
		l.errs[err.Error()]++
	default:
		l.t.Errorf("a wrong answer: %v", err)
	}
}

// more waits until every one of clients has made n more reservations.
func (l *traffic) more(clients, n int) {
	l.t.Helper()
	l.mu.Lock()
	want := make(map[int]int)
	for i := range clients {
		want[i] = l.done[i] + n
	}
	l.mu.Unlock()
	eventually(l.t, func() error {
		l.mu.Lock()
		defer l.mu.Unlock()
		for i := range clients {
			if l.done[i] < want[i] {
				return fmt.Errorf("client %d has made %d of %d reservations; errors %v", i, l.done[i], want[i], l.errs)
			}
		}
		return nil
	})
}

// end stops the clients and wants their ranges to be disjoint.
func (l *traffic) end() {
	l.t.Helper()
	close(l.stop)
	l.group.Wait()
	slices.SortFunc(l.ranges, func(a, b allocnode.Range) int { return int(a.Start) - int(b.Start) })
	for i := 1; i < len(l.ranges); i++ {
		if a, b := l.ranges[i-1], l.ranges[i]; a.Overlaps(b) {
			l.t.Fatalf("%s and %s were both given out", a, b)
		}
	}
	l.t.Logf("%d ranges; errors on the way: %v", len(l.ranges), l.errs)
}

// TestCluster is one cluster through its life; the steps build on one another, since a start takes seconds.
func TestCluster(t *testing.T) {
	t.Parallel()
	c := newTrio(t)
	c.start(names...)
	c.serve(names...)

	step := func(name string, fn func(t *testing.T)) {
		t.Helper()
		if t.Failed() {
			return
		}
		began := time.Now()
		fn(t)
		t.Logf("%s: %s", name, time.Since(began).Round(10*time.Millisecond))
	}
	step("all alike", c.allAlike)
	step("leader steps down under load", c.leaderStepsDown)
	step("the role moves", c.roleMoves)
	step("requests wait while the role moves", c.waitsAndStandsBy)
	step("who takes reservations is stopped", c.takerIsStopped)
	step("who takes reservations is fenced", c.takerIsFenced)
	step("meta leader steps down", c.metaLeaderStepsDown)
	step("one is stopped", c.oneIsStopped)
	step("a second node of one name", c.secondNodeOfOneName)
	step("a wiped directory", c.wipedDirectory)
	step("directories of others (hazard 10)", c.directoriesOfOthers)
	step("two are stopped", c.twoAreStopped)
	step("the stream is deleted", c.streamIsDeleted)
}

func (c *trio) allAlike(t *testing.T) {
	for i, name := range names {
		nc := c.nodes[name].connect()
		if r := must(t, nc, "alloc.reserve.orders", fmt.Sprintf(`{"count":10,"key":"alike%d"}`, i)); r.Start != uint64(10*i+1) {
			t.Errorf("through %s: %+v", name, r)
		}
	}
	c.alike()
	roles := make(map[string]int)
	for _, l := range c.nodes {
		roles[l.Status().Role]++
	}
	if roles[wire.RoleLeader] != 1 || roles[wire.RoleFollower] != 2 {
		t.Errorf("roles %v", roles)
	}
}

// stepDown has the lead of the stream go from old to another node, always the same one, so that whoever asks twice, because an
// answer was lost, does not move it back. It returns when the servers have said that it goes.
func (c *trio) stepDown(old string) {
	c.t.Helper()
	to := names[(slices.Index(names, old)+1)%len(names)]
	body := map[string]any{"placement": map[string]any{"preferred": to}}
	eventually(c.t, func() error {
		s := c.nodes["n1"].api("STREAM.LEADER.STEPDOWN.ALLOC_LOG", body)
		if !strings.Contains(s, `"success":true`) && !strings.Contains(s, "is already leader") {
			return fmt.Errorf("stepdown: %s", s)
		}
		return nil
	})
}

// Checked: with neither the advisory nor the watch's look at the leader's name no check was made.
func (c *trio) leaderStepsDown(t *testing.T) {
	l := c.traffic("stepdown", 20)
	l.more(20, 2)
	for range 2 {
		old := c.leader()
		checks := make(map[string]int)
		for name, n := range c.nodes {
			checks[name] = n.log.count("INFO serving")
		}
		c.stepDown(old)
		// On every node the gate closes and opens again.
		eventually(t, func() error {
			for name, n := range c.nodes {
				if n.log.count("INFO serving") <= checks[name] {
					return fmt.Errorf("%s has made no new check since %s stepped down", name, old)
				}
			}
			return nil
		})
		c.serve(names...)
		l.more(20, 3)
	}
	l.end()
	c.alike()
}

func (c *trio) metaLeaderStepsDown(t *testing.T) {
	l := c.traffic("meta", 3)
	l.more(3, 2)
	sys := c.nodes["n1"].connect(nats.UserInfo("sys", "sys"))
	eventually(t, func() error { // again, where there was no leader to ask
		m, err := sys.Request("$JS.API.META.LEADER.STEPDOWN", nil, 2*time.Second)
		if err != nil || !strings.Contains(string(m.Data), `"success":true`) {
			return fmt.Errorf("stepdown: %v, %v", m, err)
		}
		return nil
	})
	l.more(3, 5)
	l.end()
	c.alike()
}

// Promise 3: the same key gets the same range from any node, while the first is down and after its return.
func (c *trio) oneIsStopped(t *testing.T) {
	key := `{"count":5,"key":"moves"}`
	first := must(t, c.nodes["n3"].connect(), "alloc.reserve.orders", key)
	l := c.traffic("stopped", 3)
	l.more(3, 1)
	c.stop("n3")
	for _, name := range []string{"n1", "n2"} {
		if r := must(t, c.nodes[name].connect(), "alloc.reserve.orders", key); r.rng() != first.rng() {
			t.Errorf("%s gave %s for a key that had %s", name, r.rng(), first.rng())
		}
	}
	l.more(2, 3) // the third's connection is to the node that is down
	c.start("n3")
	c.serve(names...)
	l.end()
	c.alike()
	if r := must(t, c.nodes["n3"].connect(), "alloc.reserve.orders", key); r.rng() != first.rng() {
		t.Errorf("n3 gave %s for a key that had %s", r.rng(), first.rng())
	}
}

// A second node of the name n2, with its own directory: the servers do not let it in, and the cluster goes on.
func (c *trio) secondNodeOfOneName(t *testing.T) {
	other := run(t, c.config(t.TempDir(), "n2", -1, ""))
	eventually(t, func() error {
		if other.log.count("uplicate") == 0 && other.log.count("has the same name") == 0 {
			return fmt.Errorf("the second n2 has not been told that its name is taken")
		}
		return nil
	})
	if s := other.Status(); s.State != wire.StateStarting {
		t.Errorf("the second n2 is %s (%q)", s.State, s.Reason)
	}
	must(t, c.nodes["n1"].connect(), "alloc.reserve.orders", `{"key":"beside"}`)
	other.end()
	c.serve(names...)
}

// Its guard is checked at TestAloneLosesFiles.
func (c *trio) wipedDirectory(t *testing.T) {
	c.stop("n3")
	remove(t, c.dir("n3"))
	c.start("n3")
	c.nodes["n3"].becomes(wire.StateChecking, "allocnode forget n3")
	nc := c.nodes["n1"].connect()
	must(t, nc, "alloc.reserve.orders", `{"key":"while it is refused"}`)
	must(t, nc, "alloc.forget.n3", "")
	c.serve(names...)
	c.alike()
}

// Hazard 10: a node comes with a history of its own.
// The guards are checked at TestHazard10BootstrapOfANodeThatRemembers and TestAloneRestart; behind the first stands
// compareIdentity.
func (c *trio) directoriesOfOthers(t *testing.T) {
	before := c.nodes["n1"].Status()
	c.stop("n3")
	kept := c.dir("n3") + ".kept"
	if err := os.Rename(c.dir("n3"), kept); err != nil {
		t.Fatal(err)
	}
	for _, other := range []struct {
		clustered bool
		alloc     string
		ended     string // it refuses to start
		fenced    string // it fences
	}{
		{clustered: false, ended: "other mode"},
		{clustered: true, fenced: "this node's data are of cluster 0700"},
		// With cluster_id set it is told before its server could meet the others.
		{clustered: true, alloc: fmt.Sprintf("cluster_id: %q", before.Cluster), ended: "cluster_id is set"},
	} {
		remove(t, c.dir("n3"))
		cat, err := kv.Open(filepath.Join(c.dir("n3"), "catalog"), kv.Identity{Node: "n3", Clustered: other.clustered}, quiet)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := cat.Load(apply.NewRestorer().Add); err != nil {
			t.Fatal(err)
		}
		m := apply.New()
		f := newFakeLog()
		f.id.ClusterID = wire.ID{7}
		_, delta, err := m.Apply(1, f.entry("n1", 0, f.genesis()))
		if err == nil {
			err = cat.Commit([]apply.Delta{delta})
		}
		if err := errors.Join(err, cat.Close()); err != nil {
			t.Fatal(err)
		}
		n := run(t, c.config(c.base, "n3", c.ports[2], other.alloc))
		if other.ended != "" {
			n.ended(other.ended)
		} else {
			n.becomes(wire.StateFenced, other.fenced)
			n.end()
		}
	}
	remove(t, c.dir("n3"))
	if err := os.Rename(kept, c.dir("n3")); err != nil {
		t.Fatal(err)
	}
	must(t, c.nodes["n1"].connect(), "alloc.reserve.orders", `{"key":"undisturbed"}`)
	if s := c.nodes["n1"].Status(); s.State != wire.StateServing || s.Cluster != before.Cluster || s.Epoch != before.Epoch {
		t.Errorf("n1 is now %+v", s)
	}
	c.start("n3")
	c.serve(names...)
	c.alike()
}

// The majority is lost: every request has its answer before the client gives up. A node that starts without a majority
// waits, answers nothing and can be stopped. With the others' return all is well.
func (c *trio) twoAreStopped(t *testing.T) {
	nc := c.nodes["n1"].connect()
	first := must(t, nc, "alloc.reserve.orders", `{"count":3,"key":"before"}`)
	c.stop("n2", "n3")
	for i := range 3 {
		r, err := try(nc, "alloc.reserve.orders", fmt.Sprintf(`{"count":7,"key":"lost%d"}`, i))
		if !errors.Is(err, allocnode.ErrUnavailable) && !errors.Is(err, allocnode.ErrUnknownOutcome) {
			t.Errorf("without a majority: answered %+v, %v", r, err)
		}
	}
	c.stop("n1")
	c.start("n1")
	c.nodes["n1"].becomes(wire.StateStarting, "waiting for the log")
	if r, err := try(c.nodes["n1"].connect(), "alloc.reserve.orders", ""); err == nil {
		t.Errorf("started without a majority, it reserved %+v", r)
	}
	c.stop("n1")

	c.start(names...)
	c.serve(names...)
	nc = c.nodes["n1"].connect()
	if r := must(t, nc, "alloc.reserve.orders", `{"count":3,"key":"before"}`); r.rng() != first.rng() {
		t.Errorf("the key got %s: want %s", r.rng(), first.rng())
	}
	must(t, nc, "alloc.reserve.orders", `{"count":7,"key":"lost0"}`)
	c.alike()
}

func (c *trio) streamIsDeleted(t *testing.T) {
	nc := c.nodes["n1"].connect()
	c.nodes["n1"].api("STREAM.DELETE.ALLOC_LOG", nil)
	for _, name := range names {
		c.nodes[name].becomes(wire.StateFenced, "there is no stream")
	}
	if r, err := try(nc, "alloc.reserve.orders", ""); err == nil {
		t.Errorf("reserved %+v", r)
	}
	if s := c.nodes["n1"].api("STREAM.INFO.ALLOC_LOG", nil); !strings.Contains(s, "stream not found") {
		t.Errorf("there is a stream again: %s", s)
	}
}
