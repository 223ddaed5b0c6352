package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/allocnode/allocnode/apply"
	"github.com/allocnode/allocnode/internal/wire"
	"github.com/allocnode/allocnode/jetstream"
	"github.com/allocnode/allocnode/kv"
)

// locate is the epoch whose log this node must follow: the latest that it remembers, is prepared for, or that there is a
// stream of. It waits until JetStream answers.
func (n *Node) locate(ctx context.Context, nc *nats.Conn, known uint64, pending *recovery) (epoch uint64, err error) {
	for {
		tryCtx, cancel := context.WithTimeout(ctx, 5*time.Second)
		latest, err := jetstream.LatestEpoch(tryCtx, nc, n.cfg.Prefix)
		cancel()
		if err == nil {
			epoch = max(known, latest, 1)
			if pending != nil {
				epoch = max(epoch, pending.Epoch)
			}
			return epoch, nil
		}
		n.guard.Await(fmt.Sprintf("waiting for the log: %v", err))
		select {
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		case <-time.After(askPause):
		}
	}
}

// epochInterval is how often a node looks whether the cluster has gone on in a later epoch.
const epochInterval = 5 * time.Second

// laterEpochError ends a node that follows the log of an epoch that is over.
type laterEpochError struct{ now, follows uint64 }

func (e *laterEpochError) Error() string {
	return fmt.Sprintf("the cluster was recovered and goes on in epoch %d, this run follows the log of epoch %d: start the node again",
		e.now, e.follows)
}

// watchEpoch ends ctx by cancel when there is a log of a later epoch: what this run holds is of one that is over.
func (n *Node) watchEpoch(ctx context.Context, cancel context.CancelCauseFunc, nc *nats.Conn, epoch uint64) {
	ticker := time.NewTicker(epochInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		tryCtx, stop := context.WithTimeout(ctx, epochInterval)
		latest, err := jetstream.LatestEpoch(tryCtx, nc, n.cfg.Prefix)
		stop()
		if err == nil && latest > epoch {
			cancel(&laterEpochError{latest, epoch})
			return
		}
	}
}

// epochLog is what following the log of a recovery needs of it.
type epochLog interface {
	Identity(ctx context.Context) (jetstream.Identity, error)
	CreateRecovered(ctx context.Context, o jetstream.Origin) (jetstream.Identity, error)
	AppendAfter(ctx context.Context, last uint64, msgID string, data []byte) error
	Read(ctx context.Context, from uint64, fn func(jetstream.Message) error) (last uint64, err error)
}

// oldCatalog is what a node's catalog knows of the epochs before, and how that is put away.
type oldCatalog struct {
	state    *apply.Machine
	witness  apply.Head
	archived bool // its state was put away before, and the process ended in between
}

// rejoin finds the log of an epoch above 1, makes it where this node is prepared for its recovery, and holds what this node
// remembers of earlier epochs against the state that it begins with.
//
// Nodes that are prepared do this each for itself, at once or one after the other. Nothing depends on which: the stream is
// made with one configuration, the genesis fixes every part, and each goes in only behind the one before. A node stops
// anywhere, and goes on from what the log holds.
type rejoin struct {
	self      hello
	nodes     []string
	epoch     uint64
	clusterID wire.ID // configured
	pending   *recovery
	old       oldCatalog
	log       epochLog
	ask       func(ctx context.Context) ([]hello, error)
	await     func(why string)
	archive   func(next apply.Head) error
	seal      func(ctx context.Context) error // has who follows the log before fence
	sealing   time.Time                       // since when seal has been tried
	logger    *slog.Logger
}

// sealPatience is how long the log before may have no leader: where all nodes have just been started, its group elects one, and
// not always at once. It may also have lost its majority, and nobody can append to it.
const sealPatience = 20 * time.Second

// goneAfter is how long JetStream's leader must go on saying that a log that this node remembers is not there.
const goneAfter = 10 * time.Second

