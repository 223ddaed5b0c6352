package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/allocnode/allocnode/apply"
	"github.com/allocnode/allocnode/internal/wire"
	"github.com/allocnode/allocnode/jetstream"
)

// hello is what a node answers on the internal subject <prefix>.node.hello: whether it may be taken for one that never
// had a log.
type hello struct {
	Node    string  `json:"node"`
	Catalog wire.ID `json:"catalog"`
	Empty   bool    `json:"empty"` // the catalog has never held anything, and there are no files of a log
	Cluster wire.ID `json:"cluster,omitzero"`
	Cursor  uint64  `json:"cursor"`
	Epoch   uint64  `json:"epoch"`
	Serving bool    `json:"serving,omitempty"` // in this run it has, and may again

	// Followed is the latest epoch of a recovery whose log was followed from the data directory, whatever the catalog knows.
	Followed uint64 `json:"followed,omitempty"`
}

// remembers says why h is not empty.
func (h *hello) remembers(who string) string {
	if h.Followed > h.Epoch {
		return fmt.Sprintf("%s has followed the log of epoch %d, and has no catalog that knows it", who, h.Followed)
	}
	if h.Cluster.IsZero() {
		return who + " has files of a log in its data directory, and no catalog that knows them"
	}
	return fmt.Sprintf("%s has applied seq %d of cluster %s", who, h.Cursor, h.Cluster)
}

// remember counts a recovery that the node is prepared for: with an empty catalog beside it, too, there was a log.
func (h *hello) remember(r *recovery) {
	h.Empty = false
	if h.Cluster.IsZero() {
		h.Cluster = r.Cluster
	}
}

func helloSubject(prefix string) string { return prefix + ".node.hello" }

// bootLog is what the creation of a log needs of it.
type bootLog interface {
	Identity(ctx context.Context) (jetstream.Identity, error)
	Create(ctx context.Context, clusterID wire.ID, epoch uint64) (jetstream.Identity, error)
	AppendFirst(ctx context.Context, msgID string, data []byte) error
}

// bootstrap finds the log, or creates it where it is certain that there never was one.
//
// The rule (DESIGN 8): every named node answers that its catalog is empty, counted once each, after the stream exists and
// again immediately before the genesis, which goes in only as the very first message. An empty stream alone is no
// permission: it may be one that was lost. Several nodes may run this at once; the log takes one genesis.
type bootstrap struct {
	self      hello
	nodes     []string
	clusterID wire.ID // configured: then the log is never created
	byInit    bool    // beside an existing NATS: the log is created by Init, and what is no log is refused
	genesis   wire.Genesis
	defaults  wire.Settings
	entryID   wire.EntryID
	log       bootLog
	ask       func(ctx context.Context) ([]hello, error)
	await     func(why string)
	logger    *slog.Logger
}

// askPause is the time between two looks at a log that is not there yet.
const askPause = 200 * time.Millisecond

// run returns the identity of a log that has its genesis, or the reason why this node must fence. It waits until ctx ends.
func (b *bootstrap) run(ctx context.Context) (id jetstream.Identity, fence string, err error) {
	var gone time.Time // since when a log that this node remembers has been missing
	for {
		id, err := b.look(ctx)
		var config *jetstream.StreamConfigError
		switch {
		case err == nil && id.LastSeq > 0:
			return id, b.contradiction(id), nil
		case errors.As(err, &config) && b.byInit:
			return jetstream.Identity{}, "", fmt.Errorf("the log on the existing NATS cannot be trusted: %w", config)
		case errors.As(err, &config):
			return jetstream.Identity{}, config.Error(), nil
		case err != nil && !errors.Is(err, jetstream.ErrNoStream):
			b.await(fmt.Sprintf("waiting for the log: %v", err))
			gone = time.Time{}
		case !b.self.Empty:
			// JetStream's leader says so, but may have only just come up: it must go on saying so.
			if gone.IsZero() {
				gone = time.Now()
			}
			what := "the log is gone: there is no stream"
			if err == nil {
				what = "the log is empty"
			}
			what += ", but " + b.self.remembers("this node")
			b.await(what)
			if time.Since(gone) > 10*time.Second {
				return jetstream.Identity{}, what, nil
			}
		case !b.clusterID.IsZero():
			b.await(fmt.Sprintf("waiting for the log of cluster %s: cluster_id is set, so it is not created", b.clusterID))
		case b.byInit && err == nil:
			b.await("the log is empty: `allocnode init` has not finished, or the log was lost")
		case b.byInit:
			b.await("there is no log: on an existing NATS only `allocnode init` makes it, once")
		default:
			why, err := b.create(ctx, id, err == nil)
			if err != nil {
				return jetstream.Identity{}, "", err
			}
			if why != "" {
				b.await(why)
			} else {
				continue
			}
		}
		select {
		case <-ctx.Done():
			return jetstream.Identity{}, "", context.Cause(ctx)
		case <-time.After(askPause):
		}
	}
}

func (b *bootstrap) look(ctx context.Context) (jetstream.Identity, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	return b.log.Identity(ctx)
}

// contradiction is why the log that was found cannot be this node's.
func (b *bootstrap) contradiction(id jetstream.Identity) string {
	switch {
	case !b.clusterID.IsZero() && id.ClusterID != b.clusterID:
		return fmt.Sprintf("the log here is of cluster %s, cluster_id is set to %s", id.ClusterID, b.clusterID)
	case !b.self.Cluster.IsZero() && id.ClusterID != b.self.Cluster:
		return fmt.Sprintf("the log here is of cluster %s, this node's data are of cluster %s", id.ClusterID, b.self.Cluster)
	}
	return ""
}

