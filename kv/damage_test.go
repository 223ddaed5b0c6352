package kv

import (
	"bytes"
	"encoding/binary"
	"errors"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/dgraph-io/badger/v4"
	"github.com/dgraph-io/badger/v4/options"

	"github.com/allocnode/allocnode/apply"
)

const damageSize = 40 // mean size of values here

// damageable is a catalog that was killed: tables up to cursor 320, a log with ten runs up to 400.
func damageable(t testing.TB) (dir string, c *Catalog) {
	t.Helper()
	c = newCatalog(t)
	mustCommit(t, c, deltas(1, 160, damageSize))
	for _, last := range []uint64{320, 400} {
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
		was := c.Head().Cursor
		c = mustOpen(t, c.dir)
		mustLoad(t, c, was, damageSize)
		for at := was + 1; at <= last; at += 8 {
			mustCommit(t, c, deltas(at, at+7, damageSize))
		}
	}
	return snapshot(t, c.dir), c
}

// wantRightOrDropped opens a damaged copy. A state may be older than what was committed, if it is right for its cursor; or
// it is dropped. Identity and the side file's witness stay. It reports whether the state was dropped.
func wantRightOrDropped(t testing.TB, dir string, was *Catalog) (dropped bool) {
	t.Helper()
	c, err := Open(dir, nodeA, quiet)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	head, got, err := load(t, c)
	switch {
	case errors.Is(err, ErrStateDropped):
		if head != (apply.Head{}) {
			t.Fatalf("dropped with head %+v", head)
		}
		dropped = true
	case err != nil:
		t.Fatal(err)
	case head != headAt(head.Cursor) || !maps.Equal(got, modelAt(head.Cursor, damageSize)):
		t.Fatalf("a wrong state was loaded at %+v: %d records", head, len(got))
	}
	if w := c.Witness(); c.ID() != was.ID() || newer(was.sideDone, w) || newer(head, w) {
		t.Fatalf("id %s, witness %+v; want %s, at least %+v", c.ID(), w, was.ID(), was.sideDone)
	}
	mustCommit(t, c, deltas(c.Head().Cursor+1, c.Head().Cursor+8, damageSize)) // life goes on
	return dropped
}

// Checked: without checkTable in preflight the process ends (a nil dereference in a goroutine of badger's, or log.Fatal).
func TestTableDamage(t *testing.T) {
	dir, c := damageable(t)
	tables := len(glob(t, dir, "badger/*.sst")) // two, or one when they have been compacted
	rng := rand.New(rand.NewPCG(1, 2))
	for round := range 32 {
		at := snapshot(t, dir)
		path := glob(t, at, "badger/*.sst")[round%tables]
		edit(t, path, func(b []byte) []byte {
			switch {
			case round < 2:
				return b[:len(b)/2]
			case round < 4:
				return nil
			case round < 6:
				return b[:7]
			case round < 16: // the footer, byte by byte from the end
				b[len(b)-round/2+2] ^= 1 << rng.IntN(8)
			default:
				b[rng.IntN(len(b))] ^= 1 << rng.IntN(8)
			}
			return b
		})
		if !wantRightOrDropped(t, at, c) {
			t.Errorf("round %d: damage to a table was not noticed", round)
		}
	}
	at := snapshot(t, dir)
	if err := os.Remove(glob(t, at, "badger/*.sst")[0]); err != nil {
		t.Fatal(err)
	}
	if !wantRightOrDropped(t, at, c) {
		t.Error("a missing table was not noticed")
	}
}

func TestWALDamage(t *testing.T) {
	dir, c := damageable(t)
	wal := func(at string) string { return glob(t, at, "badger/*.mem")[0] }
	b, err := os.ReadFile(wal(dir))
	if err != nil {
		t.Fatal(err)
	}
	used := len(bytes.TrimRight(b, "\x00"))
	rng := rand.New(rand.NewPCG(3, 4))
	for round := range 24 {
		at := snapshot(t, dir)
		edit(t, wal(at), func(b []byte) []byte {
			from := rng.IntN(used)
			switch round % 4 {
			case 0:
				clear(b[from:min(from+4096, used)]) // a page that was not written
			case 1:
				clear(b[from:])
			case 2:
				b = b[:from]
			case 3:
				b[from] ^= 1 << rng.IntN(8)
			}
			return b
		})
		wantRightOrDropped(t, at, c)
	}
}

// A length of 4 GB in a log: badger asks for 12 GB of memory before it looks, which may end the process. Checked: without
// checkWAL, where there is that much address space, badger cuts the log there and loads what came before: not dropped.
func TestWALLength(t *testing.T) {
	dir, c := damageable(t)
	edit(t, glob(t, dir, "badger/*.mem")[0], func(b []byte) []byte {
		const at = 20 // the first entry: meta, user meta, key length, value length
		entry := []byte{b[at], b[at+1], 10}
		entry = binary.AppendUvarint(entry, 1<<32-100)
		copy(b[at:], append(entry, 0))
		return b
	})
	if !wantRightOrDropped(t, dir, c) {
		t.Error("not dropped")
	}
}

