package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/allocnode/allocnode/apply"
	"github.com/allocnode/allocnode/internal/wire"
	"github.com/allocnode/allocnode/jetstream"
)

// fakeEpoch is the log of a recovery, in memory.
type fakeEpoch struct {
	mu      sync.Mutex // guards all below
	origin  *jetstream.Origin
	created time.Time
	entries [][]byte
	changes int
	slow    time.Duration                      // not guarded
	onWrite func(n int, do func() error) error // of the n-th change, from 1 on
	err     error                              // of Identity
}

func (f *fakeEpoch) Identity(context.Context) (jetstream.Identity, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.err != nil:
		return jetstream.Identity{}, f.err
	case f.origin == nil:
		return jetstream.Identity{}, fmt.Errorf("info: %w", jetstream.ErrNoStream)
	}
	o := f.origin
	return jetstream.Identity{
		Created: f.created, ClusterID: o.ClusterID, Epoch: o.Epoch, First: o.First, Recovery: o.Recovery, FirstSeq: o.First,
		LastSeq: o.First - 1 + uint64(len(f.entries)), Leader: "n1",
	}, nil
}

func (f *fakeEpoch) change(do func() error) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.changes++
	if f.onWrite != nil {
		return f.onWrite(f.changes, do)
	}
	return do()
}

func (f *fakeEpoch) CreateRecovered(ctx context.Context, o jetstream.Origin) (jetstream.Identity, error) {
	err := f.change(func() error {
		if f.origin == nil {
			f.origin, f.created = &o, time.Unix(1_900_000_000, 77)
		}
		return nil
	})
	if err != nil {
		return jetstream.Identity{}, err
	}
	return f.Identity(ctx)
}

func (f *fakeEpoch) AppendAfter(_ context.Context, last uint64, _ string, data []byte) error {
	time.Sleep(f.slow) // of the bubble
	return f.change(func() error {
		if last != jetstream.AnySeq && last != f.origin.First-1+uint64(len(f.entries)) {
			return fmt.Errorf("append: %w", jetstream.ErrMoved)
		}
		f.entries = append(f.entries, bytes.Clone(data))
		return nil
	})
}

func (f *fakeEpoch) Read(_ context.Context, from uint64, fn func(jetstream.Message) error) (uint64, error) {
	f.mu.Lock()
	first, entries := f.origin.First, f.entries
	f.mu.Unlock()
	for seq := from; seq < first+uint64(len(entries)); seq++ {
		if err := fn(jetstream.Message{Seq: seq, Data: bytes.Clone(entries[seq-first])}); err != nil {
			return seq - 1, err
		}
	}
	return from, nil
}

// planned is a recovery in several parts, of the log's state.
func planned(t *testing.T, f *fakeLog, opts apply.Plan) (*recovery, *apply.Machine) {
	t.Helper()
	for i := range 60 { // fake logs allow 100 sequences: the parts are cut by hand below
		f.put(f.entry("n2", uint64(i+1), &wire.Op{Kind: wire.KindReserve, Name: fmt.Appendf(nil, "s%d", i), Count: 5, Key: []byte("k")}))
	}
	m := f.machine(t, int(f.last()))
	made, err := apply.Recover([]apply.Catalog{{Name: "n1", State: m}}, opts)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "recovery")
	if err := writeRecovery(path, f.id.ClusterID, made, nil, &strings.Builder{}); err != nil {
		t.Fatal(err)
	}
	r, err := readRecovery(path)
	if err != nil {
		t.Fatal(err)
	}
	return r, m
}

