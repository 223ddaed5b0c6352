package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/allocnode/allocnode"
	"github.com/allocnode/allocnode/apply"
	"github.com/allocnode/allocnode/internal/propose"
	"github.com/allocnode/allocnode/internal/wire"
	"github.com/allocnode/allocnode/jetstream"
)

// leaderReader is what the stream's leader is asked. (Other replicas may lag, which proves nothing.)
type leaderReader interface {
	Identity(ctx context.Context) (jetstream.Identity, error)
	Get(ctx context.Context, seq uint64) (jetstream.Message, error)
}

// controlProposer puts the node's own operations into the log.
type controlProposer interface {
	SubmitControl(*propose.Request)
}

// checker keeps the rule of DESIGN 8: after a start, and after each change of the stream's leader, a node serves only when
// a majority of the named nodes, itself among them, has compared what it remembers with the log, after that moment, and
// found no contradiction.
//
// How "after that moment" is known without a clock: the node puts a check entry into the log that asks the others. Every
// entry carries its proposer's cursor, so a check entry of another node whose cursor reaches the asking one's seq was made
// by a node that had already seen it.
//
//	n1  ── check, ask ─────> seq 40
//	n2  <─ applies 40 ── compares ── check, cursor 40 ──> seq 41
//	n1  <─ applies 41: n1 and n2 are two of three: open
//
// A node that remembers more than the log holds proves it by its check entry alone: its cursor is at or above the seq
// that the entry gets, and every replica that applies such an entry fences.
type checker struct {
	node    string
	catalog wire.ID
	witness apply.Head // what the catalog remembers beyond its state
	log     leaderReader
	replica *replica
	prop    controlProposer
	guard   *guard
	logger  *slog.Logger

	wake chan struct{} // capacity 1

	mu     sync.Mutex // guards all below
	due    bool       // a round of this node's own must begin
	ticket uint64     // of the guard's last Hold
	round  uint64     // seq of the entry that asks; 0 while none is under way
	began  time.Time
	asked  uint64                // seq of the last entry of another node that asks
	said   uint64                // cursor in the last check entry of this node
	seen   map[string]lastChecks // by node
}

// lastChecks is what is known of one node's check entries.
type lastChecks struct{ cursor uint64 }

func newChecker(node string, catalog wire.ID, witness apply.Head, log leaderReader, r *replica, prop controlProposer, g *guard, logger *slog.Logger) *checker {
	return &checker{
		node: node, catalog: catalog, witness: witness, log: log, replica: r, prop: prop, guard: g, logger: logger,
		wake: make(chan struct{}, 1), seen: make(map[string]lastChecks),
	}
}

// Begin starts a round: from now on nothing is answered until it has ended well.
func (c *checker) Begin(why string) {
	c.mu.Lock()
	c.ticket = c.guard.Hold("checking the log: " + why)
	c.due, c.round = true, 0
	c.mu.Unlock()
	c.logger.Info("check the log", "because", why)
	c.signal()
}

func (c *checker) signal() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// Observe takes an accepted check entry, from the replica, in log order.
func (c *checker) Observe(seq uint64, e *wire.Entry, op *wire.Op) {
	node := string(e.Node)
	c.mu.Lock()
	c.seen[node] = lastChecks{cursor: max(c.seen[node].cursor, e.Cursor)}
	switch {
	case node == c.node:
		c.said = max(c.said, e.Cursor)
	case op.Check.Ask:
		c.asked = seq
	}
	c.mu.Unlock()
	c.conclude()
	c.signal()
}

// conclude opens the guard when the round under way has its majority.
func (c *checker) conclude() {
	var nodes []string
	c.replica.View(func(m *apply.Machine) {
		if g := m.Genesis(); g != nil {
			nodes = g.Nodes
		}
	})
	c.mu.Lock()
	var missing []string
	for _, n := range nodes {
		if n != c.node && c.seen[n].cursor < c.round {
			missing = append(missing, n)
		}
	}
	done := c.round > 0 && !c.due && len(nodes)-len(missing) > len(nodes)/2
	if c.round > 0 && !done {
		c.guard.Await(fmt.Sprintf("waiting for the word of a majority: nothing yet from %v", missing))
	}
	ticket, took := c.ticket, time.Since(c.began)
	if done {
		c.round = 0
	}
	c.mu.Unlock()
	if done && c.guard.Open(ticket) {
		c.logger.Info("serving", "check_took", took.Round(time.Millisecond))
	}
}

const (
	checkTimeout = 4 * time.Second // for one question to the leader, and for one entry
	askAgain     = 5 * time.Second // a round without its majority asks again
	retryPause   = 250 * time.Millisecond
)

