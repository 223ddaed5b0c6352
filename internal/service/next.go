package service

import (
	"sync/atomic"

	"github.com/allocnode/allocnode"
	"github.com/allocnode/allocnode/internal/next"
	"github.com/allocnode/allocnode/internal/wire"
)

// Taker gives ids from the node's own batches. Take must not block, and calls r.Done exactly once, by r.Deadline.
type Taker interface {
	Take(r *next.Request)
}

// take is a next on its way. Most often its answer comes before Take has returned. Then the handler publishes it, which
// may wait for the server to read as any handler may, and the way through the outbox, another goroutine's, is saved.
// Otherwise whoever calls Done must not wait, and the outbox publishes.
type take struct {
	origin
	req       next.Request
	stringIDs bool
	first     atomic.Bool // Done was called, or Take has returned: who comes second publishes
	answer    answer      // by Done, when it came first
}

// begin parses body and asks for the ids.
func (t *take) begin(body []byte) {
	q, err := wire.ParseNext(t.name, body)
	if err == nil {
		err = t.run.s.checkCount(q.Sequence, q.Count)
	}
	if err != nil {
		t.fail(err)
		return
	}
	t.req.Sequence, t.req.Count, t.req.Done = q.Sequence, q.Count, t.done
	t.stringIDs = q.StringIDs
	t.run.s.taker.Take(&t.req)
	if !t.first.CompareAndSwap(false, true) {
		t.run.s.outbox.publish(&t.answer)
	}
}

// done encodes the answer. Its reply subject is not empty, or nothing would have been asked.
func (t *take) done(ranges []allocnode.Range, err error) {
	if err != nil {
		t.answer = t.refusal(asError(err))
	} else {
		buf := bufs.Get().(*[]byte)
		*buf = wire.AppendNextReply((*buf)[:0], t.name, ranges, t.req.Count, t.run.cluster, t.stringIDs)
		t.answer = answer{to: &t.origin, body: buf}
	}
	if !t.first.CompareAndSwap(false, true) {
		t.run.s.outbox.put(t.answer)
	}
}
