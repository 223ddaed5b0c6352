package node

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/allocnode/allocnode/internal/wire"
)

// lagWatch notices that this node no longer keeps up with the log: its own entries do not come back in time. JetStream goes on
// answering in a minority, with what it happens to hold, so only an entry of one's own that is applied shows that one is not
// cut off. Every entry of this node counts; where none was applied for a while, it puts in a barrier.
//
// A node that lags answers at once that it is unavailable, where it would otherwise let each request run into its deadline;
// `next` goes on to the end of its batches. It comes back by a check, as after a change of the leader. A clock decides when a
// node gives up answering, and never that it may.
type lagWatch struct {
	submit  func(ctx context.Context, op []byte) error // one entry of this node's own, until it is applied
	waiting func() (queued, inFlight int)
	behind  func() bool // the log is known to hold what this node has not applied
	silent  func() bool // the last question to the log's leader had no answer
	apart   func() bool // what answers is another log: an entry of another cluster would fence all who follow that
	guard   *guard
	begin   func(why string)
	logger  *slog.Logger

	applied atomic.Uint64 // entries of this run that were applied
}

const (
	lagInterval = time.Second

	// lagIdle is how often a node that has nothing to do shows that it could. Each time is an entry: three nodes make 9,000 a
	// day.
	lagIdle = 30 * time.Second

	// lagSilent is the same where the log's leader does not answer.
	lagSilent = 4 * time.Second
)

// Applied is told of each entry of this run that was applied.
func (l *lagWatch) Applied() { l.applied.Add(1) }

// Run watches until ctx ends.
func (l *lagWatch) Run(ctx context.Context) error {
	ticker := time.NewTicker(lagInterval)
	defer ticker.Stop()
	seen, since, lagging := l.applied.Load(), time.Now(), false
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		if now := l.applied.Load(); now != seen {
			seen, since = now, time.Now()
			if lagging {
				lagging = false
				l.begin("the log takes entries of this node again")
			}
			continue
		}
		if l.apart() {
			continue
		}
		idle := lagIdle
		if l.silent() {
			idle = lagSilent
		}
		queued, inFlight := l.waiting()
		if !lagging && queued+inFlight == 0 && !l.behind() && time.Since(since) < idle {
			continue
		}
		err := l.submit(ctx, wire.AppendOp(nil, &wire.Op{Kind: wire.KindBarrier}))
		if err != nil && ctx.Err() == nil && l.applied.Load() == seen && !lagging {
			lagging = true
			why := fmt.Sprintf("the log has not taken a barrier of this node for %s: %v", checkTimeout, err)
			l.logger.Warn("standing aside", "reason", why)
			l.guard.Lag(why)
		}
	}
}
