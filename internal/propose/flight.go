package propose

import (
	"fmt"
	"time"

	"github.com/allocnode/allocnode"
	"github.com/allocnode/allocnode/internal/wire"
)

// seat is a request's place in an entry. It stays when the request is given up.
type seat struct {
	request *Request // nil once answered
	n       int      // operations
}

// flight is an entry that was appended and not yet applied, or was applied while the gate was held.
type flight struct {
	id      wire.EntryID
	data    []byte    // nil until encoded
	seats   []seat    // in the order of their operations
	waiting int       // seats not yet answered
	ops     int       // operations
	size    int       // encoded operations, in bytes
	control bool      // holds only the node's own requests
	again   time.Time // when to append once more

	launched time.Time

	seq      uint64         // where it was applied; 0 before
	outcomes []wire.Outcome // as applied
}

// answer is one call of Done that is due.
type answer struct {
	done   func(Result)
	result Result
}

// answers collects them under the mutex, to be given without it. Ranges do not come this way, see [flight.land].
type answers []answer

func (a *answers) give() {
	for _, one := range *a {
		one.done(one.result)
	}
}

func always(*Request) bool { return true }

// dropIf answers the requests of q that gone holds for, and returns the others in their order.
func (a *answers) dropIf(q []*Request, gone func(*Request) bool, err error) []*Request {
	keep := q[:0]
	for _, r := range q {
		if gone(r) {
			*a = append(*a, answer{r.Done, Result{Err: err}})
		} else {
			keep = append(keep, r)
		}
	}
	clear(q[len(keep):])
	return keep
}

// giveUp answers the requests of f that gone holds for with unknown_outcome, and leaves holes where they were.
func (f *flight) giveUp(a *answers, gone func(*Request) bool, why string) {
	var err *allocnode.Error // one for all: thousands may give up at once
	for i := range f.seats {
		r := f.seats[i].request
		if r == nil || !gone(r) {
			continue
		}
		if err == nil {
			err = allocnode.Errorf(allocnode.CodeUnknownOutcome, "%s: it may have happened, retry with the same key", why)
		}
		*a = append(*a, answer{r.Done, Result{Err: err}})
		f.seats[i].request = nil
		f.waiting--
	}
}

// land answers every request of f with its outcomes. f must have left the proposer, so that nobody else looks at it:
// land calls Done, and so is called without the mutex. Outcomes that are not one for each operation would give one
// requester another's range, so they are given to nobody.
func (f *flight) land() {
	if len(f.outcomes) != f.ops {
		panic(fmt.Sprintf("propose: entry %s was applied at seq %d with %d outcomes for %d operations",
			f.id, f.seq, len(f.outcomes), f.ops))
	}
	rest := f.outcomes
	for _, s := range f.seats {
		if s.request != nil {
			s.request.Done(Result{Seq: f.seq, Outcomes: rest[:s.n:s.n]})
		}
		rest = rest[s.n:]
	}
}

// retriesLocked returns the flights that have been silent for too long.
func (p *Proposer) retriesLocked(now time.Time) (again []*flight) {
	for _, f := range p.flights {
		if f.data != nil && !now.Before(f.again) {
			f.again = now.Add(p.cfg.Retry)
			again = append(again, f)
		}
	}
	return again
}

// expireLocked gives up the requests whose deadline has come. One that still waits in the queue certainly did not happen;
// one that is in an entry may happen yet.
func (p *Proposer) expireLocked(now time.Time, due *answers) {
	if now.Before(p.soonest) || p.soonest.IsZero() {
		return // most often: what comes and goes within its deadline is looked at once in that time, not every tick
	}
	p.soonest = time.Time{}
	expired := func(r *Request) bool {
		if !now.Before(r.Deadline) {
			return true
		}
		if p.soonest.IsZero() || r.Deadline.Before(p.soonest) {
			p.soonest = r.Deadline
		}
		return false
	}
	waitingErr := allocnode.Errorf(allocnode.CodeUnavailable, "no entry could be made within the deadline")
	if p.gate == gateHeld {
		waitingErr = allocnode.Errorf(allocnode.CodeUnavailable, "the node is checking the log")
	}
	p.queue = due.dropIf(p.queue, expired, waitingErr)
	p.own = due.dropIf(p.own, expired, waitingErr)
	p.bytes, p.ops = 0, 0
	for _, r := range p.queue {
		p.bytes += len(r.Ops)
		p.ops += r.N
	}
	for _, f := range p.flights {
		if f.giveUp(due, expired, "the log did not answer within the deadline"); f.waiting == 0 {
			delete(p.flights, f.id.Counter)
		}
	}
	held := p.held[:0]
	for _, f := range p.held {
		if f.giveUp(due, expired, "it was applied, but the log could not be checked within the deadline"); f.waiting > 0 {
			held = append(held, f)
		}
	}
	clear(p.held[len(held):])
	p.held = held
}
