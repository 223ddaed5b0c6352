// Package chaos is the campaign: real nodes in the laboratory of package lab, clients of package workload, faults one after
// the other, and at the end the checkers of package history over everything that was seen.
//
// A run has these phases:
//
//  1. Fault windows, by a schedule that a seed reproduces. A quarter of them are calm. Each begins when all nodes serve, and
//     ends when all serve again. What a fault needs to know at its time (who leads) it asks then.
//  2. The end: everything is healed, the load goes on for a while, then the clients end, every replica drains to the log's
//     last seq, the log is read whole, and the catalogs are read from the disks of the killed nodes.
//  3. The checkers judge. Then the scripts, each a cluster of its own: losses that were brought about on purpose, which must
//     be healed or end in a fence. Last the positive control: nodes that do not sync, and a power loss. It must be flagged.
//
// The verdict is [Passed], [Violated], or [Inconclusive]: a fault without a proven effect, too few operations or changes of
// leader, something of the harness that failed. Nothing that could not be injected counts as passed.
//
// # Goroutines
//
// A run has one that watches (leaders, statuses); the others are the laboratory's. All have ended when Run returns.
package chaos
