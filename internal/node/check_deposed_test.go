package node

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/allocnode/allocnode/internal/wire"
)

// A leader that was deposed and does not know it yet knows less, once: no reason to fence.
// Checked: with a compareTwice that takes the first answer the node fenced.
func TestCheckDeposedLeaderKnowsLess(t *testing.T) {
	bubble(t, func(t *testing.T, f *fakeLog) {
		nodes := f.cluster(t)
		f.with(func() { f.stale = []uint64{2} })
		nodes[0].checker.Begin("new leader")
		pass(settle)
		nodes[0].state(wire.StateServing, "")
		if n := f.ops(t, wire.KindBarrier, func(*wire.Entry, *wire.Op) bool { return true }); n != 1 {
			t.Errorf("%d barriers: want 1, the entry of its own behind which it looked again", n)
		}
		if f.contradictions(t, "n1") != 0 {
			t.Error("it published a contradiction")
		}
	})
}

// When a partition heals, the feed brings the new leader's entries to a node whose own server still takes itself for the
// leader, and answers for it: also after an entry of the node's own was applied. It does not serve while that lasts, and
// fences neither itself nor the others. (Seen in the campaign, where every node was fenced for good.)
// Checked: without confirm, with no look in it, and without its question for the log's end, the node fenced.
func TestCheckDeposedLeaderStays(t *testing.T) {
	bubble(t, func(t *testing.T, f *fakeLog) {
		nodes := f.cluster(t)
		<-nodes[2].ask(5)
		synctest.Wait()
		f.with(func() { f.deposed = uint64(len(f.entries)) - 1 })
		nodes[0].checker.Begin("new leader")
		pass(10 * checkTimeout)
		nodes[0].state(wire.StateChecking, "")
		f.with(func() { f.deposed = 0 })
		f.serveOn(t, nodes)
	})
}

// serveOn wants all nodes to serve soon, and no proof to have been published.
func (f *fakeLog) serveOn(t *testing.T, nodes []*unit) {
	t.Helper()
	pass(settle)
	for _, u := range nodes {
		u.state(wire.StateServing, "")
	}
	if f.contradictions(t, "n1") != 0 {
		t.Error("n1 published a contradiction")
	}
}

// A node that is fenced already, over its own replica's files, and cut off beside a deposed leader: what that one says is no
// proof for the others when the node is back.
// Checked: without compareBehind in prove n1 published that the log lost entries, and every node was fenced.
func TestCheckDeposedLeaderBesideAFencedNode(t *testing.T) {
	bubble(t, func(t *testing.T, f *fakeLog) {
		nodes := f.cluster(t)
		<-nodes[2].ask(5)
		synctest.Wait()
		last := f.last()
		other := f.entry("n2", 1, reserveOp(9))
		f.with(func() {
			f.direct[last] = [][]byte{other}
			f.deposed, f.vanish = last-1, true
		})
		nodes[0].replica.Expect(last + 1) // it reads from its cursor
		pass(time.Minute)
		nodes[0].state(wire.StateFenced, "rewritten")
		f.with(func() { f.vanish = false }) // the new leader takes entries, the deposed one answers still
		pass(3 * time.Second)
		f.with(func() { f.deposed = 0 })
		pass(time.Minute)
		nodes[0].state(wire.StateFenced, "rewritten")
		f.serveOn(t, nodes[1:])
	})
}

// The same, where the new leader answers the question for the log's end, and the deposed one that for an entry.
// Checked: without the looks that follow, the node fenced.
func TestCheckTwoLeadersAnswer(t *testing.T) {
	bubble(t, func(t *testing.T, f *fakeLog) {
		nodes := f.cluster(t)
		<-nodes[2].ask(5)
		synctest.Wait()
		f.with(func() { f.hole = uint64(len(f.entries)) })
		nodes[0].checker.Begin("new leader")
		pass(2 * time.Second)
		f.with(func() { f.hole = 0 })
		f.serveOn(t, nodes)
	})
}
