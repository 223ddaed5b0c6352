//go:build race

package e2e

// The binary under test is built as the test itself is.
func init() { raceEnabled = true }
