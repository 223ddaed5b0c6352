package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/allocnode/allocnode/apply"
	"github.com/allocnode/allocnode/internal/mutant"
	"github.com/allocnode/allocnode/internal/next"
	"github.com/allocnode/allocnode/internal/propose"
	"github.com/allocnode/allocnode/internal/service"
	"github.com/allocnode/allocnode/internal/wire"
	"github.com/allocnode/allocnode/jetstream"
	"github.com/allocnode/allocnode/kv"
)

// What the parts need of each other is what they offer.
var (
	_ propose.Log       = (*jetstream.Log)(nil)
	_ logReader         = (*jetstream.Log)(nil)
	_ leaderReader      = (*jetstream.Log)(nil)
	_ bootLog           = (*jetstream.Log)(nil)
	_ deltaStore        = (*kv.Committer)(nil)
	_ controlProposer   = (*propose.Proposer)(nil)
	_ service.Submitter = (*propose.Proposer)(nil)
	_ next.Submitter    = (*propose.Proposer)(nil)
)

// Node is one allocnode. New makes it, Run is its whole life.
type Node struct {
	cfg         Config
	logger      *slog.Logger
	incarnation wire.ID
	server      *jetstream.Server // nil beside an existing NATS
	guard       *guard
	link        link // service to the parts that exist once the log is known

	started chan struct{} // closed when clients can connect
	ready   chan struct{} // closed when it serves for the first time
	once    sync.Once

	catalog *kv.Catalog
	store   *kv.Committer
	svc     *service.Service

	fences   fences
	differed string // the digest fence of an earlier run
	clean    bool   // at the start of this run the catalog held all that the node had ever applied

	catalogID atomic.Pointer[wire.ID] // of catalog, for Status, which is called at any time
}

// New checks cfg. It starts nothing and touches no file.
func New(cfg Config) (*Node, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	srv, err := newServer(cfg)
	if err != nil {
		return nil, err
	}
	n := &Node{
		cfg: cfg, logger: cfg.Logger, incarnation: wire.NewID(), server: srv, guard: newGuard(),
		started: make(chan struct{}), ready: make(chan struct{}),
	}
	n.fences.n = n
	n.guard.raised, n.guard.lifted = n.fences.raised, n.fences.lifted
	return n, nil
}

// Started is closed when clients can connect to ClientURL.
func (n *Node) Started() <-chan struct{} { return n.started }

// Ready is closed when the node serves for the first time.
func (n *Node) Ready() <-chan struct{} { return n.ready }

// Run starts the node, and stops it in order when ctx ends: no more requests are taken, what was received is answered,
// the catalog is brought up to date, the server leaves. A node that fences or halts stays up, to say so. Run returns an
// error when the node could not start or could not go on.
func (n *Node) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	var watcher sync.WaitGroup
	watcher.Go(func() {
		select {
		case err := <-n.failed():
			cancel(&serverError{err})
		case <-ctx.Done():
		}
	})
	watcher.Go(func() { n.fences.Run(ctx) })
	err := n.run(ctx, cancel)
	cancel(nil)
	watcher.Wait()
	var failed *serverError
	if errors.As(context.Cause(ctx), &failed) && !errors.Is(err, failed.err) {
		err = errors.Join(failed.err, err)
	}
	var later *laterEpochError
	if errors.As(context.Cause(ctx), &later) {
		err = errors.Join(later, err)
	}
	return err
}

// serverError is why the embedded server could not go on.
type serverError struct{ err error }

func (e *serverError) Error() string { return e.err.Error() }
func (e *serverError) Unwrap() error { return e.err }

