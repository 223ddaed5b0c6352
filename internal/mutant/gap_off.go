//go:build !mutant_gap

package mutant

// Gap: an entry beyond the next one is applied all the same.
const Gap = false
