package node

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"golang.org/x/sync/errgroup"

	"github.com/allocnode/allocnode"
	"github.com/allocnode/allocnode/apply"
	"github.com/allocnode/allocnode/internal/next"
	"github.com/allocnode/allocnode/internal/propose"
	"github.com/allocnode/allocnode/internal/wire"
	"github.com/allocnode/allocnode/jetstream"
	"github.com/allocnode/allocnode/kv"
)

// parts is what exists once the log is known.
type parts struct {
	cluster wire.ID
	svc     *nats.Conn // the service's connection
	prop    *propose.Proposer
	pool    *next.Pool
	replica *replica
	checker *checker
	watch   *watch
	lead    *lead
	lag     *lagWatch

	neighbors *neighbors
}

// stage is some of the node's goroutines, which are stopped together.
type stage struct {
	cancel context.CancelFunc
	group  *errgroup.Group
	ended  <-chan struct{} // closed when one of them returned an error, or all were stopped
}

func startStage(ctx context.Context, runs ...func(context.Context) error) stage {
	ctx, cancel := context.WithCancel(ctx)
	group, ctx := errgroup.WithContext(ctx)
	for _, run := range runs {
		group.Go(func() error { return run(ctx) })
	}
	return stage{cancel, group, ctx.Done()}
}

// stop ends the stage's goroutines and waits for them.
func (s stage) stop() error {
	s.cancel()
	return s.group.Wait()
}

// drainTimeout is how long a stopping node lets what it has received be answered. The log answers within milliseconds, or
// there is no quorum and the deadline of each request is near.
const drainTimeout = 4500 * time.Millisecond

// replicate follows the log and serves until ctx ends. The parts stop in the order in which they feed one another, so that
// what one of them has begun the next can finish.
func (n *Node) replicate(
	ctx context.Context, machine *apply.Machine, nc, svc *nats.Conn, log *jetstream.Log, id jetstream.Identity,
) error {
	if err := n.catalog.SetClean(false); err != nil { // before an entry is applied
		return err
	}
	p := n.assemble(machine, nc, svc, log, id)
	// A subscription that nats.go made anew is a new one (DESIGN 8): what was missed meanwhile may be a log made anew. Set
	// before the first, so that none goes unseen.
	was := nc.ReconnectHandler()
	nc.SetReconnectHandler(func(nc *nats.Conn) {
		if was != nil {
			was(nc)
		}
		p.checker.Begin("connected to NATS again")
		p.watch.Kick()
	})
	n.drainWhenBack(svc)
	feed := p.replica.Offer
	if n.cfg.NATS != nil {
		feed = p.replica.Wake
	}
	stopFeed, err := log.Feed(id.ClusterID, feed)
	if err != nil {
		return fmt.Errorf("subscribe to the log: %w", err)
	}
	defer stopFeed()
	if n.differed != "" {
		n.guard.FenceDigest(n.differed, true)
	}
	p.checker.Begin("start")
	stopLeader, err := log.OnLeaderChange(func() {
		p.checker.Begin("the stream has a new leader")
		p.watch.Kick()
	})
	if err != nil {
		return fmt.Errorf("subscribe to changes of the leader: %w", err)
	}
	defer stopLeader()
	n.link.set(p)
	if fence, ok := machine.Fence(); ok {
		n.fence(fence.Reason)
	}
	if err := n.svc.StartOperators(id.ClusterID); err != nil {
		return err
	}

	work := context.WithoutCancel(ctx)
	store := startStage(work, n.store.Run)
	core := startStage(work, p.prop.Run, p.pool.Run, p.replica.Run)
	front := startStage(work, p.checker.Run, p.watch.Run, p.lag.Run, p.lead.Run, p.neighbors.Run, n.serve)
	select {
	case <-ctx.Done():
		if n.cfg.clustered() {
			p.lead.HandOver(work)
		}
	case <-store.ended:
	case <-core.ended:
	case <-front.ended:
	}
	n.logger.Info("stopping")
	n.guard.Stop()
	err = front.stop()
	drainCtx, cancel := context.WithTimeout(work, drainTimeout)
	defer cancel()
	if drainErr := n.svc.Drain(drainCtx); drainErr != nil {
		n.logger.Warn("stop serving", "error", drainErr)
	}
	stopped := errors.Join(core.stop(), store.stop())
	// What an earlier run had applied and not stored is known to be here only after a check that ended well.
	if stopped == nil && (n.clean || n.guard.Opened()) {
		stopped = n.catalog.SetClean(true)
	}
	return errors.Join(err, stopped)
}

