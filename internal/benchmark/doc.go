// Package benchmark holds the figures that docs/DESIGN.md quotes, each measured against its yardstick in one run on one
// machine: `make bench`. It has no code of the product; see bench/ for the comparison with other systems.
package benchmark
