package node

import (
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/allocnode/allocnode"
	"github.com/allocnode/allocnode/internal/wire"
	"github.com/allocnode/allocnode/jetstream"
)

// Config is all that a node is told. [DefaultConfig] is a complete node that is alone.
type Config struct {
	// Name is the node's name, which is also its server's: one NATS subject token. A cluster knows it for ever.
	Name string

	// DataDir holds everything the node keeps: LOCK, catalog/, jetstream/.
	DataDir string

	// Host and Port are where clients connect; Port -1 picks a free one. Both empty: what Server says, or nats-server's own default.
	Host string
	Port int

	// Server is nats-server's part of the configuration; nil is its defaults. It is used up by New.
	Server *server.Options

	// NATS is an existing system that holds the log and carries the service. Then there is no embedded server, and Host,
	// Port, Server and Account are not set.
	NATS *jetstream.External

	// Nodes names every node of the cluster, this one among them; alone it is empty or the one. Creating the log needs
	// the word of all of them, serving that of a majority.
	Nodes []string

	Prefix    string  // of every subject; tokens of [A-Za-z0-9_-]
	Account   string  // the clients' account that the service answers in; empty is the global one
	ClusterID wire.ID // if set, the log must be this cluster's, and is never created

	// AutoCreate and Defaults are what a sequence comes into being with on first use. They are written into each entry
	// that this node proposes.
	AutoCreate bool
	Defaults   wire.Settings

	// Genesis is what is fixed when the log is created; afterwards the log's own word counts. Epoch, Created and Nodes
	// are filled in.
	Genesis wire.Genesis

	// Timeout is how long a request may take until it has an answer: above 0, below the usual client time-out of 5 s.
	Timeout time.Duration

	Version string       // in SemVer's syntax, as NATS services want it
	Logger  *slog.Logger // nil: slog.Default()
}

// DefaultConfig is a node that is alone, without a data directory.
func DefaultConfig() Config {
	return Config{
		Name:       "alone",
		Prefix:     "alloc",
		AutoCreate: true,
		Defaults:   wire.Settings{First: 1, Max: allocnode.DefaultMax, MaxCount: allocnode.DefaultMaxCount},
		Genesis:    wire.Genesis{KeyWindow: 131_072, EntryWindow: 16_384, MaxSequences: 1_000_000},
		Timeout:    4 * time.Second,
		Version:    "0.0.0",
		Logger:     slog.Default(),
	}
}

// semVer is what nats.go's micro accepts as a version; it would say so only when the node begins to serve.
var semVer = regexp.MustCompile(`^(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)` +
	`(-(0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*)(\.(0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*))*)?(\+[0-9a-zA-Z-]+(\.[0-9a-zA-Z-]+)*)?$`)

// minEntryWindow keeps entries that are merely late from being taken for copies: several nodes may each have some under way.
const minEntryWindow = 1024

// maxTimeout keeps a node's answer ahead of the 5 s after which NATS clients give up.
const maxTimeout = 4500 * time.Millisecond

// Validate reports every fault of c, each with its key, its value and what is allowed.
func (c *Config) Validate() error {
	var faults []error
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	if !isToken(c.Name, wire.MaxNodeLen) {
		fault("name %q: want one token of letters, digits, '_' and '-', at most %d bytes", c.Name, wire.MaxNodeLen)
	}
	if c.DataDir == "" {
		fault("data directory: none given: use --data DIR, or jetstream { store_dir: DIR } (with alloc { nats }: data_dir)")
	}
	if c.Port < -1 || c.Port > 65535 {
		fault("port %d: want -1 (any free port) to 65535", c.Port)
	}
	for _, token := range strings.Split(c.Prefix, ".") {
		if !isToken(token, 64) {
			fault("prefix %q: want tokens of letters, digits, '_' and '-' joined by dots", c.Prefix)
			break
		}
	}
	if strings.HasPrefix(c.Prefix, "_") {
		fault("prefix %q: it must not begin with '_', as NATS's own inboxes do", c.Prefix)
	}
	for i, n := range c.Nodes {
		if !isToken(n, wire.MaxNodeLen) {
			fault("nodes: %q is not a node name: want one token of letters, digits, '_' and '-'", n)
		}
		if slices.Contains(c.Nodes[:i], n) {
			fault("nodes: %q is named twice", n)
		}
	}
	switch {
	case c.clustered() && len(c.Nodes) == 0:
		fault("nodes: a cluster block needs alloc { nodes: [...] } with the name of every node")
	case c.clustered() && len(c.Nodes) < 3:
		fault("nodes: %d named, want 3 or more: the log is replicated three ways", len(c.Nodes))
	case c.NATS == nil && !c.clustered() && len(c.Nodes) > 1:
		fault("nodes: %d named, but there is no cluster block with routes to reach them", len(c.Nodes))
	case len(c.Nodes) > 64:
		fault("nodes: %d named, at most 64", len(c.Nodes))
	}
	if len(c.Nodes) > 0 && !slices.Contains(c.Nodes, c.Name) {
		fault("nodes: this node, %q, is not among %s", c.Name, strings.Join(c.Nodes, ", "))
	}
	if c.NATS != nil {
		if err := c.NATS.Validate(); err != nil {
			faults = append(faults, err)
		}
		if c.Server != nil || c.Host != "" || c.Port != 0 || c.Account != "" {
			fault("nats: beside an existing NATS there is no server of our own: no listen address, no account, no setting of its")
		}
	}
	if c.Server != nil && len(c.Server.LeafNode.Remotes) > 0 && c.Server.JetStreamDomain == "" {
		// Alike domains, and none is one, are taken for parts of one JetStream wherever the system account is shared.
		fault("leafnodes: remotes need jetstream { domain: … }, a name that the system that is joined does not use")
	}
	if err := c.Defaults.Check(); err != nil {
		fault("defaults: %w", err)
	}
	g := &c.Genesis
	for _, w := range []struct {
		key         string
		n           uint64
		least, most uint64
	}{
		{"key_window", g.KeyWindow, 1, wire.MaxWindow},
		{"entry_window", g.EntryWindow, minEntryWindow, wire.MaxWindow},
		{"max_sequences", g.MaxSequences, 1, wire.MaxSequences},
	} {
		if w.n < w.least || w.n > w.most {
			fault("%s %d: want %d to %d", w.key, w.n, w.least, w.most)
		}
	}
	if !semVer.MatchString(c.Version) {
		fault("version %q: want SemVer, such as 1.2.3", c.Version)
	}
	if c.Timeout <= 0 || c.Timeout > maxTimeout {
		fault("timeout %s: want above 0 and at most %s, before clients give up", c.Timeout, maxTimeout)
	}
	return errors.Join(faults...)
}

