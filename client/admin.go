package client

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"strings"

	"github.com/allocnode/allocnode"
	"github.com/allocnode/allocnode/internal/wire"
)

// The calls below may all be repeated without harm, so they are sent again until they are answered or the context ends.
// Then the error is ErrUnavailable (nothing happened) or an [*UnknownOutcomeError] without a key.

// Settings are what a sequence is made with. In [Client.Create] a 0 asks for nothing: the cluster's default for a new
// sequence, whatever it is for an old one.
type Settings struct {
	First    uint64 // the first id, 1 and up; by default 1
	Max      uint64 // the last id that may be issued, at most 2^63-1; by default 2^53-1
	MaxCount uint64 // how many ids one reservation may ask for, 1 and up; by default 1,000,000
}

// SequenceInfo is the state of one sequence.
type SequenceInfo struct {
	Sequence string
	Settings
	HWM       uint64 // largest id ever carved; First-1 before the first one
	Remaining uint64 // ids that can still be carved
	Halted    bool   // an exhaustion halted it: it refuses everything until [Client.Resume]
	Seq       uint64 // of the last entry that this state knows of
}

// ReadOption configures [Client.Info] and [Client.List].
type ReadOption func(*readBody)

type readBody struct {
	Consistent bool   `json:"consistent,omitempty"`
	After      uint64 `json:"after,omitempty"`
	Limit      int    `json:"limit,omitempty"`
}

// Consistent reads behind a barrier in the log: everything that was acknowledged before the call is seen. By default a
// node answers from what it has applied, which may be a little behind.
func Consistent() ReadOption { return func(b *readBody) { b.Consistent = true } }

// Created is a sequence that is there.
type Created struct {
	Settings
	Seq uint64 // of the entry that made or checked it
}

// Create makes a sequence, or checks that the one of that name has the settings that s names. It returns all its settings.
// ErrConflict: it has others. ErrBadRequest: the settings are out of bounds.
func (c *Client) Create(ctx context.Context, sequence string, s Settings) (Created, error) {
	body := struct {
		First    uint64 `json:"first,omitempty"`
		Max      uint64 `json:"max,omitempty"`
		MaxCount uint64 `json:"max_count,omitempty"`
	}(s)
	if err := s.check(); err != nil {
		return Created{}, fmt.Errorf("create %q: %w", sequence, err)
	}
	reply, err := named(ctx, c, "create", sequence, body, func(b []byte) (wire.CreateReply, wire.Origin, error) {
		r, err := wire.DecodeCreate(b)
		return r, r.Origin, match(err, b, "sequence", sequence, r.Sequence)
	})
	if err != nil {
		return Created{}, err
	}
	c.limits.Store(sequence, reply.Settings.MaxCount)
	return Created{Settings: Settings(reply.Settings), Seq: reply.Seq}, nil
}

func (s *Settings) check() error {
	full := wire.Settings{First: max(s.First, 1), Max: s.Max, MaxCount: max(s.MaxCount, 1)}
	if full.Max == 0 {
		full.Max = max(allocnode.DefaultMax, full.First) // whether the default fits is for the cluster to say
	}
	return full.Check()
}

// Advanced is what an advance did.
type Advanced struct {
	Old, HWM uint64 // the high-water mark before and after
	Seq      uint64 // of the entry that did it
}

// Advance raises the high-water mark of a sequence to at least to, 0 to its max: no id up to there is reserved from now on.
// At or below the mark it changes nothing, and succeeds. What is reserved already, in batches of clients too, stays so.
func (c *Client) Advance(ctx context.Context, sequence string, to uint64) (Advanced, error) {
	if to > allocnode.MaxID {
		return Advanced{}, fmt.Errorf("advance %q: %w", sequence, badRequest("to is %d: at most %d", to, allocnode.MaxID))
	}
	body := struct {
		To uint64 `json:"to"`
	}{to}
	reply, err := named(ctx, c, "advance", sequence, body, func(b []byte) (wire.AdvanceReply, wire.Origin, error) {
		r, err := wire.DecodeAdvance(b)
		return r, r.Origin, match(err, b, "sequence", sequence, r.Sequence)
	})
	return Advanced{Old: reply.Old, HWM: reply.HWM, Seq: reply.Seq}, err
}

// Info is the state of one sequence. ErrNotFound: there is none of that name.
func (c *Client) Info(ctx context.Context, sequence string, opts ...ReadOption) (SequenceInfo, error) {
	var body readBody
	for _, o := range opts {
		o(&body)
	}
	reply, err := named(ctx, c, "info", sequence, body, func(b []byte) (wire.InfoReply, wire.Origin, error) {
		r, err := wire.DecodeInfo(b)
		return r, r.Origin, match(err, b, "sequence", sequence, r.Info.Name)
	})
	if err != nil {
		return SequenceInfo{}, err
	}
	c.limits.Store(sequence, reply.Info.MaxCount)
	return infoOf(&reply.Info, reply.Seq), nil
}

