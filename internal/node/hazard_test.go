package node

import (
	"testing"
	"time"

	"github.com/allocnode/allocnode/internal/wire"
)

// Hazard 12: the log lost its end, and two nodes that never saw it are a quorum. One of them has been wiped, so that its
// name is refused. Nobody serves until the third is back, which remembers; and then nobody serves because it does.
func TestHazard12SurvivorsOfATruncatedLog(t *testing.T) {
	for name, rewrite := range map[string]int{"still shorter": 0, "as long": 6, "longer": 40} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, f *fakeLog) {
				for _, n := range names {
					f.put(f.entry(n, 1, checkOp(n, false)))
				}
				behind := f.remembering(t, int(f.last()))
				common := int(f.last())
				for range 6 {
					f.put(f.entry("n3", 4, reserveOp(10)))
				}
				all := f.remembering(t, int(f.last()))
				f.with(func() { f.entries = f.entries[:common] })

				u1 := f.start(t, "n1", behind)
				u2 := f.start(t, "n2", func(o *unitOptions) { o.catalog = wire.ID{0xEE} }) // wiped
				pass(time.Minute)
				// Checked: where a node's own word alone opened, n1 served here.
				u1.state(wire.StateChecking, "majority")
				u2.state(wire.StateChecking, "forget")
				for range rewrite {
					f.put(f.entry("n1", uint64(common), &wire.Op{Kind: wire.KindBarrier}))
				}
				pass(time.Minute)
				u1.state(wire.StateChecking, "majority")

				u3 := f.start(t, "n3", all)
				pass(time.Minute)
				// Checked: as it was, the third fenced by its replica alone where the log was longer again, and n1 never heard of it.
				for _, u := range []*unit{u1, u2, u3} {
					u.state(wire.StateFenced, "")
				}
				if r := <-u1.ask(1); r.Err == nil {
					t.Error("a survivor reserved")
				}
				// The proof is published once, not for ever.
				before := f.last()
				pass(time.Hour)
				if last := f.last(); last != before {
					t.Errorf("after the fence the log grew from %d to %d entries", before, last)
				}
			})
		})
	}
}

// A log that was rewritten in the middle, below what any comparison with the leader looks at: the digests tell. The
// majority serves, the other does not, and it is not asked again and again.
// Checked: without agrees in replica.apply the one that differs served; with a check for each entry that differs, in place
// of each change of mind, the checks never ended.
func TestCheckDigestsDiffer(t *testing.T) {
	bubble(t, func(t *testing.T, f *fakeLog) {
		for range 3 {
			f.put(f.entry("n2", 1, reserveOp(10)))
		}
		u1 := f.start(t, "n1", f.diverged(t, 4, 1))
		pass(settle)
		u1.state(wire.StateChecking, "majority")
		u2 := f.start(t, "n2", f.remembering(t, 4))
		pass(settle)
		// One against one: nobody knows who is right.
		u1.state(wire.StateChecking, "")
		u2.state(wire.StateChecking, "majority")
		u3 := f.start(t, "n3", f.remembering(t, 4))
		pass(settle)
		u1.state(wire.StateFenced, "no majority can have it")
		u2.state(wire.StateServing, "")
		u3.state(wire.StateServing, "")
		before := f.last()
		pass(24 * time.Hour)
		if last := f.last(); last > before+1000 {
			t.Errorf("the log grew from %d to %d entries in a day", before, last)
		}
		u2.state(wire.StateServing, "")
		u1.state(wire.StateFenced, "no majority can have it")
		if u1.guard.Listen(true) {
			t.Error("the one that differs listens")
		}
	})
}
