package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/allocnode/allocnode/internal/wire"
	"github.com/allocnode/allocnode/jetstream"
	"github.com/allocnode/allocnode/kv"
)

// A node has its NATS in one of two ways: a server that it embeds, or an existing system (DESIGN 8, External NATS). What
// differs is in this file:
//
//	                 embedded                          existing
//	connections      in-process, two accounts          TCP, one account, which clients may share
//	the log is made  by the nodes, by the rule         by Init alone
//	the feed         brings the entries                is a wake-up: who shares the account can write it
//	requests         go to the node that leads         go to all: no node leads

// newServer is the embedded server, or nil.
func newServer(cfg Config) (*jetstream.Server, error) {
	if cfg.NATS != nil {
		return nil, nil
	}
	return jetstream.NewServer(jetstream.ServerConfig{
		Options: cfg.Server, Name: cfg.Name, DataDir: cfg.DataDir, Host: cfg.Host, Port: cfg.Port,
		ServiceAccount: cfg.Account, Logger: cfg.Logger.With("part", "nats"),
	})
}

// ClientURL is where clients connect, once Started: one URL, or several joined by commas.
func (n *Node) ClientURL() string {
	if n.server == nil {
		return n.cfg.NATS.String()
	}
	return n.server.ClientURL()
}

// failed delivers what broke the embedded server.
func (n *Node) failed() <-chan error {
	if n.server == nil {
		return nil // connections come back for ever
	}
	return n.server.Failed()
}

func (n *Node) connect(ctx context.Context) (log, svc *nats.Conn, err error) {
	open := func(role string) (*nats.Conn, error) {
		name := "allocnode " + role + " " + n.cfg.Name
		switch {
		case n.server == nil:
			return n.cfg.dial(ctx, name, n.logger.With("part", "nats"))
		case role == "log":
			return n.server.LogConn(nats.Name(name))
		}
		return n.server.ServiceConn(nats.Name(name))
	}
	if log, err = open("log"); err != nil {
		return nil, nil, err
	}
	if svc, err = open("service"); err != nil {
		log.Close()
		return nil, nil, err
	}
	return log, svc, nil
}

// inboxPrefix is below the service's own prefix on purpose: nobody else needs leave to publish or listen there, and the
// service gives no answer to a reply subject there, or a requester could have a node answer in JetStream's name.
func (c *Config) inboxPrefix() string { return c.Prefix + ".inbox." + c.Name }

// role is what a node is that cannot lead the log's raft group with others; empty for one that can.
func (c *Config) role() string {
	switch {
	case c.NATS != nil:
		return wire.RoleExternal
	case !c.clustered():
		return wire.RoleAlone
	}
	return ""
}

// logConfig is the log of this node's cluster.
func (c *Config) logConfig() jetstream.LogConfig {
	l := jetstream.LogConfig{Prefix: c.Prefix, Replicas: 1}
	if c.clustered() || c.NATS != nil {
		l.Replicas = 3
	}
	return l
}

// identity is whose catalog this node opens.
func (c *Config) identity() kv.Identity {
	return kv.Identity{Node: c.Name, Clustered: c.clustered(), External: c.NATS != nil}
}

// initPatience bounds all that Init asks of the NATS system, and helloPatience the time in which nodes may object.
const (
	initPatience  = 30 * time.Second
	helloPatience = time.Second
)

