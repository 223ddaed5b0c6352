package next

import (
	"fmt"
	"testing"
	"time"

	"github.com/allocnode/allocnode"
	"github.com/allocnode/allocnode/internal/propose"
	"github.com/allocnode/allocnode/internal/wire"
)

// The first request waits for a batch; the next batch is there before the first one ends.
func TestRefillAheadOfNeed(t *testing.T) {
	bubble(t, nil, func(g *rig) {
		first := g.take("a", 1)
		g.waits(first)
		g.apply()
		g.want(first, 1)
		for id := uint64(2); id <= 49; id++ {
			g.want(g.take("a", 1), id)
		}
		if n := g.log.submitted(); n != 1 {
			t.Fatalf("%d refills with 51 of 100 ids left", n)
		}
		g.want(g.take("a", 1), 50) // 50 are left
		if n := g.log.submitted(); n != 2 {
			t.Fatalf("%d refills with 50 of 100 ids left", n)
		}
		g.apply()
		for id := uint64(51); id <= 120; id++ {
			g.want(g.take("a", 1), id)
		}
		if batches, ids, waiting := g.p.Held(); batches != 1 || ids < 50 || waiting != 0 {
			t.Errorf("%d batches, %d ids, %d waiting", batches, ids, waiting)
		}
	})
}

// Hazard 5: a refill that comes while few ids are left, one or none, must not be the last one. Every batch size, and every
// moment of its arrival, is tried. Checked: with the refill asked for only when held is exactly low, or somebody waits, a
// batch at its mark has none under way; the same with low = size/2, which is 0 for a batch of one.
func TestSmallBatches(t *testing.T) {
	for size := uint64(1); size <= 3; size++ {
		for late := range 4 {
			t.Run(fmt.Sprintf("size %d, late %d", size, late), func(t *testing.T) {
				bubble(t, func(c *Config) { c.Least, c.Most = size, size }, func(g *rig) {
					var waiting []*asked
					id := uint64(1)
					for n := range 200 {
						waiting = append(waiting, g.take("a", 1))
						g.refilling("a")
						if n%(late+1) == 0 {
							g.log.apply()
							g.refilling("a")
						}
						for len(waiting) > 0 && waiting[0].answers > 0 {
							g.want(waiting[0], id)
							waiting, id = waiting[1:], id+1
						}
					}
					for len(waiting) > 0 {
						g.apply()
						for len(waiting) > 0 && waiting[0].answers > 0 {
							g.want(waiting[0], id)
							waiting, id = waiting[1:], id+1
						}
					}
				})
			})
		}
	}
}

// A count above the batch size is one refill of that count, less what is there. One above Most is refused.
func TestCountAboveBatch(t *testing.T) {
	bubble(t, func(c *Config) { c.Least, c.Most = 2, 50 }, func(g *rig) {
		g.want(g.fill("a", 1), 1)
		a := g.take("a", 10) // one id is there, and the refill of 2 that it began
		g.apply()
		g.waits(a)
		g.apply()
		g.want(a, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11)
		if n := g.log.submitted(); n > 4 {
			t.Errorf("%d refills", n)
		}
		before := g.log.submitted()
		g.refused(g.take("a", 51), allocnode.CodeBadRequest)
		g.refused(g.take("b", 51), allocnode.CodeBadRequest)
		g.refused(g.take("b", 0), allocnode.CodeBadRequest)
		g.refused(g.take("a", 0), allocnode.CodeBadRequest)
		if n, _, _ := g.p.Held(); n != 1 || g.log.submitted() != before {
			t.Errorf("requests that are refused made %d batches, %d refills", n, g.log.submitted()-before)
		}
	})
}

// fill takes count ids of a sequence that has no batch yet, and applies the refill.
func (g *rig) fill(sequence string, count uint64) *asked {
	g.t.Helper()
	a := g.take(sequence, count)
	g.apply()
	return a
}

