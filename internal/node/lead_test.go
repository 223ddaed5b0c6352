package node

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/allocnode/allocnode/internal/wire"
)

// leadRig is nodes that tell each other who takes the requests, in one synctest bubble.
type leadRig struct {
	t     *testing.T
	mu    sync.Mutex // guards all below
	subs  []leadSub
	cut   map[string]bool // nodes that nobody hears, and that hear nobody
	lose  int             // how many messages get lost next
	nodes map[string]*leadNode
}

type leadSub struct {
	node, subject string
	fn            nats.MsgHandler
}

// leadNode is one of them, with what Node.serve does of it.
type leadNode struct {
	*lead
	rig    *leadRig
	name   string
	stop   context.CancelFunc
	kick   chan struct{}
	ended  sync.WaitGroup
	leader bool // guarded by rig.mu, as all below
	state  string
	in     bool // it takes requests
	flips  int
}

func leadBubble(t *testing.T, test func(t *testing.T, r *leadRig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := &leadRig{t: t, cut: make(map[string]bool), nodes: make(map[string]*leadNode)}
		for _, name := range names {
			r.start(name, wire.ID{1})
		}
		test(t, r)
	})
}

func (r *leadRig) start(name string, cluster wire.ID) {
	n := &leadNode{rig: r, name: name, state: wire.StateServing, kick: make(chan struct{}, 1)}
	n.lead = newLead(n, "alloc", cluster, name, func() bool { return r.get(func() bool { return n.leader }) },
		func() bool { return r.get(func() bool { return n.state == wire.StateServing }) })
	r.with(func() { r.nodes[name] = n })
	ctx, cancel := context.WithCancel(context.Background())
	n.stop = cancel
	n.ended.Go(func() {
		if err := n.Run(ctx); err != nil {
			r.t.Error(err)
		}
	})
	n.ended.Go(func() { n.serve(ctx) })
	r.t.Cleanup(func() { n.stop(); n.ended.Wait() })
}

func (n *leadNode) serve(ctx context.Context) {
	for in := false; ; {
		listens := n.rig.get(func() bool { return n.state != wire.StateHalted })
		if appends := listens && !n.StandBy(); appends != in {
			in = appends
			n.rig.with(func() { n.in, n.flips = in, n.flips+1 })
			n.Appending(in)
		}
		select {
		case <-ctx.Done():
			n.rig.with(func() { n.in = false })
			return
		case <-n.changed:
		case <-n.kick:
		}
	}
}

func (r *leadRig) with(fn func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	fn()
}

func (r *leadRig) get(fn func() bool) (is bool) {
	r.with(func() { is = fn() })
	return is
}

// Publish is the bus: to all who can hear it.
func (n *leadNode) Publish(subject string, data []byte) error {
	var fns []nats.MsgHandler
	n.rig.with(func() {
		if n.rig.lose > 0 {
			n.rig.lose--
			return
		}
		for _, s := range n.rig.subs {
			if s.subject == subject && (s.node == n.name || !n.rig.cut[n.name] && !n.rig.cut[s.node]) {
				fns = append(fns, s.fn)
			}
		}
	})
	for _, fn := range fns {
		fn(&nats.Msg{Subject: subject, Data: data})
	}
	return nil
}

// Subscribe returns a nil subscription, whose end is an error and nothing else.
func (n *leadNode) Subscribe(subject string, fn nats.MsgHandler) (*nats.Subscription, error) {
	n.rig.with(func() { n.rig.subs = append(n.rig.subs, leadSub{n.name, subject, fn}) })
	return nil, nil
}

// becomes sets what the guard of a node says.
func (r *leadRig) becomes(name, state string) {
	r.with(func() { r.nodes[name].state = state })
	r.nodes[name].kick <- struct{}{}
}

// leader has every node see one leader of the stream; "" is none.
func (r *leadRig) leader(name string) {
	r.with(func() {
		for _, n := range r.nodes {
			n.leader = n.name == name
		}
	})
}

// takers names the nodes that take requests.
func (r *leadRig) takers() string {
	var in []string
	r.with(func() {
		for _, n := range r.nodes {
			if n.in {
				in = append(in, n.name)
			}
		}
	})
	slices.Sort(in)
	return strings.Join(in, " ")
}

