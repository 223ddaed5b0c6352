// Package model is allocnode's protocol as a state machine so small that all of its states can be looked at: a log, two
// or three nodes that apply it, their disks, crashes, replays, waiters, batches, copies of entries and users who try again.
// Nothing of the product imports it, and it imports nothing of the product.
//
// A [world] bounds the system: how many nodes, entries, attempts, crashes and so on. search goes through every state of it,
// breadth first, so that what it finds broken comes with the shortest way there. Each guard of the protocol is a switch:
// the tests take out one after the other, want the hazard that it stands against (docs/DESIGN.md, hazards 1 to 4, and three
// more) to be found, and with all guards in want nothing found in any state.
//
// What each action stands for. The table is the claim that the model is of this product; who changes the code on the right
// looks whether the left still says what it does.
//
//	submit     internal/propose launchLocked, encode: the next counter, a flight with its waiters, one append; for a batch
//	           internal/next Pool.refill. One entry holds one operation here
//	again      internal/propose retriesLocked: the same bytes under the same id. JetStream's own window is best effort, so
//	           both may be stored
//	commit     jetstream Log.Append, and Raft: at any time after the append, also when nobody waits any more, or never.
//	           Appends overtake one another
//	deliver    internal/node replica.take, fill, apply: any seq at any time (the feed may drop, repeat and skip), then
//	           apply Machine.Apply, kv Committer.Submit, internal/next Pool.Advanced, internal/propose Proposer.Applied,
//	           and for a refill Pool.arrived. In the code a crash may come between these; here it finds the same, as a give-up
//	           before or a crash before the next persist
//	giveUp     internal/propose expireLocked: the waiter leaves, the entry may still come
//	persist    kv Committer.Run, Catalog.Commit: a run of one delta. A longer run is several with no crash between
//	fail       kv Committer.commit, when the write fails and it did not try the same run again
//	take       internal/next batch.give
//	crash      the end of the process, internal/node openCatalog (kv Catalog.Load, apply Restorer) and a new incarnation. A
//	           node that is down is one that takes no step
//	bind       nothing in the code: the side channel of hazard 1
//	lateWrite  nothing in the code: the write of an advance by itself, of hazard 2
//
// The guards are in apply.Machine.Apply (noGap), entryWindow.has (dedupe), Machine.advance with its touch (advanceInDelta),
// kv Catalog.write (atomicCommit), Committer.commit (retryDelta), Proposer.Applied (incarnation), in what Machine does not
// export (logOnly), and in that next.Pool never stores a batch (forgetBatch).
//
// What is not in it: the loss of the log's end, checks and fences (hazards 10 and 12), windows that overflow (14), exhaustion
// (6), several operations in one entry (13), locks (8, 9) and time (5): their tests are in the packages. A second line of
// defence (the catalog's sum, the digest in each entry, the comparison of an entry's bytes with those that were made) is
// left out too, so that a guard is found missing by what it guards.
package model
