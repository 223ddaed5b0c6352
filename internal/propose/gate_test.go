package propose

import (
	"testing"
	"time"

	"github.com/allocnode/allocnode"
)

// Hazard 12, this package's half: while the gate is held nothing that a user asked goes out or is answered, also what was
// on its way when it was held; with Open all of it is.
//
// Checked: where Applied lands whatever the gate says, early is answered while held; where it keeps the caller's outcomes
// instead of a copy, early gets what the apply loop wrote over them.
func TestHeld(t *testing.T) {
	bubble(t, small(), func(r *rig) {
		r.open()
		early := r.ask(2)
		r.settle()
		ticket := r.p.Hold()
		late := r.ask(1)
		r.settle()
		r.applyLast()
		r.wantNone(early, late)
		if n := len(r.log()); n != 1 {
			t.Fatalf("%d entries, want 1: the gate is held", n)
		}
		if queued, inFlight := r.p.Waiting(); queued != 1 || inFlight != 1 {
			t.Errorf("waiting: %d queued, %d in flight, want 1 and 1", queued, inFlight)
		}
		time.Sleep(2 * time.Second)
		r.wantNone(early, late)
		if n := len(r.log()); n != 1 {
			t.Errorf("%d entries, want 1: what was applied is not appended again", n)
		}
		if !r.p.Open(ticket) {
			t.Fatal("Open with the ticket of the last Hold: false")
		}
		r.wantRange(early)
		r.applyLast()
		r.wantRange(late)
	})
}

// A proposer begins held.
func TestBeginsHeld(t *testing.T) {
	bubble(t, small(), func(r *rig) {
		a := r.ask(1)
		if n := len(r.log()); n != 0 {
			t.Errorf("%d entries, want none", n)
		}
		if r.p.Open(0) {
			t.Error("Open without a ticket: true") // Checked: with tickets from 0, it was.
		}
		r.wantNone(a)
		r.open()
		r.applyLast()
		r.wantRange(a)
	})
}

// A ticket is good for what was found safe after its Hold, and for nothing that was doubted later.
//
// Checked: without the comparison of tickets, or with Open in any gate but the held one, the stale one opens.
func TestStaleTicket(t *testing.T) {
	again := map[string]func(*Proposer){
		"Hold":             func(p *Proposer) { p.Hold() },
		"Refuse":           func(p *Proposer) { p.Refuse(errFenced) },
		"Refuse, Hold":     func(p *Proposer) { p.Refuse(errFenced); p.Hold() },
		"Fence":            func(p *Proposer) { p.Fence(errFenced) },
		"Open, Hold":       func(p *Proposer) { p.Open(p.Hold()); p.Hold() },
		"Open, Refuse":     func(p *Proposer) { p.Open(p.Hold()); p.Refuse(errFenced) },
		"Hold, Hold, Open": func(p *Proposer) { p.Hold(); p.Open(p.Hold()); p.Hold() },
	}
	for name, doubt := range again {
		t.Run(name, func(t *testing.T) {
			bubble(t, small(), func(r *rig) {
				ticket := r.p.Hold()
				doubt(r.p)
				a := r.ask(1)
				if r.p.Open(ticket) {
					t.Error("Open with a stale ticket: true")
				}
				if n := len(r.log()); n != 0 {
					t.Errorf("%d entries, want none", n)
				}
				for _, res := range r.answered(a) {
					if codeOf(res) != allocnode.CodeFenced {
						t.Errorf("answered %+v", res)
					}
				}
			})
		})
	}
}

// Refuse lasts until Hold; then Open lets go what came since.
func TestRefuseHoldOpen(t *testing.T) {
	bubble(t, small(), func(r *rig) {
		r.open()
		r.fill()
		r.p.Refuse(errFenced)
		refused := r.ask(1)
		r.wantCode(allocnode.CodeFenced, refused)
		old := r.log()
		ticket := r.p.Hold()
		a := r.ask(1)
		r.wantNone(a)
		if !r.p.Open(ticket) {
			t.Fatal("Open after Refuse and Hold: false")
		}
		log := r.log()
		if len(log) != len(old)+1 {
			t.Fatalf("%d entries after Open, want %d", len(log), len(old)+1)
		}
		for _, e := range log { // the old ones as well: they have no waiter left
			r.apply(e)
		}
		r.wantRange(a)
	})
}