// A middle that was lost: the older of two logs is cut, the newer one is whole. Checked: without the comparison of sums in
// scan the state of the newer log is loaded with the older one's records missing.
func TestLostMiddle(t *testing.T) {
	c := newCatalog(t)
	mustCommit(t, c, deltas(1, 40, damageSize))
	older := snapshot(t, c.dir)
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	c = mustOpen(t, c.dir)
	mustLoad(t, c, 40, damageSize)
	mustCommit(t, c, deltas(41, 44, damageSize))
	newerDir := snapshot(t, c.dir)

	// Put the newer log beside the older one, cut after its first transactions.
	mem := glob(t, older, "badger/*.mem")[0]
	b, err := os.ReadFile(glob(t, newerDir, "badger/*.mem")[0])
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(filepath.Dir(mem), "00009.mem"), b, 0o600); err != nil {
		t.Fatal(err)
	}
	edit(t, mem, func(b []byte) []byte {
		clear(b[len(bytes.TrimRight(b, "\x00"))/2:])
		return b
	})
	if !wantRightOrDropped(t, older, c) {
		t.Error("not dropped")
	}
}

// Checked: without the recover in openBadger the panic ends the process, at every start anew.
func TestOpenPanics(t *testing.T) {
	dir := t.TempDir()
	_, err := openBadger(dir, badgerOptions(dir, quiet).WithCompression(options.ZSTD)) // wants a block cache, and panics
	if !errors.As(err, new(*brokenError)) {
		t.Errorf("%v", err)
	}
}

func TestOtherFilesDamage(t *testing.T) {
	dir, c := damageable(t)
	for _, name := range []string{"MANIFEST", "KEYREGISTRY", "DISCARD", "000001.vlog", "00003.mem"} {
		for how, fn := range map[string]func([]byte) []byte{
			"emptied":   func([]byte) []byte { return nil },
			"cut":       func(b []byte) []byte { return b[:len(b)/2] },
			"zeroed":    func(b []byte) []byte { clear(b); return b },
			"flipped":   func(b []byte) []byte { b[len(b)/3] ^= 0x40; return b },
			"first bit": func(b []byte) []byte { b[0] ^= 0x80; return b },
		} {
			at := snapshot(t, dir)
			path := filepath.Join(at, "badger", name)
			if _, err := os.Stat(path); err != nil {
				matches := glob(t, at, "badger/*"+filepath.Ext(name))
				if len(matches) == 0 {
					t.Fatal(err)
				}
				path = matches[len(matches)-1]
			}
			edit(t, path, fn)
			t.Logf("%s %s: dropped %v", name, how, wantRightOrDropped(t, at, c))
		}
	}
}

// A damaged side file alone is written anew; a damaged state alone is set aside; both refuse. Checked: with the refusal taken
// out, the catalog comes up with a zero witness: it has forgotten what the log once held.
func TestSideFileDamage(t *testing.T) {
	dir, c := damageable(t)
	breakState := func(at string) {
		edit(t, filepath.Join(at, "badger", badger.ManifestFilename), func([]byte) []byte { return []byte("nonsense") })
	}
	for how, fn := range map[string]func([]byte) []byte{
		"emptied": func([]byte) []byte { return nil },
		"cut":     func(b []byte) []byte { return b[:len(b)-1] },
		"flipped": func(b []byte) []byte { b[40] ^= 1; return b },
		"kind":    func(b []byte) []byte { b[0] ^= 1; return b },
	} {
		at := snapshot(t, dir)
		edit(t, filepath.Join(at, sideName), fn)
		if wantRightOrDropped(t, at, c) {
			t.Errorf("%s: the state was dropped for the side file's sake", how)
		}
		if s, err := readSide(at); err != nil || s.card != c.card || newer(c.Witness(), s.witness) {
			t.Errorf("%s: written anew as %+v, %v", how, s, err)
		}

		edit(t, filepath.Join(at, sideName), fn)
		breakState(at)
		if got, err := Open(at, nodeA, quiet); !errors.Is(err, ErrNoWitness) {
			t.Errorf("%s: both damaged: %v, %v", how, got, err)
		}
	}
	gone := snapshot(t, dir)
	breakState(gone)
	if err := os.Remove(filepath.Join(gone, sideName)); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(gone, nodeA, quiet); !errors.Is(err, ErrNoWitness) {
		t.Errorf("no side file and a damaged state: %v", err)
	}
	// A state whose log is gone altogether looks like a new one, but there is a directory: no new identity may come of it.
	for _, path := range append(glob(t, gone, "badger/*.mem"), glob(t, gone, "badger/*.sst")...) {
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Remove(filepath.Join(gone, "badger", badger.ManifestFilename)); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(gone, nodeA, quiet); !errors.Is(err, ErrNoWitness) {
		t.Errorf("no side file and an emptied state: %v", err)
	}

	breakState(dir)
	if !wantRightOrDropped(t, dir, c) {
		t.Error("damaged state not dropped")
	}
}
