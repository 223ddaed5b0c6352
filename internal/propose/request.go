package propose

import (
	"time"

	"github.com/allocnode/allocnode/internal/wire"
)

// Request is one requester's claim: operations that stand together in one entry, and who waits for them.
type Request struct {
	Ops      []byte       // encoded with wire.AppendOp, one after the other; the proposer owns it from Submit on
	N        int          // how many operations, 1 and up
	Deadline time.Time    // when the requester gives up; it is told at most 100 ms (two ticks) later
	Done     func(Result) // called exactly once, from any goroutine, also at shutdown; must not block

	control bool // the node's own: goes out while the gate is held, and is answered at once
}

// Result is the answer to a [Request].
type Result struct {
	Seq      uint64         // where the entry stands in the log
	Outcomes []wire.Outcome // one for each operation, in order; valid during the call only
	Err      error          // an *allocnode.Error: unavailable, fenced (both: it did not happen) or unknown_outcome
}
