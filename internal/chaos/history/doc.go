// Package history keeps what happened in a chaos run, and judges it. A history is a file of JSON lines ([Record]): what
// clients asked before they sent it and what they heard, the faults with the proof that they took effect, and what nodes
// said of themselves. Many processes append to one file, on one clock ([Now]).
//
// Checkers are pure functions from what was read ([Read]) and from the log ([Fold]) to violations, each with the records
// that it is about:
//
//   - [Unique]: no id belongs to two reservations.
//   - [Idempotent]: a key has one range, whoever answers.
//   - [LogTruth]: what was acknowledged stands in the log where the answer said, and what was refused does not.
//   - [Order]: what began after another was acknowledged lies above it.
//   - [Digests], [Drained]: every replica had the reference's digest at every cursor it showed, and ends at the log's end with
//     the reference's high-water marks: no gap was applied.
//   - [Liveness]: after the last healing, operations succeed within a bound.
//   - [Hygiene]: no panic; goroutines, descriptors and memory go back to the baseline.
//   - [Join]: a recovery begins above everything that the lost log had carved, and the checkers judge both logs as one.
//
// Unique and Order together are linearizability of the log's reservations: a carve tells its place in the order, so the order
// need not be searched for, as a general checker would; see [Order].
//
// [Fold] is the reference: it decodes the log's bytes from the layout and shares no code with the product, so that a fault of
// the decoder or of the state machine is not checked against itself. It reads the log of a recovery as well.
//
// # Invariants
//
//  1. A begin is in the file before its bytes are sent, and an end after its answer came: a range that a client used is never
//     missing, whenever it is killed.
//  2. A time-out is unknown, never failed.
//  3. A checker that could not see enough to judge returns an error, never "no violations".
//
// The package starts no goroutine.
package history
