package kv

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/allocnode/allocnode/apply"
)

// Store is what a [Committer] commits to: a [Catalog].
type Store interface {
	Commit(deltas []apply.Delta) error
}

var _ Store = (*Catalog)(nil)

// ErrStopped means that the committer's Run has ended, or is ending, and the delta is not and will not be committed by it.
var ErrStopped = errors.New("kv: committer stopped")

// ErrStalled is the state of a committer whose store does not return: badger waits for a disk that does not take its tables.
var ErrStalled = errors.New("kv: commit is stalled")

// CommitterConfig bounds a [Committer]. The zero value of a field is its default.
type CommitterConfig struct {
	Interval  time.Duration // from the start of a run to the next one's; default 10 ms
	MaxDeltas int           // uncommitted deltas beyond which Submit waits; default 4,096
	MaxBytes  int           // uncommitted bytes (see [Cost]) beyond which Submit waits; default 8 MiB

	RetryMin time.Duration // wait before the first retry, doubled for each next; default 100 ms
	RetryMax time.Duration // longest wait before a retry; default 5 s
	Stall    time.Duration // a commit that takes longer is reported as failing with [ErrStalled]; default 5 s

	// OnState, if set, is called from Run when commits begin to fail (with the error) and when they have recovered (nil).
	// It must not call the Committer's Submit or Flush.
	OnState func(error)
}

func (c CommitterConfig) withDefaults() CommitterConfig {
	c.Interval = cmp.Or(c.Interval, 10*time.Millisecond)
	c.MaxDeltas = cmp.Or(c.MaxDeltas, 4096)
	c.MaxBytes = cmp.Or(c.MaxBytes, 8<<20)
	c.RetryMin = cmp.Or(c.RetryMin, 100*time.Millisecond)
	c.RetryMax = cmp.Or(c.RetryMax, 5*time.Second)
	c.Stall = cmp.Or(c.Stall, 5*time.Second)
	return c
}

// Committer is the one goroutine that commits. Deltas go in by Submit, one after the other in log order; Run takes all that
// waits, as far as it fits one transaction, and commits it as one run.
//
// Invariants:
//  1. Runs are committed in the order of Submit, one at a time. Nothing is committed while an earlier run is not.
//  2. A run that failed is retried as it is: the same deltas, none added.
//  3. At most MaxDeltas deltas and MaxBytes bytes are uncommitted, or one delta that alone is larger.
//  4. Every Submit and Flush returns: with its result, the cause of its context, or ErrStopped.
type Committer struct {
	store Store
	cfg   CommitterConfig
	wake  chan struct{} // capacity 1: something was submitted

	mu        sync.Mutex // guards what follows
	queue     []apply.Delta
	count     int           // uncommitted deltas: in queue and in the run
	bytes     int           // their bytes
	submitted uint64        // deltas ever accepted
	committed uint64        // deltas ever committed
	failing   error         // why commits fail; nil when they do not
	stopped   bool          // no more Submit
	ended     bool          // no more commits either
	changed   chan struct{} // closed and replaced at every change that a waiter may wait for
}

// NewCommitter makes a committer for store. It starts nothing.
func NewCommitter(store Store, cfg CommitterConfig) *Committer {
	return &Committer{
		store: store, cfg: cfg.withDefaults(),
		wake: make(chan struct{}, 1), changed: make(chan struct{}),
	}
}

