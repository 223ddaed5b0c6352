// Package workload is what a client process of a chaos run does: it asks nodes of its choice for everything the service
// offers, in every way a careless or unlucky client would, and writes what it asked and heard to the history.
//
// Each of its workers does one thing after the other, as a seeded generator says:
//
//   - reserve under a key, of 1, 10, 1,000 and as many ids as are allowed; it tries one node after the other, with the same
//     bytes, until the answer is definite;
//   - the same, sent to two nodes at once, and some in one list;
//   - the same, by a client that is gone before it reads the answer, with and without a retry;
//   - old keys again, within the key window and beyond it, and under another count;
//   - without a key, partial, and from a sequence that runs out;
//   - next, create (also with other settings), advance (also downwards), info behind a barrier.
//
// It speaks the protocol of docs/CLIENTS.md over bare NATS messages, one connection for each node that never goes to another,
// and shares no code with the product: what it reads is what any client reads. The outcome of an attempt is unknown unless
// an answer says otherwise; an answer that comes after its time is recorded too. It judges nothing: that is for the checkers.
//
// [Run] starts a goroutine for each worker and one for a duplicate at a time; all have ended when it returns. The process may
// be killed at any moment: [Unfinished] is what another one goes on with.
package workload
