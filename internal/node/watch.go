package node

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/allocnode/allocnode/apply"
	"github.com/allocnode/allocnode/internal/wire"
	"github.com/allocnode/allocnode/jetstream"
)

// watch looks at the stream's leader every second. It decides nothing: what looks odd begins a check, and what the log
// holds beyond the cursor is read.
type watch struct {
	node    string
	log     leaderReader
	replica *replica
	checker *checker
	kick    chan struct{} // capacity 1: look now

	mu   sync.Mutex // guards all below
	seen bool       // last is what the leader said at the last look that succeeded
	last jetstream.Identity
	err  error  // of the last look
	told string // of the failures since the last look that succeeded, the newest that a check began for
}

const (
	watchInterval = time.Second
	watchTimeout  = 2 * time.Second
)

func newWatch(node string, log leaderReader, r *replica, c *checker) *watch {
	return &watch{node: node, log: log, replica: r, checker: c, kick: make(chan struct{}, 1)}
}

// Run looks until ctx ends.
func (w *watch) Run(ctx context.Context) error {
	ticker := time.NewTicker(watchInterval)
	defer ticker.Stop()
	for {
		w.look(ctx)
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		case <-w.kick:
		}
	}
}

// Kick has the next look made now.
func (w *watch) Kick() {
	select {
	case w.kick <- struct{}{}:
	default:
	}
}

func (w *watch) look(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, watchTimeout)
	defer cancel()
	cursor := w.replica.Head().Cursor // before the question, so that an honest answer is not below it
	id, err := w.log.Identity(ctx)
	if ctx.Err() != nil && err != nil {
		err = fmt.Errorf("no answer from the log's leader: %w", err)
	}
	if why := w.note(id, err, cursor); why != "" {
		w.checker.Begin(why)
	}
	if err == nil {
		w.replica.Expect(id.LastSeq)
	}
}

// note keeps what the look gave, and returns why a check must begin, if it must.
func (w *watch) note(id jetstream.Identity, err error, cursor uint64) (why string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	before, failed, first := w.last, w.err != nil, !w.seen
	w.err = err
	if err != nil {
		if errors.Is(err, jetstream.ErrNoLeader) || err.Error() == w.told {
			return "" // nothing can be checked until there is a leader; or it was told
		}
		w.told = err.Error()
		return w.told
	}
	w.last, w.seen, w.told = id, true, ""
	switch {
	case first:
		return ""
	case failed:
		return "the log answers again"
	case id.Leader != before.Leader:
		return fmt.Sprintf("the stream's leader is %s, it was %s", id.Leader, before.Leader)
	case !id.Created.Equal(before.Created) || id.ClusterID != before.ClusterID || id.Epoch != before.Epoch:
		return "the stream is another one"
	case id.FirstSeq != before.FirstSeq:
		return fmt.Sprintf("the log begins at seq %d", id.FirstSeq)
	case id.LastSeq < cursor:
		return fmt.Sprintf("the log ends at seq %d, this node has applied %d", id.LastSeq, cursor)
	}
	return ""
}

// leads reports whether this node leads the stream, as far as the last look says.
func (w *watch) leads() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err == nil && w.seen && w.last.Leader == w.node
}

// silent reports whether the last look had no answer from the log's leader.
func (w *watch) silent() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err != nil
}

// fill adds to s what the last look gave. role is what the node is whoever leads, or empty.
func (w *watch) fill(s *wire.Status, role string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	s.Last = max(w.last.LastSeq, s.Cursor)
	s.Lag = s.Last - s.Cursor
	switch {
	case role != "":
		s.Role = role
	case w.err != nil || !w.seen:
		s.Role = wire.RoleUnknown
	case w.last.Leader == w.node:
		s.Role = wire.RoleLeader
	default:
		s.Role = wire.RoleFollower
	}
}

// Status is what this node says of itself.
func (n *Node) Status() wire.Status {
	s := wire.Status{
		Name: n.cfg.Name, Role: wire.RoleUnknown, Incarnation: n.incarnation, Version: n.cfg.Version,
	}
	s.State, s.Reason = n.guard.State()
	s.Ready = s.State == wire.StateServing
	if id := n.catalogID.Load(); id != nil {
		s.Catalog = *id
	}
	p := n.link.get()
	if p == nil {
		return s
	}
	p.replica.View(func(m *apply.Machine) {
		head := m.Head()
		s.Cluster, s.Epoch, s.Cursor, s.Digest = p.cluster, head.Epoch, head.Cursor, head.Digest.String()
		s.Level, s.Sequences = uint8(m.Level()), uint64(m.Len())
		s.Counters = map[string]uint64{"skipped_messages": m.Skipped()}
	})
	queued, inFlight := p.prop.Waiting()
	s.Counters["requests_queued"], s.Counters["requests_in_flight"] = uint64(queued), uint64(inFlight)
	s.Counters["catalog_backlog"] = uint64(n.store.Backlog())
	p.watch.fill(&s, n.cfg.role())
	return s
}
