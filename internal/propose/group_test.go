package propose

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/allocnode/allocnode"
	"github.com/allocnode/allocnode/internal/wire"
)

// What waits while InFlight entries are under way goes into the next one, in the order in which it came, as much of it as
// one entry may hold; and the bound on entries under way holds.
func TestGroupCommit(t *testing.T) {
	byBytes := small()
	byBytes.MaxBytes = len(newRig(t, small()).make(10, time.Second).req.Ops)
	for _, c := range []struct {
		name string
		cfg  Config
		asks []int
		want []int // operations of the entries that follow those that fill the lanes
	}{
		{"all in one", small(), []int{1, 2, 3, 4}, []int{10}},
		{"full to the last operation", small(), []int{10, 6}, []int{16}},
		{"bounded by operations", small(), []int{10, 6, 1, 14, 3}, []int{16, 15, 3}},
		{"bounded by bytes", byBytes, []int{5, 5, 5, 4, 2, 1}, []int{10, 9, 3}},
		{"what does not fit lets nothing by", small(), []int{1, 16, 1}, []int{1, 16, 1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, c.cfg, func(r *rig) {
				r.open()
				all := r.fill()
				for _, n := range c.asks {
					all = append(all, r.ask(n))
					if got := r.sizes(); len(got) != r.p.cfg.InFlight {
						t.Fatalf("entries of %v operations while %d lanes are full", got, r.p.cfg.InFlight)
					}
				}
				if queued, inFlight := r.p.Waiting(); queued != len(c.asks) || inFlight != r.p.cfg.InFlight {
					t.Errorf("waiting: %d queued, %d in flight, want %d and %d", queued, inFlight, len(c.asks), r.p.cfg.InFlight)
				}
				for i := 0; i < len(r.log()); i++ {
					r.apply(r.log()[i])
				}
				if got := r.sizes()[r.p.cfg.InFlight:]; !slices.Equal(got, c.want) {
					t.Errorf("entries of %v operations, want %v", got, c.want)
				}
				r.wantRange(all...)
				for i, a := range all[1:] { // first in, first out: the ids rise with the order of the requests
					if before := all[i]; a.got[0].Outcomes[0].Start <= before.got[0].Outcomes[0].Start {
						t.Errorf("request %d got %+v, the one before it %+v", a.base, a.got[0], before.got[0])
					}
				}
			})
		})
	}
}

// When the gate opens, all lanes are used at once for what has waited.
//
// Checked: without the wake at the end of takeLocked, the second entry comes a tick later (settle sees the clock move, or
// the entry is missing).
func TestOpenFillsAllLanes(t *testing.T) {
	bubble(t, small(), func(r *rig) {
		a, b, c := r.ask(16), r.ask(16), r.ask(16)
		r.settle()
		if n := len(r.log()); n != 0 {
			t.Fatalf("%d entries while the gate is held", n)
		}
		r.open()
		if got := r.sizes(); !slices.Equal(got, []int{16, 16}) {
			t.Fatalf("entries of %v operations, want two of 16", got)
		}
		for i := range 3 {
			r.apply(r.log()[i])
		}
		r.wantRange(a, b, c)
	})
}

// A request that comes while nothing is under way goes out at once, and so does what waits when a lane comes free: by
// being applied, or by being given up.
//
// Checked: without the wake in enqueue, in Applied, in Open, this fails at the line that follows.
func TestNoWaitForTick(t *testing.T) {
	bubble(t, small(), func(r *rig) {
		a := r.ask(1)
		r.settle()
		r.open()
		if n := len(r.log()); n != 1 {
			t.Fatalf("%d entries at once after Open, want 1", n)
		}
		b := r.ask(1)
		if n := len(r.log()); n != 2 {
			t.Fatalf("%d entries at once after Submit, want 2", n)
		}
		c, d := r.ask(1), r.ask(1)
		r.settle()
		r.apply(r.log()[1])
		if n := len(r.log()); n != 3 {
			t.Fatalf("%d entries at once after Applied, want 3", n)
		}
		r.apply(r.log()[2])
		r.apply(r.log()[0])
		r.wantRange(a, b, c, d)

		for range 2 {
			r.askFor(1, time.Second)
			r.settle()
		}
		e := r.ask(1)
		time.Sleep(time.Second + 2*tick) // retries are on their way too, so look for what is new
		last := r.log()[len(r.log())-1]
		r.apply(last)
		r.wantRange(e)
	})
}

