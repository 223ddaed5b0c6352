package next

import (
	"fmt"
	"testing"
	"time"

	"github.com/allocnode/allocnode"
)

var (
	errFenced = allocnode.Errorf(allocnode.CodeFenced, "proof")
	errHalted = allocnode.Errorf(allocnode.CodeUnavailable, "halted")
)

// While the gate is held requests wait and refills bring ids that nobody gets; then they get them. Checked: without the
// gate in takeLocked, and without it in serveLocked, the second request is answered.
func TestHold(t *testing.T) {
	bubble(t, func(c *Config) { c.Least = 4 }, func(g *rig) {
		g.want(g.fill("a", 1), 1)
		g.want(g.take("a", 1), 2) // a refill is under way
		g.hold()
		second, third := g.take("a", 1), g.take("a", 5)
		g.waits(second)
		g.apply()
		g.waits(second)
		g.waits(third)
		if !g.p.Open(g.ticket) {
			t.Fatal("the gate does not open")
		}
		g.want(second, 3)
		g.want(third, 4, 5, 6, 7, 8)

		g.hold()
		late := g.take("a", 1)
		if n := g.log.submitted(); n != 3 {
			t.Errorf("%d refills", n)
		}
		g.pass(4*time.Second + 2*tick)
		if err := g.refused(late, allocnode.CodeUnavailable); err.Message != "the node is checking the log" {
			t.Error(err)
		}
	})
}

// A pool begins with its gate held, and asks the log for nothing.
func TestBeginsHeld(t *testing.T) {
	log := newLog(t)
	p := New(DefaultConfig(), log)
	answers := 0
	p.Take(&Request{Sequence: "a", Count: 1, Done: func([]allocnode.Range, error) { answers++ }})
	if p.Open(0) || answers != 0 || log.submitted() != 0 {
		t.Errorf("%d answers, %d refills", answers, log.submitted())
	}
}

// Only the ticket of the last Hold opens, and none after a refusal. Checked: without the comparison of tickets in Open the
// first fails, without that of the gate the second, without that in Hold the third.
func TestTickets(t *testing.T) {
	bubble(t, nil, func(g *rig) {
		g.hold()
		g.hold()
		if g.p.Open(g.ticket - 1) {
			t.Error("opened with the ticket of an earlier check")
		}
		g.p.Refuse(errHalted)
		if g.p.Open(g.ticket) {
			t.Error("opened after a refusal")
		}
		g.p.Hold(g.ticket) // it came before the refusal, and was late
		g.refused(g.take("a", 1), allocnode.CodeUnavailable)
		g.open()
		g.p.Hold(g.ticket - 1) // that check is over
		g.want(g.fill("a", 1), 1)
	})
}

// Refuse answers everybody at once and drops what is held, until a Hold. Checked: without dropping it in close, 40 ids of c
// are left.
func TestRefuse(t *testing.T) {
	bubble(t, nil, func(g *rig) {
		g.want(g.fill("a", 1), 1)
		g.want1(g.fill("c", 60), 1) // 40 are left, and a refill is under way
		b := g.take("b", 1)
		g.p.Refuse(errHalted)
		if err := g.refused(b, allocnode.CodeUnavailable); err != errHalted {
			t.Error(err)
		}
		g.refused(g.take("a", 1), allocnode.CodeUnavailable)
		if _, ids, waiting := g.p.Held(); ids != 0 || waiting != 0 {
			t.Errorf("%d ids held, %d waiting", ids, waiting)
		}
		g.hold()
		a := g.take("a", 1)
		g.waits(a)
		if !g.p.Open(g.ticket) {
			t.Error("does not open")
		}
		// Two refills are under way from before: nothing of what they bring is used, and no second one overtakes them.
		c := g.take("b", 1)
		g.apply()  // c's
		g.apply()  // b's, 1 to 100
		g.waits(c) // Checked: without the comparison of drops in arrived it gets 1
		g.apply()  // a's
		g.apply()  // c's again
		g.apply()  // b's again
		g.want(a, 101)
		g.want(c, 101)
	})
}

// A fence is for good, whatever comes after it. Checked: without fenced in Hold the gate opens again.
func TestFence(t *testing.T) {
	bubble(t, nil, func(g *rig) {
		a := g.take("a", 1)
		g.p.Fence(errFenced)
		g.refused(a, allocnode.CodeFenced)
		g.p.Refuse(errHalted)
		g.hold()
		if g.p.Open(g.ticket) {
			t.Error("opened after a fence")
		}
		g.log.apply()
		g.refused(g.take("a", 1), allocnode.CodeFenced)
	})
}

// After Run has ended every request is refused at once: nobody would look at its deadline. Checked: with Refuse in the
// place of Fence in Run the request waits for ever.
func TestStopped(t *testing.T) {
	var g *rig
	bubble(t, nil, func(r *rig) {
		g = r
		g.take("a", 1)
		g.hold()
		g.take("a", 1) // both are answered when Run ends
	})
	g.hold()
	g.p.Open(g.ticket)
	answers := 0
	g.p.Take(&Request{Sequence: "a", Count: 1, Done: func(_ []allocnode.Range, err error) {
		if answers++; err == nil {
			t.Error("a stopped pool gives ids")
		}
	}})
	if answers != 1 {
		t.Errorf("%d answers of a stopped pool", answers)
	}
}

