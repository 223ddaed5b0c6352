package kv

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/allocnode/allocnode/apply"
	"github.com/allocnode/allocnode/internal/wire"
)

var (
	nodeA     = Identity{Node: "a", Clustered: true}
	clusterID = wire.ID{0: 0xc1, 15: 1}
	quiet     = slog.New(slog.DiscardHandler)
)

// headAt is the head after entry cursor of the tests' log: the genesis is entry 1.
func headAt(cursor uint64) apply.Head {
	if cursor == 0 {
		return apply.Head{}
	}
	h := apply.Head{ClusterID: clusterID, Epoch: 1, Cursor: cursor}
	binary.BigEndian.PutUint64(h.Digest[:], cursor*0x9e3779b97f4a7c15)
	return h
}

// deltaAt is entry cursor of the tests' log: five records of size bytes on 300 keys, one in ten a delete, one key twice.
func deltaAt(cursor uint64, size int) apply.Delta {
	rng := rand.New(rand.NewPCG(cursor, 7))
	d := apply.Delta{Head: headAt(cursor)}
	for range 5 {
		r := apply.Record{Key: fmt.Appendf(nil, "key-%03d", rng.IntN(300))}
		if rng.IntN(10) > 0 {
			r.Value = make([]byte, rng.IntN(2*size+1)) // some are empty, which is not a delete
			for i := range r.Value {
				r.Value[i] = byte(rng.Uint32())
			}
		}
		d.Records = append(d.Records, r)
	}
	d.Records = append(d.Records, apply.Record{Key: d.Records[0].Key, Value: fmt.Appendf(nil, "last wins %d", cursor)})
	return d
}

func deltas(first, last uint64, size int) []apply.Delta {
	var ds []apply.Delta
	for at := first; at <= last; at++ {
		ds = append(ds, deltaAt(at, size))
	}
	return ds
}

// model is the oracle: a map.
type model map[string]string

func (m model) apply(ds ...apply.Delta) {
	for _, d := range ds {
		for _, r := range d.Records {
			if r.Value == nil {
				delete(m, string(r.Key))
				continue
			}
			m[string(r.Key)] = string(r.Value)
		}
	}
}

func modelAt(cursor uint64, size int) model {
	m := model{}
	m.apply(deltas(1, cursor, size)...)
	return m
}

func mustOpen(t testing.TB, dir string) *Catalog {
	t.Helper()
	c, err := Open(dir, nodeA, quiet)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

func load(t testing.TB, c *Catalog) (apply.Head, model, error) {
	t.Helper()
	m := model{}
	head, err := c.Load(func(r apply.Record) error {
		if r.Value == nil {
			t.Errorf("record %q with a nil value", r.Key)
		}
		m[string(r.Key)] = string(r.Value)
		return nil
	})
	return head, m, err
}

func mustLoad(t testing.TB, c *Catalog, cursor uint64, size int) {
	t.Helper()
	head, got, err := load(t, c)
	if err != nil {
		t.Fatal(err)
	}
	if head != headAt(cursor) || c.Head() != head {
		t.Fatalf("head %+v, Head() %+v, want cursor %d", head, c.Head(), cursor)
	}
	if want := modelAt(cursor, size); !maps.Equal(got, want) {
		t.Fatalf("state at cursor %d: %d records, want %d, or other values", cursor, len(got), len(want))
	}
}

func mustCommit(t testing.TB, c *Catalog, ds []apply.Delta) {
	t.Helper()
	if err := c.Commit(ds); err != nil {
		t.Fatal(err)
	}
}

// newCatalog is a fresh one, loaded.
func newCatalog(t testing.TB) *Catalog {
	t.Helper()
	c := mustOpen(t, filepath.Join(t.TempDir(), "catalog"))
	if head, m, err := load(t, c); err != nil || head != (apply.Head{}) || len(m) != 0 {
		t.Fatalf("fresh: head %+v, %d records, %v", head, len(m), err)
	}
	return c
}

// snapshot copies a catalog's directory as a crash would leave it. Badger's own goroutines may flush or compact meanwhile:
// then the copy is of no one moment, and is made again.
func snapshot(t testing.TB, dir string) string {
	t.Helper()
	to := filepath.Join(t.TempDir(), "copy")
	for range 1000 {
		before := fingerprint(t, dir)
		err := copyTree(dir, to)
		if err == nil && fingerprint(t, dir) == before {
			return to
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
		if err := os.RemoveAll(to); err != nil {
			t.Fatal(err)
		}
	}
	t.Fatal("badger does not come to rest")
	return ""
}

// fingerprint is the names of the files and badger's manifest: what changes with each flush and compaction.
func fingerprint(t testing.TB, dir string) string {
	t.Helper()
	manifest, err := os.ReadFile(filepath.Join(dir, "badger", "MANIFEST"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	return fmt.Sprintf("%q %x", glob(t, dir, "badger/*"), manifest)
}

// copyTree copies; the zeroes at the end of a file become a hole.
func copyTree(dir, to string) error {
	return filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		if d.IsDir() {
			return os.MkdirAll(filepath.Join(to, rel), 0o700)
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(to, rel), bytes.TrimRight(b, "\x00"), 0o600); err != nil {
			return err
		}
		return os.Truncate(filepath.Join(to, rel), int64(len(b)))
	})
}

// edit changes a file in place.
func edit(t testing.TB, path string, fn func([]byte) []byte) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, fn(b), 0o600); err != nil {
		t.Fatal(err)
	}
}

func glob(t testing.TB, dir, pattern string) []string {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(dir, pattern))
	if err != nil {
		t.Fatal(err)
	}
	return paths
}
