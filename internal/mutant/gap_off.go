//go:build !mutant_gap

package mutant

// Gap: an entry beyond the next one is applied, and what lies between is not read.
const Gap = false
