//go:build !mutant_batchdisk

package next

// disk is nothing: batches live in memory alone, and a restarted node begins without any.
type disk struct{}

func (disk) save(*batch)   {}
func (disk) resume(*batch) {}
