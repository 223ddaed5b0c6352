//go:build !mutant_batchdisk

package mutant

// BatchDisk: a node stores its batches as it reserves them, and goes on with them after a restart.
const BatchDisk = false
