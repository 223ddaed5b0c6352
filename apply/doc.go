// Package apply is the replicated state machine: what the log means. It is pure: no I/O, clock, randomness, goroutine or
// map order enters it, and everything that decides a carve comes from the entries (see internal/wire for their format).
//
// A node feeds it the log by stream sequence. For each entry it returns two things that are functions of the log alone:
// the outcomes, which the proposer hands to the requesters that wait, and the delta, which the catalog stores.
//
//	seq, bytes ──> Apply ──> Outcomes   who got [start, end), who was refused and why
//	                  │
//	                  └────> Delta      records put and deleted, and the head they belong to
//
// The whole algorithm is three files. machine.go takes entries in order and keeps the digest; ops.go carves, creates,
// advances, registers; window.go remembers keys and entries, so that a retry gets the range that it was given, and a
// second copy of an entry gives nothing. records.go is the state as bytes: the deltas, a snapshot, and the way back.
//
// The package does not own: reading the log, storing the state, waiting requesters, deciding whether a node may serve.
//
// The invariants stand at [Machine]. The tests are scripts under testdata, hazards that fail when their guard is taken
// out, and a seeded run of three replicas against an oracle.
package apply
