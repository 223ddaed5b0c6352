package mutant_test

import (
	"testing"

	"github.com/allocnode/allocnode/internal/mutant"
)

// What is built without a tag is the product.
// Checked: with the constant of a file for the absence of its tag set to true this fails.
func TestProduct(t *testing.T) {
	if names := mutant.Active(); len(names) != 0 {
		t.Errorf("this build goes without the guards of %v", names)
	}
}
