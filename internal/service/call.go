package service

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/allocnode/allocnode"
	"github.com/allocnode/allocnode/internal/propose"
	"github.com/allocnode/allocnode/internal/wire"
)

// maxOpsBytes bounds the operations of one request, in bytes. It leaves room in an entry for others' beside it.
const maxOpsBytes = wire.MaxEntryBytes / 2

// origin is where a request came from, and so where its answer goes.
type origin struct {
	run   *run
	ep    endpoint
	reply string // empty: nobody waits
	name  string // sequence or node, as the subject has it; not checked yet
}

// call is one request that arrived, until it is answered; but for a next, which is a take.
type call struct {
	origin
	req propose.Request

	op        wire.Op              // of a call with a single operation
	then      func(propose.Result) // nil for a single reservation: the hot path does without its closure
	stringIDs bool

	room [128]byte // for the name, the key and the encoding of most operations, so that they need no memory of their own
	used int       // bytes of room in use
}

// keep is s as bytes, which live as long as c.
func (c *call) keep(s string) []byte {
	if len(s) > len(c.room)-c.used {
		return []byte(s)
	}
	from := c.used
	c.used += copy(c.room[from:], s)
	return c.room[from:c.used:c.used]
}

// begin parses body and sets the call going. After an error the caller fails the call; after nil it is answered from
// elsewhere.
func (c *call) begin(body []byte) error {
	switch c.ep {
	case epReserve, epReserveList:
		return c.reserve(body)
	case epCreate:
		return c.create(body)
	case epAdvance:
		return c.advance(body)
	case epInfo:
		return c.info(body)
	case epList:
		return c.list(body)
	case epForget:
		return c.forget(body)
	case epResume:
		return c.resume(body)
	case epStatus:
		return c.status()
	}
	panic(fmt.Sprintf("service: a request on endpoint %d of %d", c.ep, endpoints))
}

// submitOne submits c.op by itself. then gets its outcome, which was accepted, in Done.
func (c *call) submitOne(then func(seq uint64, o *wire.Outcome)) {
	c.submit(c.encodeOp(), 1, func(res propose.Result) {
		o := &res.Outcomes[0]
		if err := o.Err(&c.op); err != nil {
			c.fail(err)
			return
		}
		then(res.Seq, o)
	})
}

func (c *call) encodeOp() []byte {
	return wire.AppendOp(c.room[c.used:c.used], &c.op)
}

// submit hands n encoded operations to the log. then gets a result that holds n outcomes, in Done.
func (c *call) submit(ops []byte, n int, then func(propose.Result)) {
	c.then = then
	c.req.Ops, c.req.N, c.req.Done = ops, n, c.done
	if c.ep == epForget || c.ep == epResume {
		c.run.s.operator.Submit(&c.req)
		return
	}
	c.run.s.submit.Submit(&c.req)
}

func (c *call) done(res propose.Result) {
	switch {
	case res.Err != nil:
		c.fail(res.Err)
	case len(res.Outcomes) != c.req.N:
		c.fail(allocnode.Errorf(allocnode.CodeUnknownOutcome, "internal: %d outcomes for %d operations at seq %d",
			len(res.Outcomes), c.req.N, res.Seq))
	case c.then == nil:
		c.reserved(&res)
	default:
		c.then(res)
	}
}

// answer sends what encode appends to an empty buffer.
func (o *origin) answer(encode func(dst []byte) []byte) {
	if o.reply == "" {
		o.run.release()
		return
	}
	buf := bufs.Get().(*[]byte)
	*buf = encode((*buf)[:0])
	o.run.s.outbox.put(answer{to: o, body: buf})
}

// fail answers with err. What is no [*allocnode.Error] says nothing of the effect, so it becomes an unknown outcome.
func (o *origin) fail(err error) {
	e := asError(err)
	if o.reply == "" {
		o.run.s.counters[o.ep].failed(e.Code)
		o.run.release()
		return
	}
	o.run.s.outbox.put(o.refusal(e))
}

// refusal counts and encodes an error.
func (o *origin) refusal(e *allocnode.Error) answer {
	o.run.s.counters[o.ep].failed(e.Code)
	buf := bufs.Get().(*[]byte)
	*buf = wire.AppendErrorReply((*buf)[:0], e, o.run.cluster)
	return answer{to: o, body: buf, err: e}
}

