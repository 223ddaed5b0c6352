package node

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/allocnode/allocnode"
	"github.com/allocnode/allocnode/internal/wire"
)

// watchLag runs a lagWatch beside u, until the test ends.
func (u *unit) watchLag() *lagWatch {
	l := &lagWatch{
		submit: func(ctx context.Context, op []byte) error {
			_, _, err := u.checker.submit(ctx, op)
			return err
		},
		waiting: u.prop.Waiting, behind: u.replica.Behind, silent: u.silent.Load, apart: u.checker.apart.Load, guard: u.guard,
		begin: u.checker.Begin, logger: quiet,
	}
	u.lag.Store(l)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = l.Run(ctx) }()
	u.t.Cleanup(func() { cancel(); <-done })
	return l
}

// A node whose entries the log does not take says so at once, and comes back by itself.
// Checked: without begin the node did not come back; without Refuse in guard.Lag the request waited for its deadline.
func TestLag(t *testing.T) {
	bubble(t, func(t *testing.T, f *fakeLog) {
		u1, u2 := f.start(t, "n1"), f.start(t, "n2")
		pass(settle)
		u1.state(wire.StateServing, "")
		u1.watchLag()

		f.with(func() { f.vanish = true }) // idle: its next barrier gets lost, and with it the doubt
		pass(lagIdle + 2*checkTimeout)
		u1.state(wire.StateChecking, "has not taken a barrier")
		if !u1.guard.Listen(true) {
			t.Error("next is not served to the end of its batch")
		}
		select {
		case r := <-u1.ask(1):
			if !errors.Is(r.Err, allocnode.ErrUnavailable) {
				t.Errorf("answered %+v", r)
			}
		default:
			t.Error("a request waits for its deadline")
		}
		f.with(func() { f.vanish = false })
		pass(3 * checkTimeout)
		u1.state(wire.StateServing, "")
		if r := <-u1.ask(1); r.Err != nil {
			t.Errorf("afterwards: %v", r.Err)
		}

		// Busy: a request in flight is reason enough to look.
		f.with(func() { f.vanish = true })
		answer := u1.ask(1)
		pass(2 * checkTimeout)
		u1.state(wire.StateChecking, "has not taken a barrier")
		if r := <-answer; !errors.Is(r.Err, allocnode.ErrUnknownOutcome) {
			t.Errorf("what was in flight: %+v", r)
		}
		f.with(func() { f.vanish = false })
		pass(3 * checkTimeout)
		u1.state(wire.StateServing, "")
		u2.state(wire.StateServing, "")

		// Idle, and the log has no leader: no need to wait for the next barrier. The answer of status is then no longer "serving".
		// Checked: without silent it was, for half a minute.
		u1.silent.Store(true)
		f.with(func() { f.vanish = true })
		pass(lagSilent + 2*checkTimeout)
		u1.state(wire.StateChecking, "has not taken a barrier")
		u1.silent.Store(false)
		f.with(func() { f.vanish = false })
		pass(3 * checkTimeout)
		u1.state(wire.StateServing, "")

		before := f.last()
		pass(24 * time.Hour)
		if n := f.last() - before; n > 24*3600/uint64(lagIdle/time.Second)+10 {
			t.Errorf("an idle node made %d entries in a day", n)
		}
	})
}

// A node that finds another cluster's log where its own was, as beside an existing NATS whose address leads elsewhere, leaves it
// alone: each node of that cluster that applied one entry of this one would be fenced for good.
// Checked: without apart in lagWatch.Run there were 5 entries of this node's in it.
func TestLagLeavesAnotherLogAlone(t *testing.T) {
	bubble(t, func(t *testing.T, f *fakeLog) {
		u, _ := f.start(t, "n1"), f.start(t, "n2")
		pass(settle)
		u.state(wire.StateServing, "")
		u.watchLag()
		f.with(func() { f.id.ClusterID = wire.ID{9} })
		before := f.last()
		u.checker.Begin("connected to NATS again")
		answer := u.ask(1) // a reason to look, too
		pass(4 * lagIdle)
		u.state(wire.StateFenced, "of cluster 09")
		if r := <-answer; r.Err == nil {
			t.Errorf("answered %+v", r)
		}
		if n := f.last() - before; n != 0 {
			t.Errorf("%d entries in the log of another cluster", n)
		}
	})
}