func (n *Node) run(ctx context.Context, cancel context.CancelCauseFunc) (err error) {
	if names := mutant.Active(); len(names) > 0 {
		n.logger.Error("this build is for tests only: it goes without a guard, and may issue an id twice", "mutants", names)
	}
	lock, err := jetstream.LockDir(n.cfg.DataDir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lock.Close()) }()

	// Before the server: nats-server would delete the stream of a node that was alone and now has a cluster block. The
	// catalog refuses that; here is the case of one that is gone.
	files, wasClustered, err := jetstream.HoldsLog(n.cfg.DataDir, n.cfg.Prefix)
	if err != nil {
		return err
	}
	catalogDir := filepath.Join(n.cfg.DataDir, "catalog")
	// Its witness is what kv writes first: a folder without one may be there, emptied.
	if _, err := os.Stat(filepath.Join(catalogDir, "witness")); errors.Is(err, fs.ErrNotExist) && files && wasClustered != n.cfg.clustered() {
		return fmt.Errorf("%s holds the log of a node that ran %s: it cannot be started %s",
			n.cfg.DataDir, mode(wasClustered), mode(n.cfg.clustered()))
	}
	machine, err := n.openCatalog(catalogDir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, n.catalog.Close()) }()

	followed, err := followedEpoch(n.cfg.DataDir)
	if err != nil {
		return err
	}
	self := helloOf(n.cfg.Name, n.catalog.ID(), n.catalog.Witness(), machine.Head(), files || followed > 0)
	self.Followed = followed
	n.clean = mayBeClean(n.catalog)
	pending, err := n.pending(self.Epoch, followed)
	if err != nil {
		return err
	}
	if pending != nil {
		self.remember(pending)
	}
	n.fences.epoch = self.Epoch
	if n.differed, err = n.storedFence(self.Epoch, pending); err != nil {
		return err
	}
	if want := n.cfg.ClusterID; !want.IsZero() && !self.Cluster.IsZero() && self.Cluster != want {
		// Before the server too: its JetStream, another cluster's, would join the group that rules over this one's.
		return fmt.Errorf("the data in %s are of cluster %s, cluster_id is set to %s", n.cfg.DataDir, self.Cluster, want)
	}
	if n.server != nil {
		if err := n.server.Start(ctx); err != nil {
			return err
		}
		defer func() {
			stopCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 15*time.Second)
			defer cancel()
			err = errors.Join(err, n.server.Shutdown(stopCtx))
		}()
	}
	logConn, svcConn, err := n.connect(ctx)
	switch {
	case err != nil && ctx.Err() != nil && n.server == nil:
		return nil // told to stop while it waited for the existing NATS
	case err != nil:
		return err
	}
	defer logConn.Close()
	defer svcConn.Close()
	if n.server == nil {
		stop := n.watchPermissions(ctx, logConn, svcConn)
		defer stop()
	}

	close(n.started)

	if _, err := answerHellos(logConn, n.cfg.Prefix, n.hello(self)); err != nil {
		return fmt.Errorf("answer other nodes: %w", err)
	}
	n.fences.connected(svcConn)
	n.svc = service.New(svcConn, n.serviceConfig(), &n.link, operators{&n.link}, &n.link, &n.link, n.Status)
	if err := n.svc.Start(); err != nil {
		return err
	}
	defer func() {
		stopCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
		defer cancel()
		err = errors.Join(err, n.svc.Close(stopCtx))
	}()

	watchCtx, stopWatch := context.WithCancel(ctx)
	var watcher sync.WaitGroup
	defer watcher.Wait()
	defer stopWatch()
	log, id, machine, fence, err := n.follow(ctx, logConn, self, machine, pending, func(epoch uint64) {
		watcher.Go(func() { n.watchEpoch(watchCtx, cancel, logConn, epoch) })
	})
	if log != nil {
		defer log.Close()
	}
	switch {
	case ctx.Err() != nil:
		return nil
	case err != nil:
		return err
	}
	if err := n.outgrown(max(id.Epoch, self.Epoch)); err != nil {
		return err
	}
	if fence != "" {
		n.fence(fence)
		<-ctx.Done()
		return nil
	}
	if n.differed != "" { // not before: a state of an earlier epoch is held against what the recovery knows
		if machine, err = n.distrust(machine, n.differed); err != nil {
			return err
		}
	}
	n.guard.Await("looking for streams that capture the service's subjects")
	err = n.checkSubjects(ctx, svcConn)
	switch {
	case ctx.Err() != nil:
		return nil // not on into replicate, which greets
	case err != nil:
		return err
	}
	return n.replicate(ctx, machine, logConn, svcConn, log, id)
}