// verdict is what one step of a rejoin came to.
type verdict struct {
	kind verdictKind
	why  string // what it waits for, or why this node must fence
}

type verdictKind uint8

const (
	takeNext verdictKind = iota // the next step can be taken at once
	wait                        // look again
	waitGone                    // look again, and fence if the answer stays the same
	ready                       // the log is complete, and this node may follow it
	mustFence
)

func waitFor(format string, args ...any) verdict { return verdict{wait, fmt.Sprintf(format, args...)} }

// run returns the identity of the log, complete with its recovered state, or the reason why this node must fence. It waits
// until ctx ends.
func (j *rejoin) run(ctx context.Context) (id jetstream.Identity, fence string, err error) {
	var gone time.Time // since when a log that this node remembers has been missing
	for {
		id, v, err := j.step(ctx)
		if err != nil {
			return id, "", err
		}
		if v.kind != waitGone {
			gone = time.Time{}
		} else if gone.IsZero() {
			gone = time.Now()
		} else if time.Since(gone) > goneAfter {
			v.kind = mustFence
		}
		switch v.kind {
		case ready:
			return id, "", nil
		case mustFence:
			return id, v.why, nil
		case takeNext:
			continue
		}
		j.await(v.why)
		select {
		case <-ctx.Done():
			return id, "", context.Cause(ctx)
		case <-time.After(askPause):
		}
	}
}

func (j *rejoin) step(ctx context.Context) (jetstream.Identity, verdict, error) {
	lookCtx, cancel := context.WithTimeout(ctx, 5*time.Second)
	id, err := j.log.Identity(lookCtx)
	cancel()
	var config *jetstream.StreamConfigError
	switch {
	case errors.Is(err, jetstream.ErrNoStream) && j.self.Epoch == j.epoch:
		return id, verdict{waitGone, "the log is gone: there is no stream, but " + j.self.remembers("this node")}, nil
	case errors.Is(err, jetstream.ErrNoStream) && j.self.Followed == j.epoch:
		return id, verdict{waitGone, "the log is gone: there is no stream, but " + j.self.remembers("this node")}, nil
	case errors.Is(err, jetstream.ErrNoStream) && j.pending == nil:
		return id, waitFor("waiting for the log of epoch %d", j.epoch), nil
	case errors.Is(err, jetstream.ErrNoStream):
		return id, j.create(ctx), nil
	case errors.As(err, &config):
		return id, verdict{mustFence, config.Error()}, nil
	case err != nil:
		return id, waitFor("waiting for the log: %v", err), nil
	}
	switch why := j.contradiction(id); {
	case why != "":
		return id, verdict{mustFence, why}, nil
	case j.self.Epoch < j.epoch:
		v, err := j.complete(ctx, id)
		return id, v, err
	case id.Empty():
		return id, verdict{waitGone, "the log is empty, but " + j.self.remembers("this node")}, nil
	}
	return id, verdict{kind: ready}, nil // what the catalog holds is of this log; the check compares the two
}

// contradiction is why the log that was found cannot be this node's.
func (j *rejoin) contradiction(id jetstream.Identity) string {
	switch {
	case !j.clusterID.IsZero() && id.ClusterID != j.clusterID:
		return fmt.Sprintf("the log here is of cluster %s, cluster_id is set to %s", id.ClusterID, j.clusterID)
	case !j.self.Cluster.IsZero() && id.ClusterID != j.self.Cluster:
		return fmt.Sprintf("the log here is of cluster %s, this node's data are of cluster %s", id.ClusterID, j.self.Cluster)
	}
	return ""
}

// otherRecovery is why the log that was found is not the one that this node was prepared for.
func (j *rejoin) otherRecovery(id jetstream.Identity) string {
	if j.pending == nil || id.Recovery == j.pending.Recovery {
		return ""
	}
	return fmt.Sprintf("the log of epoch %d was begun by recovery %s, this node was prepared for recovery %s", j.epoch, id.Recovery,
		j.pending.Recovery)
}

