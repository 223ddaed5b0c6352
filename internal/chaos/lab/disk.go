//go:build linux

package lab

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"unsafe"
)

const (
	// ext4's own means of a power loss: nothing more reaches the device, and the journal is not flushed.
	ext4IocShutdown       = 0x8004587d
	ext4ShutdownNoLogFlsh = 2

	marker  = "chaos-unsynced" // made without an fsync, so it must be gone after a power loss
	balloon = "chaos-balloon"  // takes all the room there is
)

// Disk is one ext4 in a file, mounted over a loop device. Its journal is committed by an fsync or after ten minutes, not
// every five seconds, so that what was not synced is really lost. Methods must not be called at the same time.
type Disk struct {
	image, mount string
	mounted      bool
}

// newDisk makes the file system and mounts it.
func newDisk(ctx context.Context, image, mount string, bytes int64) (*Disk, error) {
	d := &Disk{image: image, mount: mount}
	if err := os.MkdirAll(mount, 0o700); err != nil {
		return nil, fmt.Errorf("make the mount point: %w", err)
	}
	if err := d.format(ctx, bytes); err != nil {
		return nil, err
	}
	return d, d.Mount(ctx)
}

func (d *Disk) format(ctx context.Context, bytes int64) error {
	f, err := os.Create(d.image)
	if err != nil {
		return fmt.Errorf("make the disk's image: %w", err)
	}
	if err := errors.Join(f.Truncate(bytes), f.Close()); err != nil {
		return fmt.Errorf("make the disk's image: %w", err)
	}
	_, err = run(ctx, "mkfs.ext4", "-q", "-F", "-m", "0", d.image)
	return err
}

// Wipe gives the disk, which must not be in use, a new and empty file system.
func (d *Disk) Wipe(ctx context.Context) error {
	info, err := os.Stat(d.image)
	if err != nil {
		return fmt.Errorf("wipe a disk: %w", err)
	}
	return errors.Join(d.Unmount(ctx), d.format(ctx, info.Size()), d.Mount(ctx))
}

// Mount mounts it; ext4 replays its journal where there was a power loss. It does nothing when it is mounted.
func (d *Disk) Mount(ctx context.Context) error {
	if d.mounted {
		return nil
	}
	_, err := run(ctx, "mount", "-o", "loop,commit=600", "-t", "ext4", d.image, d.mount)
	d.mounted = err == nil
	return err
}

// Unmount unmounts it, and frees the loop device.
func (d *Disk) Unmount(ctx context.Context) error {
	if !d.mounted {
		return nil
	}
	_, err := run(ctx, "umount", d.mount)
	if err == nil {
		d.mounted = false
	}
	return err
}

// Save copies the image of a disk that is not in use to path; Restore puts such a copy in its place.
func (d *Disk) Save(ctx context.Context, path string) error {
	if err := d.Unmount(ctx); err != nil {
		return err
	}
	_, err := run(ctx, "cp", "--sparse=always", d.image, path)
	return errors.Join(err, d.Mount(ctx))
}

// Restore is the undoing of Save.
func (d *Disk) Restore(ctx context.Context, path string) error {
	if err := d.Unmount(ctx); err != nil {
		return err
	}
	_, err := run(ctx, "cp", "--sparse=always", path, d.image)
	return errors.Join(err, d.Mount(ctx))
}

// cut is the moment of a power loss: what is not on the device now never gets there. The process that writes must have
// been stopped, since an fsync of its would save the marker with everything else.
func (d *Disk) cut() error {
	if err := os.WriteFile(filepath.Join(d.mount, marker), []byte("not synced"), 0o600); err != nil {
		return fmt.Errorf("write the unsynced marker: %w", err)
	}
	dir, err := os.Open(d.mount)
	if err != nil {
		return fmt.Errorf("power loss: %w", err)
	}
	defer dir.Close()
	flags := uint32(ext4ShutdownNoLogFlsh)
	_, _, errno := syscall.Syscall(syscall.SYS_IOCTL, dir.Fd(), ext4IocShutdown, uintptr(unsafe.Pointer(&flags)))
	if errno != 0 {
		return fmt.Errorf("power loss of %s: %w", d.mount, errno)
	}
	return nil
}

// replug mounts it after cut, and proves that something was lost.
func (d *Disk) replug(ctx context.Context) (proof string, err error) {
	if err := d.Unmount(ctx); err != nil {
		return "", err
	}
	needs, err := d.needsRecovery()
	if err != nil {
		return "", err
	}
	if err := d.Mount(ctx); err != nil {
		return "", err
	}
	_, err = os.Stat(filepath.Join(d.mount, marker))
	if !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("power loss of %s: the unsynced marker is still there (%v)", d.mount, err)
	}
	return fmt.Sprintf("unsynced marker gone, journal to be recovered: %t", needs), nil
}

// needsRecovery reads ext4's flag for a journal that must be replayed: the incompatible feature 4, in the superblock.
func (d *Disk) needsRecovery() (bool, error) {
	f, err := os.Open(d.image)
	if err != nil {
		return false, fmt.Errorf("read the superblock: %w", err)
	}
	defer f.Close()
	var b [4]byte
	if _, err := f.ReadAt(b[:], 1024+0x60); err != nil {
		return false, fmt.Errorf("read the superblock: %w", err)
	}
	return binary.LittleEndian.Uint32(b[:])&4 != 0, nil
}

