package kv

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/allocnode/allocnode/apply"
)

// Fence is why a node must not issue ids, kept so that a restart does not forget it.
type Fence struct {
	Class  string `json:"class"`  // what may lift it; the caller's word
	Reason string `json:"reason"` // for people
	Epoch  uint64 `json:"epoch"`  // of the log that it is about: a later epoch's is another log
}

const (
	fenceName   = "fence"
	reserveName = "fence.reserve"
	cleanName   = "clean"

	// fenceSize is the size of the fence's file, and of the one that is held in reserve for it: the fence goes into blocks
	// that are there already, since a full disk is when a node may need it.
	fenceSize = 4096

	kindClean = 'C'
)

// UnreadableFence is the class of a fence whose file is there and cannot be read.
const UnreadableFence = "unreadable"

// Fence returns the fence that is stored, and whether there is one. A damaged file is a fence too.
func (c *Catalog) Fence() (Fence, bool, error) {
	path := filepath.Join(c.dir, fenceName)
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return Fence{}, false, nil
	}
	if err != nil {
		return Fence{}, false, fmt.Errorf("kv: read fence: %w", err)
	}
	var f Fence
	if err := json.Unmarshal(bytes.TrimRight(b, "\n"), &f); err != nil || f.Class == "" {
		why := fmt.Sprintf("there is a fence in %s, and why cannot be read: %v", path, err)
		return Fence{Class: UnreadableFence, Reason: why, Epoch: c.Witness().Epoch}, true, nil
	}
	return f, true, nil
}

// StoreFence stores f in place of what is stored. After a nil error it survives a power cut; after an error the one before
// stands, or none.
func (c *Catalog) StoreFence(f Fence) error {
	const most = 1024 // bytes of reason: JSON may need six for one
	if len(f.Reason) > most/2 {
		f.Reason = f.Reason[:most/2] + "…"
	}
	b, err := json.Marshal(f)
	if err == nil && len(b) > fenceSize {
		err = ErrTooLarge
	}
	if err != nil {
		return fmt.Errorf("kv: store fence of %d bytes: %w", len(b), err)
	}
	b = append(b, bytes.Repeat([]byte{'\n'}, fenceSize-len(b))...)
	if err := c.replace(reserveName, fenceName, b); err != nil {
		return fmt.Errorf("kv: store fence: %w", err)
	}
	c.reserveFence()
	return nil
}

// ClearFence removes the stored fence, if there is one.
func (c *Catalog) ClearFence() error {
	if err := c.drop(fenceName); err != nil {
		return fmt.Errorf("kv: clear fence: %w", err)
	}
	c.reserveFence()
	return nil
}

// reserveFence has the blocks for the next fence ready. Without them a fence still goes where there is room.
func (c *Catalog) reserveFence() {
	path := filepath.Join(c.dir, reserveName)
	if info, err := os.Stat(path); err == nil && info.Size() == fenceSize {
		return
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o600)
	if err == nil {
		_, err = f.Write(bytes.Repeat([]byte{'\n'}, fenceSize))
		err = errors.Join(err, f.Sync(), f.Close())
	}
	if err != nil {
		c.logger.Warn("kv: no room is kept for a fence", "error", err)
	}
}

// replace writes b over the file from, in place, and renames it to to.
func (c *Catalog) replace(from, to string, b []byte) error {
	path := filepath.Join(c.dir, from)
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(b, 0)
	if err == nil {
		err = f.Truncate(int64(len(b)))
	}
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err := os.Rename(path, filepath.Join(c.dir, to)); err != nil {
		return err
	}
	return syncDir(c.dir)
}

func (c *Catalog) drop(name string) error {
	err := os.Remove(filepath.Join(c.dir, name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return errors.Join(err, syncDir(c.dir))
}

// Clean reports whether the last run of the node ended in order, with everything in the catalog that it had applied: only
// then is the catalog the whole of what the node knows to be issued.
func (c *Catalog) Clean() bool {
	b, err := os.ReadFile(filepath.Join(c.dir, cleanName))
	if err != nil {
		return false
	}
	h, _, err := parseHead(b, kindClean)
	return err == nil && h == c.Head()
}

// SetClean records that the catalog holds all that the node has applied, up to Head, or takes that back. It must be taken
// back before an entry is applied, and nobody may be told of one before it is.
func (c *Catalog) SetClean(clean bool) error {
	if !clean {
		if err := c.drop(cleanName); err != nil {
			return fmt.Errorf("kv: mark as running: %w", err)
		}
		return nil
	}
	if err := c.replace(cleanName+".tmp", cleanName, appendHead(nil, kindClean, c.Head(), sum{})); err != nil {
		return fmt.Errorf("kv: mark as stopped cleanly: %w", err)
	}
	return nil
}

// Archived reports whether the state of an epoch was archived by [Catalog.Archive].
func (c *Catalog) Archived(epoch uint64) bool {
	_, err := os.Stat(c.archiveDir(epoch))
	return err == nil
}

func (c *Catalog) archiveDir(epoch uint64) string { return fmt.Sprintf("%s.epoch-%d", c.bdir, epoch) }

// Archive moves the state to badger.epoch-N beside it, N being its epoch, where it stays, and starts an empty one for the log
// of a later epoch, which was seen to reach next: that is the witness from now on. Head is zero afterwards, the identity stays.
// It survives a crash at any point, as SetAside does; called again, it goes on.
func (c *Catalog) Archive(next apply.Head) error {
	if was := c.Witness(); was != (apply.Head{}) || c.Head() != (apply.Head{}) {
		c.archive = c.archiveDir(was.Epoch)
		defer func() { c.archive = "" }()
		if err := c.SetAside(errors.New("a recovery has begun another epoch")); err != nil {
			return err
		}
	}
	c.raiseWitness(next)
	return c.saveSide(c.Witness())
}

// moveTo renames badger's directory to to, or to the first free name behind it.
func moveTo(dir, bdir, to string) (string, error) {
	free := to
	for i := 2; ; i++ {
		_, err := os.Stat(free)
		if errors.Is(err, fs.ErrNotExist) {
			break
		}
		if err != nil {
			return "", err
		}
		free = fmt.Sprintf("%s-%d", to, i)
	}
	if err := os.Rename(bdir, free); err != nil {
		return "", err
	}
	return free, syncDir(dir)
}
