package history

import (
	"syscall"
	"unsafe"
)

// clockMonotonic is CLOCK_MONOTONIC, as linux/time.h has it.
const clockMonotonic = 1

// Now is the history's clock: CLOCK_MONOTONIC in nanoseconds, which all processes of one machine share and no jump of the
// wall clock moves. Times of different machines, or from before and after a boot, cannot be compared.
func Now() int64 {
	var ts syscall.Timespec
	if _, _, errno := syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, clockMonotonic, uintptr(unsafe.Pointer(&ts)), 0); errno != 0 {
		panic("history: clock_gettime of CLOCK_MONOTONIC: " + errno.Error())
	}
	return ts.Nano()
}