// forbids asks every named node, and says why the log must not be begun. Whoever has followed it knows what was issued
// from it, and it may have been lost since: so silence is no permission, as at the first creation (see bootstrap). A node that is
// gone for good has an empty one of its name in its place, which JetStream wants too.
func (j *rejoin) forbids(ctx context.Context) (why string) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	answers, err := j.ask(ctx)
	if err != nil {
		return fmt.Sprintf("asking the named nodes: %v", err)
	}
	catalogs := make(map[string]wire.ID)
	for _, a := range answers {
		first, again := catalogs[a.Node]
		switch {
		case max(a.Epoch, a.Followed) >= j.epoch:
			return "the log is gone, and not made anew: " + a.remembers("the node "+a.Node)
		case a.Serving: // it issues what no floor covers
			return fmt.Sprintf("the node %s serves from the log of epoch %d: stop it, and plan the recovery anew with its floors", a.Node, a.Epoch)
		case again && first != a.Catalog:
			return fmt.Sprintf("two nodes go by the name %s: stop one of them", a.Node)
		}
		catalogs[a.Node] = a.Catalog
	}
	var missing []string
	for _, n := range j.nodes {
		if _, ok := catalogs[n]; !ok {
			missing = append(missing, n)
		}
	}
	if len(missing) > 0 {
		return fmt.Sprintf("the log of epoch %d is begun when every named node is there, prepared or not: waiting for %s", j.epoch,
			strings.Join(missing, ", "))
	}
	return ""
}

// create makes the stream, unless a node says that it was there before.
func (j *rejoin) create(ctx context.Context) verdict {
	if why := j.forbids(ctx); why != "" {
		return waitFor("%s", why)
	}
	ctx, stop := context.WithTimeout(ctx, 10*time.Second)
	defer stop()
	if j.sealing.IsZero() {
		j.sealing = time.Now()
	}
	if err := j.seal(ctx); err != nil {
		if time.Since(j.sealing) < sealPatience {
			return waitFor("the log before is not sealed: %v", err)
		}
		j.logger.Warn("recover: the log before is not sealed", "error", err)
	}
	j.logger.Info("recover: create the log", "epoch", j.epoch, "recovery", j.pending.Recovery)
	_, err := j.log.CreateRecovered(ctx, jetstream.Origin{
		ClusterID: j.pending.Cluster, Epoch: j.epoch, First: j.pending.genesis.First(), Recovery: j.pending.Recovery,
	})
	if err != nil {
		return waitFor("creating the log: %v", err)
	}
	return verdict{}
}

var errComplete = errors.New("complete")

// complete reads the state that the log begins with, and writes what is missing of it where this node is prepared. A node that
// was prepared for another recovery does not follow it, and says first what it remembers beyond it: others follow it.
func (j *rejoin) complete(ctx context.Context, id jetstream.Identity) (verdict, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	m := apply.New()
	if !id.Empty() {
		_, err := j.log.Read(ctx, id.Begin(), func(msg jetstream.Message) error {
			if _, _, err := m.Apply(msg.Seq, msg.Data); err != nil {
				return err
			}
			if !m.Restoring() {
				return errComplete // the floors are those of this moment: ids were issued since
			}
			return nil
		})
		var purged *jetstream.PurgedError
		switch {
		case errors.As(err, &purged):
			return verdict{mustFence, fmt.Sprintf("the log was purged: it begins at seq %d", purged.First)}, nil
		case err != nil && !errors.Is(err, errComplete):
			return waitFor("reading the recovered state: %v", err), nil
		}
	}
	other := j.otherRecovery(id)
	switch {
	case m.Genesis() != nil && m.Genesis().RecoveryID(id.ClusterID) != id.Recovery:
		why := fmt.Sprintf("the log of epoch %d does not begin with recovery %s, which made its stream", j.epoch, id.Recovery)
		return verdict{mustFence, why}, nil
	case m.Genesis() != nil && !m.Restoring():
	case other != "": // it is complete before anybody serves from it
		return waitFor("%s: waiting for it to be complete, to compare", other), nil
	case j.pending == nil:
		return waitFor("waiting for the recovery of epoch %d to be complete in the log", j.epoch), nil
	default:
		return j.write(ctx, id, m), nil
	}
	if more := remembersMore(j.old.state, m, j.old.witness, j.old.archived); more != "" {
		return j.object(ctx, id, m, more), nil
	}
	if other != "" {
		return verdict{mustFence, other}, nil
	}
	// From here on the catalog remembers this log: were it lost before the first commit, it must not be made a second time.
	if err := j.archive(m.Head()); err != nil {
		return verdict{}, fmt.Errorf("archive the catalog of epoch %d: %w", j.self.Epoch, err)
	}
	return verdict{kind: ready}, nil
}

