// Package propose is group commit: it puts what many requesters want into few log entries, and gives each of them its
// own answer when the entry has been applied here.
//
//	Submit ──> queue ──> one entry, at most Config.InFlight at a time ──> Log.Append ──> JetStream
//	             │                      │                                                   │
//	             │ deadline:            │ deadline: unknown_outcome                         │ the log
//	             v unavailable          v                                                   v
//	           Done  <─────────── flight, by entry counter  <──────────── Applied (the node's apply loop)
//
// While entries are under way, everything that comes waits in the queue, and all of it goes into the next entry: the
// busier the node, the fuller its entries. One goes out beside another, at most InFlight at a time, only when it is as
// full, or the other is slow. An entry that is neither applied nor answered for Config.Retry is
// appended again, the same bytes under the same id; the state machine takes the first copy and ignores the others.
//
// # Invariants
//
//  1. A request is in exactly one place: the queue, a flight, or held behind the gate. Leaving the last one is its answer.
//  2. A request's position in its flight never changes; one that is given up leaves a hole. (Shifting positions would
//     give one requester another's range.)
//  3. A flight is found by incarnation and counter, both. (A counter alone would match an entry of an earlier run.)
//  4. A user's answer leaves only while the gate is open; what was applied while it was held waits there.
//  5. Nothing is called while the mutex is held.
//
// [Proposer.Run] is the one goroutine that builds and appends entries. Submit, Applied, Acked and the gate may be called
// from any goroutine.
package propose
