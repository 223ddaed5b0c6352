//go:build !linux

package history

import "time"

// Now is the wall clock in nanoseconds: the package builds everywhere, the campaign runs on Linux alone.
func Now() int64 { return time.Now().UnixNano() }
