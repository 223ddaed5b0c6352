package jetstream

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// lockName is the file in a data directory that carries the lock. It stays after Close: removing it would let two
// processes lock two different files of that name.
const lockName = "LOCK"

// DirLock is the right to use a data directory. nats-server takes no lock of its own, and two servers on one store write
// over each other. The kernel drops the lock when the process ends, however it ends.
type DirLock struct {
	file *os.File
}

// LockDir makes dir (mode 0700) where it is missing and locks it for this process until Close. It returns an error where
// dir is no directory or not writable, and where another holder has it; that error names dir and the holder's pid.
func LockDir(dir string) (*DirLock, error) {
	if dir == "" {
		return nil, errors.New("lock data directory: no directory given")
	}
	if info, err := os.Stat(dir); err == nil && !info.IsDir() {
		return nil, fmt.Errorf("lock data directory %q: it is a file: name a directory, or move the file away", dir)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make data directory %q: %w: name a directory that this process can write to", dir, reason(err))
	}
	path := filepath.Join(dir, lockName)
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock data directory %q: open %s: %w: the directory must be writable for this process",
			dir, lockName, reason(err))
	}
	if err := flock(f); err != nil {
		defer f.Close()
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fmt.Errorf("lock data directory %q: %w: its file system must support flock", dir, err)
		}
		return nil, fmt.Errorf("data directory %q is in use by %s: stop it, or give this node a directory of its own",
			dir, holder(f))
	}
	if err := writePid(f); err != nil {
		f.Close()
		return nil, fmt.Errorf("write pid to %q: %w: is the disk full?", path, reason(err))
	}
	return &DirLock{file: f}, nil
}

// Close gives the lock up. A second Close does nothing.
func (l *DirLock) Close() error {
	if l.file == nil {
		return nil
	}
	f := l.file
	l.file = nil
	// An empty file says that nobody holds it; the lock itself goes with the descriptor.
	return errors.Join(f.Truncate(0), f.Close())
}

func flock(f *os.File) error {
	for {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if !errors.Is(err, syscall.EINTR) {
			return err
		}
	}
}

func writePid(f *os.File) error {
	if err := f.Truncate(0); err != nil {
		return err
	}
	_, err := f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	return err
}

// holder names the process whose pid stands in f. There is none for the moment between its lock and its write.
func holder(f *os.File) string {
	data, err := io.ReadAll(io.LimitReader(f, 32))
	pid, convErr := strconv.Atoi(strings.TrimSpace(string(data)))
	switch {
	case err != nil || convErr != nil:
		return "another process"
	case pid == os.Getpid():
		return fmt.Sprintf("this very process (pid %d)", pid)
	}
	return fmt.Sprintf("process %d", pid)
}

// reason is err without the path, which the caller's message has already.
func reason(err error) error {
	if pe, ok := errors.AsType[*os.PathError](err); ok {
		return pe.Err
	}
	return err
}
