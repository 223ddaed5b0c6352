package kv

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// allocate gives every memtable's log in bdir its blocks on disk. Badger writes them through memory maps of files with holes,
// and a hole that cannot be filled is a SIGBUS. Where the file system cannot, or has no room, it stays as it was: the space
// is looked at before each commit. done are the names of files that need no second look; it returns those that are there now.
func allocate(bdir string, done map[string]bool) (now map[string]bool, err error) {
	const keepSize = 1 // FALLOC_FL_KEEP_SIZE of linux/falloc.h
	names, err := fs.Glob(os.DirFS(bdir), "*.mem")
	if err != nil {
		return done, err
	}
	now = make(map[string]bool, len(names))
	var errs []error
	for _, name := range names {
		now[name] = true
		if done[name] {
			continue
		}
		f, err := os.OpenFile(filepath.Join(bdir, name), os.O_RDWR, 0)
		if errors.Is(err, fs.ErrNotExist) {
			continue // it has become a table meanwhile
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		info, err := f.Stat()
		if err == nil && info.Size() > 0 {
			err = syscall.Fallocate(int(f.Fd()), keepSize, 0, info.Size())
		}
		errs = append(errs, err, f.Close())
	}
	return now, errors.Join(errs...)
}