// Requests are answered in the order of their arrival: a small one does not overtake a large one. Checked: without the
// condition that nobody waits in takeLocked, the last two are answered at once.
func TestFIFO(t *testing.T) {
	bubble(t, func(c *Config) { c.Least = 4 }, func(g *rig) {
		g.want(g.fill("a", 1), 1)
		g.want(g.take("a", 1), 2) // 2 are left, and a refill under way
		large := g.take("a", 3)
		one, two := g.take("a", 1), g.take("a", 1)
		g.waits(large)
		g.waits(one)
		g.apply()
		g.want(large, 3, 4, 5)
		g.want(one, 6)
		g.want(two, 7)
	})
}

// Ranges of several refills make one answer: merged where they are adjacent, apart where another node carved in between.
func TestRanges(t *testing.T) {
	bubble(t, func(c *Config) { c.Least, c.Most = 4, 8 }, func(g *rig) {
		g.want(g.fill("a", 1), 1)
		g.want(g.take("a", 1), 2)
		g.apply() // 3 to 8
		a := g.take("a", 5)
		g.want(a, 3, 4, 5, 6, 7)
		if len(a.ranges) != 1 {
			t.Errorf("adjacent ranges: %v", a.ranges)
		}
		s := g.log.sequence("a")
		g.log.set(func() { s.hwm += 100 })
		g.apply()
		b := g.take("a", 2)
		g.want(b, 8, 109)
		if len(b.ranges) != 2 {
			t.Errorf("ranges apart: %v", b.ranges)
		}
	})
}

// Hazard 7: a log that does not answer gets one refill, whoever waits; requesters get unavailable by their deadline; and
// what the refill brings late is kept. Checked: without the guard on refilling in serveLocked the log sees a second one.
func TestOneRefillInFlight(t *testing.T) {
	bubble(t, func(c *Config) { c.Timeout = time.Minute }, func(g *rig) {
		var all []*asked
		for range 100 {
			all = append(all, g.take("a", 1))
			g.pass(10 * time.Millisecond)
		}
		g.pass(4 * time.Second)
		for _, a := range all {
			g.refused(a, allocnode.CodeUnavailable)
		}
		if n := g.log.submitted(); n != 1 {
			t.Fatalf("%d refills are under way", n)
		}
		g.apply()
		if _, ids, _ := g.p.Held(); ids == 0 {
			t.Fatal("what the refill brought is lost")
		}
		g.want(g.take("a", 1), 1)
	})
}

// Deadlines, to two ticks. Checked: without expireLocked nobody is answered.
func TestDeadline(t *testing.T) {
	bubble(t, nil, func(g *rig) {
		late, soon := g.takeWithin("a", 2, 5*time.Second), g.take("a", 1)
		g.pass(4*time.Second - tick)
		g.waits(soon)
		g.pass(3 * tick)
		g.refused(soon, allocnode.CodeUnavailable)
		g.waits(late)
		g.pass(time.Second)
		g.refused(late, allocnode.CodeUnavailable)
	})
}

// A refill with an unknown outcome may have been carved, or be carved later: its range is a gap, and the next refill is
// another one. Those who wait are not told of the unknown: they were promised nothing, and wait on.
func TestUnknownOutcome(t *testing.T) {
	bubble(t, nil, func(g *rig) {
		a := g.take("a", 1)
		lost := g.log.take()
		g.pass(3 * time.Second)
		b := g.take("a", 1)
		lost.Done(propose.Result{Err: allocnode.Errorf(allocnode.CodeUnknownOutcome, "the log did not answer")})
		g.waits(a)
		if n := g.log.submitted(); n != 1 {
			t.Fatalf("%d refills: the next one must wait a little", n)
		}
		g.pass(pause + 2*tick)
		if o := g.log.carve(lost); o.Start != 1 || o.End != 101 { // now it is applied, and nobody is told
			t.Fatalf("the lost refill carves %+v", o)
		}
		g.apply()
		g.want(a, 101)
		g.want(b, 102)
	})
}

