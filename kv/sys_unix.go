//go:build linux || darwin

package kv

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
)

// lockDir takes the directory for this process until the file is closed. It does not wait.
func lockDir(dir string) (*os.File, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if err == nil {
		return f, nil
	}
	f.Close()
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return nil, fmt.Errorf("%w: %s: stop the other process, or give this node a directory of its own", ErrInUse, dir)
	}
	return nil, fmt.Errorf("lock %s: %w", dir, err)
}

// freeBytes is the space that this user may still write on the file system of dir.
func freeBytes(dir string) (uint64, error) {
	var st syscall.Statfs_t
	if err := syscall.Statfs(dir, &st); err != nil {
		return 0, fmt.Errorf("statfs %s: %w", dir, err)
	}
	return uint64(st.Bavail) * uint64(st.Bsize), nil
}

// environmental reports whether badger failed for want of something (space, descriptors, rights, its lock), not for what it
// read. The lock is left over where badger panicked in this process.
// Badger's errors are text by the time they arrive, so the text of the numbers is looked for as well.
func environmental(err error) bool {
	return strings.Contains(err.Error(), "Cannot acquire directory lock") ||
		matchesErrno(err, syscall.ENOSPC, syscall.EDQUOT, syscall.EMFILE, syscall.ENFILE, syscall.EACCES, syscall.EPERM,
			syscall.EROFS, syscall.ENOMEM)
}
