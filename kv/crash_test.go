package kv

import (
	"bufio"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/allocnode/allocnode/apply"
)

const crashSize = 900 // mean size of values: memtables turn over every 70 runs

// TestMain lets the test binary be the process that is killed.
func TestMain(m *testing.M) {
	if dir := os.Getenv("KV_CRASH_DIR"); dir != "" {
		fmt.Println("failed:", crashChild(dir))
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// crashChild commits runs of 32 for ever, and prints the cursor after each commit.
func crashChild(dir string) error {
	c, err := Open(dir, nodeA, quiet)
	if err != nil {
		return err
	}
	head, err := c.Load(func(apply.Record) error { return nil })
	if err != nil {
		return err
	}
	for at := head.Cursor + 1; ; at += 32 {
		if err := c.Commit(deltas(at, at+31, crashSize)); err != nil {
			return err
		}
		fmt.Println(at + 31)
	}
}

// After SIGKILL at any moment the state is that of a committed run, at or beyond the last one acknowledged: head and records
// belong together, and nothing is dropped.
func TestKilled(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "catalog")
	rng := rand.New(rand.NewPCG(5, 6))
	want := model{} // the oracle, at cursor upTo
	var upTo uint64
	for round := range 6 {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), "KV_CRASH_DIR="+dir)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		acked := upTo
		lines := bufio.NewScanner(out)
		for n := rng.IntN(90); lines.Scan(); n-- {
			if acked, err = strconv.ParseUint(strings.TrimSpace(lines.Text()), 10, 64); err != nil {
				t.Fatalf("child: %q", lines.Text())
			}
			if n <= 0 {
				break
			}
		}
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		for lines.Scan() { // acknowledged before the signal arrived
			if acked, err = strconv.ParseUint(lines.Text(), 10, 64); err != nil {
				t.Fatalf("child: %q", lines.Text())
			}
		}
		cmd.Wait()

		c := mustOpen(t, dir)
		head, got, err := load(t, c)
		if err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		if head.Cursor < acked || head.Cursor > acked+32 || head.Cursor%32 != 0 || head != headAt(head.Cursor) {
			t.Fatalf("round %d: head %+v, acknowledged %d", round, head, acked)
		}
		want.apply(deltas(upTo+1, head.Cursor, crashSize)...)
		upTo = head.Cursor
		if !maps.Equal(got, want) {
			t.Fatalf("round %d: the state is not that of cursor %d", round, upTo)
		}
		if w := c.Witness(); w != head {
			t.Fatalf("round %d: witness %+v", round, w)
		}
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if upTo < 32*100 {
		t.Errorf("only %d entries in all: no memtable turned over", upTo)
	}
}

// Random runs of random deltas, failed commits, crashes (what was not committed is gone) and clean restarts, against a map.
func TestRandomAgainstMap(t *testing.T) {
	for seed := range uint64(3) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 11))
			c := newCatalog(t)
			want, cursor := model{}, uint64(0)
			for range 80 {
				switch rng.IntN(12) {
				case 0: // crash, with a run built and not committed
					c = mustOpen(t, snapshot(t, c.dir))
				case 1: // clean restart
					if err := c.Close(); err != nil {
						t.Fatal(err)
					}
					c = mustOpen(t, c.dir)
				default:
					var run []apply.Delta
					for range 1 + rng.IntN(20) {
						d := apply.Delta{Head: headAt(cursor + uint64(len(run)) + 1)}
						for range rng.IntN(8) {
							r := apply.Record{Key: fmt.Appendf(nil, "%d", rng.IntN(40))}
							if rng.IntN(3) > 0 {
								r.Value = make([]byte, rng.IntN(3)*rng.IntN(400))
								for i := range r.Value {
									r.Value[i] = byte(rng.Uint32())
								}
							}
							d.Records = append(d.Records, r)
						}
						run = append(run, d)
					}
					mustCommit(t, c, run)
					want.apply(run...)
					cursor = run[len(run)-1].Head.Cursor
					continue
				}
				head, got, err := load(t, c)
				if err != nil || head != headAt(cursor) || !maps.Equal(got, want) {
					t.Fatalf("head %+v, want cursor %d; %d records, want %d; %v", head, cursor, len(got), len(want), err)
				}
			}
		})
	}
}