// assemble makes the parts and ties them together. It starts nothing.
func (n *Node) assemble(machine *apply.Machine, nc, svc *nats.Conn, log *jetstream.Log, id jetstream.Identity) *parts {
	p := &parts{cluster: id.ClusterID, svc: svc}
	n.store = kv.NewCommitter(n.catalog, kv.CommitterConfig{OnState: n.storeState})

	cfg := propose.DefaultConfig()
	cfg.Header = wire.Header{
		ClusterID: id.ClusterID, Level: wire.Level, Node: []byte(n.cfg.Name), ID: wire.EntryID{Incarnation: n.incarnation},
		AutoCreate: n.cfg.AutoCreate, Defaults: n.cfg.Defaults,
	}
	cfg.Twin = func(seq uint64) {
		n.fence(fmt.Sprintf("another process goes on as this one: the entry at seq %d bears an id of this run, and was not made here", seq))
	}
	p.prop = propose.New(cfg, &ownLog{log, func() error { return p.checker.mayAppend() }},
		func() (uint64, wire.Digest) { h := p.replica.Head(); return h.Cursor, h.Digest },
		func(seq, cursor uint64) {
			n.fence(fmt.Sprintf("the log lost entries: it stored an entry of this node at seq %d, which had applied seq %d", seq, cursor))
		})
	p.pool = next.New(next.DefaultConfig(), p.prop)
	keepBatches(p.pool, n.cfg.DataDir)
	n.guard.setGates(p.prop, p.pool)

	p.replica = newReplica(machine, n.catalog.Witness(), log, n.store, replicaEvents{
		fence:   n.fence,
		stopped: func() { p.checker.Suspect() },
		halt: func(err error) {
			n.logger.Error("halted", "error", err)
			n.guard.HaltForGood(err.Error())
		},
		advanced: p.pool.Advanced,
		applied: func(id wire.EntryID, seq uint64, data []byte, outcomes []wire.Outcome) {
			if id.Incarnation == n.incarnation {
				p.lag.Applied()
			}
			p.prop.Applied(id, seq, data, outcomes)
		},
		checked:   func(seq uint64, e *wire.Entry, op *wire.Op, a agreement) { p.checker.Observe(seq, e, op, a) },
		forgotten: func(node string) { p.checker.Forgotten(node) },
		differs:   func(node string, cursor uint64) { p.checker.Differs(node, cursor) },
	}, n.logger)
	p.replica.first = id.Begin()
	p.checker = newChecker(n.cfg.Name, n.incarnation, n.catalog.ID(), n.catalog.Witness(), log, p.replica, p.prop, n.guard, n.logger)
	p.checker.conns = func() uint64 { return nc.Stats().Reconnects }
	p.lag = &lagWatch{
		submit: func(ctx context.Context, op []byte) error {
			_, _, err := p.checker.submit(ctx, op)
			return err
		},
		waiting: p.prop.Waiting, behind: p.replica.Behind, apart: p.checker.apart.Load, guard: n.guard, begin: p.checker.Begin,
		logger: n.logger,
		// Beside an existing NATS silence may mean a connection that is about to be made anew, and perhaps to another log.
		silent: func() bool { return n.cfg.NATS == nil && p.watch.silent() },
	}
	p.watch = newWatch(n.cfg.Name, log, p.replica, p.checker)
	var bus leadBus = nc
	if n.cfg.NATS != nil {
		p.replica.patience = 0 // there is no feed to wait for
		bus = nil
	}
	p.lead = newLead(bus, n.cfg.Prefix, p.cluster, n.cfg.Name, p.watch.leads, n.guard.Serving)
	self := greeting{Node: n.cfg.Name, Cluster: id.ClusterID, Catalog: n.catalog.ID(), Incarnation: n.incarnation}
	p.neighbors = newNeighbors(svc, n.cfg.Prefix, self, n.cfg.shared(), n.linked, n.guard.Serving, func(why string) {
		n.guard.Foreign(why)
		if why != "" {
			n.logger.Error("not serving", "reason", why)
			return
		}
		p.checker.Begin("the service's subjects are this cluster's alone")
	})
	n.guard.Foreign(p.neighbors.listening) // it is told when that is over
	log.OnAck(func(tag uint64, ack jetstream.Ack) {
		p.prop.Acked(tag, ack.Seq, ack.Duplicate, ack.Err)
		if ack.Err == nil {
			p.checker.Stored(ack.Seq)
			p.replica.Expect(ack.Seq)
		}
	})
	return p
}

