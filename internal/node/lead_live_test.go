package node

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"github.com/allocnode/allocnode/internal/service"
	"github.com/allocnode/allocnode/internal/wire"
)

// endpoints asks the micro services of the nodes that serve for their endpoints, by node.
func (c *trio) endpoints(nc *nats.Conn) map[string][]string {
	c.t.Helper()
	inbox := nc.NewInbox()
	sub, err := nc.SubscribeSync(inbox)
	if err == nil {
		err = nc.PublishRequest("$SRV.INFO."+service.Name, inbox, nil)
	}
	if err != nil {
		c.t.Fatal(err)
	}
	defer func() { _ = sub.Unsubscribe() }()
	all := make(map[string][]string)
	for deadline := time.Now().Add(300 * time.Millisecond); ; {
		m, err := sub.NextMsg(time.Until(deadline))
		if err != nil {
			return all
		}
		var info micro.Info
		if len(m.Data) == 0 {
			return all // no responders
		}
		if err := json.Unmarshal(m.Data, &info); err != nil {
			c.t.Fatalf("%s: %v", m.Data, err)
		}
		for _, e := range info.Endpoints {
			all[info.Metadata["node"]] = append(all[info.Metadata["node"]], e.Name)
		}
	}
}

// taker waits until of the nodes named, and no others, one has the endpoint reserve, and all have next and info.
func (c *trio) taker(nc *nats.Conn, which ...string) (name string) {
	c.t.Helper()
	eventually(c.t, func() error {
		all := c.endpoints(nc)
		var takers []string
		for _, n := range which {
			if slices.Contains(all[n], "reserve") {
				takers = append(takers, n)
			}
			for _, e := range []string{"next", "info", "list"} {
				if !slices.Contains(all[n], e) {
					return fmt.Errorf("%s has no endpoint %s: %v", n, e, all)
				}
			}
		}
		if len(all) != len(which) || len(takers) != 1 {
			return fmt.Errorf("want one of %v that takes reservations: %v", which, all)
		}
		for _, e := range []string{"reserve-list", "create", "advance"} {
			for _, n := range which {
				if slices.Contains(all[n], e) != (n == takers[0]) {
					return fmt.Errorf("%s of %s: %v", e, n, all)
				}
			}
		}
		name = takers[0]
		return nil
	})
	return name
}

// questions asks what every node answers, by way of each of the nodes named, until ended: it wants an answer each time, and
// of alloc.status as many as there are nodes.
type questions struct {
	t     *testing.T
	stop  chan struct{}
	group sync.WaitGroup
	mu    sync.Mutex // guards asked
	asked map[string]int
}

func (c *trio) questions(nodes int, which ...string) *questions {
	q := &questions{t: c.t, stop: make(chan struct{}), asked: make(map[string]int)}
	ask := func(name, subject string, fn func(nc *nats.Conn) error) {
		nc := c.nodes[name].connect()
		q.group.Go(func() {
			for {
				if err := fn(nc); err != nil {
					c.t.Errorf("%s by way of %s: %v", subject, name, err)
					return
				}
				q.mu.Lock()
				q.asked[subject]++
				q.mu.Unlock()
				select {
				case <-q.stop:
					return
				case <-time.After(5 * time.Millisecond):
				}
			}
		})
	}
	for _, name := range which {
		for _, subject := range []string{"alloc.info.orders", "alloc.list", "alloc.next.asked"} {
			ask(name, subject, func(nc *nats.Conn) error {
				_, err := nc.Request(subject, nil, 5*time.Second)
				return err
			})
		}
		ask(name, "alloc.status", func(nc *nats.Conn) error {
			inbox := nc.NewInbox()
			sub, err := nc.SubscribeSync(inbox)
			if err == nil {
				err = nc.PublishRequest("alloc.status", inbox, nil)
			}
			for range nodes {
				if err == nil {
					_, err = sub.NextMsg(liveWait)
				}
			}
			return errors.Join(err, sub.Unsubscribe())
		})
	}
	return q
}

func (q *questions) end() {
	q.t.Helper()
	close(q.stop)
	q.group.Wait()
	if len(q.asked) != 4 {
		q.t.Errorf("asked %v", q.asked)
	}
	q.t.Logf("answered: %v", q.asked)
}

// The role goes with the lead of the stream, and what every node answers is answered throughout.
func (c *trio) roleMoves(t *testing.T) {
	nc := c.nodes["n1"].connect()
	var old string
	eventually(t, func() error {
		old = c.taker(nc, names...)
		if leader := c.leader(); leader != old {
			return fmt.Errorf("%s takes reservations, %s leads the stream", old, leader)
		}
		return nil
	})
	q := c.questions(3, names...)
	l := c.traffic("role", 12)
	l.more(12, 3)
	eventually(t, func() error {
		c.stepDown(old) // again, should it have been elected once more
		if c.taker(nc, names...) == old {
			return fmt.Errorf("%s takes reservations still", old)
		}
		return nil
	})
	l.more(12, 3)
	l.end()
	q.end()
	// A request that is on its way between two servers when a node ends to listen is lost: NATS has it so. Not more.
	if n := l.errs[nats.ErrNoResponders.Error()]; n != 0 || l.errs[nats.ErrTimeout.Error()] > 12 {
		t.Errorf("%d reservations found nobody: %v", n, l.errs)
	}
}

