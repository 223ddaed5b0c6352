package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/allocnode/allocnode/internal/wire"
	"github.com/allocnode/allocnode/jetstream"
	"github.com/allocnode/allocnode/kv"
)

const (
	initPatience    = 30 * time.Second // for all that Init asks of the NATS system
	connectPatience = 10 * time.Second // of it, for the connection
	helloPatience   = 3 * time.Second  // for the nodes' words
	genesisPatience = 10 * time.Second // for the acknowledgement of the first entry
	settlePatience  = 5 * time.Second  // for the look at what stands there, where that did not come
)

// Init makes the log on the existing NATS that cfg names: the stream, and the genesis with the nodes of cfg. Nothing else
// makes one there: a node cannot tell a system that never had a log from one that lost it, an operator can. It returns the
// new cluster's id.
//
// It wants what nodes with a server of their own want of each other (bootstrap): the word of every named node, counted
// once, that it never had a log, before the stream is made and again before the genesis. Nodes are started first and wait
// for it. Nodes in without are not asked for theirs, at the operator's risk; they must be named in cfg and be fewer than half.
//
// It refuses where the log exists, where a node that answers or the data directory of cfg remembers one, where cfg sets a
// cluster_id, where the log cannot be replicated three ways, and where NATS does not permit what it does. It may be
// repeated: a stream without an entry, which an earlier run may have left, is taken under the same rule.
func Init(ctx context.Context, cfg Config, without ...string) (cluster wire.ID, err error) {
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
	if err := cfg.mayDoWithout(without); err != nil {
		return wire.ID{}, err
	}
	if err := cfg.remembersNothing(); err != nil {
		return wire.ID{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, initPatience)
	defer cancel()
	dialCtx, cancelDial := context.WithTimeout(ctx, connectPatience)
	defer cancelDial()
	nc, err := cfg.dial(dialCtx, "allocnode init "+cfg.Name, cfg.Logger)
	if err != nil {
		return wire.ID{}, err
	}
	defer nc.Close()
	ctx, deny := context.WithCancelCause(ctx)
	defer deny(nil)
	nc.SetErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
		if what, _, _ := readDenial(err); what != "" {
			deny(&deniedError{what}) // a question that NATS refused is never answered
		}
	})
	log, err := jetstream.NewLog(nc, cfg.logConfig(), cfg.Name)
	if err != nil {
		return wire.ID{}, err
	}
	defer log.Close()
	i := initiation{cfg: &cfg, nc: nc, log: log, without: without}
	if err := i.may(ctx); err != nil {
		return wire.ID{}, err
	}
	return i.make(ctx)
}

// deniedError is what NATS does not permit whoever runs Init.
type deniedError struct{ what string }

func (e *deniedError) Error() string {
	return "NATS does not permit this user to " + e.what + ": see the permissions in docs/OPERATIONS.md"
}

// mayDoWithout is why nodes cannot be left out.
func (c *Config) mayDoWithout(without []string) error {
	nodes := c.nodes()
	for i, w := range without {
		switch {
		case !slices.Contains(nodes, w):
			return fmt.Errorf("without %q: the named nodes are %s", w, strings.Join(nodes, ", "))
		case slices.Contains(without[:i], w):
			return fmt.Errorf("without %q: given twice", w)
		}
	}
	if 2*len(without) >= len(nodes) && len(without) > 0 {
		return fmt.Errorf("without %s: that leaves out %d of %d nodes: more than half must say that there never was a log",
			strings.Join(without, ", "), len(without), len(nodes))
	}
	return nil
}

// initiation is one run of Init, once it is connected.
type initiation struct {
	cfg     *Config
	nc      *nats.Conn
	log     *jetstream.Log
	without []string
}

// may is why there must be no new log.
func (i *initiation) may(ctx context.Context) error {
	askCtx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	switch epoch, err := jetstream.LatestEpoch(askCtx, i.nc, i.cfg.Prefix); {
	case err != nil:
		return err
	case epoch > 1:
		return fmt.Errorf("the log exists already: a recovery has begun its epoch %d. Nothing was changed", epoch)
	}
	id, err := i.log.Identity(askCtx)
	var config *jetstream.StreamConfigError
	switch {
	case err == nil && id.LastSeq > 0:
		return exists(id)
	case err == nil:
		i.cfg.Logger.Warn("the stream exists and is empty: an earlier init may have broken off", "stream", i.log.Stream())
	case errors.As(err, &config):
		return fmt.Errorf("the stream %s exists: %w", i.log.Stream(), err)
	case !errors.Is(err, jetstream.ErrNoStream):
		return err
	}
	if err := jetstream.CheckSubjects(askCtx, i.nc, i.cfg.Prefix); err != nil {
		return err
	}
	return i.everyWord(ctx)
}

