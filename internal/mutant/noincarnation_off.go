//go:build !mutant_noincarnation

package mutant

// NoIncarnation: an applied entry is taken to the waiter with its counter, whichever run or node made it.
const NoIncarnation = false
