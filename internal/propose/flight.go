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
