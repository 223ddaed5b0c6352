//go:build linux

package lab

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestEditsFit holds what BuildNode replaces against the sources: a campaign takes minutes to find out.
func TestEditsFit(t *testing.T) {
	root, err := filepath.Abs("../../..")
	if err != nil {
		t.Fatal(err)
	}
	edits, err := editsOf(t.Context(), root, true)
	if err != nil {
		t.Fatal(err)
	}
	if len(edits) != 2 {
		t.Errorf("%d edits, want the clock's and the control's", len(edits))
	}
	for _, e := range edits {
		source, err := os.ReadFile(e.file)
		if err != nil {
			t.Fatal(err)
		}
		edited, err := e.apply(string(source))
		if err != nil || !strings.Contains(edited, e.new) {
			t.Errorf("%s: %v", e.file, err)
		}
		if _, err := e.apply(edited + e.old + e.old); err == nil {
			t.Errorf("%s: what stands there twice was replaced", e.file)
		}
	}
	if edits, err = editsOf(t.Context(), root, false); err != nil || len(edits) != 1 {
		t.Errorf("%d edits of the nodes that must pass, %v: want the clock's alone", len(edits), err)
	}
}