// Across a leaf node JetStream's API is usually answered by nobody: a start need not wait for it long.
const (
	subjectsPatience     = 2 * time.Second
	subjectsPatienceLeaf = 700 * time.Millisecond
)

// checkSubjects refuses to serve subjects that a stream of the clients captures.
func (n *Node) checkSubjects(ctx context.Context, nc *nats.Conn) error {
	patience := subjectsPatience
	if n.cfg.shared() && n.server != nil {
		patience = subjectsPatienceLeaf
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	err := jetstream.CheckSubjects(ctx, nc, n.cfg.Prefix)
	if errors.Is(err, jetstream.ErrNoLeader) {
		// Nobody says that there is one. It would spoil answers, which clients notice, and never a reservation; and neighbors
		// looks too, by other means, where others are joined.
		n.logger.Warn("whether a stream captures the service's subjects is not known", "error", err)
		return nil
	}
	return err
}

func mode(clustered bool) string {
	if clustered {
		return "in a cluster"
	}
	return "alone"
}

// openCatalog opens the catalog and reads the state from it, or an empty one where the state was lost.
func (n *Node) openCatalog(dir string) (*apply.Machine, error) {
	var err error
	n.catalog, err = kv.Open(dir, n.cfg.identity(), n.logger.With("part", "catalog"))
	if err != nil {
		return nil, err
	}
	id := n.catalog.ID()
	n.catalogID.Store(&id)
	r := apply.NewRestorer()
	head, err := n.catalog.Load(r.Add)
	if err == nil {
		var m *apply.Machine
		if m, err = r.Machine(head); err == nil {
			return m, nil
		}
	}
	if !errors.Is(err, kv.ErrStateDropped) {
		// The bytes are whole, but this build does not understand them: another version wrote them. The log tells.
		if err = n.catalog.SetAside(err); err != nil {
			return nil, errors.Join(err, n.catalog.Close())
		}
	}
	n.logger.Warn("the state is rebuilt from the log")
	return apply.New(), nil
}

func (n *Node) serviceConfig() service.Config {
	return service.Config{
		Prefix: n.cfg.Prefix, Node: n.cfg.Name, Version: n.cfg.Version,
		AutoCreate: n.cfg.AutoCreate, Defaults: n.cfg.Defaults, Timeout: n.cfg.Timeout,
	}
}

// hello is self until the replica lives, and then what it has applied: a node whose log came into being after its start
// is not empty any more.
func (n *Node) hello(self hello) func() hello {
	return func() hello {
		if parts := n.link.get(); parts != nil {
			h := helloOf(self.Node, self.Catalog, n.catalog.Witness(), parts.replica.Head(), !self.Empty)
			h.Serving, h.Followed = n.guard.MayIssue(), self.Followed
			return h
		}
		return self
	}
}

func (n *Node) bootstrap(nc *nats.Conn, log bootLog, self hello) *bootstrap {
	return &bootstrap{
		self: self, nodes: n.cfg.nodes(), clusterID: n.cfg.ClusterID, byInit: n.cfg.NATS != nil, genesis: n.cfg.Genesis, defaults: n.cfg.Defaults,
		entryID: wire.EntryID{Incarnation: wire.NewID(), Counter: 1}, log: log, await: n.guard.Await, logger: n.logger,
		ask: func(ctx context.Context) ([]hello, error) { return askHellos(ctx, nc, n.cfg.Prefix, n.cfg.nodes()) },
	}
}
