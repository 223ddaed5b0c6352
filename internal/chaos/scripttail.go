//go:build linux

package chaos

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/allocnode/allocnode/internal/chaos/history"
	"github.com/allocnode/allocnode/internal/chaos/lab"
	"github.com/allocnode/allocnode/internal/wire"
)

// lagging is three nodes, none of which runs: one is behind by 100 entries, the next one and the third are not.
type lagging struct {
	behind, next, third *lab.Node
	wal, store          map[string]int64 // files of next, and their sizes when behind was stopped
	held                wire.Status      // of the third, at its end
}

// filesOf is the size of each file of a node that matches a pattern below its JetStream directory. None is an error.
func filesOf(n *lab.Node, pattern ...string) (map[string]int64, error) {
	files, err := filepath.Glob(filepath.Join(append([]string{n.DataDir(), "jetstream"}, pattern...)...))
	if err != nil || len(files) == 0 {
		return nil, fmt.Errorf("%s of %s: %d files, %w", filepath.Join(pattern...), n.Name, len(files), err)
	}
	sizes := map[string]int64{}
	for _, f := range files {
		info, err := os.Stat(f)
		if err != nil {
			return nil, err
		}
		sizes[f] = info.Size()
	}
	return sizes, nil
}

// walFiles is the log's raft WAL on a node.
func walFiles(n *lab.Node) (map[string]int64, error) {
	return filesOf(n, "$SYS", "_js_", "S-*", "msgs", "*.blk")
}

// storeFiles is the stream's own messages on a node. nats-server 2.14 syncs them for each message, 2.15 before each raft
// snapshot; after an unclean end, 2.15 takes back what lies behind the snapshot and reads the WAL again, 2.14 keeps it all.
func storeFiles(n *lab.Node) (map[string]int64, error) {
	return filesOf(n, "ALLOC", "streams", "ALLOC_LOG", "msgs", "*.blk")
}

