package kv

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/dgraph-io/badger/v4"
	"github.com/dgraph-io/badger/v4/options"
	"github.com/dgraph-io/badger/v4/table"
)

// brokenError says that badger's files are not what badger wrote: the state is to be set aside, not to be retried.
type brokenError struct{ err error }

func (e *brokenError) Error() string { return e.err.Error() }
func (e *brokenError) Unwrap() error { return e.err }

func broken(format string, args ...any) error { return &brokenError{fmt.Errorf(format, args...)} }

// recovered turns a panic inside badger into a brokenError.
func recovered(what string, err *error) {
	recoveredFrom(recover(), what, err)
}

func recoveredFrom(r any, what string, err *error) {
	if r != nil {
		*err = broken("%s: panic: %.200v", what, r)
	}
}

// openBadger opens or creates badger in dir, after preflight. A *brokenError means damage, any other error the surroundings.
func openBadger(dir string, opt badger.Options) (_ *badger.DB, err error) {
	defer recovered("open "+dir, &err)
	if err := preflight(dir, opt); err != nil {
		return nil, err
	}
	db, err := badger.Open(opt)
	switch {
	case err == nil:
		return db, nil
	case environmental(err):
		return nil, err
	}
	return nil, &brokenError{err}
}

// preflight reads what badger.Open is about to trust: faults there would end the process instead of returning an error.
func preflight(dir string, opt badger.Options) error {
	f, err := os.Open(filepath.Join(dir, badger.ManifestFilename))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	manifest, _, err := badger.ReplayManifestFile(f, opt.ExternalMagicVersion, opt)
	if err != nil {
		return broken("manifest of %s: %w", dir, err)
	}
	for id, tm := range manifest.Tables {
		if tm.KeyID != 0 || tm.Compression != options.None || int(tm.Level) >= opt.MaxLevels {
			return broken("manifest of %s: table %d is not one of ours", dir, id)
		}
		if err := checkTable(table.NewFilename(id, dir), id); err != nil {
			return err
		}
	}
	wals, err := fs.Glob(os.DirFS(dir), "*.mem") // dir itself is no pattern, whatever its name
	if err != nil {
		return err
	}
	for _, name := range wals {
		if err := checkWAL(filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	return nil
}

// checkTable verifies the index and every block of a table, on this goroutine and off the memory map.
func checkTable(path string, id uint64) (err error) {
	defer recovered("table "+path, &err)
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return broken("table %s is missing", path)
	}
	if err != nil {
		return err
	}
	if len(data) < 16 {
		return broken("table %s has %d bytes", path, len(data))
	}
	opt := table.Options{ChkMode: options.OnTableAndBlockRead, Compression: options.None}
	t, err := table.OpenInMemoryTable(data, id, &opt)
	if err != nil {
		return broken("table %s: %w", path, err)
	}
	// Panics at the first bad block (its error path reads the block that it did not get); recovered above.
	if err := t.VerifyChecksum(); err != nil {
		return broken("table %s: %w", path, err)
	}
	return nil
}

// checkWAL walks the headers of a write-ahead log as badger's replay does, and refuses a value length beyond the file:
// badger would allocate three times that number before it looked. Contents are left to badger's checksums and our sum.
func checkWAL(path string) error {
	const fileHeader = 20
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if len(data) < fileHeader {
		return broken("write-ahead log %s has %d bytes", path, len(data))
	}
	for at := fileHeader; at+2 < len(data); {
		// meta(1) | user meta(1) | uvarint key length | uvarint value length | uvarint expiry | key | value | crc32c(4)
		rest := data[at+2:]
		var field [3]uint64
		size := uint64(2)
		for i := range field {
			v, n := binary.Uvarint(rest)
			if n <= 0 {
				return nil // replay stops here
			}
			field[i], rest, size = v, rest[n:], size+uint64(n)
		}
		klen, vlen := uint64(uint32(field[0])), uint64(uint32(field[1]))
		if klen > 1<<16 {
			return nil
		}
		if klen+vlen > uint64(len(data)) {
			return broken("write-ahead log %s: entry of %d bytes at %d", path, klen+vlen, at)
		}
		if klen == 0 {
			return nil // the zeroes behind the last entry
		}
		at += int(size + klen + vlen + 4)
	}
	return nil
}

// nextBroken is the first free name for a state to be set aside, and the names that are taken, oldest first.
func nextBroken(bdir string) (string, []string, error) {
	prefix := filepath.Base(bdir) + ".broken-"
	found, err := fs.Glob(os.DirFS(filepath.Dir(bdir)), prefix+"*")
	if err != nil {
		return "", nil, err
	}
	var numbers []int
	for _, name := range found {
		if n, err := strconv.Atoi(strings.TrimPrefix(name, prefix)); err == nil {
			numbers = append(numbers, n)
		}
	}
	slices.Sort(numbers)
	next := 1
	var taken []string
	for _, n := range numbers {
		taken = append(taken, fmt.Sprintf("%s.broken-%d", bdir, n))
		next = n + 1
	}
	return fmt.Sprintf("%s.broken-%d", bdir, next), taken, nil
}

// moveAside renames badger's directory and removes all but the newest two of those set aside.
func moveAside(dir, bdir string) (string, error) {
	to, taken, err := nextBroken(bdir)
	if err != nil {
		return "", err
	}
	if err := os.Rename(bdir, to); err != nil {
		return "", err
	}
	if err := syncDir(dir); err != nil {
		return "", err
	}
	for len(taken) > 1 {
		if err := os.RemoveAll(taken[0]); err != nil {
			return "", err
		}
		taken = taken[1:]
	}
	return to, nil
}

// emptyDir reports whether dir is missing or has nothing in it.
func emptyDir(dir string) (bool, error) {
	f, err := os.Open(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	defer f.Close()
	_, err = f.Readdirnames(1)
	if errors.Is(err, io.EOF) {
		return true, nil
	}
	return false, err
}