// rejoining is a node that follows epoch 2 of log, prepared with pending or not.
func rejoining(log *fakeEpoch, pending *recovery, old *apply.Machine) (j *rejoin, archived *int) {
	archived = new(int)
	j = &rejoin{
		self: hello{Node: "n1", Cluster: old.Head().ClusterID, Cursor: old.Head().Cursor, Epoch: old.Head().Epoch}, epoch: 2, pending: pending,
		old: oldCatalog{state: old, witness: old.Head()}, log: log, await: func(string) {}, logger: quiet,
		ask: func(context.Context) ([]hello, error) { return nil, nil },
		archive: func(next apply.Head) error {
			if next.Epoch != 2 || next.Cursor == 0 {
				return fmt.Errorf("archived for %+v", next)
			}
			*archived++
			return nil
		},
		seal: func(context.Context) error {
			return errors.New("it cannot be sealed, which is no reason to wait for ever")
		},
	}
	return j, archived
}

// answering is an ask to which those answer.
func answering(all ...hello) func(context.Context) ([]hello, error) {
	return func(context.Context) ([]hello, error) { return all, nil }
}

var errCrash = errors.New("the process ends here")

// A node may end before, in or after any step: the next run goes on, and the log holds each piece once. What keeps it so is
// checked at TestRejoinTogether.
func TestRejoinCrashes(t *testing.T) {
	bubble(t, func(t *testing.T, f *fakeLog) {
		r, old := planned(t, f, apply.Plan{Epoch: 2, Complete: true})
		for _, after := range []bool{false, true} {
			for at := 1; at <= 2+len(r.parts); at++ {
				log := &fakeEpoch{}
				ctx, cancel := context.WithCancelCause(context.Background())
				log.onWrite = func(n int, do func() error) error {
					if n != at {
						return do()
					}
					cancel(errCrash)
					if after { // it is in the log, and nobody heard so
						return errors.Join(do(), errCrash)
					}
					return errCrash
				}
				j, archived := rejoining(log, r, old)
				if _, _, err := j.run(ctx); !errors.Is(err, errCrash) || *archived != 0 {
					t.Fatalf("crash at change %d: %v, archived %d times", at, err, *archived)
				}
				j, archived = rejoining(log, r, old)
				id, fence, err := j.run(context.Background())
				if err != nil || fence != "" || *archived != 1 || id.Recovery != r.Recovery {
					t.Fatalf("after a crash at change %d: %+v, %q, %v, archived %d times", at, id, fence, err, *archived)
				}
				if len(log.entries) != 1+len(r.parts) {
					t.Errorf("after a crash at change %d (done: %v) the log has %d entries", at, after, len(log.entries))
				}
			}
		}
	})
}

// The log before may have no leader yet: it is sealed first, and only where it gets none is the next one made all the same.
// Checked: without the wait in create the log was made at once, and without its end not before there was a leader.
func TestRejoinSealsFirst(t *testing.T) {
	bubble(t, func(t *testing.T, f *fakeLog) {
		r, old := planned(t, f, apply.Plan{Epoch: 2, Complete: true})
		for _, elected := range []time.Duration{sealPatience / 2, time.Hour} {
			log := &fakeEpoch{}
			j, _ := rejoining(log, r, old)
			began, sealed := time.Now(), false
			log.onWrite = func(_ int, do func() error) error {
				if since := time.Since(began); !sealed && since < sealPatience || since > sealPatience+10*time.Second {
					t.Errorf("leader after %s: written after %s, sealed %v", elected, since, sealed)
				}
				return do()
			}
			j.seal = func(context.Context) error {
				if time.Since(began) < elected {
					return jetstream.ErrNoLeader
				}
				sealed = true
				return nil
			}
			if _, fence, err := j.run(context.Background()); err != nil || fence != "" {
				t.Fatal(fence, err)
			}
			if sealed != (elected < sealPatience) {
				t.Errorf("leader after %s: sealed %v", elected, sealed)
			}
		}
	})
}

// Three nodes at once: one log comes of it.
// Checked: with AnySeq in rejoin.write the log had three of each entry.
func TestRejoinTogether(t *testing.T) {
	bubble(t, func(t *testing.T, f *fakeLog) {
		r, old := planned(t, f, apply.Plan{Epoch: 2, Complete: true})
		log := &fakeEpoch{slow: time.Second} // all have looked before the first has written
		var group sync.WaitGroup
		for range 3 {
			j, _ := rejoining(log, r, old)
			group.Go(func() {
				if _, fence, err := j.run(context.Background()); err != nil || fence != "" {
					t.Errorf("%q, %v", fence, err)
				}
			})
		}
		group.Wait()
		if len(log.entries) != 1+len(r.parts) {
			t.Errorf("the log has %d entries", len(log.entries))
		}
	})
}