// fence stops issuing for good, and says so.
func (n *Node) fence(reason string) { n.guard.Fence(reason) }

// clusterID is the cluster that this node belongs to, as far as it knows.
func (n *Node) clusterID() wire.ID {
	if p := n.link.get(); p != nil {
		return p.cluster
	}
	return n.catalog.Witness().ClusterID
}

// storeState is told when the catalog can no longer be written, and when it can again.
func (n *Node) storeState(err error) {
	p := n.link.get()
	switch {
	case errors.Is(err, kv.ErrContradiction):
		p.replica.Pause()
		n.fence(err.Error())
	case err != nil:
		p.replica.Pause()
		n.logger.Error("halted", "error", err)
		n.guard.Halt(fmt.Sprintf("the catalog cannot be written: %v", err))
	default:
		p.replica.Resume()
		n.guard.Unhalt()
		p.checker.Begin("the catalog can be written again")
	}
}

// serve has the service listen while the node may serve, and drains it while it may not, so that other nodes answer. What
// goes through the log it leaves to another node while that one says it takes it.
func (n *Node) serve(ctx context.Context) error {
	p := n.link.get()
	listening, appending := false, false
	for {
		want := n.guard.Listen(listening)
		appends := want && !p.lead.StandBy()
		switch {
		case listening && !want && !p.svc.IsReconnecting():
			p.lead.Appending(false)
			n.drain(ctx)
			listening, appending = false, false
		case want && (!listening || appends != appending):
			// Where it listens already, the new subscriptions are there before the old ones end: no request finds nobody.
			if err := n.svc.StartServing(p.cluster, appends); err != nil {
				return err
			}
			listening, appending = true, appends
			p.lead.Appending(appends)
			n.once.Do(func() { close(n.ready) })
		}
		select {
		case <-ctx.Done():
			return nil
		case <-n.guard.changed:
		case <-p.lead.changed:
		}
	}
}

// drainWhenBack has serve look again when the service's connection is back: meanwhile it did not drain.
func (n *Node) drainWhenBack(svc *nats.Conn) {
	was := svc.ReconnectHandler()
	svc.SetReconnectHandler(func(nc *nats.Conn) {
		if was != nil {
			was(nc)
		}
		n.guard.update(func() {})
	})
}

// drain has the service take no more requests. Not while the connection is away: nats.go would subscribe again, on the way
// back, to what is being drained, and then forget it without telling the server, which would send requests here to nobody.
func (n *Node) drain(ctx context.Context) {
	// Not under ctx: when the node stops, what was received is still answered.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainTimeout)
	defer cancel()
	if err := n.svc.Drain(ctx); err != nil {
		n.logger.Warn("stop serving", "error", err)
	}
}

// link is how the service reaches the parts, from before they exist.
type link struct{ parts atomic.Pointer[parts] }

func (l *link) get() *parts  { return l.parts.Load() }
func (l *link) set(p *parts) { l.parts.Store(p) }

// Submit takes a user's request.
func (l *link) Submit(r *propose.Request) {
	if p := l.get(); p != nil {
		p.prop.Submit(r)
		return
	}
	r.Done(propose.Result{Err: allocnode.Errorf(allocnode.CodeUnavailable, "the node is starting")})
}

// operators is link for requests that a node takes which does not serve.
type operators struct{ *link }

// Submit takes an operator's request.
func (o operators) Submit(r *propose.Request) {
	if p := o.get(); p != nil {
		p.prop.SubmitControl(r)
		return
	}
	r.Done(propose.Result{Err: allocnode.Errorf(allocnode.CodeUnavailable, "the node is starting")})
}

// Info is the state of one sequence, as applied here.
func (l *link) Info(name string) (info wire.SequenceInfo, ok bool) {
	l.view(func(m *apply.Machine) { info, ok = m.Info(name) })
	return info, ok
}

// List is a page of sequences, as applied here.
func (l *link) List(after uint64, limit int) (page []wire.SequenceInfo, next uint64, total int) {
	l.view(func(m *apply.Machine) {
		page = m.List(nil, after, limit)
		if total = m.Len(); after+uint64(len(page)) < uint64(total) {
			next = after + uint64(len(page))
		}
	})
	return page, next, total
}

// Cursor is the seq of the last entry applied here.
func (l *link) Cursor() (cursor uint64) {
	l.view(func(m *apply.Machine) { cursor = m.Head().Cursor })
	return cursor
}

func (l *link) view(fn func(*apply.Machine)) {
	if p := l.get(); p != nil {
		p.replica.View(fn)
	}
}
