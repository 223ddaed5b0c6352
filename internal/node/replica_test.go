package node

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/allocnode/allocnode/apply"
	"github.com/allocnode/allocnode/internal/wire"
	"github.com/allocnode/allocnode/jetstream"
)

// lone is a replica by itself, that notes what it tells in order.
type lone struct {
	*replica
	f     *fakeLog
	store *fakeStore
	end   func()

	mu   sync.Mutex // guards told
	told []string
}

func (l *lone) note(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.told = append(l.told, fmt.Sprintf(format, args...))
}

// is wants what was told, in order.
func (l *lone) is(t *testing.T, want ...string) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	if !slices.Equal(l.told, want) {
		t.Fatalf("told\n%s\nwant\n%s", strings.Join(l.told, "\n"), strings.Join(want, "\n"))
	}
}

func (l *lone) has(t *testing.T, words string) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	if !slices.ContainsFunc(l.told, func(s string) bool { return strings.Contains(s, words) }) {
		t.Fatalf("told %q: want one with %q", l.told, words)
	}
}

// lone starts a replica on f that follows the feed.
func (f *fakeLog) lone(t *testing.T, m *apply.Machine) *lone {
	l := &lone{f: f, store: &fakeStore{}}
	l.store.took = func(d apply.Delta) { l.note("store %d", d.Head.Cursor) }
	l.replica = newReplica(m, apply.Head{}, f, l.store, replicaEvents{
		fence:     func(reason string) { l.note("fence: %s", reason) },
		stopped:   func() { l.note("stopped") },
		halt:      func(err error) { l.note("halt: %v", err) },
		advanced:  func(name string, to uint64) { l.note("advanced %s to %d", name, to) },
		applied:   func(id wire.EntryID, seq uint64, _ []byte, out []wire.Outcome) { l.note("applied %d", seq) },
		forgotten: func(node string) { l.note("forgotten %s", node) },
		checked:   func(seq uint64, _ *wire.Entry, op *wire.Op, a agreement) { l.note("checked %d", seq) },
		differs:   func(node string, cursor uint64) { l.note("differs %s at %d", node, cursor) },
	}, quiet)
	f.with(func() { f.feeds["lone"] = l.Offer })
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- l.Run(ctx) }()
	l.end = sync.OnceFunc(func() {
		f.with(func() { delete(f.feeds, "lone") })
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(l.end)
	synctest.Wait()
	return l
}

// The delta goes to the store before anyone is told.
// Checked: with events.applied called before store.Submit the order was "applied 1, store 1".
func TestReplicaOrder(t *testing.T) {
	bubble(t, func(t *testing.T, f *fakeLog) {
		l := f.lone(t, apply.New())
		f.put(f.entry("n2", 1, reserveOp(1)))
		f.put(f.entry("n2", 2, checkOp("n2", false)))
		synctest.Wait()
		l.is(t, "store 1", "applied 1", "store 2", "applied 2", "store 3", "checked 3", "applied 3")
	})
}

// A gap in the feed is read from the stream, and the read begins at the cursor itself, to compare what stands there.
// Checked: with a read from cursor+1 the rewritten entry went unnoticed.
func TestReplicaFillsGapsFromTheCursor(t *testing.T) {
	bubble(t, func(t *testing.T, f *fakeLog) {
		l := f.lone(t, apply.New())
		f.with(func() { f.deaf, f.reads = true, nil })
		f.put(f.entry("n2", 1, reserveOp(1)))
		f.put(f.entry("n2", 1, reserveOp(2)))
		f.with(func() { f.deaf = false })
		f.put(f.entry("n2", 1, reserveOp(3)))
		synctest.Wait()
		l.is(t, "store 1", "applied 1", "store 2", "applied 2", "store 3", "applied 3", "store 4", "applied 4")
		if f.reads[0] != 1 {
			t.Errorf("read from %v: want from the cursor, 1", f.reads)
		}

		other := f.entry("n2", 1, reserveOp(4))
		f.with(func() {
			f.entries[3] = other
			f.deaf = true
		})
		f.put(f.entry("n2", 1, reserveOp(5)))
		f.with(func() { f.deaf = false })
		f.put(f.entry("n2", 1, reserveOp(6)))
		synctest.Wait()
		l.has(t, "fence: the log was rewritten: at seq 4")
		l.has(t, "stopped")
		n := len(l.told)
		f.put(f.entry("n2", 1, reserveOp(7)))
		pass(time.Minute)
		if len(l.told) != n {
			t.Errorf("told %q after the fence", l.told[n:])
		}
	})
}

// A long log is read at one go; a read that brings nothing is given up, and tried again.
// Checked: with 10 s for all of a read the first ended at seq 1; without the timer the second was not given up, without Reset the
// third.
func TestReplicaReadsALongLog(t *testing.T) {
	bubble(t, func(t *testing.T, f *fakeLog) {
		for n := range uint64(4) {
			f.put(f.entry("n2", 1, reserveOp(n+1)))
		}
		f.pace = 6 * time.Second
		l := f.lone(t, apply.New())
		l.Expect(5)
		pass(31 * time.Second)
		if at := l.Head().Cursor; at != 5 || len(f.reads) != 1 {
			t.Errorf("applied seq %d of 5, reads from %v", at, f.reads)
		}
		l.end()
		f.pace, f.reads = 11*time.Second, nil
		l = f.lone(t, apply.New())
		l.Expect(5)
		pass(30 * time.Second)
		if at := l.Head().Cursor; at != 0 || len(f.reads) < 2 {
			t.Errorf("applied seq %d, reads from %v", at, f.reads)
		}
		l.end()
		f.pace, f.reads = time.Second, nil
		l = f.lone(t, apply.New())
		l.Expect(5)
		pass(time.Second)
		f.with(func() { f.pace = 11 * time.Second }) // falls silent behind seq 2
		pass(30 * time.Second)
		if at := l.Head().Cursor; at != 2 || len(f.reads) < 2 {
			t.Errorf("silent behind seq 2: applied seq %d, reads from %v", at, f.reads)
		}
		l.end()

		// What this node takes itself is not the log's silence. Checked: without Stop the read was given up.
		f.pace, f.reads = time.Second, nil
		l = f.lone(t, apply.New())
		l.Expect(5)
		l.Pause()
		pass(15 * time.Second)
		l.Resume()
		pass(5 * time.Second)
		if at := l.Head().Cursor; at != 5 || len(f.reads) != 1 {
			t.Errorf("after a pause: applied seq %d of 5, reads from %v", at, f.reads)
		}
	})
}

// A log that grows as fast as it is applied keeps the replica from nothing else for long.
// Checked: without errEnough the read went on, and what was asked was not compared.
func TestReplicaReadsAGrowingLog(t *testing.T) {
	bubble(t, func(t *testing.T, f *fakeLog) {
		f.pace = time.Second
		f.deaf = true
		for range 3 {
			f.put(f.entry("n2", 1, reserveOp(1)))
		}
		l := f.lone(t, apply.New())
		pass(time.Second)
		compared := false
		l.Audit(func() { compared = true })
		for range 60 {
			l.Expect(f.put(f.entry("n2", 1, reserveOp(1)))) // as the watch does
			pass(time.Second)
			if len(f.reads) > 1 {
				f.with(func() { f.pace = 0 }) // now it may catch up
			}
		}
		if at := l.Head().Cursor; !compared || at != f.last() {
			t.Errorf("compared: %v; applied seq %d of %d, reads from %v", compared, at, f.last(), f.reads)
		}
	})
}

// An audit that takes long ends where all that was applied has been compared, whatever the log is known to hold.
// Checked: without the cursor in the goal it ended at seq 2, and took a rewritten log for whole.
func TestReplicaAuditsAllThatItApplied(t *testing.T) {
	bubble(t, func(t *testing.T, f *fakeLog) {
		for n := range uint64(4) {
			f.put(f.entry("n2", 1, reserveOp(n+1)))
		}
		l := f.lone(t, apply.New())
		other := f.entry("n2", 1, reserveOp(9))
		f.with(func() { f.entries[4], f.pace = other, 6*time.Second })
		compared := false
		l.Audit(func() { compared = true })
		pass(time.Minute)
		l.has(t, "fence: the log was rewritten: at seq 5")
		if compared {
			t.Error("the log was taken for whole")
		}
	})
}

// A replay that the feed brings is compared, too.
func TestReplicaComparesReplays(t *testing.T) {
	bubble(t, func(t *testing.T, f *fakeLog) {
		f.put(f.entry("n2", 1, reserveOp(1)))
		l := f.lone(t, apply.New())
		l.Offer(jetstream.Message{Seq: 2, Data: slices.Clone(f.entries[1])})
		synctest.Wait()
		l.is(t, "store 1", "applied 1", "store 2", "applied 2")
		l.Offer(jetstream.Message{Seq: 2, Data: f.entry("n3", 1, reserveOp(1))})
		synctest.Wait()
		l.has(t, "fence: the log was rewritten: at seq 2")
	})
}

// Nobody is told an outcome after a proof, though the state goes on: it is a witness.
// Checked: with mute left false the reservation after the proof was answered.
func TestReplicaIsMuteAfterAProof(t *testing.T) {
	bubble(t, func(t *testing.T, f *fakeLog) {
		l := f.lone(t, apply.New())
		f.put(f.entry("n2", 1000, reserveOp(1)))
		f.put(f.entry("n2", 1, reserveOp(2)))
		synctest.Wait()
		l.is(t, "store 1", "applied 1", "store 2",
			"fence: the log lost entries: n2 had applied seq 1000 when it proposed the entry that now stands at 2", "store 3")
	})
}

func flip(b []byte) []byte {
	b = slices.Clone(b)
	b[len(b)-1] ^= 1
	return b
}

// Damaged bytes are read again from other replicas.
// Checked: without reread the replica halted.
func TestReplicaRereadsDamage(t *testing.T) {
	bubble(t, func(t *testing.T, f *fakeLog) {
		l := f.lone(t, apply.New())
		good := f.entry("n2", 1, reserveOp(1))
		f.with(func() { f.direct[2] = [][]byte{flip(good), flip(good)} })
		f.with(func() { f.entries = append(f.entries, good) })
		l.Offer(jetstream.Message{Seq: 2, Data: flip(good)})
		pass(time.Second)
		l.is(t, "store 1", "applied 1", "store 2", "applied 2")
	})
}

// Where all copies are damaged nothing is applied any more, not even what is whole.
// Checked: with halted left false it halted again and again.
func TestReplicaHaltsWhereAllCopiesAreDamaged(t *testing.T) {
	bubble(t, func(t *testing.T, f *fakeLog) {
		l := f.lone(t, apply.New())
		f.put(flip(f.entry("n2", 1, reserveOp(1))))
		f.put(f.entry("n2", 1, reserveOp(2)))
		pass(time.Hour)
		l.has(t, "halt: entry at seq 2: wire: entry fails its checksum")
		if c := l.Head().Cursor; c != 1 {
			t.Errorf("the cursor is %d: want 1", c)
		}
		if len(l.told) != 3 {
			t.Errorf("told %q", l.told)
		}
	})
}

// Damage below the cursor, in the copy that a read begins with, is damage and no rewritten log.
// Checked: without foldWhole the node fenced.
func TestReplicaTellsDamageFromARewrittenLog(t *testing.T) {
	bubble(t, func(t *testing.T, f *fakeLog) {
		f.put(f.entry("n2", 1, reserveOp(1)))
		l := f.lone(t, apply.New())
		f.with(func() {
			f.direct[2] = [][]byte{flip(f.entries[1])}
			f.deaf = true
		})
		l.Expect(f.put(f.entry("n2", 1, reserveOp(1))))
		pass(time.Minute)
		l.is(t, "store 1", "applied 1", "store 2", "applied 2", "store 3", "applied 3")
	})
}

func TestReplicaHaltsAtWhatItDoesNotKnow(t *testing.T) {
	for name, c := range map[string]struct {
		change func(b []byte)
		words  string
	}{
		"version":   {func(b []byte) { b[2] = 9 }, "version 9"},
		"operation": {func(b []byte) { b[len(b)-1] = 200 }, "unknown or malformed operation"},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, f *fakeLog) {
				l := f.lone(t, apply.New())
				b := f.entry("n2", 1, &wire.Op{Kind: wire.KindBarrier})
				c.change(b)
				wire.Seal(b)
				f.put(b)
				f.put(f.entry("n2", 1, reserveOp(1)))
				pass(time.Minute)
				l.has(t, "halt: ")
				l.has(t, c.words)
				if cursor := l.Head().Cursor; cursor != 1 {
					t.Errorf("the cursor is %d: want 1", cursor)
				}
			})
		})
	}
}

