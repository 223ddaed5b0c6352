//go:build linux

package chaos

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/allocnode/allocnode/internal/chaos/lab"
)

// refusedName is what a node says whose catalog is not the one that its name is registered with.
const refusedName = "registered with another catalog"

var dataKinds = []kind{
	{
		name: "disk-wiped", least: time.Second, most: 3 * time.Second,
		plan: onOne(
			func(ctx context.Context, r *rig, n *lab.Node, _ *rand.Rand) (string, error) {
				if _, err := n.Kill(); err != nil {
					return "", err
				}
				if err := n.Disk.Wipe(ctx); err != nil {
					return "", err
				}
				if err := n.Start(); err != nil {
					return "", err
				}
				return r.refused(ctx, n)
			},
			func(ctx context.Context, r *rig, n *lab.Node, _ *rand.Rand) (string, error) {
				return "", r.forget(ctx, n)
			}),
	},
	{
		name: "bit-flipped", least: time.Second, most: 2 * time.Second,
		plan: planDamage(func(rnd *rand.Rand, f *os.File, size int64) (string, error) {
			at := rnd.Int64N(size)
			var b [1]byte
			if _, err := f.ReadAt(b[:], at); err != nil {
				return "", err
			}
			b[0] ^= 1 << rnd.IntN(8)
			_, err := f.WriteAt(b[:], at)
			return fmt.Sprintf("a bit of byte %d of %d flipped", at, size), err
		}),
	},
	{
		name: "file-truncated", least: time.Second, most: 2 * time.Second,
		plan: planDamage(func(rnd *rand.Rand, f *os.File, size int64) (string, error) {
			to := rnd.Int64N(size)
			return fmt.Sprintf("cut from %d to %d bytes", size, to), f.Truncate(to)
		}),
	},
	{
		name: "old-backup", least: 2 * time.Second, most: 4 * time.Second,
		plan: func(_ context.Context, r *rig, rnd *rand.Rand) (*fault, error) {
			n := r.some(rnd)
			backup := filepath.Join(r.dir, n.Name+".backup")
			var saved, before uint64 // cursors
			return &fault{
				target: n.Name,
				begin: func(ctx context.Context) (string, error) {
					if err := n.Stop(); err != nil {
						return "", err
					}
					rep, err := r.copyOfCatalog(n)
					saved = rep.Cursor
					return "", errors.Join(err, n.Disk.Save(ctx, backup), n.Start())
				},
				heal: func(ctx context.Context) (string, error) {
					err := until(ctx, gateBound, n.Name+" has applied more than its backup holds", func() error {
						all, err := r.statuses()
						if before = all[n.Name].Cursor; err == nil && before <= saved {
							err = fmt.Errorf("it says seq %d, saved was %d", before, saved)
						}
						return err
					})
					if err != nil {
						return "", err
					}
					if err := n.Stop(); err != nil {
						return "", err
					}
					if err := errors.Join(n.Disk.Restore(ctx, backup), os.Remove(backup)); err != nil {
						return "", err
					}
					then, err := r.catalog(n)
					if err == nil && then.Cursor >= before {
						err = fmt.Errorf("old backup of %s: its cursor is %d, not below %d", n.Name, then.Cursor, before)
					}
					if err != nil {
						return "", err
					}
					return fmt.Sprintf("%s was at seq %d, and was put back to %d", n.Name, before, then.Cursor), n.Start()
				},
			}, nil
		},
	},
	{
		name: "directory-cloned", least: 3 * time.Second, most: 5 * time.Second,
		plan: func(_ context.Context, r *rig, rnd *rand.Rand) (*fault, error) {
			n, twin := r.some(rnd), r.lab.Extra[0]
			backup := filepath.Join(r.dir, n.Name+".clone")
			f := planTwin(r, n, twin, func(ctx context.Context) error {
				if err := n.Stop(); err != nil {
					return err
				}
				return errors.Join(n.Disk.Save(ctx, backup), twin.Disk.Restore(ctx, backup), os.Remove(backup), n.Start())
			})
			return f, nil
		},
	},
	{
		name: "name-duplicated", least: 3 * time.Second, most: 5 * time.Second,
		plan: func(_ context.Context, r *rig, rnd *rand.Rand) (*fault, error) {
			n, twin := r.some(rnd), r.lab.Extra[0]
			return planTwin(r, n, twin, twin.Disk.Wipe), nil
		},
	},
}

// refused waits until a node says that its name belongs to another catalog.
func (r *rig) refused(ctx context.Context, n *lab.Node) (proof string, err error) {
	err = until(ctx, gateBound, n.Name+" is refused", func() error {
		all, err := r.statuses()
		if err != nil {
			return err
		}
		s := all[n.Name]
		if s.Ready {
			return fmt.Errorf("%s serves with a catalog that was never registered", n.Name)
		}
		if !strings.Contains(s.Reason, refusedName) {
			return fmt.Errorf("%s is %s: %s", n.Name, s.State, s.Reason)
		}
		proof = s.State + ": " + s.Reason
		return nil
	})
	return proof, err
}

