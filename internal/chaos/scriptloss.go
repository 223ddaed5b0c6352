//go:build linux

package chaos

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/allocnode/allocnode/internal/chaos/lab"
)

// lossScripts take away what a quorum had acknowledged.
var lossScripts = []script{
	{"wal-cut-beside-lagging", playLostTail(func(path string, size, _ int64) error { return os.Truncate(path, size) })},
	{"wal-flipped-beside-lagging", playLostTail(flipBehind)},
	{"wiped-beside-lagging", playWipedBesideLagging},
	{"two-rolled-back", playTwoRolledBack},
	{"stream-deleted", playStream("$JS.API.STREAM.DELETE.", false)},
	{"stream-recreated", playStream("$JS.API.STREAM.DELETE.", true)},
	{"stream-purged", playStream("$JS.API.STREAM.PURGE.", false)},
	{"block-flipped-then-replay", playBlockFlipped},
	{"catalog-zeroed", playDamagedCatalog(func(n *lab.Node) error { return killAll(n) }, "*.mem", zeroQuarter)},
	{"catalog-flipped", playDamagedCatalog(func(n *lab.Node) error { return n.Stop() }, "*.sst", flipFirstBlock)},
}

func flip(path string, at int64) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	var b [1]byte
	if _, err := f.ReadAt(b[:], at); err != nil {
		return err
	}
	b[0] ^= 1
	_, err = f.WriteAt(b[:], at)
	return err
}

// playWipedBesideLagging is the same with the whole disk gone: an empty node has no vote, so the others wait for the third.
func playWipedBesideLagging(ctx context.Context, r *rig) (string, error) {
	b := &book{r: r}
	l, err := lag(ctx, r, b)
	if err != nil {
		return "", err
	}
	behind, next, third := l.behind, l.next, l.third
	if err := errors.Join(next.Disk.Wipe(ctx), startAll(behind, next)); err != nil {
		return "", err
	}
	if err := r.silent(ctx, "without the third", 12*time.Second); err != nil {
		return "", err
	}
	if err := third.Start(); err != nil {
		return "", err
	}
	refused, err := r.refused(ctx, next)
	if err != nil {
		return "", err
	}
	if err := r.forget(ctx, next); err != nil {
		return "", err
	}
	if _, err := r.healthy(ctx, gateBound); err != nil {
		return "", err
	}
	return "nobody answered without the third; then " + next.Name + " was " + refused + "; forgotten, all serve and nothing was lost",
		b.take(ctx, 10)
}

// playTwoRolledBack is beyond what can be recovered: a majority is put back to an older state while the third is down. What
// they issue meanwhile may have been issued; once the third is there, all must know it.
func playTwoRolledBack(ctx context.Context, r *rig) (string, error) {
	b := &book{r: r}
	if err := r.startNodes(ctx); err != nil {
		return "", err
	}
	if err := b.take(ctx, 20); err != nil {
		return "", err
	}
	if err := stopAll(r.lab.Nodes...); err != nil {
		return "", err
	}
	two, third := r.lab.Nodes[:2], r.lab.Nodes[2]
	for _, n := range two {
		if err := n.Disk.Save(ctx, filepath.Join(r.dir, n.Name+".backup")); err != nil {
			return "", err
		}
	}
	if err := r.startNodes(ctx); err != nil {
		return "", err
	}
	if err := b.take(ctx, 100); err != nil {
		return "", err
	}
	if err := stopAll(r.lab.Nodes...); err != nil {
		return "", err
	}
	for _, n := range two {
		backup := filepath.Join(r.dir, n.Name+".backup")
		if err := errors.Join(n.Disk.Restore(ctx, backup), os.Remove(backup)); err != nil {
			return "", err
		}
	}
	if err := startAll(two...); err != nil {
		return "", err
	}
	// They go on from the old state, and cannot know better.
	again := &book{r: r, n: b.n}
	if err := again.take(ctx, 5); err != nil {
		return "", err
	}
	if again.end >= b.end {
		return "", fmt.Errorf("the two go on at %d, behind %d: they were not rolled back", again.end, b.end)
	}
	if err := third.Start(); err != nil {
		return "", err
	}
	seen, err := r.fenced(ctx, r.lab.Nodes...)
	if err != nil {
		return "", err
	}
	return seen, r.silent(ctx, "when fenced", 2*time.Second)
}