// The node's own requests go out, and are answered, whatever the users' lanes and the gate say; and never share an entry
// with a user's. One entry holds no more of them than of users': an entry above the bounds of the wire would halt every node.
//
// Checked: with one count of lanes for both, nothing goes out behind the users'; without the bound, 24 operations are one
// entry.
func TestControl(t *testing.T) {
	gates := map[string]func(*Proposer){
		"held":    func(p *Proposer) { p.Hold() },
		"open":    func(*Proposer) {},
		"refused": func(p *Proposer) { p.Refuse(errFenced) },
		"fenced":  func(p *Proposer) { p.Fence(errFenced) },
	}
	for name, gate := range gates {
		t.Run(name, func(t *testing.T) {
			bubble(t, small(), func(r *rig) {
				r.open()
				r.fill()
				users := len(r.log())
				gate(r.p)
				r.ask(1)
				var own []*asked
				for range 2 { // lanes of its own, as many as the users'
					own = append(own, r.control(1))
					r.settle()
				}
				for range 24 {
					own = append(own, r.control(1))
				}
				if got := r.sizes()[users:]; !slices.Equal(got, []int{1, 1}) {
					t.Fatalf("entries of %v operations, want two of 1", got)
				}
				for i := users; i < len(r.log()); i++ {
					r.apply(r.log()[i])
				}
				if got := r.sizes()[users:]; !slices.Equal(got, []int{1, 1, 16, 8}) {
					t.Errorf("entries of %v operations, want 1, 1, 16, 8", got)
				}
				r.wantRange(own...)
			})
		})
	}
}

// As TestOpenFillsAllLanes, for the node's own.
//
// Checked: without its half of the wake in takeLocked, the second entry waits for a tick.
func TestControlFillsAllLanes(t *testing.T) {
	bubble(t, small(), func(r *rig) {
		r.open()
		var own []*asked
		r.onAppend = func(entry) error { // on Run's goroutine, so that its next step sees both
			r.onAppend = nil
			own = append(own, r.control(16), r.control(16))
			return nil
		}
		r.ask(1)
		if got := r.sizes(); !slices.Equal(got, []int{16, 16}) {
			t.Fatalf("entries of %v operations, want two of 16", got)
		}
		r.apply(r.log()[1])
		r.apply(r.log()[0])
		r.wantRange(own...)
	})
}

// The look at everything that waits is made once a tick, however often the loop runs: with a log that is silent and a
// full queue, a deadline comes every few microseconds.
//
// Checked: with a sweep at every step, the second step answers.
func TestSweepOnceATick(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, small())
		r.p.step()
		a := r.askFor(1, time.Millisecond)
		time.Sleep(tick - time.Nanosecond)
		r.p.step()
		r.wantNone(a)
		time.Sleep(time.Nanosecond)
		r.p.step()
		r.wantCode(allocnode.CodeUnavailable, a)
	})
}

// An acknowledgement is a witness: an entry stored at or below the cursor that its proposer held when it made the entry
// proves that the log lost entries. A duplicate stands where it stood before, an error says nothing.
//
// Checked: without the look at duplicate, err or the counter, the cases named so call lost; with < for <=, "at the cursor"
// does not.
func TestAckProof(t *testing.T) {
	for _, c := range []struct {
		name string
		ack  func(p *Proposer, tag uint64)
		want [][2]uint64
	}{
		{"at the cursor", func(p *Proposer, tag uint64) { p.Acked(tag, 40, false, nil) }, [][2]uint64{{40, 40}}},
		{"below it", func(p *Proposer, tag uint64) { p.Acked(tag, 3, false, nil) }, [][2]uint64{{3, 40}}},
		{"duplicate", func(p *Proposer, tag uint64) { p.Acked(tag, 40, true, nil) }, nil},
		{"error", func(p *Proposer, tag uint64) { p.Acked(tag, 0, false, errors.New("no responders")) }, nil},
		{"above it", func(p *Proposer, tag uint64) { p.Acked(tag, 41, false, nil) }, nil},
		{"of no entry of ours", func(p *Proposer, tag uint64) { p.Acked(tag+1, 3, false, nil); p.Acked(0, 3, false, nil) }, nil},
		{"of an entry long ago", func(p *Proposer, tag uint64) { p.Acked(tag+remembered, 3, false, nil) }, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, small(), func(r *rig) {
				r.cursor = 40
				r.open()
				r.ask(1)
				e := r.log()[0]
				if got := r.decode(e); got.Cursor != 40 || got.Digest != (wire.Digest{0xD1}) {
					t.Errorf("the entry says cursor %d, digest %s", got.Cursor, got.Digest)
				}
				r.mu.Lock()
				r.cursor = 1000 // what the node applied later is no part of the proof
				r.mu.Unlock()
				c.ack(r.p, e.tag)
				if !slices.Equal(r.losses, c.want) {
					t.Errorf("lost was called with %v, want %v", r.losses, c.want)
				}
			})
		})
	}
}

