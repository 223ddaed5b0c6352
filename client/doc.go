// Package client asks an allocnode cluster for unique ids, over a NATS connection that the caller owns.
//
//	Next ── a batch in memory ──┐ (refill)
//	Reserve ────────────────────┴─→ queue ─→ flight: one list, frozen ─→ ask: tries, one key ─→ any node
//	  └── the caller's own ctx: leaves its place, the others keep theirs      ↑ inbox ←───────────┘
//
// [Client.Reserve] goes through the log each time. Calls that wait while a request is under way go into the next one
// together, and those of one sequence become one reservation that is divided here; so 4,096 callers cost the cluster
// little more than one. [Client.Sequence] keeps a batch and serves single ids from it with one atomic operation.
//
// # What happens when an answer is lost
//
// Every reservation has a key, and the same bytes are sent again under it until an answer comes or the context ends; the
// cluster gives the same range each time. Without a deadline a call waits for as long as the cluster is away. An error
// that matches [allocnode.ErrUnavailable] says that nothing was carved. [UnknownOutcomeError] says that something may
// have been, and carries the key to ask again with. Every other refusal is final.
//
// # Goroutines
//
// One runs for each request under way, one for each refill, and one of nats.go's for the subscription that answers come
// in on. All have ended, and the subscription is gone, when [Client.Close] returns.
//
// # Invariants
//
//  1. A flight's bytes and its callers' places in it never change once it has been sent.
//  2. A caller gets at most one answer, and no part of a range goes to two callers. What nobody took is a gap.
//  3. A batch is never changed: its end and its counter are swapped together, as one pointer.
//  4. No answer of another cluster than the first one seen is believed.
//  5. Nothing is sent, and no caller is woken by something that blocks, while a mutex is held.
package client