// Run makes rounds, and answers those of others, until ctx ends or the node is fenced.
func (c *checker) Run(ctx context.Context) error {
	again := time.NewTicker(askAgain)
	defer again.Stop()
	for {
		for c.next() {
			if c.guard.Fenced() {
				break
			}
			if c.check(ctx) {
				continue
			}
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(retryPause):
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-c.wake:
		case <-again.C:
			c.mu.Lock()
			c.due = c.due || c.round > 0
			c.mu.Unlock()
		}
	}
}

// next reports whether a check entry is due: for a round of this node's own, or as the answer to another's.
func (c *checker) next() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.due || c.asked > c.said
}

// check compares, publishes what it found, and acts on it. It reports false when it must be tried again.
func (c *checker) check(ctx context.Context) bool {
	c.mu.Lock()
	ask, ticket := c.due, c.ticket
	c.began = time.Now()
	c.mu.Unlock()

	found, err := c.compareTwice(ctx)
	if err != nil {
		if ctx.Err() == nil {
			c.guard.Await(fmt.Sprintf("the log cannot be checked: %v", err))
			c.logger.Debug("compare with the log", "error", err)
		}
		return false
	}
	if found.problem != "" {
		if found.publish {
			c.propose(ctx, &wire.Check{CatalogID: c.catalog, Verdict: wire.VerdictContradiction, Reason: cut(found.problem, wire.MaxReasonLen)})
		}
		c.guard.Fence(found.problem)
		return true
	}

	if refused := c.refusal(); refused != "" {
		return c.refused(refused)
	}
	seq, outcome, err := c.propose(ctx, &wire.Check{CatalogID: c.catalog, Ask: ask})
	if err != nil {
		c.guard.Await(fmt.Sprintf("the log took no check entry: %v", err))
		return false
	}
	if refused := outcome.Err(&wire.Op{Kind: wire.KindCheck, Name: []byte(c.node)}); refused != nil {
		return c.refused(refused.(*allocnode.Error).Message)
	}
	c.mu.Lock()
	if ask && ticket == c.ticket {
		c.due, c.round = false, seq
	}
	c.mu.Unlock()
	c.conclude()
	return true
}

// refusal is why the log would not accept a check entry of this node, as far as the state here tells. Asking the state
// first keeps a refused node, which looks again until it is let in, from filling the log.
func (c *checker) refusal() (why string) {
	c.replica.View(func(m *apply.Machine) {
		op := &wire.Op{Kind: wire.KindCheck, Name: []byte(c.node)}
		var o wire.Outcome
		if g := m.Genesis(); g != nil && !slices.Contains(g.Nodes, c.node) {
			o.Reject = wire.RejectNotNamed
		} else if member, ok := m.Member(c.node); ok && member.CatalogID != c.catalog {
			o.Reject = wire.RejectCatalog
		}
		if err := o.Err(op); err != nil {
			why = err.(*allocnode.Error).Message
		}
	})
	return why
}

// refused has the node refuse, and a round of its own begin once it is let in.
func (c *checker) refused(why string) bool {
	c.guard.Refuse(why)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ticket = c.guard.Hold(why)
	c.due = true
	return false
}

// finding is what a comparison gave; the zero finding is none.
type finding struct {
	problem string

	// publish says that the proof belongs into the log: it is the same log, and others may remember less. A stream that
	// is another cluster's must not be told.
	publish bool

	// gone says that no entry of one's own can confirm the finding, since there is no log of ours to put it into.
	gone bool
}

// compareTwice compares with the log. A problem counts only when it is still there after an entry of this node's own was
// applied, since a deposed leader answers too and knows less; where no entry can be made, only when the answer stays the
// same for a while.
func (c *checker) compareTwice(ctx context.Context) (finding, error) {
	first, err := c.compare(ctx)
	if err != nil || first.problem == "" {
		return finding{}, err
	}
	c.logger.Warn("the log differs from what this node remembers: look again", "found", first.problem)
	c.guard.Await("looking again: " + first.problem)
	if !first.gone {
		if _, _, err := c.submit(ctx, wire.AppendOp(nil, &wire.Op{Kind: wire.KindBarrier})); err != nil {
			return finding{}, err
		}
		return c.compare(ctx)
	}
	for range 5 {
		select {
		case <-ctx.Done():
			return finding{}, context.Cause(ctx)
		case <-time.After(time.Second):
		}
		if again, err := c.compare(ctx); err != nil || again.problem == "" || !again.gone {
			return finding{}, errors.Join(err, errors.New("the leader's answer changed"))
		}
	}
	return first, nil
}

