package node

import (
	"context"
	"log/slog"

	"github.com/nats-io/nats-server/v2/server"
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
	nameLeaf(cfg.Name, cfg.Server)
	return jetstream.NewServer(jetstream.ServerConfig{
		Options: cfg.Server, Name: cfg.Name, DataDir: cfg.DataDir, Host: cfg.Host, Port: cfg.Port,
		ServiceAccount: cfg.Account, Logger: cfg.Logger.With("part", "nats"),
	})
}

// nameLeaf gives a server that is alone and joins others as a leaf node a cluster name that no other process has. Else it is
// the server's own name, and nats-server keeps leaf nodes of one cluster name apart: their clients' requests would reach
// both of two that go by one name, but never what the two say to each other (neighbors).
func nameLeaf(name string, o *server.Options) {
	if o != nil && len(o.LeafNode.Remotes) > 0 && o.Cluster.Port == 0 && o.Cluster.Name == "" && o.Gateway.Name == "" {
		o.Cluster.Name = name + "-" + wire.NewID().String()
	}
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
	if n.server == nil {
		n.guard.Await("waiting for the existing NATS at " + n.cfg.NATS.String())
		defer func() { n.guard.Await("starting") }()
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

// linked reports whether the leaf node's remotes, if there are any, are joined.
func (n *Node) linked() bool {
	return n.server == nil || n.cfg.Server == nil || n.server.RemotesJoined() >= len(n.cfg.Server.LeafNode.Remotes)
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

// dial opens a connection to the existing NATS.
func (c *Config) dial(ctx context.Context, name string, logger *slog.Logger) (*nats.Conn, error) {
	return c.NATS.Connect(ctx, name, c.inboxPrefix(), logger)
}