// Exhaustion: the rest is drained, then every request is refused from memory. Checked: without b.exhausted each request is
// one more entry in the log; without taking a short refill for the last one there is one entry more than here.
func TestExhaustion(t *testing.T) {
	bubble(t, nil, func(g *rig) {
		s := g.log.sequence("a")
		g.log.set(func() { s.max = 105 })
		for id := uint64(1); id <= 102; id++ {
			a := g.take("a", 1)
			g.log.apply()
			g.want(a, id)
		}
		if err := g.refused(g.take("a", 4), allocnode.CodeExhausted); err.Remaining != 3 {
			t.Errorf("3 ids are held: %v, remaining %d", err, err.Remaining)
		}
		g.want(g.take("a", 3), 103, 104, 105)
		for range 100 {
			if err := g.refused(g.take("a", 1), allocnode.CodeExhausted); err.Remaining != 0 {
				t.Errorf("remaining %d", err.Remaining)
			}
			g.pass(time.Second)
		}
		if n := g.log.submitted(); n != 2 {
			t.Errorf("%d refills of a sequence of 105 ids, want 2", n)
		}

		s = g.log.sequence("full") // exhausted by others
		g.log.set(func() { s.hwm, s.max = 10, 10 })
		a, b := g.take("full", 1), g.take("full", 2)
		g.apply()
		g.refused(a, allocnode.CodeExhausted)
		g.refused(b, allocnode.CodeExhausted)
		g.pass(time.Minute)
		g.refused(g.take("full", 1), allocnode.CodeExhausted)
		if n := g.log.submitted(); n != 3 {
			t.Errorf("%d refills, want one more", n)
		}
	})
}

// What the log refuses is asked again once a second at most: a halted sequence can be resumed, an unknown one created.
// What is held of a halted sequence is given out. Checked: with remember at 1 ns the log is asked by each request.
func TestRefusalsAreRemembered(t *testing.T) {
	bubble(t, nil, func(g *rig) {
		g.want(g.fill("a", 1), 1)
		s := g.log.sequence("a")
		g.log.set(func() { s.halted, g.log.strict = true, true })
		for id := uint64(2); id <= 100; id++ {
			g.want(g.take("a", 1), id)
			g.log.apply()
		}
		none := g.take("none", 1)
		g.apply()
		g.refused(none, allocnode.CodeNotFound)
		before := g.log.submitted()
		for range 9 {
			g.refused(g.take("a", 1), allocnode.CodeExhausted)
			g.refused(g.take("none", 1), allocnode.CodeNotFound)
			g.pass(remember / 10)
		}
		if n := g.log.submitted(); n != before {
			t.Errorf("%d entries for requests that were refused a moment ago", n-before)
		}
		g.pass(remember)
		g.log.set(func() { s.halted, g.log.strict = false, false })
		a, b := g.take("a", 1), g.take("none", 1)
		g.apply()
		g.apply()
		g.want(a, 101)
		g.want(b, 1)
	})
}

// max_count bounds a refill and a request, and is learnt with one entry. Checked: without b.most set in smaller, the next
// refill is refused again.
func TestMaxCount(t *testing.T) {
	bubble(t, nil, func(g *rig) {
		s := g.log.sequence("a")
		g.log.set(func() { s.maxCount = 10 })
		large, fits, one := g.take("a", 11), g.take("a", 10), g.take("a", 1)
		g.apply() // a refusal
		g.refused(large, allocnode.CodeBadRequest)
		g.waits(fits)
		g.apply()
		g.want(fits, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10)
		g.apply()
		g.want(one, 11)
		g.refused(g.take("a", 11), allocnode.CodeBadRequest)
		g.log.set(func() { g.log.auto = true })
		before := g.log.submitted()
		for range 100 {
			g.take("a", 1)
		}
		if n := g.log.submitted() - before; n > 11 {
			t.Errorf("%d refills for 100 ids with a max_count of 10", n)
		}
		// A bound that makes no sense is no reason to ask for ever.
		z := g.log.sequence("z")
		g.log.set(func() { z.maxCount = 0 })
		g.refused(g.take("z", 1), allocnode.CodeBadRequest)
	})
}