// clustered reports whether nats-server takes itself for a member of a cluster; a gateway is enough for that (its
// standAloneMode). It treats the two kinds of directory differently.
func (c *Config) clustered() bool {
	return c.Server != nil && (c.Server.Cluster.Port != 0 || c.Server.Gateway.Port != 0)
}

// shared reports whether another cluster, or a stream of another system, may be joined to the account in which the service
// answers: leaf nodes, gateways, or a NATS that is not this node's own.
func (c *Config) shared() bool {
	if c.NATS != nil || c.Server == nil {
		return c.NATS != nil
	}
	leaf, gateway := &c.Server.LeafNode, &c.Server.Gateway
	return len(leaf.Remotes) > 0 || leaf.Port != 0 || gateway.Name != "" || gateway.Port != 0
}

// nodes is Nodes, or the one.
func (c *Config) nodes() []string {
	if len(c.Nodes) > 0 {
		return c.Nodes
	}
	return []string{c.Name}
}

func isToken(s string, most int) bool {
	if s == "" || len(s) > most {
		return false
	}
	for _, r := range s {
		if r != '_' && r != '-' && (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') {
			return false
		}
	}
	return true
}

// LoadConfig reads a configuration file over c: nats-server's settings, and ours in one alloc block. warn is called for
// what nats-server only warns of. Every fault is reported, with file and line.
func (c *Config) LoadConfig(path string, warn func(error)) error {
	opts, alloc, err := jetstream.ParseConfig(path, warn)
	if err != nil {
		return err
	}
	c.Server = opts
	if opts.ServerName != "" {
		c.Name = opts.ServerName
	}
	if opts.StoreDir != "" {
		c.DataDir = opts.StoreDir
	}
	if alloc.Has("nats") {
		c.Server, c.NATS = nil, &jetstream.External{}
		for _, key := range alloc.Beside() {
			alloc.Fault("nats", "is instead of a server of our own, so this is a setting of nobody: %s", key)
		}
		c.decodeNATS(alloc)
	}
	return c.decode(alloc)
}

// decodeNATS reads the nats block of the alloc block, and what nats-server's settings say for other nodes.
func (c *Config) decodeNATS(b *jetstream.Block) {
	b.String("name", &c.Name)
	b.String("data_dir", &c.DataDir)
	n, e := b.Block("nats"), c.NATS
	n.Strings("urls", &e.URLs)
	n.String("creds", &e.Creds)
	n.String("nkey", &e.NKey)
	n.String("token", &e.Token)
	n.String("user", &e.User)
	n.String("password", &e.Password)
	n.Bool("durability_acknowledged", &e.DurabilityAcknowledged)
	t := n.Block("tls")
	t.String("ca", &e.CA)
	t.String("cert", &e.Cert)
	t.String("key", &e.Key)
	t.Bool("handshake_first", &e.HandshakeFirst)
}

// decode reads the alloc block over c.
func (c *Config) decode(b *jetstream.Block) error {
	b.String("prefix", &c.Prefix)
	b.Strings("nodes", &c.Nodes)
	b.String("account", &c.Account)
	b.Bool("auto_create", &c.AutoCreate)
	b.Duration("timeout", &c.Timeout)
	var id string
	if b.String("cluster_id", &id); id != "" {
		var err error
		if c.ClusterID, err = wire.ParseID(id); err != nil || c.ClusterID.IsZero() {
			b.Fault("cluster_id", "must be 32 hexadecimal digits, as allocnode status shows them, found %q", id)
		}
	}
	d := b.Block("defaults")
	d.Uint("first", &c.Defaults.First)
	d.Uint("max", &c.Defaults.Max)
	d.Uint("max_count", &c.Defaults.MaxCount)
	g := b.Block("genesis")
	g.Uint("key_window", &c.Genesis.KeyWindow)
	g.Uint("entry_window", &c.Genesis.EntryWindow)
	g.Uint("max_sequences", &c.Genesis.MaxSequences)
	onExhaustion := "reject"
	g.String("on_exhaustion", &onExhaustion)
	switch onExhaustion {
	case "reject":
	case "halt":
		c.Genesis.HaltOnExhaustion = true
	default:
		g.Fault("on_exhaustion", "must be reject or halt, found %q", onExhaustion)
	}
	return b.Err()
}
