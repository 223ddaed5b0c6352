//go:build race

package model

// A search has one goroutine, and takes eight times as long where it is watched for races.
func init() { raceEnabled = true }