// create takes one step: the stream, if there is none, or the genesis. It returns what it waits for, or "" when the step
// is done.
func (b *bootstrap) create(ctx context.Context, id jetstream.Identity, exists bool) (why string, err error) {
	if why := b.allEmpty(ctx); why != "" {
		return why, nil
	}
	tryCtx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if !exists {
		b.logger.Info("every named node is empty: create the log", "nodes", b.nodes)
		if _, err := b.log.Create(tryCtx, wire.NewID(), 1); err != nil {
			return fmt.Sprintf("creating the log: %v", err), nil
		}
		return "", nil
	}
	// The stream exists. Those who answered empty before it did are asked again: one that comes with a catalog may have
	// joined meanwhile.
	if why := b.allEmpty(ctx); why != "" {
		return why, nil
	}
	entry, err := b.genesisEntry(id)
	if err != nil {
		return "", err
	}
	err = b.log.AppendFirst(tryCtx, b.entryID.String(), entry)
	switch {
	case err == nil:
		b.logger.Info("created the log", "cluster", id.ClusterID)
		return "", nil
	case errors.Is(err, jetstream.ErrNotEmpty):
		return "", nil // another node was first
	}
	return fmt.Sprintf("writing the genesis: %v", err), nil
}

// genesisEntry is the first entry of the log that id describes.
func (b *bootstrap) genesisEntry(id jetstream.Identity) ([]byte, error) {
	g := b.genesis
	g.Epoch, g.Created, g.Nodes = id.Epoch, id.Created.UnixNano(), b.nodes
	entry := wire.AppendHeader(nil, &wire.Header{
		ClusterID: id.ClusterID, Level: wire.Level, Node: []byte(b.self.Node), ID: b.entryID, Defaults: b.defaults,
	})
	entry = wire.AppendOp(entry, &wire.Op{Kind: wire.KindGenesis, Genesis: &g})
	wire.Seal(entry)
	if err := wire.DecodeEntry(entry, &wire.Entry{}); err != nil {
		return nil, fmt.Errorf("the genesis that this configuration makes: %w", err) // it could never be taken back
	}
	return entry, nil
}

// allEmpty asks every named node. It returns "" when each has answered, once, that it never had a log.
func (b *bootstrap) allEmpty(ctx context.Context) (why string) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	answers, err := b.ask(ctx)
	if err != nil {
		return fmt.Sprintf("asking the named nodes: %v", err)
	}
	return judge(b.nodes, answers)
}

// judge counts answers for the named nodes. Silence is no answer, two catalogs under one name are none either.
func judge(nodes []string, answers []hello) (why string) {
	missing, objection := count(nodes, answers)
	switch {
	case objection != "":
		return objection
	case len(missing) > 0:
		return "creating the log needs every named node, once: waiting for " + strings.Join(missing, ", ")
	}
	return ""
}

// count returns who has not answered, and why one of the answers forbids a new log.
func count(nodes []string, answers []hello) (missing []string, objection string) {
	catalogs := make(map[string]wire.ID)
	for _, a := range answers {
		first, again := catalogs[a.Node]
		switch {
		case !slices.Contains(nodes, a.Node):
			return nil, fmt.Sprintf("the node %s answers, but is not named in nodes: the configurations differ", a.Node)
		case again && first != a.Catalog:
			return nil, fmt.Sprintf("two nodes go by the name %s: each needs its own", a.Node)
		case !a.Empty:
			return nil, a.remembers("the node "+a.Node) + ": the log must not be created anew"
		}
		catalogs[a.Node] = a.Catalog
	}
	for _, n := range nodes {
		if _, ok := catalogs[n]; !ok {
			missing = append(missing, n)
		}
	}
	return missing, ""
}

// answerHellos answers for as long as the subscription lives. The witness counts: a catalog that lost its state once held
// a log.
func answerHellos(nc *nats.Conn, prefix string, self func() hello) (*nats.Subscription, error) {
	return nc.Subscribe(helloSubject(prefix), func(m *nats.Msg) {
		if b, err := json.Marshal(self()); err == nil && m.Reply != "" {
			_ = m.Respond(b) // who asks will ask again
		}
	})
}

// askHellos collects answers until each of the named nodes has answered, and then for a moment longer, since two may go by
// one name; or until ctx ends.
func askHellos(ctx context.Context, nc *nats.Conn, prefix string, nodes []string) ([]hello, error) {
	inbox := nc.NewInbox()
	sub, err := nc.SubscribeSync(inbox)
	if err != nil {
		return nil, err
	}
	defer func() { _ = sub.Unsubscribe() }()
	if err := nc.PublishRequest(helloSubject(prefix), inbox, nil); err != nil {
		return nil, err
	}
	var answers []hello
	named := make(map[string]bool)
	for {
		m, err := sub.NextMsgWithContext(ctx)
		if err != nil {
			return answers, nil // ctx ended, or nobody is there: what came is the answer
		}
		var h hello
		if json.Unmarshal(m.Data, &h) != nil || h.Node == "" || h.Catalog.IsZero() {
			continue // no hello: a stream that captures the subject sends its acknowledgement
		}
		answers = append(answers, h)
		if slices.Contains(nodes, h.Node) {
			named[h.Node] = true
		}
		if len(named) == len(nodes) {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, 50*time.Millisecond)
			defer cancel()
		}
	}
}

// helloOf is what this node says of its catalog.
func helloOf(node string, catalog wire.ID, witness, head apply.Head, files bool) hello {
	known := witness
	if known.Epoch < head.Epoch || known.Epoch == head.Epoch && known.Cursor < head.Cursor || known.ClusterID.IsZero() {
		known = head
	}
	return hello{
		Node: node, Catalog: catalog, Empty: known == apply.Head{} && !files, Cluster: known.ClusterID, Cursor: known.Cursor, Epoch: known.Epoch,
	}
}