// The log has no quorum: what is held goes on to its end, then requesters get unavailable by their deadlines, the log sees
// one refill at a time, and everything comes back without help. Checked: without the retry in sweep nobody who waits when
// the log comes back gets an id; with those who wait answered in failed, they get errors while their deadlines are ahead.
func TestQuorumLost(t *testing.T) {
	bubble(t, nil, func(g *rig) {
		g.want(g.fill("a", 1), 1)
		for id := uint64(2); id <= 100; id++ {
			g.want(g.take("a", 1), id)
			g.pass(100 * time.Millisecond)
			g.log.expire(time.Now())
		}
		var last *asked
		for range 30 {
			last = g.take("a", 1)
			for range 50 {
				g.pass(100 * time.Millisecond)
				g.log.expire(time.Now())
			}
			g.refused(last, allocnode.CodeUnavailable)
		}
		if n := g.log.submitted(); n > 1+160/4+1 {
			t.Errorf("%d refills in 160 s without a quorum, each of which may take 4 s", n)
		}
		a := g.take("a", 1)
		g.pass(3 * time.Second)
		g.log.expire(time.Now().Add(time.Minute)) // the refill under way gives up before a does
		g.waits(a)
		g.log.set(func() { g.log.auto = true })
		g.pass(pause + 2*tick)
		if a.answers != 1 || a.err != nil {
			t.Errorf("after the quorum is back: %d answers, %v", a.answers, a.err)
		}
	})
}

// A log that refuses at once is not asked in a loop.
func TestUnavailableAtOnce(t *testing.T) {
	bubble(t, nil, func(g *rig) {
		g.log.set(func() { g.log.err = allocnode.Errorf(allocnode.CodeUnavailable, "65536 requests wait already") })
		a := g.take("a", 1)
		g.pass(2 * time.Second)
		g.waits(a)
		if n := g.log.submitted(); n < 5 || n > 21 { // Checked: without again in failed the stack overflows
			t.Errorf("%d refills in 2 s, want one every %s", n, pause)
		}
		g.log.set(func() { g.log.err, g.log.auto = nil, true })
		g.pass(pause + 2*tick)
		g.want(a, 1)
	})
}

// Batches are bounded in number: an idle one makes room, one that is in use does not. Checked: without the bound there are
// four; without the condition on refilling, d takes the place of a batch whose refill is under way.
func TestBatchesBounded(t *testing.T) {
	bubble(t, func(c *Config) { c.Batches = 3 }, func(g *rig) {
		for _, name := range []string{"a", "b", "c"} {
			g.want(g.fill(name, 1), 1)
			g.pass(1100 * time.Millisecond)
		}
		g.want(g.take("a", 1), 2) // so b is idle for longest
		d := g.take("d", 1)
		g.apply()
		g.want(d, 1)
		if n, ids, _ := g.p.Held(); n != 3 || ids != 98+99+99 {
			t.Errorf("%d batches, %d ids", n, ids)
		}
		g.want(g.take("a", 1), 3)
		b := g.take("b", 1) // what it held is a gap. It takes c's place, and d's is next
		g.apply()
		g.want(b, 101)

		waits := []*asked{}
		for _, name := range []string{"x", "y", "z"} {
			waits = append(waits, g.take(name, 1)) // each has a refill under way
		}
		g.refused(g.take("w", 1), allocnode.CodeUnavailable)
		g.pass(5 * time.Second) // nobody waits any more; the refills are still under way
		g.refused(g.take("w", 1), allocnode.CodeUnavailable)
		for range waits {
			g.apply()
		}
		w := g.take("w", 1)
		g.apply()
		g.want(w, 1)
	})
}

// Ten thousand sequences and more, each asked for once: the number of batches stays in its bound, and after the idle time
// none is left.
func TestManySequences(t *testing.T) {
	bubble(t, func(c *Config) { c.Batches = 1000 }, func(g *rig) {
		g.log.set(func() { g.log.auto = true })
		for i := range 10_000 {
			g.want1(g.take(fmt.Sprintf("s%d", i), 1), 1)
		}
		if n, ids, _ := g.p.Held(); n != 1000 || ids != 99_000 {
			t.Errorf("%d batches, %d ids", n, ids)
		}
		g.pass(DefaultConfig().Idle / 2)
		for id := uint64(2); id <= 70; id++ { // Checked: without last set in sweep, this one goes too and 101 comes
			g.want1(g.take("s9999", 1), id)
			g.pass(10 * time.Second)
		}
		if n, _, _ := g.p.Held(); n != 1 {
			t.Errorf("%d batches after the idle time, want the one in use", n)
		}
		g.pass(DefaultConfig().Idle + 3*time.Second)
		if n, _, _ := g.p.Held(); n != 0 { // Checked: without the idle case in sweep it stays
			t.Errorf("%d batches after the idle time", n)
		}
	})
}

// want1 is want for one range, of which only the first id is looked at, and without check, which takes long for many
// batches.
func (g *rig) want1(a *asked, first uint64) {
	g.t.Helper()
	g.mu.Lock()
	defer g.mu.Unlock()
	if a.answers != 1 || a.err != nil || len(a.ranges) != 1 || a.ranges[0].Start != first {
		g.t.Fatalf("%s: %d answers, %v, %v, want %d", a.Sequence, a.answers, a.ranges, a.err, first)
	}
}

// Requests that wait are bounded; who need not wait is served all the same. Checked: without the bound the third waits;
// with the bound before the batch is looked at, the last is refused.
func TestWaitingBounded(t *testing.T) {
	bubble(t, func(c *Config) { c.Waiting = 2 }, func(g *rig) {
		g.want(g.fill("a", 1), 1)
		one, two := g.take("b", 1), g.take("c", 1)
		g.refused(g.take("b", 1), allocnode.CodeUnavailable)
		g.refused(g.take("d", 1), allocnode.CodeUnavailable)
		g.want(g.take("a", 1), 2)
		g.apply()
		g.apply()
		g.want(one, 1)
		g.want(two, 1)
	})
}
