package kv

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/dgraph-io/badger/v4"

	"github.com/allocnode/allocnode/apply"
	"github.com/allocnode/allocnode/internal/wire"
)

func TestRoundTrip(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "deep", "catalog")
	var id wire.ID
	for round := range uint64(4) {
		c := mustOpen(t, dir)
		if round == 0 {
			id = c.ID()
		}
		if c.ID() != id || id.IsZero() {
			t.Fatalf("round %d: id %s, was %s", round, c.ID(), id)
		}
		mustLoad(t, c, round*64, 100)
		if w := c.Witness(); w != headAt(round*64) {
			t.Fatalf("round %d: witness %+v", round, w)
		}
		mustCommit(t, c, deltas(round*64+1, round*64+32, 100))
		mustCommit(t, c, deltas(round*64+33, round*64+64, 100))
		mustCommit(t, c, nil)
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestOpenRefuses(t *testing.T) {
	c := newCatalog(t)
	mustCommit(t, c, deltas(1, 3, 10))
	// Checked: without the flock it is badger's own lock that answers, without the sentinel, and only after preflight has
	// judged files that another process is changing.
	if _, err := Open(c.dir, nodeA, quiet); !errors.Is(err, ErrInUse) {
		t.Errorf("second open: %v", err)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if err := c.Commit(deltas(4, 4, 10)); !errors.Is(err, errNotOpen) {
		t.Errorf("commit after close: %v", err)
	}

	sidePath := filepath.Join(c.dir, sideName)
	whole, err := os.ReadFile(sidePath)
	if err != nil {
		t.Fatal(err)
	}
	format := bytes.Clone(whole)
	format[1] = Format + 1
	foreign := appendHead(appendCard(nil, card{Identity: nodeA, id: wire.ID{1}}), kindWitness, apply.Head{}, sum{})
	for _, tc := range []struct {
		name string
		side []byte // nil: no side file
		want Identity
		err  error
	}{
		{"other node", whole, Identity{Node: "b", Clustered: true}, ErrOtherNode},
		{"other node, no side file", nil, Identity{Node: "b", Clustered: true}, ErrOtherNode},
		{"other mode", whole, Identity{Node: "a"}, ErrOtherMode},
		{"other mode, no side file", nil, Identity{Node: "a"}, ErrOtherMode},
		{"beside an existing NATS", whole, Identity{Node: "a", External: true}, ErrOtherMode},
		{"unknown format", format, nodeA, ErrUnknownFormat},
		{"side file of another catalog", foreign, nodeA, ErrOtherNode},
	} {
		if tc.side == nil {
			err = os.Remove(sidePath)
		} else {
			err = os.WriteFile(sidePath, tc.side, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		_, err := Open(c.dir, tc.want, quiet)
		if !errors.Is(err, tc.err) {
			t.Fatalf("%s: %v, want %v", tc.name, err, tc.err)
		}
		if !strings.Contains(err.Error(), ": ") || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: not one line that says what to do: %q", tc.name, err)
		}
	}
	for _, name := range []string{"", strings.Repeat("n", 256)} {
		if _, err := Open(c.dir, Identity{Node: name}, quiet); err == nil {
			t.Errorf("node name of %d bytes accepted", len(name))
		}
	}
	// None of this did harm; and a side file that is gone is made anew from the state.
	if err := os.Remove(sidePath); err != nil {
		t.Fatal(err)
	}
	mustLoad(t, mustOpen(t, c.dir), 3, 10)
	if again, err := os.ReadFile(sidePath); err != nil || !bytes.Equal(again, whole) {
		t.Errorf("side file %x, %v, want %x", again, err, whole)
	}
}

func TestUnknownFormatInState(t *testing.T) {
	c := newCatalog(t)
	b := appendCard(nil, c.card)
	b[1] = Format + 1
	rawUpdate(t, c, func(txn *badger.Txn) error { return txn.Set(keyIdentity, b) })
	if _, err := Open(c.dir, nodeA, quiet); !errors.Is(err, ErrUnknownFormat) {
		t.Errorf("%v", err)
	}
	if got := glob(t, c.dir, "badger.broken-*"); len(got) > 0 {
		t.Errorf("a state of another format was set aside: %v", got)
	}
}

// rawUpdate closes the catalog and changes its badger beneath it, checksums and all.
func rawUpdate(t testing.TB, c *Catalog, fn func(*badger.Txn) error) {
	t.Helper()
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	db, err := badger.Open(badgerOptions(c.bdir, quiet))
	if err != nil {
		t.Fatal(err)
	}
	if err := db.Update(fn); err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
}

// wantDropped loads c, wants the state dropped with identity and witness kept, and rebuilds it.
func wantDropped(t testing.TB, c *Catalog, id wire.ID, witness apply.Head, size int) {
	t.Helper()
	head, _, err := load(t, c)
	if !errors.Is(err, ErrStateDropped) || head != (apply.Head{}) || c.Head() != head {
		t.Fatalf("load: head %+v, Head() %+v, %v", head, c.Head(), err)
	}
	if c.ID() != id || c.Witness() != witness {
		t.Fatalf("id %s, witness %+v; want %s, %+v", c.ID(), c.Witness(), id, witness)
	}
	for at := uint64(1); at <= witness.Cursor; at += 32 {
		if c.Witness() != witness { // rebuilding does not lower it
			t.Fatalf("at %d: witness %+v, want %+v", at, c.Witness(), witness)
		}
		mustCommit(t, c, deltas(at, min(at+31, witness.Cursor), size))
	}
	mustLoad(t, c, witness.Cursor, size)
}

// Damage with good checksums: what badger does when it loses a middle, or when a bug of ours writes one thing without the
// other. Checked: with the comparison of sums taken out of scan, each case loads a wrong state without a word.
func TestLoadFindsWhatChecksumsCannot(t *testing.T) {
	lost := apply.Record{}
	for _, r := range deltaAt(40, 50).Records {
		if r.Value != nil {
			lost = r
		}
	}
	key := append(bytes.Clone(recordPrefix), lost.Key...)
	older := appendHead(nil, kindHead, headAt(39), sum{})
	for name, fn := range map[string]func(*badger.Txn) error{
		"a record lost":       func(txn *badger.Txn) error { return txn.Delete(key) },
		"a record older":      func(txn *badger.Txn) error { return txn.Set(key, []byte("older")) },
		"a record too many":   func(txn *badger.Txn) error { return txn.Set(append(key, '!'), []byte("x")) },
		"the head lost":       func(txn *badger.Txn) error { return txn.Delete(keyHead) },
		"the head older":      func(txn *badger.Txn) error { return txn.Set(keyHead, older) },
		"the head damaged":    func(txn *badger.Txn) error { return txn.Set(keyHead, older[:60]) },
		"the witness damaged": func(txn *badger.Txn) error { return txn.Set(keyWitness, older[:60]) },
		"everything lost": func(txn *badger.Txn) error {
			return errors.Join(txn.Delete(keyHead), txn.Delete(keyWitness), txn.Delete(keyIdentity))
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCatalog(t)
			mustCommit(t, c, deltas(1, 40, 50))
			rawUpdate(t, c, fn)
			again := mustOpen(t, c.dir)
			wantDropped(t, again, c.ID(), headAt(40), 50)
			if got := glob(t, c.dir, "badger.broken-*"); len(got) != 1 {
				t.Errorf("set aside: %v", got)
			}
		})
	}
}

// The drop itself is durable: a crash right after it does not bring the damaged state back.
func TestDropSurvivesCrash(t *testing.T) {
	c := newCatalog(t)
	mustCommit(t, c, deltas(1, 40, 50))
	rawUpdate(t, c, func(txn *badger.Txn) error { return txn.Delete(keyHead) })
	again := mustOpen(t, c.dir)
	if _, _, err := load(t, again); !errors.Is(err, ErrStateDropped) {
		t.Fatal(err)
	}
	after := mustOpen(t, snapshot(t, c.dir))
	mustLoad(t, after, 0, 50)
	if after.ID() != c.ID() || after.Witness() != headAt(40) {
		t.Errorf("id %s, witness %+v", after.ID(), after.Witness())
	}
}

// The witness of a state that is dropped goes to the side file first: a crash before the new state has it loses nothing.
// Checked: without saveSide in setAside the witness comes back as that of cursor 1.
func TestDropSavesWitness(t *testing.T) {
	c := newCatalog(t)
	mustCommit(t, c, deltas(1, 1, 50))
	mustCommit(t, c, deltas(2, 40, 50)) // in badger's witness, not yet in the side file's
	killed := snapshot(t, c.dir)
	again := mustOpen(t, killed)
	if again.Witness() != headAt(40) || again.sideDone != headAt(1) {
		t.Fatalf("witness %+v, in the side file %+v", again.Witness(), again.sideDone)
	}
	if err := again.SetAside(errors.New("test")); err != nil {
		t.Fatal(err)
	}
	half := snapshot(t, again.dir)
	if err := os.RemoveAll(filepath.Join(half, "badger")); err != nil {
		t.Fatal(err)
	}
	wantDropped(t, mustOpen(t, half), c.ID(), headAt(40), 50)
}

// A crash between any two steps of creating and of setting aside leaves something that opens.
func TestCrashBetweenSteps(t *testing.T) {
	c := newCatalog(t)
	half := snapshot(t, c.dir) // side file written, badger not
	if err := os.RemoveAll(filepath.Join(half, "badger")); err != nil {
		t.Fatal(err)
	}
	again := mustOpen(t, half)
	mustLoad(t, again, 0, 1)
	if again.ID() != c.ID() {
		t.Errorf("id %s, want %s", again.ID(), c.ID())
	}
	mustCommit(t, c, deltas(1, 5, 10))
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(c.bdir, c.bdir+".broken-1"); err != nil { // moved away, the new one not made
		t.Fatal(err)
	}
	wantDropped(t, mustOpen(t, c.dir), c.ID(), headAt(5), 10)
}

func TestSetAsideKeepsTwo(t *testing.T) {
	c := newCatalog(t)
	for round := range 4 {
		mustCommit(t, c, deltas(1, 5, 10))
		if err := c.SetAside(errors.New("test")); err != nil {
			t.Fatal(err)
		}
		if got := len(glob(t, c.dir, "badger.broken-*")); got != min(round+1, 2) {
			t.Errorf("round %d: %d set aside", round, got)
		}
		mustLoad(t, c, 0, 10)
	}
	if _, err := os.Stat(c.bdir + ".broken-4"); err != nil {
		t.Errorf("the newest is not kept: %v", err)
	}
}

func TestLoadCallback(t *testing.T) {
	c := newCatalog(t)
	mustCommit(t, c, deltas(1, 10, 10))
	stop := errors.New("stop")
	if _, err := c.Load(func(apply.Record) error { return stop }); err != stop {
		t.Errorf("error of fn: %v", err)
	}
	// Checked: with scan recovering from everything, the panic of fn's is taken for damage and drops the state.
	func() {
		defer func() {
			if r := recover(); r != "mine" {
				t.Errorf("recovered %v", r)
			}
		}()
		c.Load(func(apply.Record) error { panic("mine") })
	}()
	mustLoad(t, c, 10, 10)

	// A later one that ends early has not seen all. Checked: with hashes whole from the beginning of scan, the sum was wrong.
	if _, err := c.Load(func(apply.Record) error { return stop }); err != stop {
		t.Errorf("error of fn: %v", err)
	}
	mustCommit(t, c, deltas(11, 20, 10))
	mustLoad(t, c, 20, 10)
}

// Every memtable's log has its blocks on disk, from Open on and when badger begins another: a disk that becomes full within a
// commit, which the soak brought about, is then no SIGBUS. Checked: without allocate in openDB, in fill or in Commit, a file has
// fewer blocks than bytes.
func TestLogsAreAllocated(t *testing.T) {
	if runtime.GOOS != "linux" {
		return // nothing is promised there
	}
	c := newCatalog(t)
	whole := func(when string) (newest string) {
		paths, err := filepath.Glob(filepath.Join(c.bdir, "*.mem"))
		if err != nil || len(paths) == 0 {
			t.Fatalf("%s: logs %v, %v", when, paths, err)
		}
		for _, path := range paths {
			var st syscall.Stat_t
			if err := syscall.Stat(path, &st); err != nil {
				if errors.Is(err, syscall.ENOENT) {
					continue // it has become a table meanwhile
				}
				t.Fatal(err)
			}
			if st.Blocks*512 < st.Size {
				t.Errorf("%s: %s has %d bytes and %d of them on disk", when, filepath.Base(path), st.Size, st.Blocks*512)
			}
		}
		return slices.Max(paths)
	}
	first := whole("new")
	seq := uint64(1)
	for whole("committed") == first { // until the log is full
		mustCommit(t, c, deltas(seq, seq, 100_000))
		seq++
	}
	mustCommit(t, c, deltas(seq, seq, 10))
	whole("another log")
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	c = mustOpen(t, c.dir)
	whole("opened")
}

// A data directory may have a name that would be a pattern. Checked: with filepath.Glob the second open failed in the first,
// and in the second the states that were set aside were not seen.
func TestAnyDirectory(t *testing.T) {
	for _, name := range []string{"a[b", "a[bc]*"} {
		dir := filepath.Join(t.TempDir(), name, "catalog")
		c := mustOpen(t, dir)
		mustLoad(t, c, 0, 10)
		mustCommit(t, c, deltas(1, 2, 10))
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
		c = mustOpen(t, dir)
		mustLoad(t, c, 2, 10)
		if err := os.Mkdir(c.bdir+".broken-1", 0o700); err != nil {
			t.Fatal(err)
		}
		if next, taken, err := nextBroken(c.bdir); err != nil || next != c.bdir+".broken-2" || len(taken) != 1 {
			t.Errorf("%s: next %s, taken %v, %v", name, next, taken, err)
		}
	}
}

// The data directory may have any name, and a log may have become a table in between: no reason to warn with every commit.
// Checked: with filepath.Glob nothing was allocated in the first, and without the look at the error the second was one.
func TestAllocateInAnyDirectory(t *testing.T) {
	if runtime.GOOS != "linux" {
		return // nothing is promised there
	}
	dir := filepath.Join(t.TempDir(), "a[b*")
	path := filepath.Join(dir, "00001.mem")
	for _, err := range []error{
		os.Mkdir(dir, 0o700), os.WriteFile(path, nil, 0o600), os.Truncate(path, 1<<20),
		os.Symlink("nowhere", filepath.Join(dir, "00002.mem")), // what is gone by the time that it is opened
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	done, err := allocate(dir, nil)
	var st syscall.Stat_t
	if statErr := syscall.Stat(path, &st); err != nil || statErr != nil || st.Blocks*512 < st.Size || !done["00001.mem"] {
		t.Errorf("allocated %v, %v; %d bytes of %d on disk, %v", done, err, st.Blocks*512, st.Size, statErr)
	}
}

// A full disk is left alone at the end too: badger's close writes a table through a memory map. What was committed is there
// at the next open. Checked: without the look at the space, Close closes badger.
func TestCloseOnAFullDisk(t *testing.T) {
	c := newCatalog(t)
	mustCommit(t, c, deltas(1, 2, 10))
	c.freeBytes = func(string) (uint64, error) { return minFree - 1, nil }
	if err := c.Close(); !errors.Is(err, ErrNoSpace) {
		t.Errorf("close: %v", err)
	}
	if c.db == nil || c.db.IsClosed() {
		t.Fatal("badger was closed on a full disk")
	}
	if err := closeBadger(c.db); err != nil { // what the end of the process does
		t.Fatal(err)
	}
	mustLoad(t, mustOpen(t, c.dir), 2, 10)
}

// On a disk that takes nothing badger would try to write its last table for ever (seen on one remounted read-only).
// Checked: without checkWrite Close closed badger.
func TestCloseOnADiskThatTakesNothing(t *testing.T) {
	c := newCatalog(t)
	mustCommit(t, c, deltas(1, 2, 10))
	probe := filepath.Join(c.dir, probeFile)
	if err := os.Mkdir(probe, 0o700); err != nil { // what stands in the way of a write
		t.Fatal(err)
	}
	if err := c.Close(); err == nil || !strings.Contains(err.Error(), "unclosed") {
		t.Errorf("close: %v", err)
	}
	if c.db == nil || c.db.IsClosed() {
		t.Fatal("badger was closed")
	}
	if err := errors.Join(closeBadger(c.db), os.Remove(probe)); err != nil {
		t.Fatal(err)
	}
	mustLoad(t, mustOpen(t, c.dir), 2, 10)
}

func TestNoSpace(t *testing.T) {
	c := newCatalog(t)
	mustCommit(t, c, deltas(1, 2, 10))
	free := uint64(minFree - 1)
	c.freeBytes = func(string) (uint64, error) { return free, nil }
	// Checked: without checkSpace the commit goes through; on a disk that is full in earnest it ends the process by SIGBUS.
	if err := c.Commit(deltas(3, 4, 10)); !errors.Is(err, ErrNoSpace) {
		t.Errorf("commit: %v", err)
	}
	free = 1 << 40
	mustCommit(t, c, deltas(3, 4, 10))
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	_, err := open(c.dir, nodeA, quiet, func(string) (uint64, error) { return minFree - 1, nil })
	if !errors.Is(err, ErrNoSpace) {
		t.Errorf("open: %v", err)
	}
	mustLoad(t, mustOpen(t, c.dir), 4, 10)
}