func (r *leadRig) want(want string) {
	r.t.Helper()
	synctest.Wait()
	if got := r.takers(); got != want {
		r.t.Errorf("requests are taken by [%s], want [%s]", got, want)
	}
}

// always wants ok of the takers, at every moment of d.
func (r *leadRig) always(d time.Duration, what string, ok func(takers string) bool) {
	r.t.Helper()
	for range d / (10 * time.Millisecond) {
		pass(10 * time.Millisecond)
		if got := r.takers(); !ok(got) {
			r.t.Fatalf("requests are taken by [%s], want %s", got, what)
		}
	}
}

func somebody(takers string) bool { return takers != "" }

// led is the time in which the others stand by for a leader that serves.
const led = leadTwice*leadInterval + 50*time.Millisecond

func (r *leadRig) flips() (n int) {
	r.with(func() {
		for _, node := range r.nodes {
			n += node.flips
		}
	})
	return n
}

func TestLeadTakes(t *testing.T) {
	leadBubble(t, func(t *testing.T, r *leadRig) {
		r.want("n1 n2 n3") // nobody leads: all
		r.leader("n2")
		r.always(led, "somebody", somebody)
		r.want("n2")
		before := r.flips()
		r.always(time.Hour, "n2", func(takers string) bool { return takers == "n2" })

		// The role moves: the old leader goes once the new one has come, and the third does not move.
		r.leader("n3")
		r.always(led, "somebody, n1 not", func(takers string) bool { return somebody(takers) && !strings.Contains(takers, "n1") })
		r.want("n3")
		if got := r.flips() - before; got != 2 {
			t.Errorf("%d nodes came or went, want 2", got)
		}
	})
}

// Checked: with leadTwice at 1 n1 stood by at the first word, and with times set to 1 for each new speaker n1 came in at the
// change (TestLeadTakes).
func TestLeadOneWordIsNotEnough(t *testing.T) {
	leadBubble(t, func(t *testing.T, r *leadRig) {
		n1 := r.nodes["n1"]
		say := func() { n1.hear("takes n2") }
		say()
		r.want("n1 n2 n3")
		pass(leadPatience) // a pause: it counts anew. Checked: without the silence in standByLocked n1 stood by.
		say()
		r.want("n1 n2 n3")
		say()
		r.want("n2 n3")
		pass(leadPatience + leadInterval)
		r.want("n1 n2 n3")
	})
}

// Killed, or cut off: silence brings the others in, and a little silence does not.
func TestLeadSilence(t *testing.T) {
	leadBubble(t, func(t *testing.T, r *leadRig) {
		r.leader("n2")
		pass(led)
		before := r.flips()
		for range 50 { // losses that a busy machine has
			r.with(func() { r.lose = 3 })
			r.always(5*leadInterval, "n2", func(takers string) bool { return takers == "n2" })
		}
		if r.flips() != before {
			t.Errorf("%d nodes came or went", r.flips()-before)
		}
		r.with(func() { r.cut["n2"] = true })
		pass(leadPatience + leadInterval)
		r.want("n1 n2 n3") // n2 still believes that it leads
		r.with(func() { r.nodes["n3"].leader = true })
		r.always(led, "n2, and another", func(takers string) bool { return takers != "n2" })
		r.want("n2 n3")

		// Back, n2 believes that it leads until its next look; n1 may stand by for either.
		r.with(func() { r.cut["n2"] = false })
		r.always(time.Second, "n2 n3", func(takers string) bool { return takers == "n2 n3" })
		r.leader("n3")
		pass(led)
		r.want("n3")
	})
}

