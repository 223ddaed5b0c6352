package client

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/nats-io/nats.go"

	"github.com/allocnode/allocnode/internal/wire"
)

// Client asks one cluster. Its methods may be called from any goroutine.
type Client struct {
	nc     *nats.Conn
	cfg    config
	logger *slog.Logger
	inbox  inbox
	merge  merger
	stats  counters

	cluster atomic.Pointer[wire.ID] // the first seen; nil before
	seen    atomic.Uint64           // highest seq seen in any answer
	limits  sync.Map                // sequence → uint64: its max_count, where an answer has told it

	mu     sync.Mutex         // guards the three below
	open   map[*Sequence]bool // not closed yet
	fresh  map[string]bool    // keys that NewKey made before the first answer, and that were not used yet
	closed bool
	wg     sync.WaitGroup // of every goroutine; added to while mu is held and closed is false
}

// counters are what happened since New.
type counters struct {
	requests atomic.Uint64
	retries  atomic.Uint64
}

// Stats counts what happened since [New].
type Stats struct {
	Calls     uint64 // reservations asked for, those of batches included
	Requests  uint64 // reservation requests made of them, each counted once however often it was sent
	Retries   uint64 // requests of any kind that were sent again
	Sequences int    // sequences that are open
}

// New makes a client on nc, which stays the caller's: it must outlive the client, and is not closed by it. New sends
// nothing and starts nothing. The error names every option that is out of bounds.
func New(nc *nats.Conn, opts ...Option) (*Client, error) {
	cfg := defaultConfig()
	for _, o := range opts {
		o(&cfg)
	}
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("allocnode client: %w", err)
	}
	if nc == nil {
		return nil, fmt.Errorf("allocnode client: %w", nats.ErrInvalidConnection)
	}
	c := &Client{nc: nc, cfg: cfg, logger: cfg.logger, open: make(map[*Sequence]bool), fresh: make(map[string]bool)}
	c.inbox.nc = nc
	c.merge.init()
	return c, nil
}

// Close ends every call that waits, with [ErrClosed] or an [UnknownOutcomeError] that wraps it, closes the client's
// sequences and takes its subscription back. When it returns, no goroutine of the client runs. The connection stays open.
func (c *Client) Close() error {
	c.mu.Lock()
	c.closed = true
	var open []*Sequence
	for s := range c.open {
		open = append(open, s)
	}
	c.mu.Unlock()
	for _, s := range open {
		s.Close()
	}
	c.merge.close()
	c.wg.Wait()
	return c.inbox.close()
}

// start runs f in a goroutine that Close waits for. It reports false, and runs nothing, once the client is closed.
func (c *Client) start(f func()) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return false
	}
	c.wg.Go(f)
	return true
}

// Stats is what happened so far.
func (c *Client) Stats() Stats {
	c.mu.Lock()
	n := len(c.open)
	c.mu.Unlock()
	c.merge.mu.Lock()
	calls := c.merge.calls
	c.merge.mu.Unlock()
	return Stats{
		Calls: calls, Requests: c.stats.requests.Load(), Retries: c.stats.retries.Load(), Sequences: n,
	}
}

// Cluster is the id of the cluster that this client belongs to, 32 hexadecimal digits: the first that answered. Empty
// before the first answer.
func (c *Client) Cluster() string {
	if id := c.cluster.Load(); id != nil {
		return id.String()
	}
	return ""
}

// pin takes the first cluster id that it sees, and refuses every other. A node that does not know its cluster yet sends
// none, and can only refuse.
func (c *Client) pin(id wire.ID) error {
	if id.IsZero() {
		return nil
	}
	pinned := c.cluster.Load()
	if pinned == nil {
		if c.cluster.CompareAndSwap(nil, &id) {
			return nil
		}
		pinned = c.cluster.Load()
	}
	if *pinned != id {
		return &ClusterError{Pinned: pinned.String(), Got: id.String()}
	}
	return nil
}

// saw keeps the highest seq seen.
func (c *Client) saw(seq uint64) {
	for {
		old := c.seen.Load()
		if seq <= old || c.seen.CompareAndSwap(old, seq) {
			return
		}
	}
}

// since is what a first attempt says of the log: the last seq that this client knew before it. Before any answer that is 1,
// which every log has: 0 would say nothing, and a forgotten key would be taken for a new one.
func (c *Client) since() uint64 { return max(1, c.seen.Load()) }

// NewKey makes a key for [WithKey]: 128 random bits, and how far the log had come when it was made, as this client saw it.
// Store it before the first call that uses it; after a crash the same call with it gives the same range, or
// [allocnode.ErrKeyExpired] when the cluster no longer remembers that far back.
func (c *Client) NewKey() string {
	key := newKey(c.since())
	if c.seen.Load() == 0 {
		c.mu.Lock()
		defer c.mu.Unlock()
		if len(c.fresh) < maxFresh {
			c.fresh[key] = true
		}
	}
	return key
}

// maxFresh is how many keys that were made before the first answer are known to be new.
const maxFresh = 4096

// takeFresh reports, once, that key was made here before the first answer and has not been used.
func (c *Client) takeFresh(key string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	ok := c.fresh[key]
	delete(c.fresh, key)
	return ok
}

// newKey is 32 hexadecimal digits, a dash and since in hexadecimal.
func newKey(since uint64) string {
	var b [16]byte
	rand.Read(b[:])
	return hex.EncodeToString(b[:]) + "-" + strconv.FormatUint(since, 16)
}

// sinceOf reads the since that a key of newKey's form carries.
func sinceOf(key string) (since uint64, ok bool) {
	const digits = 32
	if len(key) < digits+2 || len(key) > digits+1+16 || key[digits] != '-' {
		return 0, false
	}
	if _, err := hex.DecodeString(key[:digits]); err != nil {
		return 0, false
	}
	since, err := strconv.ParseUint(key[digits+1:], 16, 64)
	return since, err == nil
}
