// Package service is the product as NATS clients see it: it decodes requests, hands their operations to the log, and
// encodes the answers. It holds nothing of the product's state: a [Submitter] appends, a [Taker] gives ids from the node's
// own batches, a [State] is read.
//
//	request ─→ handler: parse, encode operations ─→ Submitter ─→ the log, applied
//	                 └────── refused ──────┐            │ Done (a next: Taker, Done)
//	reply subject ←── outbox (publishes) ←─┴────────────┘
//
// Two parts live separately. The status subject, which every node answers whatever its condition, and the operators'
// subjects forget and resume, live from the start of the process (once the cluster id is known) to its end. The micro
// service (ADR-32) with the endpoints that clients use lives while the node serves: [Service.StartServing] and
// [Service.Drain] may follow one another any number of times, and StartServing while serving swaps the endpoints that go
// through the log in or out. The two have a Submitter each: a fenced node refuses users and takes an operator's word.
//
// # Goroutines
//
// nats.go runs the handlers, one after the other for each subscription; a handler never waits. Done is called by whoever
// applied the entry, so it only encodes and puts the answer into the outbox; what must read the state back (create, a
// consistent info or list) does so in a goroutine of its own. One goroutine publishes the outbox, from Start to Close.
// Answers go to the reply subject directly and not through micro's Request: answering later through it races with its
// statistics. So the counters are kept here, and stand in the "data" of micro's stats.
//
// # Invariants
//
//  1. A request that is malformed, or asks for more than the sequence allows, puts nothing in the log.
//  2. A request is answered at most once, and exactly once if its Submitter calls Done and the connection lives.
//  3. A reserve or a next that no one waits for is not submitted: its ids would be lost.
//  4. Drain returns nil only when no more requests can arrive and all that arrived have been answered.
//  5. No answer goes to a subject under "$" or under the service's own prefix: a requester who may not publish there
//     would publish through the node, which may.
package service