// The leader of the stream serves not, or not yet: it says nothing, and all others take requests.
func TestLeadOfANodeThatDoesNotServe(t *testing.T) {
	leadBubble(t, func(t *testing.T, r *leadRig) {
		r.becomes("n2", wire.StateHalted)
		r.leader("n2")
		r.always(time.Minute, "n1 n3", func(takers string) bool { return takers == "n1 n3" })
		r.becomes("n2", wire.StateServing)
		pass(led)
		r.want("n2")

		// It halts or fences: the others come in at once. Checked: without the word in Appending(false) nobody was there.
		r.becomes("n2", wire.StateHalted)
		r.want("n1 n3")
		r.always(time.Minute, "n1 n3", func(takers string) bool { return takers == "n1 n3" })
		r.becomes("n2", wire.StateServing)
		pass(led)
		r.want("n2")

		// A check: waited out where it is short. What it takes longer the others answer.
		// Checked: without serving in tell n1 and n3 stood by while n2 answered nobody.
		r.becomes("n2", wire.StateChecking)
		r.always(leadPatience/2, "n2", func(takers string) bool { return takers == "n2" })
		pass(leadPatience)
		r.want("n1 n2 n3")
		r.becomes("n2", wire.StateServing)
		pass(led)
		r.want("n2")
	})
}

// The role goes to and fro, at any pace, with looks that fail in between (nobody leads): somebody takes the requests at
// every moment. Checked: without forgetLocked in a node that leads, both stood by at the first return.
func TestLeadNeverAllStandBy(t *testing.T) {
	for _, pace := range []time.Duration{10, 50, 190, 210, 300, 410, 700, 990, 1010, 1500} {
		for _, looks := range [][]string{{"n1", "n2"}, {"n1", "", "n2", ""}, {"n1", "n2", "", "n3"}} {
			t.Run(fmt.Sprint(pace*time.Millisecond, looks), func(t *testing.T) {
				leadBubble(t, func(t *testing.T, r *leadRig) {
					synctest.Wait()
					for i := range 60 {
						r.leader(looks[i%len(looks)])
						r.always(pace*time.Millisecond, "somebody", somebody)
					}
				})
			})
		}
	}
}

// A node that is stopped waits until another has come in, and takes requests meanwhile.
// Checked: without the word in HandOver it waited in vain and nobody was there after it; without the answer of one that is
// in already it waited in vain in the second part; and with its word going on the others went while it ended.
func TestLeadHandOver(t *testing.T) {
	leadBubble(t, func(t *testing.T, r *leadRig) {
		handOver := func(name string) (took time.Duration) {
			began := time.Now()
			r.nodes[name].HandOver(t.Context())
			took = time.Since(began)
			if got := r.takers(); !strings.Contains(got, name) {
				t.Errorf("while %s hands over requests are taken by [%s]", name, got)
			}
			r.always(time.Second, "others too", func(takers string) bool { return took != leadOverlap || len(takers) > len(name) })
			r.nodes[name].stop()
			r.with(func() { r.cut[name] = true })
			return took
		}
		r.leader("n2")
		pass(led)
		if took := handOver("n2"); took != leadOverlap {
			t.Errorf("it took %s", took)
		}
		r.want("n1 n3")
		r.always(leadPatience, "n1 n3", func(takers string) bool { return takers == "n1 n3" })
		r.leader("") // its server has gone
		r.with(func() { r.nodes["n3"].leader = true })
		if took := handOver("n3"); took != leadOverlap { // n1 is in
			t.Errorf("it took %s", took)
		}
		r.want("n1")
		r.leader("n1") // nobody is left to come
		if took := handOver("n1"); took != handOverTimeout {
			t.Errorf("it took %s", took)
		}
	})
}

// Who is relied on by nobody does not wait.
func TestLeadHandOverOfAnother(t *testing.T) {
	leadBubble(t, func(t *testing.T, r *leadRig) {
		r.leader("n2")
		pass(led)
		r.with(func() { r.cut["n1"] = true })
		pass(leadPatience + leadInterval)
		r.want("n1 n2")
		began := time.Now()
		for _, name := range []string{"n1", "n3"} {
			r.nodes[name].HandOver(t.Context())
		}
		if took := time.Since(began); took != 0 {
			t.Errorf("it took %s", took)
		}
	})
}

// Checked: with the subject without the cluster's id n4 stood by for n2.
func TestLeadOfAnotherCluster(t *testing.T) {
	leadBubble(t, func(t *testing.T, r *leadRig) {
		r.start("n4", wire.ID{2})
		r.leader("n2")
		pass(led)
		r.want("n2 n4")
	})
}