// A fence is final, and its reason stands.
//
// Checked: without fenced in Hold, the gate opens; without it in close, the second reason is given.
func TestFenceIsFinal(t *testing.T) {
	bubble(t, small(), func(r *rig) {
		r.open()
		r.p.Fence(errFenced)
		r.p.Refuse(allocnode.Errorf(allocnode.CodeUnavailable, "later"))
		r.p.Fence(allocnode.Errorf(allocnode.CodeUnavailable, "later still"))
		if r.p.Open(r.p.Hold()) {
			t.Error("Open after Fence: true")
		}
		a := r.ask(1)
		r.wantCode(allocnode.CodeFenced, a)
		if got := a.got[0].Err; got != error(errFenced) {
			t.Errorf("refused with %v, want the fence's reason", got)
		}
		own := r.control(1)
		r.applyLast()
		r.wantRange(own)
	})
}

// What a node has in an entry when the gate closes goes no further: it is not appended again, and frees its lane.
func TestClosedLetsGo(t *testing.T) {
	bubble(t, small(), func(r *rig) {
		r.open()
		users := r.fill()
		own := r.control(1)
		r.settle()
		r.p.Refuse(errFenced)
		r.wantCode(allocnode.CodeUnknownOutcome, users...)
		r.wantNone(own)
		n := len(r.log())
		time.Sleep(r.p.cfg.Retry + 2*tick)
		if log := r.log(); len(log) != n+1 || log[n].tag != log[n-1].tag {
			t.Errorf("%d appends after the gate closed, want one: the control entry once more", len(log)-n)
		}
		r.open()
		a := r.fill()
		for _, e := range r.log()[n+1:] {
			r.apply(e)
		}
		r.wantRange(a...)
	})
}

// Hazard 8: Done may call the proposer, wherever it is called from. The rig looks at the mutex in every callback too.
//
// Checked: with due.give or land before the unlock in step, close, stop, Applied or Open, and with head or lost within the
// mutex, the rig fails.
func TestCallbacksMayCall(t *testing.T) {
	from := map[string]func(r *rig, a *asked){
		"Submit":        func(r *rig, a *asked) { r.p.Refuse(errFenced); r.p.Submit(a.req) },
		"Applied":       func(r *rig, a *asked) { r.open(); r.p.Submit(a.req); r.applyLast() },
		"deadline":      func(r *rig, a *asked) { r.p.Submit(a.req); time.Sleep(time.Second + 2*tick) },
		"Refuse":        func(r *rig, a *asked) { r.p.Submit(a.req); r.p.Refuse(errFenced) },
		"Refuse flight": func(r *rig, a *asked) { r.open(); r.p.Submit(a.req); r.settle(); r.p.Refuse(errFenced) },
		"Open": func(r *rig, a *asked) {
			r.open()
			r.p.Submit(a.req)
			r.settle()
			ticket := r.p.Hold()
			r.applyLast()
			r.p.Open(ticket)
		},
		"stop": func(r *rig, a *asked) { r.p.Submit(a.req); r.settle(); r.stop() },
	}
	for name, run := range from {
		t.Run(name, func(t *testing.T) {
			bubble(t, small(), func(r *rig) {
				a := r.make(1, time.Second)
				called := false
				a.hook = func(Result) {
					called = true
					r.ask(1)
					r.control(1)
					r.p.Open(r.p.Hold())
					r.p.Acked(1, 1000, false, nil)
					r.p.Waiting()
					r.p.Refuse(errFenced)
				}
				run(r, a)
				r.settle()
				if !called {
					t.Error("Done was not called")
				}
			})
		})
	}
}