// A log without a genesis is not ours.
func TestReplicaHaltsWithoutAGenesis(t *testing.T) {
	bubble(t, func(t *testing.T, f *fakeLog) {
		f.entries = [][]byte{[]byte("garbage")}
		l := f.lone(t, apply.New())
		l.has(t, "does not begin with a genesis")
	})
}

// Garbage later on is skipped.
func TestReplicaSkipsGarbage(t *testing.T) {
	bubble(t, func(t *testing.T, f *fakeLog) {
		l := f.lone(t, apply.New())
		f.put([]byte("garbage"))
		f.put(f.entry("n2", 1, reserveOp(1)))
		synctest.Wait()
		l.is(t, "store 1", "applied 1", "store 2", "store 3", "applied 3")
	})
}

// While paused nothing is applied, and nothing told; then all of it, in order.
// Checked: with an awaitResumed that returns at once entry 2 was applied during the pause.
func TestReplicaPauses(t *testing.T) {
	bubble(t, func(t *testing.T, f *fakeLog) {
		l := f.lone(t, apply.New())
		l.Pause()
		l.Pause() // twice is once
		for range 3 {
			f.put(f.entry("n2", 1, reserveOp(1)))
		}
		pass(time.Hour)
		l.is(t, "store 1", "applied 1")
		l.Resume()
		l.Resume()
		synctest.Wait()
		l.is(t, "store 1", "applied 1", "store 2", "applied 2", "store 3", "applied 3", "store 4", "applied 4")
		l.Pause()
		f.put(f.entry("n2", 1, reserveOp(1)))
		synctest.Wait()
		l.end() // ends during a pause, too
	})
}

