//go:build !mutant_batchdisk

package node

import "github.com/allocnode/allocnode/internal/next"

// keepBatches does nothing: a batch is never stored.
func keepBatches(*next.Pool, string) {}