// playStream does what an operator with the log account's credentials could: JetStream's API on the stream itself.
func playStream(api string, again bool) func(context.Context, *rig) (string, error) {
	return func(ctx context.Context, r *rig) (string, error) {
		b := &book{r: r}
		if err := r.startNodes(ctx); err != nil {
			return "", err
		}
		if err := b.take(ctx, 50); err != nil {
			return "", err
		}
		if err := r.obs.StreamAPI(api, again); err != nil {
			return "", err
		}
		var first answer
		err := until(ctx, gateBound, "nobody serves", func() (err error) {
			all, err := r.statuses()
			if err != nil {
				return err
			}
			for _, s := range all {
				if s.Ready {
					if a, err := r.reserve("after the API call", 500*time.Millisecond); err == nil {
						first = a
					}
					return fmt.Errorf("%s serves", s.Name)
				}
			}
			return nil
		})
		if err != nil {
			return "", err
		}
		if first.End != 0 && first.Start < b.end {
			return "", fmt.Errorf("ids issued twice: [%d, %d), and ids up to %d had been issued", first.Start, first.End, b.end-1)
		}
		seen, err := r.fenced(ctx, r.lab.Nodes...)
		if err != nil {
			return "", err
		}
		return seen, r.silent(ctx, "when fenced", 2*time.Second)
	}
}

// playDamagedCatalog damages the catalog of one node, whose log is whole: it must find that out and go back to the log.
func playDamagedCatalog(stop func(n *lab.Node) error, files string, damage func(data []byte) (string, error)) func(
	context.Context, *rig) (string, error) {
	return func(ctx context.Context, r *rig) (string, error) {
		b := &book{r: r}
		if err := r.startNodes(ctx); err != nil {
			return "", err
		}
		if err := b.take(ctx, 300); err != nil {
			return "", err
		}
		if _, err := r.drained(ctx); err != nil {
			return "", err
		}
		n := r.lab.Nodes[1]
		if err := stop(n); err != nil {
			return "", err
		}
		before, err := r.copyOfCatalog(n)
		if err != nil {
			return "", err
		}
		paths, err := filepath.Glob(filepath.Join(n.DataDir(), "catalog", "badger", files))
		if err != nil || len(paths) == 0 {
			return "", fmt.Errorf("%s of %s: %d files, %w", files, n.Name, len(paths), err)
		}
		path := paths[len(paths)-1]
		data, err := os.ReadFile(path)
		if err != nil {
			return "", err
		}
		what, err := damage(data)
		if err == nil {
			err = os.WriteFile(path, data, 0o600)
		}
		if err != nil {
			return "", fmt.Errorf("damage %s: %w", filepath.Base(path), err)
		}
		effect := ""
		switch after, err := r.copyOfCatalog(n); {
		case err != nil:
			effect = err.Error()
		case after.Cursor < before.Cursor:
			effect = fmt.Sprintf("its cursor fell from %d to %d", before.Cursor, after.Cursor)
		default:
			return "", fmt.Errorf("%s of %s: %s, without an effect", filepath.Base(path), n.Name, what)
		}
		if err := n.Start(); err != nil {
			return "", err
		}
		if _, err := r.healthy(ctx, gateBound); err != nil {
			return "", err
		}
		if err := b.take(ctx, 20); err != nil {
			return "", err
		}
		if _, err := r.drained(ctx); err != nil {
			return "", err
		}
		all, err := r.statuses()
		if err != nil {
			return "", err
		}
		for _, s := range all {
			if s.Digest != all[n.Name].Digest || s.Cursor != all[n.Name].Cursor {
				return "", fmt.Errorf("%s has digest %s at %d, %s has %s at %d",
					s.Name, s.Digest, s.Cursor, n.Name, all[n.Name].Digest, all[n.Name].Cursor)
			}
		}
		return fmt.Sprintf("%s: %s (%s); all digests are equal at seq %d", filepath.Base(path), what, effect, all[n.Name].Cursor), nil
	}
}

// zeroQuarter takes out a part behind the beginning, which badger's memtable log opens without an error.
func zeroQuarter(data []byte) (string, error) {
	used := len(data)
	for used > 0 && data[used-1] == 0 {
		used--
	}
	if used < 1000 {
		return "", fmt.Errorf("only %d bytes are in use", used)
	}
	clear(data[used/4 : used/2])
	return fmt.Sprintf("bytes %d to %d of %d zeroed", used/4, used/2, used), nil
}