// write puts the next missing piece into the log: the genesis, or a part.
func (j *rejoin) write(ctx context.Context, id jetstream.Identity, m *apply.Machine) verdict {
	next, last := -1, id.Begin()-1
	if m.Genesis() != nil {
		next, last = int(m.Restored()), m.Head().Cursor
	} else if why := j.forbids(ctx); why != "" { // an empty stream is no permission: JetStream makes one of a directory that was lost
		return waitFor("%s", why)
	}
	j.await(fmt.Sprintf("writing the recovered state: part %d of %d", next+1, len(j.pending.parts)))
	entry, err := j.pending.entry(next, m.Head(), id.Created.UnixNano())
	if err == nil {
		err = j.log.AppendAfter(ctx, last, j.pending.entryID(next).String(), entry)
	}
	if err != nil && !errors.Is(err, jetstream.ErrMoved) { // moved: another node was first, or an earlier try of this one
		return waitFor("writing the recovered state: %v", err)
	}
	return verdict{}
}

// object publishes that this node remembers more than the recovery: every node that applies it fences.
func (j *rejoin) object(ctx context.Context, id jetstream.Identity, m *apply.Machine, reason string) verdict {
	j.await(reason)
	_, err := j.log.Read(ctx, m.Head().Cursor, func(msg jetstream.Message) error {
		_, _, err := m.Apply(msg.Seq, msg.Data)
		return err
	})
	if err != nil {
		return waitFor("%s; reading the log: %v", reason, err)
	}
	if _, fenced := m.Fence(); fenced {
		return verdict{mustFence, reason}
	}
	if err := j.log.AppendAfter(ctx, jetstream.AnySeq, wire.NewID().String(), objection(j.self, m.Head(), reason)); err != nil {
		return waitFor("%s; saying so: %v", reason, err)
	}
	return verdict{mustFence, reason}
}

// seal puts into the log of the epoch that the catalog is of, where there is one, that it is over: a node that still follows it
// fences. It is a second line: the operator was told to stop all nodes.
func (n *Node) seal(ctx context.Context, nc *nats.Conn, self hello, next uint64) error {
	if self.Epoch == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, 4*time.Second)
	defer cancel()
	cfg := n.cfg.logConfig()
	cfg.Epoch = self.Epoch
	log, err := jetstream.NewLog(nc, cfg, n.cfg.Name)
	if err != nil {
		return err
	}
	defer log.Close()
	id, err := log.Identity(ctx)
	switch {
	case errors.Is(err, jetstream.ErrNoStream):
		return nil
	case err != nil:
		return err
	case id.Empty() || id.ClusterID != self.Cluster:
		return nil
	}
	return log.AppendAfter(ctx, jetstream.AnySeq, wire.NewID().String(), objection(self, apply.Head{ClusterID: id.ClusterID, Cursor: id.LastSeq},
		fmt.Sprintf("a recovery begins epoch %d: this log is over", next)))
}

