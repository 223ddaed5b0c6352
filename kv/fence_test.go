package kv

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/allocnode/allocnode/apply"
	"github.com/allocnode/allocnode/internal/wire"
)

func storedFence(t *testing.T, c *Catalog) (Fence, bool) {
	t.Helper()
	f, ok, err := c.Fence()
	if err != nil {
		t.Fatal(err)
	}
	return f, ok
}

func TestFenceSurvives(t *testing.T) {
	dir := t.TempDir()
	c := mustOpen(t, dir)
	mustLoad(t, c, 0, 0)
	if f, ok := storedFence(t, c); ok {
		t.Fatalf("a new catalog has a fence: %+v", f)
	}
	want := Fence{Class: "log", Reason: "the log lost entries: “seq 7”\n", Epoch: 3}
	if err := c.StoreFence(want); err != nil {
		t.Fatal(err)
	}
	long := Fence{Class: "digest", Reason: strings.Repeat("\x00", 5000), Epoch: 1 << 63}
	if err := c.StoreFence(long); err != nil {
		t.Fatal(err)
	}
	if err := c.StoreFence(want); err != nil {
		t.Fatal(err)
	}
	if err := c.StoreFence(Fence{Class: strings.Repeat("x", fenceSize)}); !errors.Is(err, ErrTooLarge) {
		t.Errorf("a class of %d bytes: %v", fenceSize, err)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	c = mustOpen(t, dir)
	mustLoad(t, c, 0, 0)
	if got, ok := storedFence(t, c); !ok || got != want {
		t.Errorf("got %+v, %v", got, ok)
	}
	if err := c.ClearFence(); err != nil {
		t.Fatal(err)
	}
	if err := c.ClearFence(); err != nil {
		t.Errorf("a second time: %v", err)
	}
	if f, ok := storedFence(t, c); ok {
		t.Errorf("cleared, it is %+v", f)
	}
}

// A fence needs no room that is not there already, since a full disk is when a node may need it; and a crash before the rename
// leaves what was there before.
// Checked: with a new file in place of the reserve the fence went into other blocks.
func TestFenceTakesNoRoom(t *testing.T) {
	dir := t.TempDir()
	c := mustOpen(t, dir)
	mustLoad(t, c, 0, 0)
	reserve := filepath.Join(dir, reserveName)
	before, err := os.Stat(reserve)
	if err != nil || before.Size() != fenceSize {
		t.Fatalf("no room is kept: %v, %v", before, err)
	}
	if err := c.StoreFence(Fence{Class: "log", Reason: "why"}); err != nil {
		t.Fatal(err)
	}
	fence := filepath.Join(dir, fenceName)
	after, err := os.Stat(fence)
	if err != nil || !os.SameFile(before, after) || after.Size() != fenceSize {
		t.Errorf("the fence went into other blocks: %v, %v", after, err)
	}
	// Torn: the reserve half written, and not renamed.
	edit(t, reserve, func(b []byte) []byte { return append([]byte(`{"class":"di`), b[12:]...) })
	if f, _ := storedFence(t, c); f.Reason != "why" {
		t.Errorf("after a crash in the middle: %+v", f)
	}
	for _, tt := range []struct { // in this order: the second leaves nothing to damage
		name   string
		change func([]byte) []byte
	}{
		{"damaged", func(b []byte) []byte { b[3] = 0; return b }},
		{"empty", func([]byte) []byte { return nil }},
	} {
		edit(t, fence, tt.change)
		if f, ok := storedFence(t, c); !ok || f.Class != UnreadableFence || !strings.Contains(f.Reason, "cannot be read") {
			t.Errorf("%s: %+v, %v", tt.name, f, ok)
		}
	}
}

// The mark of a clean stop holds only for the head that it was made at.
// Checked: without the comparison with Head a commit after the mark counted as clean.
func TestClean(t *testing.T) {
	dir := t.TempDir()
	c := mustOpen(t, dir)
	mustLoad(t, c, 0, 0)
	is := func(want bool, when string) {
		t.Helper()
		if c.Clean() != want {
			t.Errorf("%s: clean is %v", when, !want)
		}
	}
	is(false, "new")
	mustCommit(t, c, deltas(1, 5, 10))
	is(false, "running")
	for range 2 {
		if err := c.SetClean(true); err != nil {
			t.Fatal(err)
		}
	}
	is(true, "marked")
	mustCommit(t, c, deltas(6, 6, 10))
	is(false, "gone on")
	if err := c.SetClean(true); err != nil {
		t.Fatal(err)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	c = mustOpen(t, dir)
	mustLoad(t, c, 6, 10)
	is(true, "opened again")
	edit(t, filepath.Join(dir, cleanName), func(b []byte) []byte { b[20] ^= 1; return b })
	is(false, "damaged")
	if err := c.SetClean(false); err != nil {
		t.Fatal(err)
	}
	is(false, "taken back")
}

// of is d in a later epoch, whose log does not begin at 1.
func of(epoch, first uint64, d apply.Delta) apply.Delta {
	d.Head.Epoch, d.Head.Cursor = epoch, first-1+d.Head.Cursor
	return d
}

// The state of an epoch that is over is kept beside, and that of the next begins where its log does.
// Checked: with the jump in merge allowed beside a state, the gap was committed.
func TestArchive(t *testing.T) {
	dir := t.TempDir()
	c := mustOpen(t, dir)
	mustLoad(t, c, 0, 0)
	mustCommit(t, c, deltas(1, 5, 10))
	id, old := c.ID(), c.Witness()
	if c.Archived(old.Epoch) {
		t.Fatal("archived before")
	}
	const first = 1_000_000
	next := apply.Head{ClusterID: old.ClusterID, Epoch: old.Epoch + 1, Cursor: first, Digest: headAt(1).Digest}
	if err := c.Archive(next); err != nil {
		t.Fatal(err)
	}
	if !c.Archived(old.Epoch) || c.Head() != (apply.Head{}) || c.Witness() != next || c.ID() != id {
		t.Errorf("archived %v, head %+v, witness %+v, id %s", c.Archived(old.Epoch), c.Head(), c.Witness(), c.ID())
	}
	// Before anything was committed the next start knows of that log.
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	c = mustOpen(t, dir)
	mustLoad(t, c, 0, 0)
	if c.Witness() != next {
		t.Errorf("opened again, the witness is %+v", c.Witness())
	}
	if err := c.Commit([]apply.Delta{of(old.Epoch+1, first, deltaAt(1, 10)), of(old.Epoch+1, first, deltaAt(2, 10))}); err != nil {
		t.Fatal(err)
	}
	if w := c.Witness(); w.Epoch != old.Epoch+1 || w.Cursor != first+1 {
		t.Errorf("witness %+v", w)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	c = mustOpen(t, dir)
	if h, _, err := load(t, c); err != nil || h.Cursor != first+1 {
		t.Errorf("loaded %+v, %v", h, err)
	}
	if err := c.Commit([]apply.Delta{of(old.Epoch+1, first, deltaAt(4, 10))}); err == nil {
		t.Error("a gap was committed")
	}
	next.Epoch++
	if err := c.Archive(next); err != nil { // a second time
		t.Fatal(err)
	}
	if err := c.Commit([]apply.Delta{of(old.Epoch, first, deltaAt(1, 10))}); err == nil {
		t.Error("an older epoch was committed")
	}
	if n := len(glob(t, dir, "badger.epoch-*")); n != 2 {
		t.Errorf("%d states are archived", n)
	}
	fresh := mustOpen(t, t.TempDir())
	mustLoad(t, fresh, 0, 0)
	if err := fresh.Archive(next); err != nil || fresh.Witness() != next || fresh.Archived(0) {
		t.Errorf("of a new catalog: %v, witness %+v", err, fresh.Witness())
	}
	fresh = mustOpen(t, t.TempDir())
	mustLoad(t, fresh, 0, 0)
	if err := fresh.Commit([]apply.Delta{of(1, first, deltaAt(1, 10))}); err == nil {
		t.Error("an ordinary log began at another seq than 1")
	}
}

// A state that other nodes contradict is rebuilt past the place where it was another.
// Checked: with the witness's digest left as it was, the rebuilt state could not be committed.
func TestDistrust(t *testing.T) {
	c := mustOpen(t, t.TempDir())
	mustLoad(t, c, 0, 0)
	wrong := deltas(1, 5, 10)
	wrong[4].Head.Digest = wire.Digest{0xBA, 0xD}
	mustCommit(t, c, wrong)
	if err := c.Distrust(os.ErrInvalid); err != nil {
		t.Fatal(err)
	}
	if w := c.Witness(); w.Cursor != 5 || w.Digest != (wire.Digest{}) || c.Head() != (apply.Head{}) {
		t.Errorf("witness %+v, head %+v", w, c.Head())
	}
	mustCommit(t, c, deltas(1, 7, 10))
	if w := c.Witness(); w.Cursor != 7 || w.Digest != headAt(7).Digest {
		t.Errorf("witness %+v", w)
	}
}