// flipFirstBlock flips a bit in the first block of a table, in a value.
func flipFirstBlock(data []byte) (string, error) {
	const at = 100
	if len(data) < 2*at {
		return "", fmt.Errorf("only %d bytes", len(data))
	}
	data[at] ^= 1
	return fmt.Sprintf("a bit of byte %d of %d flipped", at, len(data)), nil
}

// playBlockFlipped has one replica lose a message in the middle of its store. It leads then, and a node whose disk was wiped
// gets the log from it. What that node cannot know it must not pass over: either it comes to the same digest, or it says why
// it does not serve.
func playBlockFlipped(ctx context.Context, r *rig) (string, error) {
	b := &book{r: r}
	if err := r.startNodes(ctx); err != nil {
		return "", err
	}
	if err := b.take(ctx, 200); err != nil {
		return "", err
	}
	broken, wiped := r.lab.Nodes[0], r.lab.Nodes[2]
	if err := broken.Stop(); err != nil {
		return "", err
	}
	blocks, err := filepath.Glob(filepath.Join(broken.DataDir(), "jetstream", "ALLOC", "streams", "ALLOC_LOG", "msgs", "*.blk"))
	if err != nil || len(blocks) == 0 {
		return "", fmt.Errorf("blocks of %s: %d, %w", broken.Name, len(blocks), err)
	}
	data, err := os.ReadFile(blocks[0])
	if err != nil {
		return "", err
	}
	// Inside of an entry. In a record's head, where its seq stands, one bit can keep nats-server counting for years when it
	// opens the block; that node never answers, and needs an empty disk.
	entry := bytes.Index(data[len(data)/2:], []byte{0xA1, 0x0C, 1})
	if entry < 0 {
		return "", fmt.Errorf("no entry in the second half of %s of %s", filepath.Base(blocks[0]), broken.Name)
	}
	if err := errors.Join(flip(blocks[0], int64(len(data)/2+entry+30)), broken.Start()); err != nil {
		return "", err
	}
	if _, err := r.healthy(ctx, gateBound); err != nil {
		return "", err
	}
	err = until(ctx, gateBound, broken.Name+" leads", func() error {
		if now, _, err := r.obs.StreamLeader(); err != nil || now == broken.Name {
			return err
		}
		return errors.Join(r.obs.StepDown(broken.Name), errors.New("not yet"))
	})
	if err != nil {
		return "", err
	}
	_, end, err := r.obs.StreamLeader()
	if err != nil {
		return "", err
	}
	lacks, err := r.obs.LeaderLacks(end)
	if err == nil && len(lacks) == 0 {
		err = fmt.Errorf("%s has every message: the flipped bit had no effect", broken.Name)
	}
	if err != nil {
		return "", err
	}
	if err := errors.Join(killAll(wiped), wiped.Disk.Wipe(ctx), wiped.Start()); err != nil {
		return "", err
	}
	if _, err := r.refused(ctx, wiped); err != nil {
		return "", fmt.Errorf("before forget: %w", err)
	}
	if err := r.forget(ctx, wiped); err != nil {
		return "", err
	}
	if err := b.take(ctx, 20); err != nil {
		return "", err
	}
	_, unwell := r.healthy(ctx, 20*time.Second)
	if err := b.take(ctx, 20); err != nil {
		return "", err
	}
	if unwell != nil {
		return fmt.Sprintf("%s leads and lacks %v; %s does not serve: %v", broken.Name, lacks, wiped.Name, unwell), nil
	}
	last, err := r.drained(ctx)
	if err != nil {
		return "", err
	}
	log, err := r.readLog(ctx, last)
	if err != nil {
		return "", err
	}
	all, err := r.statuses()
	if err != nil {
		return "", err
	}
	for _, s := range all {
		if s.Digest != log.Digest(s.Cursor) {
			return "", fmt.Errorf("%s has digest %s at %d, the reference %s", s.Name, s.Digest, s.Cursor, log.Digest(s.Cursor))
		}
	}
	return fmt.Sprintf("%s leads and lacks %v; all serve with the reference's digest at %d", broken.Name, lacks, last), nil
}
