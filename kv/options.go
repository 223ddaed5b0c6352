package kv

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"syscall"

	"github.com/dgraph-io/badger/v4"
	"github.com/dgraph-io/badger/v4/options"
)

// Bounds of what is stored. One transaction of badger's holds 15 % of a memtable, and that divided by 96 bytes in entries;
// the run bounds lie below both, with room for head and witness.
const (
	memTableSize = 8 << 20

	MaxKey         = 1024      // bytes of a key
	MaxValue       = 1<<20 - 1 // bytes of a value; one more would go to the value log
	MaxRunRecords  = 13_000    // records of one Commit
	MaxRunBytes    = 1_250_000 // bytes of one Commit: keys, values, and recordOverhead for each record
	minFree        = 64 << 20  // bytes kept free on disk, beside the room to rewrite the tables once
	recordOverhead = 13
)

// badgerOptions are for a small state under many small synced commits: two memtables of 8 MiB are most of the memory.
func badgerOptions(dir string, logger *slog.Logger) badger.Options {
	return badger.DefaultOptions(dir).
		WithLogger(badgerLogger{logger}).
		WithSyncWrites(true).
		WithNumVersionsToKeep(1).
		WithDetectConflicts(false). // one goroutine commits
		WithCompression(options.None).
		// Every block read is verified. Tables are verified by preflight when opened: badger's own OnTableAndBlockRead
		// dereferences nil at the first bad block, in a goroutine, and so ends the process.
		WithChecksumVerificationMode(options.OnBlockRead).
		WithMemTableSize(memTableSize).
		WithNumMemtables(2).
		WithNumLevelZeroTables(2).
		WithNumLevelZeroTablesStall(8).
		WithNumCompactors(2).
		WithNumGoroutines(1).
		WithBlockCacheSize(0). // uncompressed blocks are read from the memory map
		WithIndexCacheSize(0).
		WithValueThreshold(MaxValue + 1).
		WithValueLogFileSize(1 << 20). // stays empty
		WithMetricsEnabled(false)
}

// badgerLogger brings badger's lines to slog. Its Info is chatter at our level.
type badgerLogger struct{ l *slog.Logger }

func (b badgerLogger) log(level slog.Level, format string, args []any) {
	if b.l.Enabled(context.Background(), level) {
		b.l.Log(context.Background(), level, "badger: "+strings.TrimSpace(fmt.Sprintf(format, args...)))
	}
}

func (b badgerLogger) Errorf(format string, args ...any)   { b.log(slog.LevelError, format, args) }
func (b badgerLogger) Warningf(format string, args ...any) { b.log(slog.LevelWarn, format, args) }
func (b badgerLogger) Infof(format string, args ...any)    { b.log(slog.LevelDebug, format, args) }
func (b badgerLogger) Debugf(string, ...any)               {} // several lines for each commit

func matchesErrno(err error, nos ...syscall.Errno) bool {
	for _, no := range nos {
		if strings.Contains(err.Error(), no.Error()) {
			return true
		}
	}
	return false
}
