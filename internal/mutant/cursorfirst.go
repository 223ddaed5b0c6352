//go:build mutant_cursorfirst

package mutant

// CursorFirst: the catalog stores the cursor by itself, before the records of the state that it is the cursor of.
const CursorFirst = true
