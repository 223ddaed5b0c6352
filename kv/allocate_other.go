//go:build !linux

package kv

// allocate does nothing: see the one for Linux.
func allocate(string, map[string]bool) (map[string]bool, error) { return nil, nil }
