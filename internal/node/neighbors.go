package node

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/allocnode/allocnode/internal/wire"
)

// neighbors finds out whether the service's subjects are this cluster's alone. Leaf nodes and gateways join subject spaces,
// so that requests reach two clusters, and each answers some: a client would see two sequences under one name. Every node
// says its cluster's id on a subject of the clients' account once a second, and listens there. While a node hears another
// id it does not serve, and says so; neither does the other cluster, which hears this one.
//
// The same message finds streams of the other side that capture the prefix, which the API for streams does not reach
// across a leaf node: it names an inbox, to which JetStream sends its acknowledgement.
//
// Nothing rests on a message that is not heard: clients pin the cluster's id, and the log is out of reach from there.
type neighbors struct {
	nc      *nats.Conn // the service's
	subject string
	prefix  string
	self    greeting
	tell    func(why string) // from one goroutine, when the answer changes; "" when the subjects are this cluster's alone

	heard chan sighting
}

const (
	greetEvery    = time.Second
	greetPatience = 10 * time.Second // silence after which another cluster is gone
)

// greeting is what is said.
type greeting struct {
	Node    string  `json:"node"`
	Cluster wire.ID `json:"cluster"`
}

// sighting is what was heard of something that should not be there.
type sighting struct{ who, why string }

func newNeighbors(nc *nats.Conn, prefix string, node string, cluster wire.ID, tell func(string)) *neighbors {
	return &neighbors{
		nc: nc, subject: prefix + ".node.cluster", prefix: prefix, self: greeting{node, cluster}, tell: tell,
		heard: make(chan sighting, 16),
	}
}

// Run greets and listens until ctx ends.
func (n *neighbors) Run(ctx context.Context) error {
	inbox := n.nc.NewInbox()
	for subject, read := range map[string]func([]byte) (sighting, bool){n.subject: n.another, inbox: n.captured} {
		sub, err := n.nc.Subscribe(subject, func(m *nats.Msg) {
			s, odd := read(m.Data)
			if !odd {
				return
			}
			select {
			case n.heard <- s:
			default: // it will be said again
			}
		})
		if err != nil {
			return fmt.Errorf("subscribe to %s: %w", subject, err)
		}
		defer func() { _ = sub.Unsubscribe() }()
	}
	text, err := json.Marshal(n.self)
	if err != nil {
		return err
	}
	ticker := time.NewTicker(greetEvery)
	defer ticker.Stop()
	seen := make(map[string]time.Time)
	said := ""
	greet := func() { _ = n.nc.PublishRequest(n.subject, inbox, text) } // unheard, the next one is
	greet()
	for {
		why := said
		select {
		case <-ctx.Done():
			return nil
		case s := <-n.heard:
			seen[s.who] = time.Now()
			if said == "" {
				why = s.why
			}
		case <-ticker.C:
			greet()
			for who, at := range seen {
				if time.Since(at) > greetPatience {
					delete(seen, who)
				}
			}
			if len(seen) == 0 {
				why = ""
			}
		}
		if why != said {
			said = why
			n.tell(why)
		}
		if len(seen) > 64 {
			clear(seen) // who keeps greeting is seen again
		}
	}
}

func (n *neighbors) another(data []byte) (sighting, bool) {
	var g greeting
	if json.Unmarshal(data, &g) != nil || g.Cluster.IsZero() || g.Cluster == n.self.Cluster {
		return sighting{}, false
	}
	return sighting{g.Cluster.String(), fmt.Sprintf("another cluster, %s, answers on the prefix %s too (its node %.64q), "+
		"this one is %s: give each cluster a prefix of its own", g.Cluster, n.prefix, g.Node, n.self.Cluster)}, true
}

func (n *neighbors) captured(data []byte) (sighting, bool) {
	var ack struct {
		Stream string `json:"stream"`
		Seq    uint64 `json:"seq"`
	}
	if json.Unmarshal(data, &ack) != nil || ack.Stream == "" || ack.Seq == 0 {
		return sighting{}, false
	}
	return sighting{"stream " + ack.Stream, fmt.Sprintf("the stream %.64q captures subjects under %s: JetStream would answer "+
		"requests with its own acknowledgement; take them out of the stream, or use another prefix", ack.Stream, n.prefix)}, true
}
