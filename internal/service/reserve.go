package service

import (
	"github.com/allocnode/allocnode"
	"github.com/allocnode/allocnode/internal/propose"
	"github.com/allocnode/allocnode/internal/wire"
)

func (c *call) reserve(body []byte) error {
	q, err := wire.ParseReserve(c.name, body)
	if err != nil {
		return err
	}
	c.stringIDs = q.StringIDs
	if q.List != nil {
		return c.reserveList(q) // a copy: q itself needs no memory of its own then
	}
	if err := c.run.s.checkCount(q.Sequence, q.Count); err != nil {
		return err
	}
	c.op = wire.Op{Kind: wire.KindReserve, Name: c.keep(q.Sequence), Count: q.Count, Partial: q.Partial}
	if q.Key != "" {
		c.op.Key, c.op.Since = c.keep(q.Key), q.Since
	}
	c.submit(c.encodeOp(), 1, nil)
	return nil
}

// reserved answers a single reservation, in Done. Its reply subject is not empty, or it would not have been submitted.
func (c *call) reserved(res *propose.Result) {
	o := &res.Outcomes[0]
	if err := o.Err(&c.op); err != nil {
		c.fail(err)
		return
	}
	buf := bufs.Get().(*[]byte)
	r := allocnode.Range{Start: o.Start, End: o.End}
	*buf = wire.AppendReserveReply((*buf)[:0], c.name, r, res.Seq, c.run.cluster, c.stringIDs)
	c.run.s.outbox.put(answer{to: &c.origin, body: buf})
}

// reserveList submits all items of a list, in one piece: they stand in one entry, and their outcomes come together.
func (c *call) reserveList(q wire.ReserveRequest) error {
	ops, list, key := make([]byte, 0, 24*len(q.List)), make([]wire.Op, len(q.List)), c.keep(q.Key)
	for i := range q.List {
		item, op := &q.List[i], &list[i]
		if err := c.run.s.checkCount(item.Sequence, item.Count); err != nil {
			return err
		}
		*op = wire.Op{Kind: wire.KindReserve, Count: item.Count, Partial: item.Partial}
		if i > 0 && item.Sequence == q.List[i-1].Sequence {
			op.Name = list[i-1].Name
		} else {
			op.Name = []byte(item.Sequence)
		}
		switch {
		case item.Key != "":
			op.Key, op.Since = []byte(item.Key), q.Since
		case q.Key != "":
			op.Key, op.Since = key, q.Since
			op.ListKeyed, op.Index = true, uint64(i)
		}
		ops = wire.AppendOp(ops, op)
	}
	if len(ops) > maxOpsBytes {
		return allocnode.Errorf(allocnode.CodeTooLarge,
			"the list takes %d bytes of the log, its keys and names above all: at most %d are allowed", len(ops), maxOpsBytes)
	}
	c.submit(ops, len(list), func(res propose.Result) {
		results := make([]wire.ReserveResult, len(list))
		for i := range list {
			r, o := &results[i], &res.Outcomes[i]
			r.Sequence, r.Range = q.List[i].Sequence, allocnode.Range{Start: o.Start, End: o.End}
			if err := o.Err(&list[i]); err != nil {
				r.Err = asError(err)
				c.run.s.counters[c.ep].failed(r.Err.Code)
			}
		}
		c.answer(func(dst []byte) []byte {
			return wire.AppendReserveListReply(dst, results, res.Seq, c.run.cluster, c.stringIDs)
		})
	})
	return nil
}

// checkCount refuses a count that the log would refuse: what is wrong for sure takes no place in it. The state may be
// behind, so a sequence that it does not show is held to the defaults it would be made with.
func (s *Service) checkCount(name string, count uint64) error {
	if count == 1 {
		return nil // every max_count allows it
	}
	limit := s.cfg.Defaults.MaxCount
	if info, ok := s.state.Info(name); ok {
		limit = info.MaxCount
	} else if !s.cfg.AutoCreate {
		return nil // it is not made with the defaults; that it does not exist is for the log to say
	}
	if count > limit {
		return allocnode.Errorf(allocnode.CodeBadRequest, "count %d is above max_count %d of %s", count, limit, name)
	}
	return nil
}