// A node stands by while requests wait in it: they are answered, and it answers what every node does meanwhile.
// Checked: with Drain before StartServing in serve it had no endpoint until the requests' deadline.
func (c *trio) waitsAndStandsBy(t *testing.T) {
	nc := c.nodes["n1"].connect()
	taker := c.taker(nc, names...)
	name := names[(slices.Index(names, taker)+1)%len(names)]
	n := c.nodes[name]
	logConn, err := n.server.LogConn()
	if err != nil {
		t.Fatal(err)
	}
	defer logConn.Close()
	// The node may check the log meanwhile, when it hears late that the lead has moved. Such a check opens what the test holds.
	for range 4 {
		if c.waits(nc, logConn, n) {
			return
		}
		t.Logf("something else held %s too", name)
	}
	t.Errorf("%s does not come to rest", name)
}

// waits holds n, and has requests wait in it while it stands by. It reports whether nothing else held n meanwhile.
func (c *trio) waits(nc, logConn *nats.Conn, n *live) (undisturbed bool) {
	t := c.t
	sub, err := nc.SubscribeSync(nc.NewInbox())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = sub.Unsubscribe() }()
	eventually(t, func() error { // nothing of the try before, and no check's entry
		if queued, inFlight := n.link.get().prop.Waiting(); queued+inFlight > 0 {
			return fmt.Errorf("%s has %d requests that wait and %d under way", n.name, queued, inFlight)
		}
		return nil
	})
	ticket := n.guard.Hold("the test holds this node")
	overtaken := func() bool {
		n.guard.mu.Lock()
		defer n.guard.mu.Unlock()
		return n.guard.held != ticket
	}
	sent := 0
	eventually(t, func() error {
		if overtaken() {
			return nil
		}
		word := logConn.Publish(n.link.get().lead.subject, []byte("leaves nobody")) // so it comes in
		sent++
		err := errors.Join(word, nc.PublishRequest("alloc.reserve.waits", sub.Subject, nil), nc.Flush())
		if queued, _ := n.link.get().prop.Waiting(); queued == 0 {
			return errors.Join(err, fmt.Errorf("%s has no request that waits", n.name))
		}
		return err
	})
	eventually(t, func() error {
		if all := c.endpoints(nc); !overtaken() && (!slices.Contains(all[n.name], "info") || slices.Contains(all[n.name], "reserve")) {
			return fmt.Errorf("%s, which stands by again, has the endpoints %v", n.name, all[n.name])
		}
		return nil
	})
	queued, _ := n.link.get().prop.Waiting()
	undisturbed = n.guard.Open(ticket)
	if undisturbed && queued == 0 {
		t.Errorf("no request waits in %s", n.name)
	}
	for i := range sent { // whoever opened
		if m, err := sub.NextMsg(liveWait); err != nil || undisturbed && len(m.Header) > 0 {
			t.Fatalf("answer %d of %d: %v, %v", i+1, sent, m, err)
		}
	}
	return undisturbed
}

// The node that takes reservations is stopped: another does so before it goes, and then the one that leads.
func (c *trio) takerIsStopped(t *testing.T) {
	old := c.taker(c.nodes["n1"].connect(), names...)
	others := slices.DeleteFunc(slices.Clone(names), func(n string) bool { return n == old })
	key := `{"count":5,"key":"taker"}`
	first := must(t, c.nodes[old].connect(), "alloc.reserve.orders", key)
	nc := c.nodes[others[0]].connect()

	began := time.Now()
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		c.nodes[old].end()
	}()
	for {
		// With the log's leader gone there may be no answer but unavailable, which is one.
		if _, err := try(nc, "alloc.reserve.orders", key); errors.Is(err, nats.ErrNoResponders) {
			t.Errorf("no responders, %s after the stop began", time.Since(began))
		}
		select {
		case <-stopped:
		case <-time.After(time.Millisecond):
			continue
		}
		break
	}
	t.Logf("%s stopped in %s", old, time.Since(began))
	if r := must(t, nc, "alloc.reserve.orders", key); r.rng() != first.rng() {
		t.Errorf("the key got %s: want %s", r.rng(), first.rng())
	}
	c.taker(nc, others...)
	c.start(old)
	c.serve(names...)
	c.taker(nc, names...)
	c.alike()
}

// The node that takes reservations is fenced: it leads the stream on, and the others take them.
func (c *trio) takerIsFenced(t *testing.T) {
	nc := c.nodes["n1"].connect()
	old := c.taker(nc, names...)
	c.nodes[old].fence("the test fences this node")
	lost := 0
	for range 20 {
		// Until the others have come in, there is an error, or nobody: at once, and not after a time-out. (As for roleMoves.)
		if _, err := try(nc, "alloc.reserve.orders", ""); errors.Is(err, nats.ErrTimeout) {
			lost++
		}
	}
	if lost > 1 {
		t.Errorf("%d requests had no answer", lost)
	}
	eventually(t, func() error {
		if s := c.nodes[old].Status(); s.State != wire.StateFenced || s.Role != wire.RoleLeader {
			return fmt.Errorf("%s is %s, %s", old, s.Role, s.State)
		}
		for n, e := range c.endpoints(nc) {
			if n == old || !slices.Contains(e, "reserve") {
				return fmt.Errorf("%s has the endpoints %v", n, e)
			}
		}
		return nil
	})
	must(t, nc, "alloc.reserve.orders", `{"key":"after the fence"}`)
	c.stop(old)
	c.unfence(old) // its log is whole
	c.start(old)
	c.serve(names...)
	c.taker(nc, names...)
}