// Batches follow the rate, up and down, in steps and within their bounds. Checked: without the step in nextSize one burst
// makes a batch as large as it can be; without soon in the mark it stays at half.
func TestSize(t *testing.T) {
	bubble(t, func(c *Config) { c.Most = 20_000 }, func(g *rig) {
		g.log.set(func() { g.log.auto = true })
		g.take("burst", 1)
		g.pass(time.Millisecond)
		g.take("burst", 5000)
		if n := g.size("burst"); n != 400 {
			t.Errorf("size %d after a burst, want four times the one before", n)
		}
		for range 100_000 { // 1,000 a second, to last 10 s
			g.take("a", 1)
			g.pass(time.Millisecond)
		}
		if n := g.size("a"); n < 9_000 || n > 11_000 {
			t.Errorf("size %d at 1,000 ids a second, want 10 s of it", n)
		}
		for range 2000 {
			g.take("a", 100)
			g.pass(time.Millisecond)
		}
		if n := g.size("a"); n != 20_000 {
			t.Errorf("size %d at 100,000 ids a second, want the bound", n)
		}
		g.p.mu.Lock()
		if low := g.p.batches["a"].low; low != 20_000 {
			t.Errorf("low %d: a batch that cannot last 10 s is refilled earlier", low)
		}
		g.p.mu.Unlock()
		for range 40_000 {
			g.take("a", 1)
			g.pass(time.Second)
		}
		if n := g.size("a"); n > 100 {
			t.Errorf("size %d at one id a second, want the least", n)
		}
		if n := g.log.submitted(); n > 1000 {
			t.Errorf("%d refills", n)
		}
	})
}

// A time in which the log did not answer says nothing of the rate. Checked: without from set to zero in failed, the size
// falls to 100.
func TestSizeAfterFailure(t *testing.T) {
	bubble(t, nil, func(g *rig) {
		g.log.set(func() { g.log.auto = true })
		for range 10_000 {
			g.take("a", 1)
			g.pass(time.Millisecond)
		}
		g.log.set(func() { g.log.err = allocnode.Errorf(allocnode.CodeUnavailable, "no") })
		for g.take("a", 1).answers > 0 {
		}
		before := g.size("a")
		g.pass(time.Minute)
		g.take("a", 1)
		g.pass(time.Minute)
		if n := g.size("a"); n != before || n < 5000 {
			t.Errorf("size %d after a minute without the log, it was %d", n, before)
		}
	})
}

func (g *rig) size(name string) uint64 {
	g.p.mu.Lock()
	defer g.p.mu.Unlock()
	return g.p.batches[name].size
}

// Done may ask again, and be called while somebody else asks. Checked: with run called under the mutex this hangs.
func TestDoneMayTake(t *testing.T) {
	bubble(t, nil, func(g *rig) {
		g.log.set(func() { g.log.auto = true })
		var second *asked
		r := &Request{Sequence: "a", Count: 1, Deadline: time.Now().Add(time.Second)}
		r.Done = func(ranges []allocnode.Range, err error) {
			if err != nil || len(ranges) != 1 || ranges[0] != (allocnode.Range{Start: 1, End: 2}) {
				t.Errorf("%v, %v", ranges, err)
			}
			second = g.take("a", 1)
			r.Done = func(ranges []allocnode.Range, err error) { // the same request once more
				if err != nil || len(ranges) != 1 || ranges[0] != (allocnode.Range{Start: 3, End: 4}) {
					t.Errorf("%v, %v", ranges, err)
				}
			}
			g.p.Take(r)
		}
		g.p.Take(r)
		g.want(second, 2)
		g.want(g.take("a", 1), 4)
	})
}

// An answer of the log that holds no outcome installs nothing.
func TestShortOutcomes(t *testing.T) {
	bubble(t, nil, func(g *rig) {
		a := g.take("a", 1)
		g.log.take().Done(propose.Result{Seq: 7})
		g.log.set(func() { g.log.auto = true })
		g.waits(a)
		g.pass(pause + 2*tick)
		g.want(a, 1)
		b := g.take("b", 1)
		g.want(b, 1)
	})
}

// A refusal that nobody has thought of is an answer, not a loop.
func TestOtherRejections(t *testing.T) {
	bubble(t, nil, func(g *rig) {
		a := g.take("a", 1)
		g.log.answer(g.log.take(), wire.Outcome{Reject: wire.RejectSequences, Remaining: 5})
		g.refused(a, allocnode.CodeTooLarge)
		g.refused(g.take("a", 1), allocnode.CodeTooLarge)
		if n := g.log.submitted(); n != 1 {
			t.Errorf("%d refills", n)
		}
	})
}
