package workload

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/allocnode/allocnode/internal/chaos/history"
)

// Node is one node of the cluster.
type Node struct {
	Name string // as the history calls it
	URL  string // of its own listener
}

// Config is one client process.
type Config struct {
	Nodes   []Node
	Prefix  string // of the service's subjects
	Process string // unique in the run, also after a restart; of [A-Za-z0-9_-]
	Seed    uint64
	History *history.Writer

	Workers   int           // each does one thing at a time
	Pace      time.Duration // a worker begins one thing in this time at most
	Sequences []string      // shared by all processes; made on first use
	MaxCount  uint64        // the most ids that one reservation may ask for
	Timeout   time.Duration // of one attempt
	KeyWindow uint64        // of the cluster's genesis, in keys: when a key is old enough to be asked for again

	Resume  []history.Attempt // what an earlier process left, from [Unfinished]: asked for first
	Options []nats.Option     // for every connection: credentials
}

// DefaultConfig is a load that two cores bear beside three nodes and their faults. Nodes, Process, Seed and History are the
// caller's.
func DefaultConfig() Config {
	return Config{
		Prefix: "alloc", Workers: 8, Pace: 20 * time.Millisecond, Sequences: []string{"orders", "orders.eu", "users"},
		MaxCount: 1_000_000, KeyWindow: 131_072,
		Timeout: 5 * time.Second, // a node answers within 4 s
	}
}

// Validate reports every fault in c.
func (c *Config) Validate() error {
	var faults []error
	want := func(ok bool, format string, args ...any) {
		if !ok {
			faults = append(faults, fmt.Errorf("workload: "+format, args...))
		}
	}
	want(len(c.Nodes) > 0, "no nodes")
	want(c.Prefix != "", "no prefix")
	want(c.Process != "", "no process name")
	want(c.History != nil, "no history")
	want(c.Workers > 0, "workers is %d: at least 1", c.Workers)
	want(c.Pace > 0, "pace is %v: more than 0", c.Pace)
	want(c.Timeout > 0, "timeout is %v: more than 0", c.Timeout)
	want(len(c.Sequences) > 0, "no sequences")
	want(c.MaxCount > 0, "max count is 0: at least 1")
	return errors.Join(faults...)
}

// process is one run of the workload.
type process struct {
	cfg    Config
	conns  []*conn
	seen   atomic.Uint64 // the last seq of any answer
	acked  atomic.Uint64 // keyed reservations
	hwm    atomic.Uint64 // the highest id heard of, of any sequence: advances are aimed at it
	cancel context.CancelCauseFunc
}

// Run works until ctx ends, and then returns nil. A history that cannot be written is an error, and ends it: nothing must
// happen that is not recorded.
func Run(ctx context.Context, cfg Config) error {
	if err := cfg.Validate(); err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	p := &process{cfg: cfg, cancel: cancel}
	for _, node := range cfg.Nodes {
		c, err := p.dial(node)
		if err != nil {
			return err
		}
		defer c.nc.Close()
		p.conns = append(p.conns, c)
	}
	var workers sync.WaitGroup
	name := fnv.New64a()
	name.Write([]byte(cfg.Process))
	for i := range cfg.Workers {
		w := &worker{p: p, n: i, rng: rand.New(rand.NewPCG(cfg.Seed, name.Sum64()+uint64(i)))}
		workers.Go(func() { w.run(ctx) })
	}
	workers.Wait()
	var failed *historyError
	if errors.As(context.Cause(ctx), &failed) {
		return failed
	}
	return nil
}

// historyError is what ends a run.
type historyError struct{ err error }

func (e *historyError) Error() string { return "workload: " + e.err.Error() }
func (e *historyError) Unwrap() error { return e.err }

// write appends a record, and ends the run where that fails.
func (p *process) write(r history.Record) bool {
	err := p.cfg.History.Write(r)
	if err != nil {
		p.cancel(&historyError{err})
	}
	return err == nil
}

// saw keeps what later requests are made from.
func (p *process) saw(end *history.Record) {
	raise(&p.seen, end.Seq)
	raise(&p.hwm, end.HWM)
	for _, r := range end.Ranges {
		raise(&p.hwm, r.End()-1)
	}
}

func raise(v *atomic.Uint64, to uint64) {
	for {
		old := v.Load()
		if to <= old || v.CompareAndSwap(old, to) {
			return
		}
	}
}