func infoOf(i *wire.SequenceInfo, seq uint64) SequenceInfo {
	return SequenceInfo{
		Sequence: i.Name, Settings: Settings(i.Settings), HWM: i.HWM, Remaining: i.Remaining(), Halted: i.Halted, Seq: seq,
	}
}

// List yields the state of every sequence, in the order of their creation, page by page: a sequence that is made meanwhile
// comes at the end. An error is yielded once, with a zero SequenceInfo, and is the last.
func (c *Client) List(ctx context.Context, opts ...ReadOption) iter.Seq2[SequenceInfo, error] {
	return func(yield func(SequenceInfo, error) bool) {
		body := readBody{Limit: wire.MaxPage}
		for _, o := range opts {
			o(&body)
		}
		for {
			page, err := exchange(ctx, c, "list", body, func(b []byte) (wire.ListReply, wire.Origin, error) {
				r, err := wire.DecodeList(b)
				return r, r.Origin, err
			})
			if err != nil {
				yield(SequenceInfo{}, fmt.Errorf("list: %w", err))
				return
			}
			for i := range page.Sequences {
				if !yield(infoOf(&page.Sequences[i], page.Seq), nil) {
					return
				}
			}
			if page.Next <= body.After {
				return
			}
			body.After = page.Next
		}
	}
}

// Resume lifts the halt of a sequence that an exhaustion halted. ErrNotFound: there is none of that name. It returns the
// seq of the entry that did it.
func (c *Client) Resume(ctx context.Context, sequence string) (seq uint64, err error) {
	reply, err := named(ctx, c, "resume", sequence, nil, func(b []byte) (wire.Origin, wire.Origin, error) {
		name, o, err := wire.DecodeDone(b)
		return o, o, match(err, b, "sequence", sequence, name)
	})
	return reply.Seq, err
}

// Forget releases a node's name from the catalog that it is registered with: after a node's disk was lost for good, and
// before a node with an empty one may take its name. ErrNotFound: the cluster names no such node. It returns the seq of
// the entry that did it.
func (c *Client) Forget(ctx context.Context, node string) (seq uint64, err error) {
	if strings.Contains(node, ".") || len(node) > wire.MaxNodeLen || allocnode.CheckName(node) != nil {
		return 0, fmt.Errorf("forget %q: %w", node, badRequest("a node name is 1 to %d letters, digits, '_' and '-'",
			wire.MaxNodeLen))
	}
	reply, err := named(ctx, c, "forget", node, nil, func(b []byte) (wire.Origin, wire.Origin, error) {
		name, o, err := wire.DecodeDone(b)
		return o, o, match(err, b, "node", node, name)
	})
	return reply.Seq, err
}

// match refuses an answer about another sequence or node than was asked for.
func match(err error, body []byte, what, want, got string) error {
	if err != nil || want == got {
		return err
	}
	return &wire.NotReplyError{Body: string(body[:min(len(body), 256)]),
		Why: fmt.Sprintf("it is about the %s %q, not %q", what, got, want)}
}

// decoder reads an answer, and where it comes from.
type decoder[R any] func(body []byte) (R, wire.Origin, error)

// named is exchange on a subject that ends in a name, with both in the error.
func named[R any](ctx context.Context, c *Client, verb, name string, body any, decode decoder[R]) (R, error) {
	var zero R
	if err := allocnode.CheckName(name); err != nil {
		return zero, fmt.Errorf("%s: %w", verb, err)
	}
	r, err := exchange(ctx, c, verb+"."+name, body, decode)
	if err != nil {
		return zero, fmt.Errorf("%s %q: %w", verb, name, err)
	}
	return r, nil
}

// exchange asks one question that may be repeated without harm. body is marshalled; nil is an empty one.
func exchange[R any](ctx context.Context, c *Client, subject string, body any, decode decoder[R]) (R, error) {
	var reply, zero R
	q := question{subject: c.cfg.prefix + "." + subject}
	if body != nil {
		var err error
		if q.body, err = json.Marshal(body); err != nil {
			return zero, err
		}
	}
	q.decode = func(b []byte) (origin wire.Origin, err error) {
		reply, origin, err = decode(b)
		return origin, err
	}
	ctx, done, err := c.within(ctx)
	if err != nil {
		return zero, err
	}
	defer done()
	if err := c.ask(ctx, &q); err != nil {
		return zero, err
	}
	return reply, nil
}

// within is ctx that also ends with the client. done frees what that takes.
func (c *Client) within(ctx context.Context) (_ context.Context, done func(), err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	watch := func() {
		select {
		case <-ctx.Done():
		case <-c.merge.closes:
			cancel(ErrClosed)
		}
	}
	if !c.start(watch) {
		cancel(ErrClosed)
		return nil, nil, ErrClosed
	}
	return ctx, func() { cancel(nil) }, nil
}
