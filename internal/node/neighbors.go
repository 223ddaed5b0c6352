package node

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/allocnode/allocnode/internal/wire"
	"github.com/allocnode/allocnode/jetstream"
)

// neighbors finds out whether the service's subjects are this cluster's alone. Leaf nodes and gateways join subject spaces,
// so that requests reach two clusters, and each answers some: a client would see two sequences under one name. Every node
// says who it is on a subject of the clients' account, a few times a second, and listens there. While a node hears another
// cluster it does not serve, and says so; neither does the other one, which hears this one.
//
// The same for a copy of this node's directory, which is of the same cluster and bears the same name: over leaf nodes it
// has a log of its own, so that the log cannot tell. That another process speaks under this name is no proof yet: a dying
// predecessor's last word may be on its way. So a node that hears its own name repeats the other's incarnation, and
// believes in a twin that repeats its own: who knows of this run lives beside it.
//
//	n1 run 7  ── n1, 7 ────────────> n1 run 9 (a copy)
//	n1 run 7  <─ n1, 9, heard 7 ──── n1 run 9: run 7 does not serve
//	n1 run 7  ── n1, 7, heard 9 ───> n1 run 9: nor does run 9
//
// Where others can be there at all (shared), a node begins as if it had heard one, until its own greetings have come back
// over two of their intervals, after all that it can know of was joined: what is odd is answered at once, so whoever is
// there has been heard by then. A link that forms later is noticed at the next greeting of either side.
//
// The greeting names an inbox, and so do requests that no node answers (probes): a stream of the other side that captures
// the prefix sends its acknowledgement there, also where the API for streams does not reach, across a leaf node.
//
// Nothing rests on a message that is not heard: clients pin the cluster's id, and the log is out of reach from there.
type neighbors struct {
	nc      *nats.Conn // the service's
	subject string
	prefix  string
	self    greeting
	shared  bool             // another cluster, or a stream of another system, may be joined to the clients' account
	linked  func() bool      // what the configuration joins is joined
	serving func() bool      // whether this node answers requests now
	tell    func(why string) // from one goroutine, when the answer changes; "" when the subjects are this cluster's alone

	heard chan heard

	// All below is Run's goroutine's.
	listening string               // why it is not known yet that the subjects are this cluster's alone; "" once it is
	said      string               // told last
	foreign   string               // the first of what is in seen
	seen      map[string]time.Time // by who it is, when it was heard last
	inbox     string
	from      uint64    // number of the first greeting after all was linked; 0: it is not
	own       int       // how many greetings from there on have come back
	answered  time.Time // when something odd was answered last
	began     time.Time // when Run began
}

const (
	greetEvery    = time.Second
	greetShared   = 250 * time.Millisecond // the same, where others can be there
	greetPatience = 10 * time.Second       // silence after which another cluster is gone
	greetBack     = 3                      // greetings of its own that a node must hear before it serves
	answerPause   = 50 * time.Millisecond  // between two answers: a bound on what a flood of greetings makes
	linkPatience  = 3 * time.Second        // for a leaf node's remotes at the start
	probeEvery    = 4 * time.Second        // below greetPatience by far: one may be lost
)

const stillListening = "listening for other clusters, and for streams, on the service's subjects: this node's own greetings on " +
	"%s.node.cluster have not come back yet"

// greeting is what is said. What a later version adds to it is not looked at.
type greeting struct {
	Node        string  `json:"node"`
	Cluster     wire.ID `json:"cluster"`
	Catalog     wire.ID `json:"catalog"`
	Incarnation wire.ID `json:"incarnation"`
	Serving     bool    `json:"serving"`
	Number      uint64  `json:"number"`         // 1 is the first of this run
	Heard       wire.ID `json:"heard,omitzero"` // the last other incarnation that spoke under this name
	Answer      bool    `json:"answer"`         // said because something odd was heard: wants no answer itself
}

// heard is one greeting, or who is there that should not be.
type heard struct {
	greeting greeting
	stream   string // the name of a stream that acknowledged a probe; else greeting is it
}

// newNeighbors starts nothing. A shared one has not told anything, and is yet to be taken for one that told its listening.
func newNeighbors(
	nc *nats.Conn, prefix string, self greeting, shared bool, linked, serving func() bool, tell func(string),
) *neighbors {
	n := &neighbors{
		nc: nc, subject: prefix + ".node.cluster", prefix: prefix, self: self, shared: shared, linked: linked, serving: serving,
		tell: tell, heard: make(chan heard, 64), seen: make(map[string]time.Time),
		// Below the prefix, so that no node answers a probe.
		inbox: prefix + ".node.heard." + nats.NewInbox()[len(nats.InboxPrefix):],
	}
	if shared {
		n.listening = fmt.Sprintf(stillListening, prefix)
		n.said = n.listening
	}
	return n
}

