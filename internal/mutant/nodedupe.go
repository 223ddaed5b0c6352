//go:build mutant_nodedupe

package mutant

// NoDedupe: a second copy of an entry is applied again.
const NoDedupe = true
