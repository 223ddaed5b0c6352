package propose

import (
	"bytes"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/allocnode/allocnode"
	"github.com/allocnode/allocnode/internal/wire"
)

const ranged allocnode.Code = "a range"

var errFenced = allocnode.Errorf(allocnode.CodeFenced, "the log lost entries")

// Each case brings one request to its end, and names the answer. That there is exactly one, also after the stop, is
// bubble's to check.
func TestOneAnswer(t *testing.T) {
	cases := []struct {
		name string
		want allocnode.Code
		run  func(*rig) *asked
	}{
		{"applied", ranged, func(r *rig) *asked {
			r.open()
			a := r.ask(3)
			r.applyLast()
			return a
		}},
		{"deadline while held", allocnode.CodeUnavailable, func(r *rig) *asked {
			a := r.askFor(1, time.Second)
			r.passes(a, time.Second)
			return a
		}},
		{"deadline behind full lanes", allocnode.CodeUnavailable, func(r *rig) *asked {
			r.open()
			r.fill()
			a := r.askFor(1, time.Second)
			r.passes(a, time.Second)
			return a
		}},
		{"deadline before that of an older request", allocnode.CodeUnavailable, func(r *rig) *asked {
			// Checked: without lowering soonest for a later request, it is answered after 4 s.
			r.ask(1)
			r.settle()
			a := r.askFor(1, time.Second)
			r.passes(a, time.Second)
			return a
		}},
		{"deadline after that of an older request", allocnode.CodeUnavailable, func(r *rig) *asked {
			// Checked: without computing soonest anew, it is never answered.
			r.askFor(1, time.Second)
			a := r.askFor(1, 3*time.Second)
			r.passes(a, 3*time.Second)
			return a
		}},
		{"deadline in an entry", allocnode.CodeUnknownOutcome, func(r *rig) *asked {
			r.open()
			a := r.askFor(1, 1500*time.Millisecond)
			r.passes(a, 1500*time.Millisecond)
			return a
		}},
		{"deadline applied and held", allocnode.CodeUnknownOutcome, func(r *rig) *asked {
			r.open()
			a := r.askFor(1, 1500*time.Millisecond)
			r.settle()
			r.p.Hold()
			r.applyLast()
			r.passes(a, 1500*time.Millisecond)
			return a
		}},
		{"deadline of a control request in the queue", allocnode.CodeUnavailable, func(r *rig) *asked {
			r.control(1)
			r.settle()
			r.control(1)
			r.settle()
			a := r.controlFor(1, time.Second)
			r.passes(a, time.Second)
			return a
		}},
		{"deadline of a control request in an entry", allocnode.CodeUnknownOutcome, func(r *rig) *asked {
			a := r.controlFor(1, time.Second)
			r.passes(a, time.Second)
			return a
		}},
		{"refused in the queue", allocnode.CodeFenced, func(r *rig) *asked {
			a := r.ask(1)
			r.settle()
			r.p.Refuse(errFenced)
			return a
		}},
		{"refused in an entry", allocnode.CodeUnknownOutcome, func(r *rig) *asked {
			r.open()
			a := r.ask(1)
			r.settle()
			r.p.Refuse(errFenced)
			return a
		}},
		{"refused when applied and held", allocnode.CodeUnknownOutcome, func(r *rig) *asked {
			r.open()
			a := r.ask(1)
			r.settle()
			r.p.Hold()
			r.applyLast()
			r.p.Refuse(errFenced)
			return a
		}},
		{"submitted while refused", allocnode.CodeFenced, func(r *rig) *asked {
			r.p.Refuse(errFenced)
			return r.ask(1)
		}},
		{"fenced in the queue", allocnode.CodeFenced, func(r *rig) *asked {
			a := r.ask(1)
			r.settle()
			r.p.Fence(errFenced)
			return a
		}},
		{"fenced in an entry", allocnode.CodeUnknownOutcome, func(r *rig) *asked {
			r.open()
			a := r.ask(1)
			r.settle()
			r.p.Fence(errFenced)
			return a
		}},
		{"submitted while fenced", allocnode.CodeFenced, func(r *rig) *asked {
			r.p.Fence(errFenced)
			return r.ask(1)
		}},
		{"stopped in the queue", allocnode.CodeUnavailable, func(r *rig) *asked {
			a := r.ask(1)
			r.stop()
			return a
		}},
		{"stopped in an entry", allocnode.CodeUnknownOutcome, func(r *rig) *asked {
			r.open()
			a := r.ask(1)
			r.settle()
			r.stop()
			return a
		}},
		{"stopped when applied and held", allocnode.CodeUnknownOutcome, func(r *rig) *asked {
			r.open()
			a := r.ask(1)
			r.settle()
			r.p.Hold()
			r.applyLast()
			r.stop()
			return a
		}},
		{"control request stopped in the queue", allocnode.CodeUnavailable, func(r *rig) *asked {
			r.control(1)
			r.settle()
			r.control(1)
			r.settle()
			a := r.control(1)
			r.stop()
			return a
		}},
		{"control request stopped in an entry", allocnode.CodeUnknownOutcome, func(r *rig) *asked {
			a := r.control(1)
			r.settle()
			r.stop()
			return a
		}},
		{"submitted after the stop", allocnode.CodeUnavailable, func(r *rig) *asked {
			r.stop()
			return r.ask(1)
		}},
		{"control request submitted after the stop", allocnode.CodeUnavailable, func(r *rig) *asked {
			r.stop()
			return r.control(1)
		}},
		{"submitted after the stop, through an open gate", allocnode.CodeUnavailable, func(r *rig) *asked {
			r.stop()
			r.open()
			return r.ask(1)
		}},
		{"submitted within the stop", allocnode.CodeUnavailable, func(r *rig) *asked {
			// Checked: where stop closed the gate first and set stopped later, this request was never answered.
			first, second := r.make(1, time.Second), r.make(1, time.Second)
			first.hook = func(Result) {
				r.p.Hold()
				r.p.Submit(second.req)
			}
			r.p.Submit(first.req)
			r.settle()
			r.stop()
			return second
		}},
		{"append always fails", allocnode.CodeUnknownOutcome, func(r *rig) *asked {
			r.appendErr = errors.New("no connection")
			r.open()
			a := r.askFor(1, 2*time.Second)
			r.passes(a, 2*time.Second)
			return a
		}},
		{"append fails once", ranged, func(r *rig) *asked {
			r.appendErr = errors.New("no connection")
			r.open()
			a := r.ask(1)
			r.settle()
			r.mu.Lock()
			r.appendErr = nil
			r.mu.Unlock()
			time.Sleep(2*tick + 2*tick) // the retry after an error, and the tick that finds it
			r.applyLast()
			return a
		}},
		{"too many operations", allocnode.CodeTooLarge, func(r *rig) *asked { return r.ask(small().MaxOps + 1) }},
		{"too many bytes", allocnode.CodeTooLarge, func(r *rig) *asked {
			a := r.make(1, time.Second)
			a.req.Ops = make([]byte, small().MaxBytes+1)
			r.p.Submit(a.req)
			return a
		}},
		{"too large a control request", allocnode.CodeTooLarge, func(r *rig) *asked { return r.control(small().MaxOps + 1) }},
		{"queue full", allocnode.CodeUnavailable, func(r *rig) *asked {
			for range small().MaxWaiting {
				r.ask(1)
			}
			return r.ask(1)
		}},
		{"queue of control requests full", allocnode.CodeUnavailable, func(r *rig) *asked {
			// Checked: without the bound the request waits for its deadline.
			for range 2 {
				r.control(1)
				r.settle()
			}
			for range small().MaxWaiting {
				r.control(1)
			}
			return r.control(1)
		}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, small(), func(r *rig) {
				a := c.run(r)
				if c.want == ranged {
					r.wantRange(a)
				} else {
					r.wantCode(c.want, a)
				}
			})
		})
	}
}