// compare asks the stream's leader once.
func (c *checker) compare(ctx context.Context) (finding, error) {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()

	var head apply.Head
	var genesis *wire.Genesis
	var applied wire.Digest
	c.replica.View(func(m *apply.Machine) {
		head, genesis = m.Head(), m.Genesis()
		applied, _ = m.EntryHash(head.Cursor)
	})
	id, err := c.log.Identity(ctx)
	var config *jetstream.StreamConfigError
	switch {
	case errors.Is(err, jetstream.ErrNoStream):
		return finding{problem: "the log is gone: there is no stream", gone: true}, nil
	case errors.As(err, &config):
		return finding{problem: config.Error(), gone: true}, nil
	case err != nil:
		return finding{}, err
	}
	if f := compareIdentity(id, head, c.witness, genesis); f.problem != "" {
		return f, nil
	}
	if err := c.catchUp(ctx, id.LastSeq); err != nil {
		return finding{}, err
	}
	if head.Cursor == 0 {
		return finding{}, nil
	}
	msg, err := c.log.Get(ctx, head.Cursor)
	switch {
	case errors.Is(err, jetstream.ErrNoMessage):
		return finding{problem: fmt.Sprintf("the log holds no entry at seq %d, which this node has applied", head.Cursor), publish: true}, nil
	case err != nil:
		return finding{}, err
	case apply.HashEntry(msg.Data) != applied:
		return finding{problem: fmt.Sprintf("the log was rewritten: at seq %d stands another entry than this node applied there", head.Cursor), publish: true}, nil
	}
	return finding{}, nil
}

// compareIdentity holds what the leader says of the stream against what the node remembers of it.
func compareIdentity(id jetstream.Identity, head, witness apply.Head, genesis *wire.Genesis) finding {
	known := head
	if known.ClusterID.IsZero() {
		known = witness
	}
	remembered := max(head.Cursor, witness.Cursor)
	switch {
	case !known.ClusterID.IsZero() && id.ClusterID != known.ClusterID:
		return finding{problem: fmt.Sprintf("the log here is of cluster %s, this node's data are of cluster %s", id.ClusterID, known.ClusterID), gone: true}
	case known.Epoch != 0 && id.Epoch != known.Epoch:
		return finding{problem: fmt.Sprintf("the log here is of epoch %d, this node's data are of epoch %d", id.Epoch, known.Epoch), gone: true}
	case genesis != nil && id.Created.UnixNano() != genesis.Created:
		return finding{problem: fmt.Sprintf("the log was made anew at %s: this node has applied seq %d of the one made at %s",
			id.Created.UTC().Format(time.RFC3339Nano), head.Cursor, time.Unix(0, genesis.Created).UTC().Format(time.RFC3339Nano)), gone: true}
	case id.FirstSeq > 1:
		return finding{problem: fmt.Sprintf("the log was purged: it begins at seq %d", id.FirstSeq), gone: true}
	case id.LastSeq < remembered:
		return finding{problem: fmt.Sprintf("the log lost entries: it ends at seq %d, this node has applied seq %d", id.LastSeq, remembered), publish: true}
	}
	return finding{}
}

// catchUp waits until the replica has applied seq.
func (c *checker) catchUp(ctx context.Context, seq uint64) error {
	ticker := time.NewTicker(2 * time.Millisecond)
	defer ticker.Stop()
	c.replica.Expect(seq)
	for {
		cursor := c.replica.Head().Cursor
		if cursor >= seq {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("applied seq %d of %d", cursor, seq)
		case <-ticker.C:
		}
	}
}

// propose puts a check entry into the log and waits until it is applied here.
func (c *checker) propose(ctx context.Context, check *wire.Check) (seq uint64, outcome wire.Outcome, err error) {
	return c.submit(ctx, wire.AppendOp(nil, &wire.Op{Kind: wire.KindCheck, Name: []byte(c.node), Check: check}))
}

// submit puts one operation of the node's own into the log and waits for its outcome.
func (c *checker) submit(ctx context.Context, op []byte) (seq uint64, outcome wire.Outcome, err error) {
	type answer struct {
		seq     uint64
		outcome wire.Outcome
		err     error
	}
	answers := make(chan answer, 1)
	c.prop.SubmitControl(&propose.Request{
		Ops: op, N: 1, Deadline: time.Now().Add(checkTimeout),
		Done: func(r propose.Result) {
			if r.Err != nil {
				answers <- answer{err: r.Err}
				return
			}
			answers <- answer{seq: r.Seq, outcome: r.Outcomes[0]}
		},
	})
	select {
	case a := <-answers:
		return a.seq, a.outcome, a.err
	case <-ctx.Done():
		return 0, wire.Outcome{}, context.Cause(ctx)
	}
}

func cut(s string, n int) string {
	if len(s) > n {
		return s[:n]
	}
	return s
}
