package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/bits"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
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
	node        string
	incarnation wire.ID
	catalog     wire.ID
	witness     apply.Head // what the catalog remembers beyond its state
	log         leaderReader
	replica     *replica
	prop        controlProposer
	guard       *guard
	logger      *slog.Logger

	wake   chan struct{} // capacity 1
	stored atomic.Uint64 // acknowledgements of this node's entries
	at     atomic.Uint64 // seq that the last of them gave
	apart  atomic.Bool   // what answers is no log of this node's: it gets no entry
	conns  func() uint64 // how often the connection was made anew
	known  atomic.Uint64 // conns when the log that answered was last found to be this node's

	mu       sync.Mutex // guards all below
	due      bool       // a round of this node's own must begin
	again    bool       // the round under way asks once more
	waited   int        // how many times askAgain has passed since Begin
	ticket   uint64     // of the guard's last Hold
	round    uint64     // seq of the entry that asked first; 0 while no round is under way
	began    time.Time
	asked    uint64            // seq of the last entry of another node that asks
	standing uint64            // seq of the first check entry of this run
	said     uint64            // cursor in the last check entry of this node
	seen     map[string]uint64 // by node, the cursor in those of its check entries whose digest is this node's
	differ   map[string]bool   // nodes whose last digest was another than this node's
	suspect  bool              // the replica cannot follow the log: ask the leader for the proof
	proof    string            // found against the log, and not yet published
}

func newChecker(node string, incarnation, catalog wire.ID, witness apply.Head, log leaderReader, r *replica, prop controlProposer, g *guard,
	logger *slog.Logger) *checker {
	return &checker{
		node: node, incarnation: incarnation, catalog: catalog, witness: witness, log: log, replica: r, prop: prop, guard: g, logger: logger,
		wake: make(chan struct{}, 1), seen: make(map[string]uint64), differ: make(map[string]bool),
		conns: func() uint64 { return 0 },
	}
}

var errNotOurs = errors.New("the log that answers has not been found to be this node's")

// mayAppend is an error where entries might reach another log than this node's: one entry of a foreign cluster fences all who
// follow it, and behind a connection that was made anew another cluster may be.
func (c *checker) mayAppend() error {
	if c.known.Load() != c.conns() || c.apart.Load() { // in the reverse order of compare's stores
		return errNotOurs
	}
	return nil
}

// ownLog is the log as the proposer has it: what it does not take is tried again, as what the server did not take.
type ownLog struct {
	propose.Log
	mayAppend func() error
}

func (l *ownLog) Append(tag uint64, msgID string, data []byte) error {
	if err := l.mayAppend(); err != nil {
		return err
	}
	return l.Log.Append(tag, msgID, data)
}

// Begin starts a round: from now on nothing is answered until it has ended well.
func (c *checker) Begin(why string) {
	c.mu.Lock()
	c.ticket = c.guard.Hold("checking the log: " + why)
	c.due, c.round, c.waited = true, 0, 0
	c.mu.Unlock()
	c.logger.Info("check the log", "because", why)
	c.signal()
}

// Suspect has the leader asked for a proof of what the replica, which has fenced this node, found in the log. Others may
// remember less and must learn of it.
func (c *checker) Suspect() {
	c.mu.Lock()
	c.suspect = true
	c.mu.Unlock()
	c.signal()
}

// Stored tells that the log has acknowledged an entry of this node, at seq.
func (c *checker) Stored(seq uint64) {
	c.at.Store(seq)
	c.stored.Add(1)
}

func (c *checker) signal() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// Observe takes an accepted check entry, from the replica, in log order. Only a node that has the same state gives its word.
func (c *checker) Observe(seq uint64, e *wire.Entry, op *wire.Op, agrees agreement) {
	node := string(e.Node)
	twin := false
	c.mu.Lock()
	if agrees == agreed {
		c.seen[node] = max(c.seen[node], e.Cursor)
		delete(c.differ, node)
	}
	switch {
	case node == c.node && e.ID.Incarnation == c.incarnation:
		c.said = max(c.said, e.Cursor)
		if c.standing == 0 {
			c.standing = seq
		}
	case node == c.node:
		twin = c.standing > 0 && e.Cursor >= c.standing
	case op.Check.Ask:
		c.asked = seq
	}
	c.mu.Unlock()
	if twin {
		// An earlier run cannot have seen an entry of this one. So it lives: on a copy of this directory.
		why := fmt.Sprintf("another process runs under the name and with the catalog of %s: it had applied seq %d", node, e.Cursor)
		c.guard.Fence(why)
	}
	c.conclude()
	c.signal()
}

// Forgotten tells that a node's name was released. If it is this node's, and it lives, it registers at once: who serves without
// being registered could lose its disk, and no recovery would miss what only it had remembered.
func (c *checker) Forgotten(node string) {
	if node == c.node {
		c.Begin("the name of this node was forgotten")
	}
}