// passes lets a's deadline pass, and wants no answer before it and one at most two ticks after it.
func (r *rig) passes(a *asked, timeout time.Duration) {
	r.t.Helper()
	time.Sleep(timeout - time.Nanosecond) // of the bubble, as all here
	r.wantNone(a)
	time.Sleep(2*tick + time.Nanosecond) // the tick that finds it, and no more
	synctest.Wait()
	r.check()
}

// fill takes all of the users' lanes, with one entry of one operation each.
func (r *rig) fill() (in []*asked) {
	r.t.Helper()
	for range r.p.cfg.InFlight {
		in = append(in, r.ask(1))
		r.settle()
	}
	return in
}

// The queue is bounded in bytes as well, since a request may be large.
func TestQueueBytes(t *testing.T) {
	cfg := small()
	cfg.MaxWaiting, cfg.MaxOps = 1<<16, wire.MaxEntryOps
	op := wire.AppendOp(nil, &wire.Op{Kind: wire.KindResume, Name: bytes.Repeat([]byte("a"), allocnode.MaxNameLen)})
	n := cfg.MaxBytes / len(op)
	bubble(t, cfg, func(r *rig) {
		big := func() *asked {
			a := r.make(1, time.Second)
			a.req.Ops, a.req.N = bytes.Repeat(op, n), n
			r.p.Submit(a.req)
			return a
		}
		for range maxWaitingBytes/(n*len(op)) + 1 {
			r.wantNone(big())
		}
		r.wantCode(allocnode.CodeUnavailable, big())
		time.Sleep(time.Second + 2*tick) // until what was asked has expired
		r.wantNone(big())                // what expired has left the count
	})
}