// A slow store: the feed overflows, and what was dropped is read from the stream.
// Checked: without Expect in Offer the replica stayed at the last message that had fitted.
func TestReplicaFeedOverflows(t *testing.T) {
	bubble(t, func(t *testing.T, f *fakeLog) {
		l := f.lone(t, apply.New())
		block := make(chan struct{})
		l.store.mu.Lock()
		l.store.block = block
		l.store.mu.Unlock()
		data := f.entry("n2", 1, reserveOp(1))
		for range cap(l.feed) + 100 {
			f.put(data) // one entry and its duplicates
		}
		synctest.Wait()
		close(block)
		pass(time.Minute)
		if c, want := l.Head().Cursor, f.last(); c != want {
			t.Errorf("the cursor is %d: want %d", c, want)
		}
		l.has(t, "applied 2")
		if n := len(slices.DeleteFunc(slices.Clone(l.told), func(s string) bool { return !strings.HasPrefix(s, "applied") })); n != 2 {
			t.Errorf("told %d outcomes: want those of the genesis and of the first copy", n)
		}
	})
}

// Hazard 8: whoever looks at the state does not wait for the store, nor the store for whoever looks.
// Checked: with the lock of fold held over store.Submit the test hung in View.
func TestHazard8ViewWhileTheStoreWaits(t *testing.T) {
	bubble(t, func(t *testing.T, f *fakeLog) {
		l := f.lone(t, apply.New())
		block := make(chan struct{})
		l.store.mu.Lock()
		l.store.block = block
		l.store.mu.Unlock()
		f.put(f.entry("n2", 1, reserveOp(1)))
		synctest.Wait()
		seen := make(chan uint64, 1)
		go l.View(func(m *apply.Machine) { seen <- m.Head().Cursor })
		synctest.Wait()
		select {
		case c := <-seen:
			if c != 2 {
				t.Errorf("View shows seq %d: want 2", c)
			}
		default:
			t.Error("View waits for the store")
		}
		close(block)
	})
}

