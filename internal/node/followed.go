package node

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/allocnode/allocnode/apply"
)

// followedPrefix begins the name of what is left, in the data directory, of each recovery whose log the node has followed:
// the recovery file, or an empty one where the node was not prepared. Beside a catalog that was lost it says that there was
// a log, from which ids were issued, and that its recovery is not to be carried out a second time.
const followedPrefix = recoveryName + ".epoch-"

// followedEpoch is the latest epoch of a recovery whose log was followed from this data directory, or 0.
func followedEpoch(dataDir string) (epoch uint64, err error) {
	entries, err := os.ReadDir(dataDir)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("look for recoveries that were followed: %w", err)
	}
	for _, e := range entries {
		text, ok := strings.CutPrefix(e.Name(), followedPrefix)
		if n, err := strconv.ParseUint(text, 10, 64); ok && err == nil {
			epoch = max(epoch, n)
		}
	}
	return epoch, nil
}

// keepFollowed puts the recovery of epoch, which the catalog remembers by now, out of the next start's way. After a nil error
// it survives a power cut; called again, it does nothing.
func keepFollowed(dataDir string, epoch uint64) error {
	to := filepath.Join(dataDir, followedPrefix+strconv.FormatUint(epoch, 10))
	if _, err := os.Stat(to); err == nil {
		return nil
	}
	err := keepAs(dataDir, to, epoch)
	if err != nil {
		return fmt.Errorf("keep the recovery of epoch %d: %w", epoch, err)
	}
	return nil
}

// archiveThenKeep has the catalog remember the log that begins with next, and then puts its recovery away: where the catalog
// cannot, the node stays prepared.
func archiveThenKeep(archive func(next apply.Head) error, dataDir string, next apply.Head) error {
	if err := archive(next); err != nil {
		return err
	}
	return keepFollowed(dataDir, next.Epoch)
}

func keepAs(dataDir, to string, epoch uint64) error {
	from := filepath.Join(dataDir, recoveryName)
	// Not read whole: what is damaged by now has done its work.
	switch h, err := readFileHead(from, recoveryKind); {
	case err != nil, h.Epoch != epoch:
		return writeWhole(to, nil)
	}
	if err := os.Rename(from, to); err != nil {
		return err
	}
	return syncDir(dataDir)
}