// lag lets 100 reservations go by a node that is stopped.
func lag(ctx context.Context, r *rig, b *book) (l *lagging, err error) {
	l = &lagging{}
	if err := r.startNodes(ctx); err != nil {
		return nil, err
	}
	if err := b.take(ctx, 20); err != nil {
		return nil, err
	}
	if l.third, err = r.leader(ctx); err != nil {
		return nil, err
	}
	l.behind, l.next = r.others(l.third)[0], r.others(l.third)[1]
	if err := l.behind.Stop(); err != nil {
		return nil, err
	}
	if l.wal, err = walFiles(l.next); err != nil {
		return nil, err
	}
	if l.store, err = storeFiles(l.next); err != nil {
		return nil, err
	}
	if err := b.take(ctx, 100); err != nil {
		return nil, err
	}
	err = until(ctx, gateBound, "the third has applied what was answered", func() error {
		all, err := r.statuses()
		if err != nil {
			return err
		}
		if l.held = all[l.third.Name]; l.held.Cursor < b.seq {
			return fmt.Errorf("%s stands at %d, seq %d was answered", l.third.Name, l.held.Cursor, b.seq)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return l, killAll(l.next, l.third)
}

// flipBehind flips a bit in what a file has grown by since it had a size.
func flipBehind(path string, size, now int64) error {
	if size == now {
		return nil
	}
	return flip(path, size+min(40, (now-size)/2))
}

// spoil damages the WAL of the next node, and takes the same end off the stream's store. Without the second, nothing is lost
// with a nats-server that keeps its store over an unclean end. The index goes too: it is made anew from what is there.
func (l *lagging) spoil(damage func(path string, size, now int64) error) (lost int64, err error) {
	wal, err := walFiles(l.next)
	if err != nil {
		return 0, err
	}
	for path, now := range wal {
		lost += now - l.wal[path]
		if err := damage(path, l.wal[path], now); err != nil {
			return 0, err
		}
	}
	if lost <= 0 {
		return 0, fmt.Errorf("the WAL of %s had not grown", l.next.Name)
	}
	store, err := storeFiles(l.next)
	if err != nil {
		return 0, err
	}
	for path := range store {
		if err := os.Truncate(path, l.store[path]); err != nil {
			return 0, err
		}
		index := filepath.Join(filepath.Dir(path), "index.db")
		if err := os.Remove(index); err != nil && !errors.Is(err, os.ErrNotExist) {
			return 0, err
		}
	}
	return lost, nil
}

// playLostTail is the execution in which the log is lost: one node is behind by 100 entries, the next one loses the end of
// what it had, the third is down. A bare nats-server then writes the same seqs anew, and the third's copy is overwritten.
func playLostTail(damage func(path string, size, now int64) error) func(context.Context, *rig) (string, error) {
	return func(ctx context.Context, r *rig) (string, error) {
		b := &book{r: r}
		l, err := lag(ctx, r, b)
		if err != nil {
			return "", err
		}
		t := &tail{issued: b.end, held: l.held}
		lost, err := l.spoil(damage)
		if err != nil {
			return "", err
		}
		if err := startAll(l.behind, l.next); err != nil {
			return "", err
		}
		if t.answers, err = r.answersWithin(ctx, 12*time.Second); err != nil {
			return "", err
		}
		if err := l.third.Start(); err != nil {
			return "", err
		}
		if err := r.settled(ctx, t); err != nil {
			return "", err
		}
		if len(t.fenced()) == 0 {
			for _, a := range t.answers {
				b.end = max(b.end, a.End)
			}
			if err := b.take(ctx, 10); err != nil {
				return "", err
			}
			last, err := r.drained(ctx)
			if err != nil {
				return "", err
			}
			if t.log, err = r.readLog(ctx, last); err != nil {
				return "", err
			}
			if t.after, err = r.statuses(); err != nil {
				return "", err
			}
		}
		seen, err := t.judge(names3(r))
		if err != nil {
			return "", err
		}
		seen = fmt.Sprintf("damage in %d bytes of WAL of %s: %s", lost, l.next.Name, seen)
		if len(t.fenced()) == 0 {
			return seen, nil
		}
		return seen, r.silent(ctx, "when fenced", 2*time.Second)
	}
}

func names3(r *rig) (all []string) {
	for _, n := range r.lab.Nodes {
		all = append(all, n.Name)
	}
	return all
}

// answersWithin asks for a time, under one key after the other, and returns what was answered.
func (r *rig) answersWithin(ctx context.Context, d time.Duration) (got []answer, err error) {
	for end := time.Now().Add(d); time.Now().Before(end); {
		if a, err := r.reserve(fmt.Sprintf("meanwhile-%d", len(got)), time.Until(end)); err == nil {
			got = append(got, a)
		}
		if err := hold(ctx, 100*time.Millisecond); err != nil {
			return got, err
		}
	}
	return got, nil
}

// settled waits until all nodes are fenced, or all serve at one cursor.
func (r *rig) settled(ctx context.Context, t *tail) error {
	return until(ctx, gateBound, "all are fenced, or all agree", func() (err error) {
		if t.after, err = r.statuses(); err != nil {
			return err
		}
		if n := len(t.after); n != len(r.lab.Nodes) {
			return fmt.Errorf("%d nodes answer", n)
		}
		ready, cursors := 0, map[uint64]bool{}
		for _, s := range t.after {
			if s.Ready {
				ready++
			}
			cursors[s.Cursor] = true
		}
		if len(t.fenced()) == len(t.after) || ready == len(t.after) && len(cursors) == 1 {
			return nil
		}
		return fmt.Errorf("%s", t.states())
	})
}

// tail is what was seen of a log whose end was damaged on one node, while another was behind and the third was down.
type tail struct {
	issued  uint64                 // end of what had been issued before
	held    wire.Status            // of the third before its end: it had applied all that was answered
	answers []answer               // given while the third was down, in order
	after   map[string]wire.Status // by name, when the third was back
	log     *history.Log           // read afterwards, by the reference; nil where all are fenced
}

func (t *tail) fenced() (said []string) {
	for _, name := range sorted(t.after) {
		if s := t.after[name]; s.State == wire.StateFenced {
			said = append(said, name+" is fenced: "+s.Reason)
		}
	}
	return said
}

func (t *tail) states() string {
	var all []string
	for _, name := range sorted(t.after) {
		s := t.after[name]
		all = append(all, fmt.Sprintf("%s is %s at %d %s", name, s.State, s.Cursor, s.Reason))
	}
	return strings.Join(all, "; ")
}

// judge says which of two things happened, and whether it may. Where the log lost entries nobody has answered and all are
// fenced, with proof against the log. Else the log still has what the third had applied, by the reference's digest at its
// cursor, all agree with the reference, and whoever answered meanwhile gave ids above all that had been issued.
func (t *tail) judge(nodes []string) (what string, err error) {
	end := t.issued
	for _, a := range t.answers {
		if a.Start < end || a.End <= a.Start {
			return "", fmt.Errorf("ids issued twice: somebody answered with [%d, %d), and ids up to %d had been issued", a.Start, a.End, end-1)
		}
		end = a.End
	}
	for _, name := range nodes {
		if _, ok := t.after[name]; !ok {
			return "", fmt.Errorf("%s does not answer: %s", name, t.states())
		}
	}
	fenced := t.fenced()
	switch {
	case len(fenced) == len(nodes) && len(t.answers) > 0:
		return "", fmt.Errorf("somebody answered with [%d, %d), who could not know what was issued: then %s",
			t.answers[0].Start, t.answers[0].End, strings.Join(fenced, "; "))
	case len(fenced) == len(nodes):
		if i := slices.IndexFunc(fenced, func(s string) bool { return !strings.Contains(s, "is fenced: the log ") }); i >= 0 {
			return "", fmt.Errorf("not the true reason: %s", fenced[i])
		}
		return "ENTRIES WERE LOST; nobody answered; " + strings.Join(fenced, "; "), nil
	case t.log == nil:
		return "", fmt.Errorf("neither all are fenced nor all agree: %s", t.states())
	case t.held.Cursor == 0 || t.held.Cursor > t.log.Last || t.log.Digest(t.held.Cursor) != t.held.Digest:
		return "", fmt.Errorf("the log lost what was there up to seq %d, and not all are fenced: %s", t.held.Cursor, t.states())
	}
	for _, name := range nodes {
		s := t.after[name]
		if !s.Ready || s.Cursor != t.log.Last || s.Digest != t.log.Digest(t.log.Last) {
			return "", fmt.Errorf("nothing was lost, but %s is %s with digest %s at seq %d, the reference has %s at %d: %s",
				name, s.State, s.Digest, s.Cursor, t.log.Digest(t.log.Last), t.log.Last, s.Reason)
		}
	}
	return fmt.Sprintf("NOTHING WAS LOST, so this proves nothing about a loss; %d answers meanwhile, each above all that had been issued; "+
		"all agree with the reference at seq %d and go on", len(t.answers), t.log.Last), nil
}