// The proof stands also when nobody waits for the entry any more. A log that has lost its end is slow to answer, so that
// requesters have often given up by then.
//
// Checked: where Acked asked the flights only, lost was not called.
func TestAckProofAfterGiveUp(t *testing.T) {
	bubble(t, small(), func(r *rig) {
		r.cursor = 40
		r.open()
		a := r.ask(1)
		tag := r.log()[0].tag
		r.p.Refuse(errFenced)
		r.settle()
		r.p.Acked(tag, 17, false, nil)
		if want := [][2]uint64{{17, 40}}; !slices.Equal(r.losses, want) {
			t.Errorf("lost was called with %v, want %v", r.losses, want)
		}
		if len(r.answered(a)) != 1 {
			t.Errorf("answers: %+v", a.got)
		}
	})
}

// An error, from Append or as acknowledgement, says that nothing was published, so the next try need not wait for Retry.
// It goes on, but not at once: the log may be without a leader for seconds.
//
// Checked: without the shorter time, the second append comes after Retry.
func TestErrorRetriesSooner(t *testing.T) {
	cfg := small()
	cfg.Retry = 10 * time.Second
	for _, fromAppend := range []bool{true, false} {
		bubble(t, cfg, func(r *rig) {
			r.open()
			a := r.ask(1)
			e := r.log()[0]
			for i := range 5 {
				before := time.Now()
				if fromAppend && i == 0 { // an Append that fails leaves no entry in the rig
					r.apply(e)
					r.wantRange(a)
					r.mu.Lock()
					r.appendErr = errors.New("no connection")
					r.mu.Unlock()
					a = r.ask(1)
					r.settle()
					r.mu.Lock()
					r.appendErr = nil
					r.mu.Unlock()
				} else {
					r.p.Acked(e.tag, 0, false, errors.New("no responders"))
				}
				n := len(r.log())
				time.Sleep(2*tick - time.Nanosecond)
				if got := len(r.log()); got != n {
					t.Fatalf("appended again within %s", time.Since(before))
				}
				time.Sleep(2 * tick)
				log := r.log()
				if len(log) != n+1 {
					t.Fatalf("%d appends in %s after an error, want 1", len(log)-n, time.Since(before))
				}
				e = log[n]
			}
			r.apply(e)
			r.wantRange(a)
		})
	}
}

// When nothing waits, nothing runs: no timer, no loop. Every pass of the loop that comes a tick after the last one leaves
// the time in swept.
//
// Checked: with the timer set again after every step, the last pass is within a tick of the hour's end.
func TestIdle(t *testing.T) {
	bubble(t, small(), func(r *rig) {
		r.open()
		a := r.ask(1)
		r.applyLast()
		r.wantRange(a)
		idle := time.Now()
		time.Sleep(time.Hour)
		synctest.Wait()
		r.p.mu.Lock()
		last := r.p.swept
		r.p.mu.Unlock()
		if last.After(idle.Add(2 * tick)) {
			t.Errorf("the loop ran %s after the last answer", last.Sub(idle))
		}
		b := r.ask(1)
		r.applyLast()
		r.wantRange(b)
	})
}

// What was answered is let go of: the queue's array is used again, and holds no request that has left it.
//
// Checked: without clear in launchLocked, the requests are still there.
func TestQueueLetsGo(t *testing.T) {
	bubble(t, small(), func(r *rig) {
		r.open()
		r.fill()
		for range 20 { // more than one entry takes
			r.ask(1)
		}
		queue := r.p.queue[:cap(r.p.queue)]
		for i := 0; i < len(r.log()); i++ {
			r.apply(r.log()[i])
		}
		r.settle()
		for i, q := range queue {
			if q != nil {
				t.Errorf("place %d of the queue still holds a request", i)
			}
		}
	})
}

// While an entry is under way, the next one goes out early only when it is as full, or the first is slow: a busy node makes
// few and full entries, and one whose entry is lost does not wait for it.
//
// Checked: without "p.ops >= fullest" the second request has an entry of its own; without the wake in enqueue the fourth
// waits for a tick; without "slow" the last one waits for the lane.
func TestEarlyEntryIsAsFull(t *testing.T) {
	bubble(t, small(), func(r *rig) {
		r.open()
		a := r.ask(3)
		r.settle()
		b, c := r.ask(1), r.ask(1)
		if got := r.sizes(); !slices.Equal(got, []int{3}) {
			t.Fatalf("entries of %v operations, want the first alone", got)
		}
		d := r.ask(1)
		if got := r.sizes(); !slices.Equal(got, []int{3, 3}) {
			t.Fatalf("entries of %v operations at once, want another of 3", got)
		}
		r.apply(r.log()[0])
		e := r.ask(1)
		if got := r.sizes(); !slices.Equal(got, []int{3, 3}) {
			t.Fatalf("entries of %v operations, want no third while one of 3 is under way", got)
		}
		time.Sleep(2 * tick)
		synctest.Wait()
		if got := r.sizes(); !slices.Equal(got, []int{3, 3, 1}) {
			t.Fatalf("entries of %v operations, want a third beside a slow one", got)
		}
		r.apply(r.log()[1])
		r.apply(r.log()[2])
		r.wantRange(a, b, c, d, e)
	})
}
