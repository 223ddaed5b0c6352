package workload

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/allocnode/allocnode/internal/chaos/history"
)

// lateFor is how long an answer may be late and still be recorded: at least this, at most twice. A node that was paused
// answers when it goes on.
const lateFor = 2 * time.Minute

// flight is what was sent in one message: an attempt, or one for each part of a list.
type flight struct {
	ids   []uint64
	ask   *ask
	ended chan []history.Record // capacity 1: its first answer, part by part
}

// conn is the connection to one node.
type conn struct {
	p     *process
	node  Node
	nc    *nats.Conn
	inbox string // the answers' subjects begin with it

	mu          sync.Mutex // guards what follows
	now, before map[string]*flight
	turned      time.Time // when now became before
}

// dial makes the connection to a node. It comes back for ever, to this node alone: whoever it was told to ask, it asks. What
// is sent while it is away is an error at once, rather than sent later behind the worker's back.
func (p *process) dial(node Node) (*conn, error) {
	c := &conn{p: p, node: node, inbox: nats.NewInbox() + ".", now: map[string]*flight{}, turned: time.Now()}
	options := append([]nats.Option{
		nats.Name(p.cfg.Process), nats.RetryOnFailedConnect(true), nats.MaxReconnects(-1),
		nats.ReconnectWait(200 * time.Millisecond), nats.ReconnectJitter(50*time.Millisecond, 50*time.Millisecond), nats.IgnoreDiscoveredServers(), nats.ReconnectBufSize(-1),
		nats.Timeout(2 * time.Second), nats.PingInterval(time.Second), nats.MaxPingsOutstanding(3),
		nats.FlusherTimeout(p.cfg.Timeout), nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}),
	}, p.cfg.Options...)
	var err error
	if c.nc, err = nats.Connect(node.URL, options...); err != nil {
		return nil, fmt.Errorf("connect to %s at %s: %w", node.Name, node.URL, err)
	}
	if _, err := c.nc.Subscribe(c.inbox+"*", c.heard); err != nil {
		c.nc.Close()
		return nil, fmt.Errorf("subscribe to answers from %s: %w", node.Name, err)
	}
	return c, nil
}

// heard records an answer, and only then wakes who waits for it.
func (c *conn) heard(m *nats.Msg) {
	token := m.Subject[len(c.inbox):]
	c.mu.Lock()
	f := c.now[token]
	if f == nil {
		f = c.before[token]
	}
	c.mu.Unlock()
	if f == nil {
		return // later than anybody keeps
	}
	ends := f.ask.read(m.Data)
	for i := range ends {
		ends[i].ID = f.ids[i]
		c.p.write(ends[i])
		c.p.saw(&ends[i])
	}
	select {
	case f.ended <- ends:
	default: // a second answer
	}
}

// register remembers f for its answer.
func (c *conn) register(token string, f *flight) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Since(c.turned) > lateFor {
		c.before, c.now, c.turned = c.now, map[string]*flight{}, time.Now()
	}
	c.now[token] = f
}

// begin records that a is about to be sent to the node, and returns the ids of its parts. What is not recorded (false) must
// not be sent.
func (c *conn) begin(a *ask) (ids []uint64, ok bool) {
	parts := a.parts()
	for i := range parts {
		begin := parts[i].record(c.node.Name)
		begin.ID = c.p.cfg.History.NextID()
		if !c.p.write(begin) {
			return nil, false
		}
		ids = append(ids, begin.ID)
	}
	return ids, true
}

// attempt sends a once and waits for the end of each of its parts: an answer, the time-out, or ctx. The begins are in the
// history before a byte is sent.
func (c *conn) attempt(ctx context.Context, a *ask) []history.Record {
	ids, ok := c.begin(a)
	if !ok {
		return nil
	}
	f := &flight{ids: ids, ask: a, ended: make(chan []history.Record, 1)}
	token := strconv.FormatUint(ids[0], 10)
	c.register(token, f)
	subject, body := a.request(c.p.cfg.Prefix)
	why := ""
	if err := c.nc.PublishMsg(&nats.Msg{Subject: subject, Reply: c.inbox + token, Data: body}); err != nil {
		why = err.Error()
	} else {
		timeout := time.NewTimer(c.p.cfg.Timeout)
		defer timeout.Stop()
		select {
		case answered := <-f.ended:
			return answered
		case <-timeout.C:
			why = "no answer in time"
		case <-ctx.Done():
			why = "the client stopped"
		}
	}
	var ends []history.Record
	for _, id := range ids {
		end := history.Record{Kind: history.KindEnd, ID: id, Outcome: history.Unknown, Text: why}
		c.p.write(end)
		ends = append(ends, end)
	}
	return ends
}

// abandon sends a over a connection of its own, and closes it before an answer can be read.
func (c *conn) abandon(a *ask) {
	options := append([]nats.Option{nats.NoReconnect(), nats.Timeout(2 * time.Second)}, c.p.cfg.Options...)
	nc, err := nats.Connect(c.node.URL, options...)
	if err != nil {
		return
	}
	defer nc.Close()
	if _, ok := c.begin(a); !ok {
		return
	}
	subject, body := a.request(c.p.cfg.Prefix)
	if err := nc.PublishMsg(&nats.Msg{Subject: subject, Reply: nats.NewInbox(), Data: body}); err == nil {
		_ = nc.FlushTimeout(c.p.cfg.Timeout) // it got there or not: nobody will know
	}
}