// Hazard 13: who gives up leaves a hole, and the others get what their own operations gave.
//
// Checked: with giveUp that removes the seat instead of emptying it, the last gets the range of the first one given up.
func TestHoleInFlight(t *testing.T) {
	bubble(t, small(), func(r *rig) {
		r.open()
		r.fill()
		first, gone, last := r.ask(2), r.askFor(3, time.Second), r.ask(1)
		r.settle()
		r.apply(r.log()[0]) // a lane for the three
		if got := r.sizes(); got[len(got)-1] != 6 {
			t.Fatalf("entries of %v operations, want the last of 6", got)
		}
		time.Sleep(time.Second + 2*tick)
		r.wantCode(allocnode.CodeUnknownOutcome, gone)
		r.wantNone(first, last)
		r.apply(r.log()[2])
		r.wantRange(first, last)
	})
}

// Hazard 13 once more: given up after its place in the entry was taken, and before its bytes were. Nothing in this
// package gives up one request at that moment; the guard is for whoever adds it.
//
// Checked: without the barriers of encode, last gets no outcome (land panics); with one barrier for each request instead
// of for each operation, too.
func TestHoleBeforeEncode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, small())
		r.open()
		first, gone, last := r.ask(2), r.ask(3), r.ask(1)
		r.p.mu.Lock()
		f := r.p.takeLocked(time.Now())[0]
		var due answers
		f.giveUp(&due, func(q *Request) bool { return q == gone.req }, "a test")
		r.p.mu.Unlock()
		due.give()
		if !r.p.encode(f) {
			t.Fatal("encode finds nobody waiting")
		}
		r.p.append(f)

		r.wantCode(allocnode.CodeUnknownOutcome, gone)
		d := r.decode(r.log()[0])
		for i, op := range d.Ops {
			want := wire.KindReserve
			if i >= 2 && i < 5 {
				want = wire.KindBarrier
			}
			if op.Kind != want {
				t.Errorf("operation %d is of kind %d, want %d", i, op.Kind, want)
			}
		}
		r.applyLast()
		r.wantRange(first, last)
	})
}

// An entry whose requests were all answered before it was encoded is not appended: nobody would want what it carves.
//
// Checked: without the look at waiting in encode, an entry of barriers goes out.
func TestNothingLeftToEncode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, small())
		r.open()
		a := r.ask(2)
		r.p.mu.Lock()
		f := r.p.takeLocked(time.Now())[0]
		r.p.mu.Unlock()
		r.p.Refuse(errFenced)
		if r.p.encode(f) {
			t.Error("the entry is to go out")
		}
		r.wantCode(allocnode.CodeUnknownOutcome, a)
	})
}

// Hazard 4: a counter alone is not an id. An entry of an earlier run, or of another node, has the same counters.
//
// Checked: without the comparison of incarnations, the request is answered with the old entry's range.
func TestOtherIncarnation(t *testing.T) {
	bubble(t, small(), func(r *rig) {
		r.open()
		a := r.ask(1)
		e := r.decode(r.log()[0])
		other := e.ID
		other.Incarnation[0]++
		r.p.Applied(other, 5, r.log()[0].data, []wire.Outcome{{Start: 1, End: 1 + a.base}})
		r.wantNone(a)
		r.applyLast()
		r.wantRange(a)
	})
}