func exists(id jetstream.Identity) error {
	return fmt.Errorf("the log exists already: it is of cluster %s and ends at seq %d. Nothing was changed",
		id.ClusterID, id.LastSeq)
}

// everyWord wants the word of every node that is not left out that it never had a log. One that is left out and answers
// may object all the same.
func (i *initiation) everyWord(ctx context.Context) error {
	nodes := i.cfg.nodes()
	left := func(n string) bool { return slices.Contains(i.without, n) }
	helloCtx, cancel := context.WithTimeout(ctx, helloPatience)
	defer cancel()
	answers, err := askHellos(helloCtx, i.nc, i.cfg.Prefix, slices.DeleteFunc(slices.Clone(nodes), left))
	var denied *deniedError
	switch {
	case errors.As(context.Cause(ctx), &denied):
		return denied
	case err != nil:
		return fmt.Errorf("ask the named nodes: %w", err)
	}
	missing, objection := count(nodes, answers)
	if objection != "" {
		return errors.New(objection)
	}
	if missing = slices.DeleteFunc(missing, left); len(missing) > 0 {
		return fmt.Errorf("no answer from %s: init wants the word of every named node that it never had a log, since ids would be "+
			"issued twice if one had. Start them, they wait for init, and repeat", strings.Join(missing, ", "))
	}
	return nil
}

// make makes the stream and its first entry.
func (i *initiation) make(ctx context.Context) (wire.ID, error) {
	id, err := i.log.Create(ctx, wire.NewID(), 1)
	var config *jetstream.StreamConfigError
	switch {
	case errors.Is(err, jetstream.ErrOneServer):
		return wire.ID{}, fmt.Errorf("the existing NATS at %s: %w: JetStream must run in a cluster of three servers or more",
			i.cfg.NATS, err)
	case errors.As(err, &config):
		return wire.ID{}, fmt.Errorf("the stream %s exists: %w", i.log.Stream(), err)
	case err != nil:
		return wire.ID{}, fmt.Errorf("%w: whether there is a stream %s now is not known: run init again", err, i.log.Stream())
	}
	if err := i.everyWord(ctx); err != nil { // one may have come between
		return wire.ID{}, fmt.Errorf("%w. The stream %s is there and holds no entry yet", err, i.log.Stream())
	}
	b := bootstrap{
		self: hello{Node: i.cfg.Name}, nodes: i.cfg.nodes(), genesis: i.cfg.Genesis, defaults: i.cfg.Defaults,
		entryID: wire.EntryID{Incarnation: wire.NewID(), Counter: 1},
	}
	entry, err := b.genesisEntry(id)
	if err != nil {
		return wire.ID{}, err
	}
	firstCtx, cancel := context.WithTimeout(ctx, genesisPatience)
	defer cancel()
	if err := i.log.AppendFirst(firstCtx, b.entryID.String(), entry); err != nil {
		return i.settle(ctx, err, entry)
	}
	return id.ClusterID, nil
}

// settle looks at what stands in the log after the first entry was not acknowledged: it may be there, or another's.
func (i *initiation) settle(ctx context.Context, broke error, entry []byte) (wire.ID, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), settlePatience)
	defer cancel()
	id, err := i.log.Identity(ctx)
	switch {
	case err != nil:
		return wire.ID{}, fmt.Errorf("%w: whether the log was made is not known: run init again, it says", broke)
	case id.LastSeq == 0:
		return wire.ID{}, fmt.Errorf("%w: the log has no entry yet: run init again", broke)
	}
	first, err := i.log.Get(ctx, 1)
	switch {
	case err != nil:
		return wire.ID{}, fmt.Errorf("%w: whether it is this init that made the log is not known: %w", broke, exists(id))
	case !bytes.Equal(first.Data, entry):
		return wire.ID{}, fmt.Errorf("another init was first: %w", exists(id))
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
