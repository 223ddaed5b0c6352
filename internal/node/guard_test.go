package node

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/allocnode/allocnode"
	"github.com/allocnode/allocnode/apply"
	"github.com/allocnode/allocnode/internal/next"
	"github.com/allocnode/allocnode/internal/propose"
	"github.com/allocnode/allocnode/internal/wire"
	"github.com/allocnode/allocnode/kv"
)

// wantState wants a state, with a reason that holds words.
func wantState(t testing.TB, who string, got func() (state, reason string), want, words string) {
	t.Helper()
	if state, reason := got(); state != want || !strings.Contains(reason, words) {
		t.Fatalf("%s is %s (%q): want %s (%q)", who, state, reason, want, words)
	}
}

func TestGuardStates(t *testing.T) {
	f := newFakeLog()
	u := &unit{f: f, guard: newGuard()}
	g := u.guard
	is := func(want, words string) { t.Helper(); wantState(t, "the node", g.State, want, words) }
	is(wire.StateStarting, "starting")
	g.Await("for the log")
	is(wire.StateStarting, "for the log")

	p := propose.New(propose.DefaultConfig(), nil, nil, nil)
	g.setGates(p, next.New(next.DefaultConfig(), p))
	first := g.Hold("one")
	is(wire.StateChecking, "one")
	second := g.Hold("two")
	if g.Open(first) {
		t.Fatal("the ticket of a check that was overtaken opened")
	}
	is(wire.StateChecking, "two")
	if !g.Open(second) {
		t.Fatal("the ticket of the last check did not open")
	}
	is(wire.StateServing, "")

	// From the weakest to the strongest; each hides those before it, and what is lifted shows what is below.
	g.Refuse("another catalog")
	is(wire.StateChecking, "another catalog")
	if g.Open(second) {
		t.Fatal("a ticket of before the refusal opened")
	}
	g.Halt("disk full")
	is(wire.StateHalted, "disk full")
	g.Unhalt()
	is(wire.StateChecking, "another catalog")
	if !g.Open(g.Hold("three")) {
		t.Fatal("the check after the refusal did not open")
	}
	is(wire.StateServing, "")
	g.Halt("disk full")
	g.HaltForGood("an entry is not understood")
	is(wire.StateHalted, "not understood")
	// Checked: with one field for both halts the node was shown as checking here.
	g.Unhalt()
	is(wire.StateHalted, "not understood")
	if !g.Fence("proof") || g.Fence("second proof") {
		t.Fatal("Fence does not tell the first call from the second")
	}
	is(wire.StateFenced, "proof")
	if g.Open(g.Hold("four")) {
		t.Fatal("a fenced gate opened")
	}
	is(wire.StateFenced, "proof")
	g.Stop()
	is(wire.StateStopping, "stopping")
}

func TestGuardFencedBeforeTheLogIsKnown(t *testing.T) {
	g := newGuard()
	if !g.Fence("the log is gone") || !g.Fenced() {
		t.Fatal("not fenced")
	}
	wantState(t, "the node", g.State, wire.StateFenced, "gone")
}

func TestGuardListen(t *testing.T) {
	g := newGuard()
	p := propose.New(propose.DefaultConfig(), nil, nil, nil)
	g.setGates(p, next.New(next.DefaultConfig(), p))
	for _, step := range []struct {
		do         func()
		idle, busy bool // Listen where the service did not listen, and where it did
	}{
		{func() {}, false, false},
		{func() { g.Open(g.Hold("check")) }, true, true},
		{func() { g.Hold("check") }, false, true}, // a short check is waited out
		{func() { g.Refuse("no") }, false, false},
		{func() { g.Hold("again") }, false, false}, // refused until a check ends well
		{func() { g.Open(g.Hold("again")) }, true, true},
		{func() { g.Halt("disk") }, false, false},
		{func() { g.Unhalt() }, false, true},
		{func() { g.Open(g.Hold("again")) }, true, true},
		{func() { g.Fence("proof") }, false, false},
	} {
		step.do()
		if idle, busy := g.Listen(false), g.Listen(true); idle != step.idle || busy != step.busy {
			state, reason := g.State()
			t.Errorf("%s (%s): Listen is %v where it does not, %v where it does: want %v, %v", state, reason, idle, busy, step.idle, step.busy)
		}
	}
}

