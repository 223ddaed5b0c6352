package node

import (
	"context"
	"time"

	"github.com/allocnode/allocnode/apply"
)

// Audit has every entry that is still remembered by its hash compared with the log's. A difference is a proof against the log,
// told as any other; where there is none, then is called. It does not block.
func (r *replica) Audit(then func()) {
	select {
	case r.audit <- then:
	default: // one is under way
	}
}

// compareAll reports whether the entries that are remembered stand in the log as they were applied. It tries until it has an
// answer.
func (r *replica) compareAll(ctx context.Context) bool {
	var oldest uint64
	r.View(func(m *apply.Machine) { oldest = m.Oldest() })
	for !r.halted {
		err := r.readFrom(ctx, max(oldest, r.first, 1))
		if err == nil || ctx.Err() != nil {
			return err == nil && !r.halted
		}
		r.logger.Warn("compare with the log", "from", oldest, "error", err)
		select {
		case <-ctx.Done():
			return false
		case <-time.After(time.Second):
		}
	}
	return false
}
