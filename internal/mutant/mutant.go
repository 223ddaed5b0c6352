// Package mutant says which guards a build goes without. In the product there is none: each constant is false unless its
// build tag is set, and the compiler removes what stands behind it.
//
// A mutant is a build with one tag, made to see that the tests, or a campaign of faults, catch what the guard is there for:
//
//	go build -tags mutant_gap ./cmd/allocnode
//
// Each constant is used where its guard is, and nowhere else. docs/TESTING.md has the list, with what caught each, and make
// mutants tries it. The package imports nothing, holds nothing but the constants, and its files come in pairs, one for the
// tag and one for its absence.
package mutant

// Active names the mutants that this build is; none in the product.
func Active() (names []string) {
	for _, m := range []struct {
		name string
		on   bool
	}{
		{"mutant_cursorfirst", CursorFirst}, {"mutant_noincarnation", NoIncarnation}, {"mutant_gap", Gap},
		{"mutant_batchdisk", BatchDisk}, {"mutant_nodedupe", NoDedupe},
	} {
		if m.on {
			names = append(names, m.name)
		}
	}
	return names
}