// Submit hands over the delta, which the caller must not change afterwards. It waits while the bound is reached: then apply
// waits too. It returns the cause of ctx, [ErrStopped], or [ErrTooLarge] for a delta that no commit can take. Only one
// goroutine submits.
func (c *Committer) Submit(ctx context.Context, d apply.Delta) error {
	if err := Check(d); err != nil {
		return err
	}
	_, bytes := Cost(d)
	for {
		c.mu.Lock()
		if c.stopped {
			c.mu.Unlock()
			return ErrStopped
		}
		if c.count == 0 || c.count < c.cfg.MaxDeltas && c.bytes+bytes <= c.cfg.MaxBytes {
			c.queue = append(c.queue, d)
			c.count++
			c.bytes += bytes
			c.submitted++
			c.mu.Unlock()
			select {
			case c.wake <- struct{}{}:
			default:
			}
			return nil
		}
		changed := c.changed
		c.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// Flush waits until all that was submitted before the call is committed. It returns the cause of ctx, or [ErrStopped] with the
// last error when Run ended before that.
func (c *Committer) Flush(ctx context.Context) error {
	c.mu.Lock()
	want := c.submitted
	for {
		done, ended, failing, changed := c.committed >= want, c.ended, c.failing, c.changed
		c.mu.Unlock()
		switch {
		case done:
			return nil
		case ended:
			return errors.Join(ErrStopped, failing)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		c.mu.Lock()
	}
}

// State is nil while commits succeed, else the error of the last attempt, or [ErrStalled].
func (c *Committer) State() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.failing
}

// Backlog is the number of deltas submitted and not yet committed.
func (c *Committer) Backlog() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.count
}

// Run commits until ctx ends; then it takes no more, tries what is queued once, and returns: nil when all is committed, else
// an error with the number of deltas that are not. Those are in the log, so nothing is lost. It does not return while the
// store hangs.
func (c *Committer) Run(ctx context.Context) error {
	pace := time.NewTimer(0)
	defer pace.Stop()
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
			continue
		case <-c.wake:
		}
		select {
		case <-ctx.Done():
			continue
		case <-pace.C:
		}
		pace.Reset(c.cfg.Interval)
		if run := c.take(); len(run) > 0 {
			c.commit(ctx, run)
		}
	}
	return c.finish()
}

// take returns the next run, as much of the queue as fits one transaction. The run stays at the head of the queue until it
// is committed.
func (c *Committer) take() []apply.Delta {
	c.mu.Lock()
	defer c.mu.Unlock()
	var records, bytes int
	for i, d := range c.queue {
		r, b := Cost(d)
		if records, bytes = records+r, bytes+b; i > 0 && (records > MaxRunRecords || bytes > MaxRunBytes) {
			return c.queue[:i:i]
		}
	}
	return c.queue[:len(c.queue):len(c.queue)]
}

// commit retries run until it is committed or ctx has ended.
func (c *Committer) commit(ctx context.Context, run []apply.Delta) {
	backoff := c.cfg.RetryMin
	for {
		err := c.attempt(run)
		if err == nil {
			return
		}
		wait := time.NewTimer(backoff)
		select {
		case <-ctx.Done():
			wait.Stop()
			return
		case <-wait.C:
		}
		backoff = min(2*backoff, c.cfg.RetryMax)
	}
}

// attempt commits run once and accounts for it.
func (c *Committer) attempt(run []apply.Delta) error {
	done := make(chan error, 1)
	go func() { done <- c.store.Commit(run) }()
	stall := time.NewTimer(c.cfg.Stall)
	defer stall.Stop()
	var err error
	select {
	case err = <-done:
	case <-stall.C:
		c.setState(fmt.Errorf("%w for %v", ErrStalled, c.cfg.Stall))
		err = <-done
	}
	c.setState(err) // before the waiters wake, so that who has flushed sees the state that goes with it
	if err == nil {
		c.retire(len(run))
	}
	return err
}

// retire drops the committed run from the queue and wakes who waits.
func (c *Committer) retire(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range c.queue[:n] {
		_, b := Cost(c.queue[i])
		c.bytes -= b
		c.queue[i] = apply.Delta{} // release the records; the slice's array lives on
	}
	c.queue = c.queue[n:]
	c.count -= n
	c.committed += uint64(n)
	if len(c.queue) > 0 {
		select { // a run was cut at the bound: go on without another Submit
		case c.wake <- struct{}{}:
		default:
		}
	}
	c.changedLocked()
}

func (c *Committer) changedLocked() {
	close(c.changed)
	c.changed = make(chan struct{})
}

// setState keeps err and reports the change between failing and not.
func (c *Committer) setState(err error) {
	c.mu.Lock()
	turned := (err == nil) != (c.failing == nil)
	c.failing = err
	c.mu.Unlock()
	if turned && c.cfg.OnState != nil {
		c.cfg.OnState(err)
	}
}

// finish stops Submit, tries every run of what is queued once, up to the first that fails, and answers all waiters.
func (c *Committer) finish() error {
	c.mu.Lock()
	c.stopped = true
	c.changedLocked()
	c.mu.Unlock()
	var err error
	for err == nil {
		run := c.take()
		if len(run) == 0 {
			break
		}
		err = c.attempt(run)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended = true
	c.changedLocked()
	if err != nil {
		return fmt.Errorf("kv: stopped with %d deltas uncommitted: %w", c.count, err)
	}
	return nil
}
