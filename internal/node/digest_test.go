package node

import (
	"slices"
	"testing"
	"time"

	"github.com/allocnode/allocnode/internal/wire"
)

// fencing notes what the guard of u tells of its fences.
func (u *unit) fencing() (raised *[]string, lifted *int) {
	raised, lifted = new([]string), new(int)
	u.guard.raised = func(class, _ string, stored bool) {
		if stored {
			class += ", stored"
		}
		*raised = append(*raised, class)
	}
	u.guard.lifted = func() { *lifted++ }
	return raised, lifted
}

// One state differs: its node fences, the others go on; rebuilt from the log, it agrees with them, and the fence is lifted.
// Checked: with the lift taken out of guard.Open it stayed fenced; without FenceDigest in checker.Differs it was only refused,
// and a restart would have forgotten that.
func TestDigestMinority(t *testing.T) {
	bubble(t, func(t *testing.T, f *fakeLog) {
		for range 3 {
			f.put(f.entry("n2", 1, reserveOp(10)))
		}
		u1 := f.start(t, "n1", f.diverged(t, 4, 1))
		raised, _ := u1.fencing()
		u2, u3 := f.start(t, "n2", f.remembering(t, 4)), f.start(t, "n3", f.remembering(t, 4))
		pass(settle)
		u1.state(wire.StateFenced, "no majority can have it")
		u2.state(wire.StateServing, "")
		u3.state(wire.StateServing, "")
		if !slices.Equal(*raised, []string{fenceDigest}) {
			t.Errorf("raised %q", *raised)
		}
		if n := f.contradictions(t, "n1"); n > 0 {
			t.Errorf("a state that differs was published as a proof against the log %d times", n)
		}
		u1.stop()

		u1 = f.start(t, "n1") // its state set aside
		raised, lifted := u1.fencing()
		u1.guard.FenceDigest("of before", true)
		u1.checker.Begin("start")
		pass(settle)
		u1.state(wire.StateServing, "")
		if *lifted != 1 || !slices.Equal(*raised, []string{fenceDigest + ", stored"}) {
			t.Errorf("raised %q, lifted %d times", *raised, *lifted)
		}
	})
}

// Three states: nobody can have a majority, and all fence. When two agree again, those two come back.
// Checked: with the lift taken out of guard.Open those two stayed fenced.
func TestDigestsAllDiffer(t *testing.T) {
	bubble(t, func(t *testing.T, f *fakeLog) {
		for range 3 {
			f.put(f.entry("n2", 1, reserveOp(10)))
		}
		u1, u2, u3 := f.start(t, "n1", f.diverged(t, 4, 1)), f.start(t, "n2", f.diverged(t, 4, 2)), f.start(t, "n3", f.remembering(t, 4))
		pass(time.Minute)
		for _, u := range []*unit{u1, u2, u3} {
			u.state(wire.StateFenced, "no majority can have it")
		}
		u1.stop()
		u1 = f.start(t, "n1")
		u1.guard.FenceDigest("of before", true)
		u1.checker.Begin("start")
		pass(10 * time.Minute) // the next time that n3 asks
		u1.state(wire.StateServing, "")
		u3.state(wire.StateServing, "")
		u2.state(wire.StateFenced, "no majority can have it")
	})
}

// Entries that differ, and not only what was made of them, are a proof against the log: the state is a witness and must not
// be thrown away, as that of a mere digest fence is.
// Checked: without the Audit n1 had a digest fence, and its next start would have set the witness's state aside.
func TestDigestOfARewrittenLog(t *testing.T) {
	bubble(t, func(t *testing.T, f *fakeLog) {
		for range 3 {
			f.put(f.entry("n2", 1, reserveOp(10)))
		}
		right := f.entries[2]
		f.entries[2] = f.entry("n2", 1, reserveOp(1000))
		other := f.remembering(t, 4)
		f.entries[2] = right
		u1 := f.start(t, "n1", other)
		raised, _ := u1.fencing()
		f.start(t, "n2", f.remembering(t, 4))
		f.start(t, "n3", f.remembering(t, 4))
		pass(time.Minute)
		u1.state(wire.StateFenced, "the log was rewritten: at seq 3")
		if !slices.Contains(*raised, fenceLog) || slices.Contains(*raised, fenceDigest) {
			t.Errorf("raised %q", *raised)
		}
	})
}