// Hazard 3: what cannot be stored is told to nobody, and nothing follows it.
// Checked: with a return in place of the halt entry 3 was applied and answered.
func TestHazard3NothingFollowsWhatIsNotStored(t *testing.T) {
	bubble(t, func(t *testing.T, f *fakeLog) {
		l := f.lone(t, apply.New())
		l.store.mu.Lock()
		l.store.err = errors.New("too large")
		l.store.mu.Unlock()
		f.put(f.entry("n2", 1, reserveOp(1)))
		synctest.Wait()
		l.store.mu.Lock()
		l.store.err = nil
		l.store.mu.Unlock()
		f.put(f.entry("n2", 1, reserveOp(1)))
		pass(time.Minute)
		l.is(t, "store 1", "applied 1", "halt: too large")
	})
}

// The feed has died, and the log goes on: what is known of it comes in soon, however often more is heard of.
// Checked: with a timer that each doubt starts anew, as it was, the replica fell behind until the doubts ended.
func TestReplicaDoubtIsNotPutOff(t *testing.T) {
	bubble(t, func(t *testing.T, f *fakeLog) {
		l := f.lone(t, apply.New())
		f.with(func() { f.deaf = true })
		for i := range 1000 {
			seq := f.put(f.entry("n2", 1, reserveOp(1)))
			l.Expect(seq)
			pass(10 * time.Millisecond)
			if lag := seq - l.Head().Cursor; lag > 10 {
				t.Fatalf("after %d entries the replica is %d behind", i, lag)
			}
		}
	})
}

