package next

import (
	"errors"
	"time"

	"github.com/allocnode/allocnode"
	"github.com/allocnode/allocnode/internal/propose"
	"github.com/allocnode/allocnode/internal/wire"
)

// Submitter hands operations to the log, as [propose.Proposer] does.
type Submitter interface {
	Submit(*propose.Request)
}

const (
	// remember is how long a refusal of the log is given to everybody who asks, without asking the log again.
	remember = time.Second

	// pause is how long a refill waits after one that the log did not answer.
	pause = 100 * time.Millisecond
)

// refill is one claim on the log, under way.
type refill struct {
	b     *batch
	count uint64
	drops uint64 // Pool.drops when it was asked for
}

// refill reserves a batch through the log. It takes what is left of a sequence that is nearly exhausted. It has no key:
// where its outcome stays unknown, its range is a gap.
func (p *Pool) refill(f refill) {
	op := wire.Op{Kind: wire.KindReserve, Name: []byte(f.b.name), Count: f.count, Partial: true}
	p.submit.Submit(&propose.Request{
		Ops: wire.AppendOp(nil, &op), N: 1, Deadline: time.Now().Add(p.cfg.Timeout),
		Done: func(res propose.Result) {
			switch {
			case res.Err != nil:
				p.failed(f, wire.Accepted, res.Err)
			case len(res.Outcomes) != 1:
				p.failed(f, wire.Accepted, allocnode.Errorf(allocnode.CodeUnknownOutcome,
					"internal: %d outcomes for one refill", len(res.Outcomes)))
			default:
				p.applied(f, &res.Outcomes[0], res.Outcomes[0].Err(&op))
			}
		},
	})
}

func (p *Pool) applied(f refill, o *wire.Outcome, err error) {
	switch {
	case o.Reject == wire.RejectCount && o.Remaining > 0 && o.Remaining < f.count:
		p.smaller(f, o.Remaining)
	case err != nil:
		p.failed(f, o.Reject, err)
	default:
		p.arrived(f, allocnode.Range{Start: o.Start, End: o.End})
	}
}

// arrived installs a batch. Fewer ids than were asked for are the last ones.
func (p *Pool) arrived(f refill, r allocnode.Range) {
	var d due
	p.mu.Lock()
	f.b.refilling, f.b.refused = false, nil
	f.b.exhausted = r.Count() < f.count
	if f.drops == p.drops { // otherwise the node was refused meanwhile: it holds nothing from before that
		f.b.install(r)
		p.disk.save(f.b)
	}
	p.serveLocked(f.b, time.Now(), &d)
	p.mu.Unlock()
	p.run(&d)
}

// smaller asks again for what the sequence's max_count allows, and refuses requests above that.
func (p *Pool) smaller(f refill, maxCount uint64) {
	var d due
	p.mu.Lock()
	b := f.b
	b.most = maxCount
	b.refilling = false
	waiting := b.waiting
	b.waiting = list{}
	for waiting.first != nil {
		r := waiting.pop()
		if r.Count <= b.most {
			b.waiting.push(r)
			continue
		}
		p.leaveLocked(b, r, &d, tooMany(r, b.most))
	}
	p.serveLocked(b, time.Now(), &d)
	p.mu.Unlock()
	p.run(&d)
}

// failed ends a refill without ids. The log's refusal is the answer of those who wait, and of those who come soon. Where
// the log did not answer, they wait on: for the next refill, or their deadlines.
func (p *Pool) failed(f refill, why wire.Reject, err error) {
	var d due
	var refusal *allocnode.Error
	if !errors.As(err, &refusal) {
		refusal = allocnode.Errorf(allocnode.CodeUnavailable, "no new batch: %v", err)
	}
	p.mu.Lock()
	b, now := f.b, time.Now()
	b.refilling, b.refused, b.from = false, nil, time.Time{}
	switch {
	case why == wire.RejectExhausted:
		b.exhausted = true // it would have been given a part of what it asked for: nothing is left
	case refusal.Code == allocnode.CodeUnavailable || refusal.Code == allocnode.CodeUnknownOutcome:
		b.again = now.Add(pause)
	default:
		b.refused, b.again = refusal, now.Add(remember)
	}
	p.serveLocked(b, now, &d)
	p.mu.Unlock()
	p.run(&d)
}

func tooMany(r *Request, most uint64) *allocnode.Error {
	return allocnode.Errorf(allocnode.CodeBadRequest, "%d ids asked of the batch of %s: 1 to %d may be",
		r.Count, r.Sequence, most)
}