// What must not be followed, or made.
// Checked: without each of the cases in rejoin.contradiction and in forbids, without the ones of an empty log and of one that was
// followed in step, and without the question in create and the one in write, its case here failed.
func TestRejoinRefuses(t *testing.T) {
	bubble(t, func(t *testing.T, f *fakeLog) {
		r, old := planned(t, f, apply.Plan{Epoch: 2, Complete: true})
		other, _ := planned(t, newFakeLog(), apply.Plan{Epoch: 2, RaiseBy: 9})
		whole := func() *fakeEpoch {
			log := &fakeEpoch{}
			j, _ := rejoining(log, r, old)
			if _, fence, err := j.run(context.Background()); err != nil || fence != "" {
				t.Fatal(fence, err)
			}
			return log
		}
		inEpoch2 := func(j *rejoin) { j.self.Epoch, j.self.Cursor = 2, r.genesis.First()+9 }
		for name, c := range map[string]struct {
			log     *fakeEpoch
			pending *recovery
			change  func(*rejoin)
			fence   string // "" waits for ever
			wait    string
		}{
			"another recovery":           {whole(), other, nil, "was begun by recovery", ""},
			"another cluster":            {whole(), r, func(j *rejoin) { j.self.Cluster = wire.ID{9} }, "data are of cluster", ""},
			"another cluster configured": {whole(), r, func(j *rejoin) { j.clusterID = wire.ID{9} }, "cluster_id is set", ""},
			"gone":                       {&fakeEpoch{}, nil, inEpoch2, "the log is gone", ""},
			"empty":                      {&fakeEpoch{origin: whole().origin}, nil, inEpoch2, "the log is empty", ""},
			"not begun, not prepared":    {&fakeEpoch{origin: whole().origin}, nil, nil, "", "waiting for the recovery"},
			"another, not begun":         {&fakeEpoch{origin: whole().origin}, other, nil, "", "waiting for it to be complete"},
			"nobody answers":             {&fakeEpoch{err: jetstream.ErrNoLeader}, r, inEpoch2, "", "waiting for the log"},
			"a node serves": {&fakeEpoch{}, r, func(j *rejoin) {
				j.ask = func(context.Context) ([]hello, error) {
					return []hello{{Node: "n3", Cluster: r.Cluster, Epoch: 1, Cursor: 7, Serving: true}}, nil
				}
			}, "", "the node n3 serves from the log of epoch 1"},
			"a node remembers it": {&fakeEpoch{}, r, func(j *rejoin) {
				j.ask = func(context.Context) ([]hello, error) {
					return []hello{{Node: "n2", Cluster: r.Cluster, Epoch: 2, Cursor: 7}}, nil
				}
			}, "", "the node n2 has applied seq 7"},
			"a node does not answer": {&fakeEpoch{}, r, func(j *rejoin) {
				j.nodes, j.ask = names, answering(hello{Node: "n1"}, hello{Node: "n3"})
			}, "", "when every named node is there, prepared or not: waiting for n2"},
			"two of one name": {&fakeEpoch{}, r, func(j *rejoin) {
				j.nodes = names
				j.ask = answering(hello{Node: "n1"}, hello{Node: "n2"}, hello{Node: "n3"}, hello{Node: "n2", Catalog: wire.ID{2}})
			}, "", "two nodes go by the name n2"},
			"made, and a node does not answer": {&fakeEpoch{origin: whole().origin}, r, func(j *rejoin) {
				j.nodes, j.ask = names, answering(hello{Node: "n1"}, hello{Node: "n3"})
			}, "", "waiting for n2"},
			"emptied, and a node remembers it": {&fakeEpoch{origin: whole().origin}, r, func(j *rejoin) {
				j.ask = answering(hello{Node: "n2", Cluster: r.Cluster, Epoch: 2, Cursor: 7})
			}, "", "the node n2 has applied seq 7"},
			"a node whose catalog was lost has followed it": {&fakeEpoch{}, r, func(j *rejoin) {
				j.ask = answering(hello{Node: "n2", Followed: 2})
			}, "", "the node n2 has followed the log of epoch 2"},
			"followed, and the catalog lost since": {&fakeEpoch{}, nil, func(j *rejoin) {
				j.self = hello{Node: "n1", Followed: 2}
			}, "the log is gone: there is no stream, but this node has followed the log of epoch 2", ""},
		} {
			j, archived := rejoining(c.log, c.pending, old)
			was := c.log.changes
			var mu sync.Mutex
			waits := ""
			j.await = func(why string) { mu.Lock(); waits = why; mu.Unlock() }
			if c.change != nil {
				c.change(j)
			}
			ctx, cancel := context.WithCancel(context.Background())
			done := make(chan string, 1)
			go func() {
				_, fence, _ := j.run(ctx)
				done <- fence
			}()
			pass(10 * time.Minute)
			mu.Lock()
			if !strings.Contains(waits, c.wait) {
				t.Errorf("%s: waits for %q: want %q", name, waits, c.wait)
			}
			mu.Unlock()
			cancel()
			synctest.Wait()
			if c.log.changes != was {
				t.Errorf("%s: the log was changed", name)
			}
			if fence := <-done; !strings.Contains(fence, c.fence) || (fence == "") != (c.fence == "") || *archived != 0 {
				t.Errorf("%s: fence %q, want %q; archived %d times", name, fence, c.fence, *archived)
			}
		}
	})
}