// Init makes the log on the existing NATS that cfg names: the stream, and the genesis with the nodes of cfg. Nothing else
// makes one there: a node cannot tell a system that never had a log from one that lost it, an operator can. It returns the
// new cluster's id.
//
// It refuses where a stream of the log's name exists, whatever that holds; where a node that answers, or the data
// directory of cfg, remembers a log; where cfg sets a cluster_id; and where the log cannot be replicated three ways. The
// named nodes need not run. An error after the stream was made says so: the stream is then to be deleted by hand.
func Init(ctx context.Context, cfg Config) (cluster wire.ID, err error) {
	if err := cfg.Validate(); err != nil {
		return wire.ID{}, err
	}
	switch {
	case cfg.NATS == nil:
		return wire.ID{}, errors.New("init is for a log on an existing NATS, alloc { nats { … } }: nodes with a server of " +
			"their own make theirs when all of them run")
	case !cfg.ClusterID.IsZero():
		return wire.ID{}, fmt.Errorf("cluster_id is set to %s: the log of that cluster exists or was lost, and is not made anew",
			cfg.ClusterID)
	}
	if err := cfg.remembersNothing(); err != nil {
		return wire.ID{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, initPatience)
	defer cancel()
	nc, err := cfg.dial(ctx, "allocnode init "+cfg.Name, cfg.Logger)
	if err != nil {
		return wire.ID{}, err
	}
	defer nc.Close()
	log, err := jetstream.NewLog(nc, cfg.logConfig(), cfg.Name)
	if err != nil {
		return wire.ID{}, err
	}
	defer log.Close()
	if err := mayInit(ctx, cfg, nc, log); err != nil {
		return wire.ID{}, err
	}
	return initLog(ctx, cfg, nc, log)
}

// dial opens a connection to the existing NATS.
func (c *Config) dial(ctx context.Context, name string, logger *slog.Logger) (*nats.Conn, error) {
	return c.NATS.Connect(ctx, name, c.inboxPrefix(), logger)
}

// mayInit is why there must be no new log.
func mayInit(ctx context.Context, cfg Config, nc *nats.Conn, log *jetstream.Log) error {
	askCtx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if epoch, err := jetstream.LatestEpoch(askCtx, nc, cfg.Prefix); err != nil {
		return err
	} else if epoch > 1 {
		return fmt.Errorf("the log exists: a recovery has begun its epoch %d", epoch)
	}
	id, err := log.Identity(askCtx)
	var config *jetstream.StreamConfigError
	switch {
	case err == nil && id.LastSeq > 0:
		return fmt.Errorf("the log exists: it is of cluster %s and ends at seq %d", id.ClusterID, id.LastSeq)
	case err == nil:
		return fmt.Errorf("the stream %s exists and is empty. Either an earlier init broke off, or the log was lost. Only if you "+
			"know that no node ever served from it: delete the stream and repeat", log.Stream())
	case errors.As(err, &config):
		return fmt.Errorf("the stream %s exists: %w", log.Stream(), err)
	case !errors.Is(err, jetstream.ErrNoStream):
		return err
	}
	if err := jetstream.CheckSubjects(askCtx, nc, cfg.Prefix); err != nil {
		return err
	}
	return cfg.objections(ctx, nc)
}

// objections asks the nodes that run whether one remembers a log. Those that do not run are the operator's affair.
func (c *Config) objections(ctx context.Context, nc *nats.Conn) error {
	ctx, cancel := context.WithTimeout(ctx, helloPatience)
	defer cancel()
	answers, err := askHellos(ctx, nc, c.Prefix, c.nodes())
	if err != nil {
		return fmt.Errorf("ask the nodes that run: %w", err)
	}
	if _, objection := count(c.nodes(), answers); objection != "" {
		return errors.New(objection)
	}
	return nil
}

func initLog(ctx context.Context, cfg Config, nc *nats.Conn, log *jetstream.Log) (wire.ID, error) {
	id, err := log.Create(ctx, wire.NewID(), 1)
	switch {
	case errors.Is(err, jetstream.ErrOneServer):
		return wire.ID{}, fmt.Errorf("the existing NATS at %s: %w: JetStream must run in a cluster of three servers or more",
			cfg.NATS, err)
	case err != nil:
		return wire.ID{}, err
	}
	broke := func(err error) (wire.ID, error) {
		return wire.ID{}, fmt.Errorf("%w: the stream %s was made and has no genesis, delete it before init is repeated",
			err, log.Stream())
	}
	if err := cfg.objections(ctx, nc); err != nil { // a node may have come between
		return broke(err)
	}
	b := bootstrap{
		self: hello{Node: cfg.Name}, nodes: cfg.nodes(), genesis: cfg.Genesis, defaults: cfg.Defaults,
		entryID: wire.EntryID{Incarnation: wire.NewID(), Counter: 1},
	}
	entry, err := b.genesisEntry(id)
	if err != nil {
		return broke(err)
	}
	switch err := log.AppendFirst(ctx, b.entryID.String(), entry); {
	case errors.Is(err, jetstream.ErrNotEmpty):
		return wire.ID{}, fmt.Errorf("another init was first: %w", err)
	case err != nil:
		return broke(err)
	}
	return id.ClusterID, nil
}

// remembersNothing opens the catalog of cfg's own node, if there is one, and refuses where it has held a log.
func (c *Config) remembersNothing() error {
	dir := filepath.Join(c.DataDir, "catalog")
	if _, err := os.Stat(dir); err != nil {
		return nil // nothing there, or nothing that a node could have written
	}
	catalog, err := kv.Open(dir, c.identity(), c.Logger)
	if errors.Is(err, kv.ErrInUse) {
		return nil // the node runs, and will answer for itself
	}
	if err != nil {
		return err
	}
	w := catalog.Witness()
	if err := catalog.Close(); err != nil {
		return err
	}
	if w.Cursor > 0 {
		return fmt.Errorf("the data in %s remember cluster %s up to seq %d: the log must not be made anew",
			c.DataDir, w.ClusterID, w.Cursor)
	}
	return nil
}