// Run greets and listens until ctx ends.
func (n *neighbors) Run(ctx context.Context) error {
	for subject, read := range map[string]func([]byte) (heard, bool){n.subject: readGreeting, n.inbox: readAck} {
		sub, err := n.nc.Subscribe(subject, func(m *nats.Msg) {
			h, ok := read(m.Data)
			if !ok {
				return
			}
			select {
			case n.heard <- h:
			default: // it will be said again
			}
		})
		if err != nil {
			return fmt.Errorf("subscribe to %s: %w", subject, err)
		}
		defer func() { _ = sub.Unsubscribe() }()
	}
	every := greetEvery
	if n.shared {
		every = greetShared
	}
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	n.began = time.Now()
	var probed time.Time
	for {
		if n.shared && time.Since(probed) > probeEvery {
			probed = time.Now()
			n.probe()
		}
		n.link()
		n.greet(false)
		for tick := false; !tick; {
			select {
			case <-ctx.Done():
				return nil
			case h := <-n.heard:
				n.hear(h)
			case <-ticker.C:
				n.expire(time.Now())
				tick = true
			}
			n.say()
		}
	}
}

// link looks whether what is joined by the configuration is joined, or has had its time.
func (n *neighbors) link() {
	if n.shared && n.from == 0 && (n.linked() || time.Since(n.began) > linkPatience) {
		n.from = n.self.Number + 1
	}
}

func (n *neighbors) greet(answer bool) {
	n.self.Number++
	n.self.Answer, n.self.Serving = answer, n.serving()
	if text, err := json.Marshal(n.self); err == nil {
		_ = n.nc.PublishRequest(n.subject, n.inbox, text) // unheard, the next one is
	}
}

// probe sends what looks like requests to a stream. Nodes give them no answer because of the inbox, and could do nothing
// with the name, which is none.
func (n *neighbors) probe() {
	for _, subject := range jetstream.ProbeSubjects(n.prefix) {
		_ = n.nc.PublishRequest(subject, n.inbox, nil)
	}
}

// hear takes in what was heard.
func (n *neighbors) hear(h heard) {
	g := &h.greeting
	switch {
	case h.stream != "":
		n.see("stream "+h.stream, fmt.Sprintf("the stream %.64q captures subjects under %s: JetStream would answer requests with "+
			"its own acknowledgement; take them out of the stream, or use another prefix", h.stream, n.prefix))
	case g.Cluster != n.self.Cluster:
		n.see(g.Cluster.String(), fmt.Sprintf("another cluster, %s, answers on the prefix %s too (its node %.64q), "+
			"this one is %s: give each cluster a prefix of its own", g.Cluster, n.prefix, g.Node, n.self.Cluster))
		n.answer(g)
	case g.Node != n.self.Node:
	case g.Incarnation == n.self.Incarnation:
		// Answers do not count: they may follow one another at once, and others want two intervals to be heard.
		if n.from > 0 && g.Number >= n.from && !g.Answer {
			if n.own++; n.own >= greetBack {
				n.listening = ""
			}
		}
	default:
		n.self.Heard = g.Incarnation
		// Another catalog under this name is refused by the log that both use, so the one that serves need not stop. Where it
		// serves too, there are two logs.
		if (g.Catalog == n.self.Catalog || g.Serving) && g.Heard == n.self.Incarnation {
			n.see("twin "+g.Incarnation.String(), fmt.Sprintf("another process answers as node %s of this cluster, %s: a copied data "+
				"directory? stop one of the two, and its copy stays off", n.self.Node, n.self.Cluster))
		}
		n.answer(g)
	}
}

// answer lets whoever said g know of this node at once: it may be about to serve.
func (n *neighbors) answer(g *greeting) {
	if !g.Answer && time.Since(n.answered) >= answerPause {
		n.answered = time.Now()
		n.greet(true)
	}
}

func (n *neighbors) see(who, why string) {
	if len(n.seen) > 64 {
		clear(n.seen) // who keeps greeting is seen again
	}
	n.seen[who] = time.Now()
	if n.foreign == "" {
		n.foreign = why
	}
}

func (n *neighbors) expire(now time.Time) {
	for who, at := range n.seen {
		if now.Sub(at) > greetPatience {
			delete(n.seen, who)
		}
	}
	if len(n.seen) == 0 {
		n.foreign = ""
	}
}

func (n *neighbors) say() {
	why := n.foreign
	if why == "" {
		why = n.listening
	}
	if why != n.said {
		n.said = why
		n.tell(why)
	}
}

func readGreeting(data []byte) (h heard, ok bool) {
	err := json.Unmarshal(data, &h.greeting)
	return h, err == nil && !h.greeting.Cluster.IsZero()
}

// readAck reads the acknowledgement of a stream, or its refusal: a stream that is full captures as well.
func readAck(data []byte) (h heard, ok bool) {
	var ack struct {
		Stream string          `json:"stream"`
		Seq    uint64          `json:"seq"`
		Error  json.RawMessage `json:"error"`
	}
	if json.Unmarshal(data, &ack) != nil || ack.Stream == "" || ack.Seq == 0 && ack.Error == nil {
		return heard{}, false
	}
	return heard{stream: ack.Stream}, true
}