// objection is an entry with which a node fences all that apply it. head is of the log that it goes into.
func objection(self hello, head apply.Head, reason string) []byte {
	entry := wire.AppendHeader(nil, &wire.Header{
		ClusterID: head.ClusterID, Level: wire.Level, Node: []byte(self.Node), ID: wire.EntryID{Incarnation: wire.NewID(), Counter: 1},
		Cursor: head.Cursor, Digest: head.Digest, Defaults: wire.Settings{First: 1, Max: 1, MaxCount: 1},
	})
	entry = wire.AppendOp(entry, &wire.Op{Kind: wire.KindCheck, Name: []byte(self.Node), Check: &wire.Check{
		CatalogID: self.Catalog, Verdict: wire.VerdictContradiction, Reason: cut(reason, wire.MaxReasonLen),
	}})
	wire.Seal(entry)
	return entry
}

// pending is the recovery that this node is prepared for, or nil where there is none, or its log was followed: the catalog has
// seen epoch known, the directory followed.
func (n *Node) pending(known, followed uint64) (*recovery, error) {
	if known > 1 {
		if err := keepFollowed(n.cfg.DataDir, known); err != nil {
			return nil, err
		}
	}
	r, err := pendingRecovery(n.cfg.DataDir)
	if h, headErr := readFileHead(filepath.Join(n.cfg.DataDir, recoveryName), recoveryKind); err != nil && headErr == nil && h.Epoch <= known {
		return nil, nil // damaged, and of no more use
	}
	if err != nil {
		return nil, fmt.Errorf("the recovery that this node is prepared for: %w", err)
	}
	if r != nil && r.Epoch <= max(known, followed) {
		return nil, nil
	}
	return r, nil
}

// follow finds the log that this node must follow, and its identity, or the reason to fence. machine is what the catalog
// holds; what is returned is what the log is to be applied to. follows is told the epoch before it is waited for.
func (n *Node) follow(ctx context.Context, nc *nats.Conn, self hello, machine *apply.Machine, pending *recovery, follows func(epoch uint64)) (

	log *jetstream.Log, id jetstream.Identity, m *apply.Machine, fence string, err error,
) {
	epoch, err := n.locate(ctx, nc, max(self.Epoch, self.Followed), pending)
	if err != nil {
		return nil, id, nil, "", err
	}
	if pending != nil && pending.Epoch < epoch {
		n.logger.Warn("this node was prepared for a recovery that another has overtaken", "epoch", pending.Epoch, "now", epoch)
		pending = nil
	}
	follows(epoch)
	cfg := n.cfg.logConfig()
	cfg.Epoch = epoch
	if log, err = jetstream.NewLog(nc, cfg, n.cfg.Name); err != nil {
		return nil, id, nil, "", err
	}
	if epoch == 1 {
		id, fence, err = n.bootstrap(nc, log, self).run(ctx)
		return log, id, machine, fence, err
	}
	j := rejoin{
		self: self, nodes: n.cfg.nodes(), epoch: epoch, clusterID: n.cfg.ClusterID, pending: pending, log: log, await: n.guard.Await,
		logger:  n.logger,
		old:     oldCatalog{state: machine, witness: n.catalog.Witness(), archived: n.catalog.Archived(n.catalog.Witness().Epoch)},
		ask:     func(ctx context.Context) ([]hello, error) { return askHellos(ctx, nc, n.cfg.Prefix, n.cfg.nodes()) },
		archive: func(next apply.Head) error { return archiveThenKeep(n.catalog.Archive, n.cfg.DataDir, next) },
		seal:    func(ctx context.Context) error { return n.seal(ctx, nc, self, epoch) },
	}
	id, fence, err = j.run(ctx)
	if self.Epoch < epoch && fence == "" {
		machine = apply.New()
	}
	return log, id, machine, fence, err
}

// mayBeClean reports whether the catalog is known to hold everything that this node has ever applied.
func mayBeClean(c *kv.Catalog) bool {
	return c.Clean() || c.Head() == apply.Head{} && c.Witness() == apply.Head{}
}