// A middle that is missing for good is a loss; one that is missing for a while is not.
// Checked: without holes the replica turned in a circle, and the node was shown as serving.
func TestReplicaMiddleIsMissing(t *testing.T) {
	bubble(t, func(t *testing.T, f *fakeLog) {
		l := f.lone(t, apply.New())
		f.with(func() { f.deaf, f.hole = true, 2 })
		f.put(f.entry("n2", 1, reserveOp(1)))
		l.Expect(f.put(f.entry("n2", 1, reserveOp(1))))
		pass(5 * time.Second)
		l.is(t, "store 1", "applied 1")
		f.with(func() { f.hole = 0 })
		pass(5 * time.Second)
		l.is(t, "store 1", "applied 1", "store 2", "applied 2", "store 3", "applied 3")
		f.with(func() { f.hole = 4 })
		f.put(f.entry("n2", 1, reserveOp(1)))
		l.Expect(f.put(f.entry("n2", 1, reserveOp(1))))
		pass(2 * time.Minute)
		l.has(t, "fence: the log lost entries: it holds seq 5 and not seq 4")
	})
}

func TestReplicaLogIsPurged(t *testing.T) {
	bubble(t, func(t *testing.T, f *fakeLog) {
		l := f.lone(t, apply.New())
		f.with(func() { f.deaf, f.id.FirstSeq = true, 5 })
		for range 6 {
			f.put(f.entry("n2", 1, reserveOp(1)))
		}
		l.Expect(7)
		pass(time.Second)
		l.has(t, "fence: the log was purged: it begins at seq 5, this node has applied seq 1")
	})
}

// Digests: an entry of a node with another state is told before its outcomes; what is too old to compare is not.
func TestReplicaComparesDigests(t *testing.T) {
	bubble(t, func(t *testing.T, f *fakeLog) {
		for range 5 {
			f.put(f.entry("n2", 1, reserveOp(1)))
		}
		l := f.lone(t, f.machine(t, 4))
		l.is(t, "store 5", "applied 5", "store 6", "applied 6") // their cursor lies before what this run knows
		b := f.entry("n2", 6, reserveOp(1))
		f.put(b)
		synctest.Wait()
		e := wire.AppendHeader(nil, &wire.Header{ClusterID: f.id.ClusterID, Level: 1, Node: []byte("n3"), Cursor: 6,
			ID: wire.EntryID{Incarnation: wire.NewID(), Counter: 1}, Defaults: wire.Settings{First: 1, Max: 9, MaxCount: 9}})
		e = wire.AppendOp(e, &wire.Op{Kind: wire.KindBarrier})
		wire.Seal(e)
		f.put(e)
		synctest.Wait()
		l.is(t, "store 5", "applied 5", "store 6", "applied 6", "store 7", "applied 7", "store 8", "differs n3 at 6", "applied 8")
	})
}

// Wake has the stream read at once, and believes neither the bytes nor the seq of what woke it.
func TestReplicaWake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeLog()
		u := f.start(t, "n1")
		pass(time.Second)
		f.with(func() { f.deaf = true })
		seq := f.put(f.entry("n2", 0, reserveOp(5)))
		u.replica.Wake(jetstream.Message{Seq: seq, Data: []byte("forged")})
		pass(0)
		if got := u.replica.Head().Cursor; got != seq {
			t.Errorf("woken, it has applied seq %d: want %d", got, seq)
		}
		// Checked: with Expect in Wake it read on and on.
		var before, after int
		f.with(func() { before = len(f.reads) })
		u.replica.Wake(jetstream.Message{Seq: 1 << 60})
		pass(time.Minute)
		f.with(func() { after = len(f.reads) })
		if after-before > 10 {
			t.Errorf("one message of a seq that is not there made it read %d times", after-before)
		}
		// A replica that lags for a moment: the entry comes while it looks.
		u.replica.Wake(jetstream.Message{Seq: f.last() + 1})
		pass(2 * time.Millisecond)
		seq = f.put(f.entry("n2", 0, reserveOp(5)))
		pass(30 * time.Millisecond)
		if got := u.replica.Head().Cursor; got != seq {
			t.Errorf("it has applied seq %d: want %d", got, seq)
		}
	})
}