// tear writes some pages of the files that were changed last, in random order, as a device may before the power goes: their
// pages reach it, others of the same files do not. The writer must have been stopped.
func (d *Disk) tear(rnd *rand.Rand) (pages int, err error) {
	err = filepath.WalkDir(d.mount, func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			return err
		}
		defer f.Close()
		info, err := f.Stat()
		if err != nil {
			return err
		}
		const page, write = 4096, 7 // SYNC_FILE_RANGE_WAIT_BEFORE, WRITE, WAIT_AFTER
		n := (info.Size() + page - 1) / page
		for range min(n, 16) {
			// Of a log it is the end that is not synced.
			p := max(0, n-1-rnd.Int64N(min(n, 64)))
			if err := syscall.SyncFileRange(int(f.Fd()), p*page, page, write); err != nil {
				return fmt.Errorf("sync a page of %s: %w", path, err)
			}
			pages++
		}
		return nil
	})
	if err != nil {
		return pages, fmt.Errorf("tear pages: %w", err)
	}
	// The fsync of any file commits the journal, and with it the sizes of the torn ones.
	f, err := os.Create(filepath.Join(d.mount, "chaos-torn"))
	if err != nil {
		return pages, fmt.Errorf("tear pages: %w", err)
	}
	return pages, errors.Join(f.Sync(), f.Close(), os.Remove(f.Name()))
}

// Fill takes all the room on the disk, and proves that there is none.
func (d *Disk) Fill() (proof string, err error) {
	f, err := os.Create(filepath.Join(d.mount, balloon))
	if err != nil {
		return "", fmt.Errorf("fill the disk: %w", err)
	}
	defer f.Close()
	var taken int64
	for step := int64(64 << 20); step >= 4096; {
		err := syscall.Fallocate(int(f.Fd()), 0, taken, step)
		if errors.Is(err, syscall.ENOSPC) {
			step /= 2
			continue
		}
		if err != nil {
			return "", fmt.Errorf("fill the disk: %w", err)
		}
		taken += step
	}
	free, err := d.Free()
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("a file of %d MiB, %d KiB free", taken>>20, free>>10), nil
}

// Empty undoes Fill.
func (d *Disk) Empty() error {
	err := os.Remove(filepath.Join(d.mount, balloon))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// Free is how many bytes can still be written.
func (d *Disk) Free() (uint64, error) {
	var s syscall.Statfs_t
	if err := syscall.Statfs(d.mount, &s); err != nil {
		return 0, fmt.Errorf("look at the disk: %w", err)
	}
	return s.Bavail * uint64(s.Bsize), nil
}

// Abort makes it read-only under the feet of those who write, as ext4 itself does when the device fails. Unmount, check and
// mount undo it: see [Disk.Repair].
func (d *Disk) Abort(ctx context.Context) (proof string, err error) {
	if _, err := run(ctx, "mount", "-o", "remount,abort", d.mount); err != nil {
		return "", err
	}
	err = os.WriteFile(filepath.Join(d.mount, "chaos-write"), nil, 0o600)
	if !errors.Is(err, syscall.EROFS) && !errors.Is(err, syscall.EIO) {
		return "", fmt.Errorf("read-only disk: a write says %v", err)
	}
	return fmt.Sprintf("a write says %v", errors.Unwrap(err)), nil
}

// Repair unmounts, checks and mounts the disk, which must not be in use.
func (d *Disk) Repair(ctx context.Context) error {
	if err := d.Unmount(ctx); err != nil {
		return err
	}
	if _, err := run(ctx, "e2fsck", "-p", "-f", d.image); err != nil && !strings.Contains(err.Error(), "exit status 1") {
		return err // 1: it found and corrected something
	}
	return d.Mount(ctx)
}

// Freeze lets every write wait until Thaw.
func (d *Disk) Freeze(ctx context.Context) (proof string, err error) {
	if _, err := run(ctx, "fsfreeze", "--freeze", d.mount); err != nil {
		return "", err
	}
	// A second freeze of a frozen one says so.
	if _, err := run(ctx, "fsfreeze", "--freeze", d.mount); err == nil || !strings.Contains(err.Error(), "busy") {
		return "", fmt.Errorf("frozen disk: it does not say that it is frozen: %v", err)
	}
	return "a second freeze finds it frozen", nil
}

// Thaw undoes Freeze.
func (d *Disk) Thaw(ctx context.Context) error {
	_, err := run(ctx, "fsfreeze", "--unfreeze", d.mount)
	return err
}

// device is the loop device's numbers, "7:3".
func (d *Disk) device() (string, error) {
	var s syscall.Stat_t
	if err := syscall.Stat(d.mount, &s); err != nil {
		return "", fmt.Errorf("look at the disk: %w", err)
	}
	return fmt.Sprintf("%d:%d", s.Dev>>8&0xfff, s.Dev&0xff), nil
}