func asError(err error) *allocnode.Error {
	var e *allocnode.Error
	if !errors.As(err, &e) {
		e = allocnode.Errorf(allocnode.CodeUnknownOutcome, "internal: %s", err)
	}
	return e
}

func (c *call) create(body []byte) error {
	q, err := wire.ParseCreate(c.name, body, c.run.s.cfg.Defaults)
	if err != nil {
		return err
	}
	c.op = wire.Op{Kind: wire.KindCreate, Name: []byte(q.Sequence), Settings: q.Settings, Given: q.Given}
	c.submitOne(func(seq uint64, _ *wire.Outcome) {
		go func() { // the sequence may be an old one, with settings that the request did not name
			info, ok := c.run.s.state.Info(q.Sequence)
			if !ok {
				c.fail(allocnode.Errorf(allocnode.CodeUnknownOutcome,
					"%s was created at seq %d, but this node does not show it", q.Sequence, seq))
				return
			}
			c.answer(func(dst []byte) []byte {
				return wire.AppendCreateReply(dst, q.Sequence, info.Settings, seq, c.run.cluster)
			})
		}()
	})
	return nil
}

func (c *call) advance(body []byte) error {
	q, err := wire.ParseAdvance(c.name, body)
	if err != nil {
		return err
	}
	c.op = wire.Op{Kind: wire.KindAdvance, Name: []byte(q.Sequence), Count: q.To}
	c.submitOne(func(seq uint64, o *wire.Outcome) {
		c.answer(func(dst []byte) []byte {
			return wire.AppendAdvanceReply(dst, q.Sequence, o.Start, o.End, seq, c.run.cluster)
		})
	})
	return nil
}

func (c *call) info(body []byte) error {
	q, err := wire.ParseInfo(c.name, body)
	if err != nil {
		return err
	}
	read := func(cursor uint64) {
		info, ok := c.run.s.state.Info(q.Sequence)
		if !ok {
			c.fail(allocnode.Errorf(allocnode.CodeNotFound, "there is no sequence %s at seq %d", q.Sequence, cursor))
			return
		}
		c.answer(func(dst []byte) []byte {
			return wire.AppendInfoReply(dst, &info, cursor, c.run.cluster, q.StringIDs)
		})
	}
	c.read(q.Consistent, read)
	return nil
}

func (c *call) list(body []byte) error {
	q, err := wire.ParseList(body)
	if err != nil {
		return err
	}
	c.read(q.Consistent, func(cursor uint64) {
		page, next, total := c.run.s.state.List(q.After, q.Limit)
		c.answer(func(dst []byte) []byte {
			return wire.AppendListReply(dst, page, next, total, cursor, c.run.cluster, q.StringIDs)
		})
	})
	return nil
}

// read calls then with the node's cursor: at once, or behind a barrier, when everything is in the state that happened
// before the request.
func (c *call) read(consistent bool, then func(cursor uint64)) {
	if !consistent {
		then(c.run.s.state.Cursor())
		return
	}
	c.op = wire.Op{Kind: wire.KindBarrier}
	c.submitOne(func(seq uint64, _ *wire.Outcome) {
		go func() {
			cursor := c.run.s.state.Cursor()
			if cursor < seq { // a stale answer would look like a consistent one
				c.fail(allocnode.Errorf(allocnode.CodeUnavailable, "the state is at seq %d, behind the barrier at %d", cursor, seq))
				return
			}
			then(cursor)
		}()
	})
}

func (c *call) forget(body []byte) error {
	node, err := wire.ParseForget(c.name, body)
	if err != nil {
		return err
	}
	c.op = wire.Op{Kind: wire.KindForget, Name: []byte(node)}
	c.submitOne(func(seq uint64, _ *wire.Outcome) {
		c.answer(func(dst []byte) []byte { return wire.AppendForgetReply(dst, node, seq, c.run.cluster) })
	})
	return nil
}

func (c *call) resume(body []byte) error {
	if err := wire.ParseResume(c.name, body); err != nil {
		return err
	}
	c.op = wire.Op{Kind: wire.KindResume, Name: []byte(c.name)}
	c.submitOne(func(seq uint64, _ *wire.Outcome) {
		c.answer(func(dst []byte) []byte { return wire.AppendResumeReply(dst, c.name, seq, c.run.cluster) })
	})
	return nil
}

func (c *call) status() error {
	body, err := json.Marshal(c.run.s.status())
	if err != nil {
		return err
	}
	c.answer(func(dst []byte) []byte { return append(dst, body...) })
	return nil
}
