package node

import (
	"path/filepath"
	"testing"

	"github.com/allocnode/allocnode/kv"
)

// A digest fence ends in the moment in which a proof comes: what is stored is the proof, and a restart does not forget it.
// Checked: with a lifted that only clears, nothing was stored.
func TestFenceLiftedBesideAProof(t *testing.T) {
	catalog, err := kv.Open(filepath.Join(t.TempDir(), "catalog"), kv.Identity{Node: "n1"}, quiet)
	if err != nil {
		t.Fatal(err)
	}
	defer catalog.Close()
	n := &Node{catalog: catalog, logger: quiet}
	f := &fences{n: n, epoch: 1}
	f.raised(fenceDigest, "another state", false)
	f.lifted()
	if got, ok, err := catalog.Fence(); ok || err != nil {
		t.Errorf("after the lift: %+v, %v", got, err)
	}
	f.raised(fenceDigest, "another state", false)
	f.raised(fenceLog, "the log lost entries", false)
	f.lifted()
	if got, ok, err := catalog.Fence(); !ok || err != nil || got.Class != fenceLog || got.Reason != "the log lost entries" {
		t.Errorf("after the lift beside a proof: %+v, %v, %v", got, ok, err)
	}
}
