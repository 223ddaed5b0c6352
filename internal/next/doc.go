// Package next is the node's own batches: for each sequence that clients ask single ids of, a range that this node has
// reserved through the log and serves from memory (the "hi" of HiLo).
//
//	Take ──> batch ──> answered at once
//	  └ too little ──> waits in line ──> refill through the log ──> answered, in order
//
// A batch is refilled ahead of need: whenever what is held is at or below a low-water mark, which is at least half of the
// last refill. The size of a refill follows the rate, so that a batch lasts about as long as the horizon. Batches are made
// lazily, their number is bounded, and one that nobody used for a while is dropped: its ids become a gap.
//
// A request that waits holds no ids; they stay in the batch until there are enough for it. So whatever happens meanwhile
// to the ids (an advance, a refusal) or to the request (its deadline), there is nothing to give back.
//
// What the log refuses is not asked again at once. An exhausted sequence stays so, and is never asked for again; other
// refusals (no such sequence, halted) are remembered for a second. Where the log gives no answer, those who wait go on
// waiting until their deadlines, and it is asked again.
//
// # Invariants
//
//  1. An id leaves a batch once: it is taken under the pool's mutex, and the range's front moves past it.
//  2. At most one refill of a sequence is under way. One that ends with an unknown outcome is never installed later: if it
//     was carved, its range is a gap.
//  3. What a batch holds lies above every advance that was applied here, also when the refill was applied before the
//     advance and arrives after it; and above all that the batch ever held.
//  4. Nothing is given away while the gate is not open: a node that cannot prove that its log is whole cannot prove that
//     its batch is its own. What a refusal dropped stays dropped, a refill under way included.
//  5. Every Request gets exactly one answer, by its deadline and two ticks.
//  6. Nothing is called while the mutex is held.
//
// [Pool.Run] is the one goroutine: deadlines, retries and idle batches. Everything else runs on its caller's.
package next
