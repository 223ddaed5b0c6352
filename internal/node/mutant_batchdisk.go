//go:build mutant_batchdisk

package node

import "github.com/allocnode/allocnode/internal/next"

func keepBatches(p *next.Pool, dir string) { p.KeepIn(dir) }