// What comes while the held answers are given, between the two steps of Open, must not be shown as serving.
// Checked: with an Open that marks the check as done unconditionally the cases were shown as serving; without its look at
// the fence, a digest fence that ended as the proof came was told as lifted, which clears what is stored.
func TestGuardOpenIsOvertaken(t *testing.T) {
	for name, c := range map[string]struct {
		do          func(*guard)
		want, words string
	}{
		"refused": {func(g *guard) { g.Refuse("another catalog") }, wire.StateChecking, "another catalog"},
		"held":    {func(g *guard) { g.Hold("new leader") }, wire.StateChecking, "new leader"},
		"halted":  {func(g *guard) { g.Halt("disk"); g.Unhalt() }, wire.StateChecking, ""},
		"fenced":  {func(g *guard) { g.Fence("proof") }, wire.StateFenced, "proof"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFakeLog()
				for _, n := range []string{"n2", "n3"} {
					f.start(t, n)
				}
				u := f.start(t, "n1")
				pass(checkTimeout)
				u.state(wire.StateServing, "")
				// A reservation is under way and lands when the next check has ended.
				f.with(func() { f.vanish = true })
				answered := make(chan propose.Result, 1)
				u.prop.Submit(&propose.Request{
					Ops: wire.AppendOp(nil, reserveOp(1)), N: 1, Deadline: time.Now().Add(4 * time.Second),
					Done: func(r propose.Result) { c.do(u.guard); answered <- r },
				})
				synctest.Wait()
				ticket := u.guard.Hold("a check of the test's own")
				u.guard.update(func() { u.guard.digest = "another state" }) // as if it would end with this check
				_, lifted := u.fencing()
				f.with(func() { f.vanish = false })
				pass(2 * propose.DefaultConfig().Retry) // it is appended again, applied, and held
				if len(answered) != 0 {
					t.Fatal("answered while the gate was held")
				}
				if !u.guard.Open(ticket) {
					t.Fatal("the gate did not open")
				}
				if r := <-answered; r.Err != nil {
					t.Fatal(r.Err)
				}
				u.guard.update(func() { u.guard.digest = "" })
				u.state(c.want, c.words)
				if *lifted != 0 {
					t.Error("a digest fence was lifted by a check that was overtaken")
				}
			})
		})
	}
}

// Nothing is answered after a fence, whoever raised it: the answers that a check holds become unknown outcomes.
func TestGuardFenceAnswersWhatIsHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeLog()
		u := f.start(t, "n1")
		f.start(t, "n2")
		pass(checkTimeout)
		u.state(wire.StateServing, "")
		f.with(func() { f.vanish = true })
		answer := u.ask(5)
		synctest.Wait()
		u.guard.Hold("a check of the test's own")
		f.with(func() { f.vanish = false })
		pass(2 * propose.DefaultConfig().Retry)
		u.guard.Fence("proof")
		if r := <-answer; !errors.Is(r.Err, allocnode.ErrUnknownOutcome) {
			t.Errorf("answered %v: want an unknown outcome", r.Err)
		}
		if r := <-u.ask(1); !errors.Is(r.Err, allocnode.ErrFenced) {
			t.Errorf("a later request was answered %v: want fenced", r.Err)
		}
	})
}

// A node that has served, and only checks at the moment, still forbids the log of a recovery: it may issue what no floor covers
// as soon as the check ends.
// Checked: with guard.Serving in Node.hello the node said that it does not serve while it was held.
func TestHelloOfANodeThatMayIssue(t *testing.T) {
	catalog, err := kv.Open(filepath.Join(t.TempDir(), "catalog"), kv.Identity{Node: "n1"}, quiet)
	if err != nil {
		t.Fatal(err)
	}
	defer catalog.Close()
	n := &Node{catalog: catalog, logger: quiet, guard: newGuard()}
	n.link.set(&parts{replica: newReplica(apply.New(), apply.Head{}, nil, nil, replicaEvents{}, quiet)})
	p := propose.New(propose.DefaultConfig(), nil, nil, nil)
	n.guard.setGates(p, next.New(next.DefaultConfig(), p))
	says := func(want bool, when string) {
		t.Helper()
		if got := n.hello(hello{Node: "n1"})().Serving; got != want {
			t.Errorf("%s: it says %v, want %v", when, got, want)
		}
	}
	ticket := n.guard.Hold("start")
	says(false, "before the first check")
	n.guard.Open(ticket)
	says(true, "serving")
	n.guard.Hold("new leader")
	says(true, "held")
	n.guard.Lag("slow")
	says(true, "lagging")
	n.guard.Fence("proof")
	says(false, "fenced")
}