// A silent entry is appended again every Retry: the same bytes under the same id. Its second copy in the log answers
// nobody, also when another entry has been made meanwhile.
//
// Checked: with encode called for retries too, the bytes differ (the cursor has moved).
func TestRetryIsTheSame(t *testing.T) {
	bubble(t, small(), func(r *rig) {
		r.open()
		a := r.ask(2)
		r.settle()
		r.mu.Lock()
		r.cursor = 40
		r.mu.Unlock()
		time.Sleep(3*r.p.cfg.Retry + 2*tick)
		log := r.log()
		if len(log) != 4 {
			t.Fatalf("appended %d times in three times Retry, want 4", len(log))
		}
		for i, e := range log[1:] {
			if e.id != log[0].id || e.tag != log[0].tag || !bytes.Equal(e.data, log[0].data) {
				t.Errorf("retry %d is not the first: %+v, %+v", i+1, e, log[0])
			}
			if d := e.at.Sub(log[i].at); d < r.p.cfg.Retry || d > r.p.cfg.Retry+2*tick {
				t.Errorf("retry %d after %s, want %s", i+1, d, r.p.cfg.Retry)
			}
		}
		r.apply(log[0])
		r.wantRange(a)
		b := r.ask(1)
		r.settle()
		r.apply(log[1])
		r.wantNone(b)
		r.applyLast()
		r.wantRange(a, b)
		if n := len(r.log()); n != 5 {
			t.Errorf("%d appends, want 5: an applied entry is not appended again", n)
		}
	})
}

// Hazard 7: a request that was given up commits later. Its range is a gap, and nobody's answer.
func TestAppliedAfterGiveUp(t *testing.T) {
	bubble(t, small(), func(r *rig) {
		r.open()
		a := r.askFor(1, time.Second)
		r.settle()
		time.Sleep(time.Second + 2*tick)
		r.wantCode(allocnode.CodeUnknownOutcome, a)
		b := r.ask(1)
		log := r.log()
		r.apply(log[0])
		r.wantCode(allocnode.CodeUnknownOutcome, a)
		r.wantNone(b)
		r.apply(log[len(log)-1])
		r.wantRange(b)
		if start := r.answered(b)[0].Outcomes[0].Start; start != 1+a.base {
			t.Errorf("the next range starts at %d, want %d: after the gap", start, 1+a.base)
		}
	})
}

// Outcomes that are not one for each operation are somebody else's: nobody is answered with them.
//
// Checked: with a look at too few only, the last request gets the outcome of the one before it.
func TestOutcomesOfAnotherEntry(t *testing.T) {
	for _, n := range []int{0, 2, 4} {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, small())
			r.open()
			a, b := r.ask(2), r.ask(1)
			r.p.step()
			defer func() {
				if recover() == nil {
					t.Errorf("%d outcomes for 3 operations: no panic", n)
				}
				r.wantNone(a, b)
			}()
			r.p.Applied(r.decode(r.log()[0]).ID, 1, r.log()[0].data, make([]wire.Outcome, n))
		})
	}
}

// An operation that replicas would not understand is refused at the door: in the log, all nodes would halt at it. Checked:
// without the call of wire.CheckOps it is appended.
func TestMalformedOperations(t *testing.T) {
	good := wire.AppendOp(nil, &wire.Op{Kind: wire.KindAdvance, Name: []byte("orders"), Count: 7})
	for name, bad := range map[string]struct {
		ops []byte
		n   int
	}{
		"unknown kind": {[]byte{200}, 1},
		"cut":          {good[:len(good)-1], 1},
		"tail":         {append(bytes.Clone(good), 0), 1},
		"too few":      {good, 2},
		"too many":     {append(bytes.Clone(good), good...), 1},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, small(), func(r *rig) {
				a := r.make(1, time.Second)
				a.req.Ops, a.req.N = bad.ops, bad.n
				r.p.SubmitControl(a.req)
				r.wantCode(allocnode.CodeBadRequest, a)
			})
		})
	}
}

// Hazard 4 once more: a machine restored from an image of its memory goes on with the incarnation and the counters of its
// old life, and finds that one's entries in the log. It must not take their ranges for its own, whether its own entry of
// that number has been made or not.
//
// Checked: without the comparison of bytes in Applied, a gets the range of the other life's entry.
func TestEntryOfACopyOfThisProcess(t *testing.T) {
	bubble(t, small(), func(r *rig) {
		r.open()
		a := r.ask(1)
		made := r.log()[0]
		other := bytes.Clone(made.data)
		other[len(other)-1]++
		r.p.Applied(r.decode(made).ID, 5, other, []wire.Outcome{{Start: 1, End: 1 + a.base}})
		r.wantNone(a)
		if got := r.twins.Load(); got != 1 {
			t.Errorf("Twin was called %d times, want once", got)
		}
		r.applyLast()
		r.wantRange(a)
	})
}