// forget tells the cluster that the node's old catalog is gone, as an operator would.
func (r *rig) forget(ctx context.Context, n *lab.Node) error {
	return until(ctx, gateBound, "forget "+n.Name, func() error {
		b, err := r.obs.Request("alloc.forget."+n.Name, "", 5*time.Second)
		if err == nil && strings.Contains(string(b), `"error"`) {
			err = errors.New(string(b))
		}
		return err
	})
}

// unfence lifts the fence that a stopped node has stored, as an operator may once the copy of it has ended. Where none is
// stored there is nothing to say.
func (r *rig) unfence(ctx context.Context, n *lab.Node) (lifted string, err error) {
	_, err = n.Command(ctx, "recover", "unfence", "--i-know", "the reason is gone")
	switch {
	case err == nil:
		return "; the fence that it had stored was lifted", nil
	case strings.Contains(err.Error(), n.Name+" is not fenced"):
		return "", nil
	}
	return "", err
}

// planDamage damages one file of a stopped node. What comes of it is the node's to find out: it serves again, or it refuses
// and is given an empty disk, as an operator would do with a broken one.
func planDamage(damage func(rnd *rand.Rand, f *os.File, size int64) (string, error)) func(
	context.Context, *rig, *rand.Rand) (*fault, error) {
	return onOne(
		func(_ context.Context, r *rig, n *lab.Node, rnd *rand.Rand) (string, error) {
			// Stopped in order, its snapshots are written: damage is not simply overwritten by a replay of the WAL.
			if err := n.Stop(); err != nil {
				return "", err
			}
			path, err := pickFile(n.DataDir(), rnd)
			if err != nil {
				return "", err
			}
			f, err := os.OpenFile(path, os.O_RDWR, 0)
			if err != nil {
				return "", err
			}
			defer f.Close()
			info, err := f.Stat()
			if err != nil {
				return "", err
			}
			what, err := damage(rnd, f, info.Size())
			rel, _ := filepath.Rel(n.DataDir(), path)
			return rel + ": " + what, err
		},
		func(ctx context.Context, r *rig, n *lab.Node, _ *rand.Rand) (string, error) {
			if err := n.Start(); err != nil {
				return "", err
			}
			_, unwell := r.healthy(ctx, damageBound)
			if unwell == nil {
				return "the node serves again", nil
			}
			if n.Running() {
				if _, err := n.Kill(); err != nil {
					return "", err
				}
			}
			if err := n.Disk.Wipe(ctx); err != nil {
				return "", err
			}
			if err := n.Start(); err != nil {
				return "", err
			}
			if _, err := r.refused(ctx, n); err != nil {
				return "", err
			}
			return fmt.Sprintf("the node got an empty disk, since it did not serve (%v)", unwell), r.forget(ctx, n)
		})
}

// damageBound is how long a node with a damaged file may take until it counts as broken.
const damageBound = 15 * time.Second

// pickFile picks a file that is not empty.
func pickFile(dir string, rnd *rand.Rand) (string, error) {
	var files []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		info, err := d.Info()
		if err == nil && info.Size() > 0 {
			files = append(files, path)
		}
		return err
	})
	if err != nil || len(files) == 0 {
		return "", fmt.Errorf("pick a file of %s: %d to choose from, %w", dir, len(files), err)
	}
	return files[rnd.IntN(len(files))], nil
}

// planTwin runs a second node under n's name, beside it. Only one of the two may serve, and each message that the twin
// gets says so; afterwards n must be well, if need be by a restart, and by an operator who lifts the fence that it stored.
func planTwin(r *rig, n, twin *lab.Node, prepare func(context.Context) error) *fault {
	var twinMark, mark int64
	return &fault{
		target: n.Name,
		begin: func(ctx context.Context) (string, error) {
			if err := prepare(ctx); err != nil {
				return "", err
			}
			if err := twin.ConfigureAs(n.Name, r.lab.Nodes); err != nil {
				return "", err
			}
			twinMark, mark = logMark(twin), logMark(n)
			return "", twin.Start()
		},
		heal: func(ctx context.Context) (string, error) {
			var said []string
			for _, m := range []struct {
				node *lab.Node
				mark int64
				name string
			}{{n, mark, n.Name}, {twin, twinMark, "its twin"}} {
				for _, text := range []string{refusedName, "another process runs", "uplicate", "fenced"} {
					if line := logged(m.node, m.mark, text); line != "" {
						said = append(said, fmt.Sprintf("%s: %q", m.name, line))
						break
					}
				}
			}
			end := "the twin was " + twin.End()
			if twin.Running() {
				if _, err := twin.Kill(); err != nil {
					return "", err
				}
			}
			if len(said) == 0 {
				return "", fmt.Errorf("two nodes named %s: neither says so (%s)", n.Name, end)
			}
			if n.Running() {
				if _, err := n.Kill(); err != nil {
					return "", err
				}
			}
			lifted, err := r.unfence(ctx, n)
			if err != nil {
				return "", err
			}
			return strings.Join(append(said, end+lifted), "; "), n.Start()
		},
	}
}
