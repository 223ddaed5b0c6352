package client

import (
	"context"
	"fmt"

	"github.com/allocnode/allocnode"
	"github.com/allocnode/allocnode/internal/wire"
)

// NodeNext asks a node for count ids, 1 to the sequence's max_count, from the batch that the node holds: one round trip to
// the node and none through the log, for a caller that needs too few ids to hold a batch of its own, as a [Sequence] does.
// The ranges hold count ids in all, ascend and are disjoint; between calls, and between nodes, ids have no order. It is
// not a reservation: it has no key, and cannot be repeated for the same ids. An answer that got lost leaves a gap, so it
// is sent again until it is answered or ctx ends. Errors: [allocnode.ErrBadRequest], ErrNotFound and ErrExhausted are
// final; ErrUnavailable with ctx's error, or an [*UnknownOutcomeError] without a key, when ctx ended first: simply call
// again.
func (c *Client) NodeNext(ctx context.Context, sequence string, count uint64) ([]allocnode.Range, error) {
	q := call{sequence: sequence, count: count}
	if err := q.check(); err != nil {
		return nil, fmt.Errorf("next: %w", err)
	}
	if limit, ok := c.limits.Load(sequence); ok && count > limit.(uint64) {
		return nil, fmt.Errorf("next %q: %w", sequence, badRequest("count %d is above max_count %d", count, limit))
	}
	var body any // an empty one asks for one id
	if count > 1 {
		body = count
	}
	reply, err := named(ctx, c, "next", sequence, body, func(b []byte) (wire.NextReply, wire.Origin, error) {
		r, err := wire.DecodeNext(b, count)
		return r, r.Origin, match(err, b, "sequence", sequence, r.Sequence)
	})
	return reply.Ranges, err
}
