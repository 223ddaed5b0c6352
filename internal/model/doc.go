// Package model is allocnode's protocol as a state machine so small that all of its states can be looked at: a log, two
// or three nodes that apply it, their disks, crashes, replays, waiters, batches, copies of entries and users who try again.
// Nothing of the product imports it, and it imports nothing of the product.
//
// A [world] bounds the system: how many nodes, entries, attempts, crashes and so on. search goes through every state of it,
// breadth first, so that what it finds broken comes with the shortest way there. Each guard of the protocol is a switch:
// the tests take out one after the other, want the hazard that it stands against (docs/DESIGN.md, hazards 1 to 4, and three
// more) to be found, and with all guards in want nothing found in any state.
//
// What each action stands for. The table is the claim that the model is of this product, and a test looks whether the
// functions are still there; who changes one looks whether the left still says what it does.
//
//	submit     internal/propose/propose.go:launchLocked and :encode: the next counter, a flight with its waiter, an append. For
//	           a batch internal/next/refill.go:refill. One entry holds one operation here
//	again      internal/propose/flight.go:retriesLocked: the same bytes under the same id. JetStream's own window is best
//	           effort, so both may be stored
//	commit     jetstream/log.go:Append, and Raft: at any time after the append, also when nobody waits any more, or never.
//	           Appends overtake one another
//	deliver    internal/node/replica.go:take, :fill, :apply: any seq at any time, since the feed may drop, repeat and skip.
//	           Then apply/machine.go:Apply, kv/committer.go:Submit, internal/next/pool.go:Advanced,
//	           internal/propose/propose.go:Applied, and for a refill internal/next/refill.go:arrived. In the code a crash may
//	           come between these: here that is a give-up, and then all of them
//	giveUp     internal/propose/flight.go:expireLocked: the waiter leaves, the entry may still come
//	persist    kv/committer.go:Run, kv/commit.go:Commit: a run of one delta. A longer run is several without a crash between
//	fail       kv/committer.go:commit, where a write fails, if it did not try the same run again
//	take       internal/next/batch.go:give
//	crash      the end of the process; then internal/node/node.go:New (the incarnation) and :openCatalog, kv/load.go:Load. A
//	           node that is down is one that takes no step
//	bind       nothing in the code: the side channel of hazard 1
//	lateWrite  nothing in the code: the advance that is written by itself, of hazard 2
//
// The guards are in apply/machine.go:Apply (noGap) and :applyEntry (dedupe), apply/ops.go:advance, which calls :touch
// (advanceInDelta), kv/commit.go:write (atomicCommit), kv/committer.go:commit (retryDelta),
// internal/propose/propose.go:Applied (incarnation), in what apply.Machine does not export (logOnly), and in that
// internal/next stores nothing (forgetBatch).
//
// What is not in it: the loss of the log's end, checks and fences (hazards 10 and 12), windows that overflow (14), exhaustion
// (6), several operations in one entry (13), locks (8, 9) and time (5): their tests are in the packages. A second line of
// defence (the catalog's sum, the digest in each entry, the comparison of an entry's bytes with those that were made) is
// left out too, so that a guard is found missing by what it guards.
package model