// A node that remembers more says so in the log, and every node that follows it fences: also one that was prepared for
// another recovery.
// Checked: with the other recovery as a contradiction of its own, only this node fenced and the log said nothing.
func TestRejoinObjects(t *testing.T) {
	bubble(t, func(t *testing.T, f *fakeLog) {
		r, old := planned(t, f, apply.Plan{Epoch: 2, Complete: true})
		log := &fakeEpoch{}
		j, _ := rejoining(log, r, old)
		if _, _, err := j.run(context.Background()); err != nil {
			t.Fatal(err)
		}
		f.put(f.entry("n2", f.last(), reserveOp(10)))
		more := f.machine(t, int(f.last()))
		other, _ := planned(t, newFakeLog(), apply.Plan{Epoch: 2, RaiseBy: 9})
		for _, pending := range []*recovery{other, nil} { // the second time it stands there already
			j, archived := rejoining(log, pending, more)
			_, fence, err := j.run(context.Background())
			if err != nil || !strings.Contains(fence, "has carved orders up to 10, the recovery only up to 0") || *archived != 0 {
				t.Fatalf("%q, %v, archived %d times", fence, err, *archived)
			}
		}
		m := apply.New()
		first := r.genesis.First()
		for i, e := range log.entries {
			if _, _, err := m.Apply(first+uint64(i), e); err != nil {
				t.Fatal(err)
			}
		}
		if fence, ok := m.Fence(); !ok || !strings.Contains(fence.Reason, "carved orders") || len(log.entries) != 2+len(r.parts) {
			t.Errorf("the log's fence is %+v; %d entries", fence, len(log.entries))
		}

		// A state that was lost, beyond what the recovery knows, and one that was put away before.
		lost := oldCatalog{state: apply.New(), witness: more.Head()}
		if why := remembersMore(lost.state, r.state, lost.witness, false); !strings.Contains(why, "its state is lost") {
			t.Errorf("a lost state: %q", why)
		}
		if why := remembersMore(lost.state, r.state, lost.witness, true); why != "" {
			t.Errorf("an archived state: %q", why)
		}
		if why := remembersMore(lost.state, r.state, old.Head(), false); why != "" {
			t.Errorf("a lost state that the recovery knows: %q", why)
		}
	})
}