// Differs tells that node has another state than this one, at one seq. One of the two is wrong, and the majority decides
// which: a check begins, in which only those count that agree. The minority never gets its majority, and fences; where no
// majority can agree, all do. Silence does not count.
func (c *checker) Differs(node string, cursor uint64) {
	nodes := c.named()
	c.mu.Lock()
	known := c.differ[node]
	c.differ[node] = true
	others := 0
	for _, n := range nodes {
		if c.differ[n] {
			others++
		}
	}
	c.mu.Unlock()
	if known {
		return // one check for each change of mind, not for each entry
	}
	why := fmt.Sprintf("the state of %s at seq %d is another than this node's", node, cursor)
	c.logger.Error("replicas differ", "node", node, "seq", cursor)
	c.Begin(why)
	if len(nodes)-others > len(nodes)/2 {
		return // a majority may yet agree with this node: the check finds out
	}
	why = fmt.Sprintf("this node's state differs from that of %d of %d nodes, so that no majority can have it: %s", others, len(nodes), why)
	c.refused(why)
	// Where the entries differ, and not only what was made of them, the log was rewritten: that is a proof, and this state is
	// not to be thrown away.
	c.replica.Audit(func() {
		c.mu.Lock()
		still := 0
		for _, n := range nodes {
			if c.differ[n] {
				still++
			}
		}
		c.mu.Unlock()
		if len(nodes)-still > len(nodes)/2 {
			return
		}
		c.guard.FenceDigest(why, false)
		c.refused(why)
	})
}

func (c *checker) named() (nodes []string) {
	c.replica.View(func(m *apply.Machine) {
		if g := m.Genesis(); g != nil {
			nodes = g.Nodes
		}
	})
	return nodes
}

// conclude opens the guard when the round under way has its majority.
func (c *checker) conclude() {
	nodes := c.named()
	c.mu.Lock()
	var missing []string
	for _, n := range nodes {
		if n != c.node && c.seen[n] < c.round {
			missing = append(missing, n)
		}
	}
	done := c.round > 0 && !c.due && len(nodes)-len(missing) > len(nodes)/2
	if c.round > 0 && !done {
		c.guard.Await("waiting for the word of a majority: none of the same state yet from " + strings.Join(missing, ", "))
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
	askAgain     = 5 * time.Second // a round without its majority asks again after 1, 2, 4, … of these, at most askAtLeast
	askAtLeast   = 64              // since each time is an entry, and a node that comes back says its word unasked
	retryPause   = 250 * time.Millisecond
)

// Run makes rounds, and answers those of others, until ctx ends. Of a node that is fenced it publishes the proof.
func (c *checker) Run(ctx context.Context) error {
	again := time.NewTicker(askAgain)
	defer again.Stop()
	for {
		for c.next() {
			if c.guard.Fenced() {
				if c.prove(ctx) {
					continue
				}
			} else if c.check(ctx) {
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
			if c.round > 0 {
				c.waited++
				c.again = bits.OnesCount(uint(c.waited)) == 1 || c.waited%askAtLeast == 0
			}
			c.mu.Unlock()
		}
	}
}

// next reports whether a check entry is due: for a round of this node's own, or as the answer to another's; or of a node
// that is fenced, the proof.
func (c *checker) next() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.guard.Fenced() {
		return c.suspect || c.proof != ""
	}
	return c.due || c.again || c.asked > c.said
}

// check compares, publishes what it found, and acts on it. It reports false when it must be tried again.
func (c *checker) check(ctx context.Context) bool {
	c.mu.Lock()
	ask, ticket := c.due || c.again, c.ticket
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
		c.proven(found)
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
	c.again = false
	if c.due && ask && ticket == c.ticket {
		c.due, c.round = false, seq
	}
	c.mu.Unlock()
	c.conclude()
	return true
}

// proven keeps what is to be published of a finding.
func (c *checker) proven(found finding) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.suspect = false
	if found.publish {
		c.proof = found.problem
	}
}

// prove publishes why this node is fenced, so that those learn it who remember less. It reports false when it must be
// tried again. Since this node may be unable to apply what it publishes, the log's acknowledgement ends it.
func (c *checker) prove(ctx context.Context) bool {
	c.mu.Lock()
	proof := c.proof
	c.mu.Unlock()
	if proof == "" {
		found, err := c.compareLong(ctx)
		if err == nil && found.less() {
			found, err = c.compareBehind(ctx)
		}
		if err != nil {
			c.logger.Debug("compare with the log", "error", err)
			return false
		}
		c.proven(found)
		return true
	}
	before := c.stored.Load()
	check := &wire.Check{CatalogID: c.catalog, Verdict: wire.VerdictContradiction, Reason: cut(proof, wire.MaxReasonLen)}
	_, _, err := c.propose(ctx, check)
	if err != nil && c.stored.Load() == before {
		return false
	}
	c.mu.Lock()
	c.proof = ""
	c.mu.Unlock()
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
		if m.Restoring() {
			o.Reject = wire.RejectRestoring
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
