package node

import (
	"strings"
	"testing"

	"github.com/allocnode/allocnode/apply"
)

// A node that had joined, and was killed before its catalog held anything, may have answered; one that never joined has not.
// Checked: with every empty catalog taken for one that knows nothing there was no doubt.
func TestDoubtsOfAnEmptyCatalog(t *testing.T) {
	f := newFakeLog()
	floorsOf := func(name string, clean bool, m *apply.Machine) *floors {
		return &floors{state: m, fileHead: fileHead{Node: name, Catalog: catalogOf(name), Head: m.Head(), Witness: m.Head(), Clean: clean}}
	}
	doubt := func(clean bool) string {
		best := floorsOf("n1", true, f.machine(t, int(f.last())))
		all := []*floors{best, floorsOf("n2", true, best.state), floorsOf("n3", clean, apply.New())}
		return strings.Join(doubts(names, all, best), "; ")
	}
	if got := doubt(false); got != "" {
		t.Errorf("n3 never joined: %q", got)
	}
	f.put(f.entry("n3", f.last(), checkOp("n3", true)))
	if got := doubt(false); !strings.Contains(got, "n3 had joined, and its catalog is empty") {
		t.Errorf("n3 had joined: %q", got)
	}
	if got := doubt(true); got != "" {
		t.Errorf("n3 had joined, applied nothing, and was stopped in order: %q", got)
	}
}
