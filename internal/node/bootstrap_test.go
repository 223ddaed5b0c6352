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

func TestJudge(t *testing.T) {
	empty := func(n string) hello { return hello{Node: n, Catalog: catalogOf(n), Empty: true} }
	remembers := hello{Node: "n3", Catalog: catalogOf("n3"), Cluster: wire.ID{0xC1}, Cursor: 7}
	twin := hello{Node: "n2", Catalog: wire.ID{9}, Empty: true}
	all := []hello{empty("n1"), empty("n2"), empty("n3")}
	for name, c := range map[string]struct {
		answers []hello
		want    string // "" is permission
	}{
		"all empty":              {all, ""},
		"one answers twice":      {append(slices.Clone(all), empty("n2")), ""},
		"nobody":                 {nil, "waiting for n1, n2, n3"},
		"one is silent":          {all[:2], "waiting for n3"},
		"one twice, one silent":  {[]hello{empty("n1"), empty("n2"), empty("n2")}, "waiting for n3"}, // counted once each
		"one remembers":          {[]hello{empty("n1"), empty("n2"), remembers}, "of cluster c1000"},
		"two go by one name":     {append(slices.Clone(all), twin), "two nodes go by the name n2"},
		"one is not named":       {append(slices.Clone(all), empty("n4")), "n4 answers, but is not named"},
		"remembers, others mute": {[]hello{remembers}, "n3 has applied seq"},
	} {
		if got := judge(names, c.answers); !strings.Contains(got, c.want) || (got == "") != (c.want == "") {
			t.Errorf("%s: %q: want %q", name, got, c.want)
		}
	}
}

func TestHelloOf(t *testing.T) {
	head := apply.Head{ClusterID: wire.ID{1}, Epoch: 1, Cursor: 5}
	witness := apply.Head{ClusterID: wire.ID{1}, Epoch: 1, Cursor: 9}
	for name, c := range map[string]struct {
		witness, head apply.Head
		want          hello
	}{
		"never held anything": {apply.Head{}, apply.Head{}, hello{Empty: true}},
		"a state":             {apply.Head{}, head, hello{Cluster: wire.ID{1}, Cursor: 5, Epoch: 1}},
		// A catalog that lost its state once held a log.
		"a witness only": {witness, apply.Head{}, hello{Cluster: wire.ID{1}, Cursor: 9, Epoch: 1}},
		"both":           {witness, head, hello{Cluster: wire.ID{1}, Cursor: 9, Epoch: 1}},
	} {
		if got := helloOf("", wire.ID{}, c.witness, c.head, false); got != c.want {
			t.Errorf("%s: %+v: want %+v", name, got, c.want)
		}
	}
	// A catalog that is gone says nothing of the log that lies beside it.
	files := helloOf("n1", wire.ID{}, apply.Head{}, apply.Head{}, true)
	if files.Empty {
		t.Error("a directory with files of a log counts as empty")
	}
	if why := judge([]string{"n1"}, []hello{files}); !strings.Contains(why, "the node n1 has files of a log") {
		t.Errorf("judged: %q", why)
	}
}

// fakeBoot is the log while it is created.
type fakeBoot struct {
	mu      sync.Mutex // guards all below
	exists  bool
	first   []byte
	last    uint64
	created int
	err     error // of Identity
	lost    int   // acknowledgements of AppendFirst that are still to be lost
}

func (f *fakeBoot) Identity(context.Context) (jetstream.Identity, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.err != nil:
		return jetstream.Identity{}, f.err
	case !f.exists:
		return jetstream.Identity{}, fmt.Errorf("info: %w", jetstream.ErrNoStream)
	}
	return jetstream.Identity{Created: time.Unix(1, 5), ClusterID: wire.ID{0xC1}, Epoch: 1, LastSeq: f.last}, nil
}

func (f *fakeBoot) Create(ctx context.Context, _ wire.ID, _ uint64) (jetstream.Identity, error) {
	f.mu.Lock()
	f.exists = true
	f.created++
	f.mu.Unlock()
	return f.Identity(ctx)
}

func (f *fakeBoot) AppendFirst(_ context.Context, _ string, data []byte) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.first != nil {
		return fmt.Errorf("append: %w", jetstream.ErrNotEmpty)
	}
	f.first, f.last = data, 1
	if f.lost > 0 {
		f.lost--
		return jetstream.ErrNoLeader
	}
	return nil
}

// booting is a bootstrap of n1 under test, in a bubble.
type booting struct {
	*bootstrap
	log  *fakeBoot
	mu   sync.Mutex // guards the two below
	says []hello
	why  string
}

func newBooting() *booting {
	b := &booting{log: &fakeBoot{}}
	for _, n := range names {
		b.says = append(b.says, hello{Node: n, Catalog: catalogOf(n), Empty: true})
	}
	b.bootstrap = &bootstrap{
		self: b.says[0], nodes: names, genesis: DefaultConfig().Genesis, defaults: DefaultConfig().Defaults,
		entryID: wire.EntryID{Incarnation: wire.ID{1}, Counter: 1}, log: b.log, logger: quiet,
		ask: func(context.Context) ([]hello, error) {
			b.mu.Lock()
			defer b.mu.Unlock()
			return slices.Clone(b.says), nil
		},
		await: func(why string) {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.why = why
		},
	}
	return b
}

// result is what run returned.
type result struct {
	id    jetstream.Identity
	fence string
	err   error
}

// begin runs it. The result comes when it ends, at the latest with stop.
func (b *booting) begin(t *testing.T) (ended <-chan result, stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	ch := make(chan result, 1)
	go func() {
		id, fence, err := b.run(ctx)
		ch <- result{id, fence, err}
	}()
	return ch, cancel
}

// waits wants it to be still waiting after ten minutes, for something with words, and to have written no genesis; it stops it.
func (b *booting) waits(t *testing.T, ended <-chan result, stop func(), words string) {
	t.Helper()
	pass(10 * time.Minute)
	select {
	case r := <-ended:
		t.Fatalf("it ended: %+v", r)
	default:
	}
	b.mu.Lock()
	why := b.why
	b.mu.Unlock()
	if !strings.Contains(why, words) {
		t.Errorf("it waits for %q: want %q", why, words)
	}
	if b.log.first != nil {
		t.Error("it wrote a genesis")
	}
	stop()
	if r := <-ended; !errors.Is(r.err, context.Canceled) {
		t.Errorf("stopped, it returned %+v", r)
	}
}

func TestBootstrapCreates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBooting()
		b.log.lost = 1 // the acknowledgement of the genesis
		ended, stop := b.begin(t)
		defer stop()
		r := <-ended
		if r.err != nil || r.fence != "" || r.id.LastSeq != 1 || b.log.created != 1 {
			t.Fatalf("%+v after %d creations", r, b.log.created)
		}
		var e wire.Entry
		if err := wire.DecodeEntry(b.log.first, &e); err != nil {
			t.Fatal(err)
		}
		g := e.Ops[0].Genesis
		if e.ClusterID != (wire.ID{0xC1}) || g.Epoch != 1 || g.Created != time.Unix(1, 5).UnixNano() || !slices.Equal(g.Nodes, names) {
			t.Errorf("the genesis is %+v of cluster %s", g, e.ClusterID)
		}
		if m := apply.New(); true {
			if _, _, err := m.Apply(1, b.log.first); err != nil {
				t.Error(err)
			}
		}
	})
}

// Each rule of creation: what must hold before the stream is made, and once more before the genesis.
// Checked: without allEmpty in create every case wrote a genesis; without the cluster_id rule that one did.
func TestBootstrapDoesNotCreate(t *testing.T) {
	remembers := func(b *booting) {
		b.says[2] = hello{Node: "n3", Catalog: catalogOf("n3"), Cluster: wire.ID{2}, Cursor: 8}
	}
	for name, c := range map[string]struct {
		set   func(*booting)
		words string
	}{
		"one is silent":     {func(b *booting) { b.says = b.says[:2] }, "waiting for n3"},
		"one remembers":     {remembers, "of cluster 02"},
		"two of one name":   {func(b *booting) { b.says = append(b.says, hello{Node: "n2", Catalog: wire.ID{7}, Empty: true}) }, "by the name n2"},
		"one is not named":  {func(b *booting) { b.says = append(b.says, hello{Node: "n9", Empty: true}) }, "n9"},
		"cluster_id is set": {func(b *booting) { b.clusterID = wire.ID{5} }, "cluster_id is set"},
		"no leader":         {func(b *booting) { b.log.err = jetstream.ErrNoLeader }, "waiting for the log"},
		"empty, one silent": {func(b *booting) { b.log.exists = true; b.says = b.says[:2] }, "waiting for n3"},
		"empty, remembered": {func(b *booting) { b.log.exists = true; remembers(b) }, "n3 has applied seq"},
		"empty, cluster_id": {func(b *booting) { b.log.exists = true; b.clusterID = wire.ID{0xC1} }, "cluster_id is set"},
		"asking goes wrong": {func(b *booting) {
			b.ask = func(context.Context) ([]hello, error) { return nil, errors.New("no connection") }
		}, "no connection"},
		"creation goes wrong": {func(b *booting) { b.bootstrap.log = failingCreate{b.log} }, "creating the log: no space"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBooting()
				c.set(b)
				ended, stop := b.begin(t)
				b.waits(t, ended, stop, c.words)
			})
		})
	}
}

type failingCreate struct{ *fakeBoot }

func (failingCreate) Create(context.Context, wire.ID, uint64) (jetstream.Identity, error) {
	return jetstream.Identity{}, errors.New("no space")
}

// A node that remembers comes after the stream was made, or even after its first answer: it is asked again.
// Checked: without the second question after the stream exists, and without both of them, the genesis was written.
func TestBootstrapAsksAgainBeforeTheGenesis(t *testing.T) {
	for _, late := range []int{2, 3} {
		synctest.Test(t, func(t *testing.T) {
			b := newBooting()
			asked := 0
			ask := b.ask
			b.ask = func(ctx context.Context) ([]hello, error) {
				if asked++; asked == late {
					b.mu.Lock()
					b.says[1] = hello{Node: "n2", Catalog: catalogOf("n2"), Cluster: wire.ID{2}, Cursor: 8}
					b.mu.Unlock()
				}
				return ask(ctx)
			}
			ended, stop := b.begin(t)
			b.waits(t, ended, stop, "n2 has applied seq")
			if b.log.created != 1 {
				t.Errorf("the stream was made %d times", b.log.created)
			}
		})
	}
}

// Three at once: one genesis, and each finds it.
func TestBootstrapSeveralAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := &fakeBoot{}
		var all []<-chan result
		for range 3 {
			b := newBooting()
			b.log, b.bootstrap.log = log, log
			b.entryID.Incarnation = wire.NewID()
			ended, stop := b.begin(t)
			defer stop()
			all = append(all, ended)
		}
		for _, ended := range all {
			if r := <-ended; r.err != nil || r.fence != "" || r.id.LastSeq != 1 {
				t.Errorf("%+v", r)
			}
		}
	})
}

// A node that remembers a log: without one it fences, after ten seconds in which the answer stays the same, and creates
// nothing; another cluster's is not taken (hazard 10).
// Checked: without the case of a node that is not empty, the log was made anew; without contradiction the other cluster's
// log was taken.
func TestHazard10BootstrapOfANodeThatRemembers(t *testing.T) {
	for name, c := range map[string]struct {
		set   func(*booting)
		after time.Duration
		fence string
	}{
		"no stream":       {func(*booting) {}, 10 * time.Second, "there is no stream, but this node has applied seq 8"},
		"empty":           {func(b *booting) { b.log.exists = true }, 10 * time.Second, "the log is empty, but this node has applied seq 8"},
		"another's":       {func(b *booting) { b.log.exists, b.log.last = true, 5 }, 0, "is of cluster c1000"},
		"not as told":     {func(b *booting) { b.log.exists, b.log.last, b.clusterID = true, 5, wire.ID{7} }, 0, "cluster_id is set to 07"},
		"settings differ": {func(b *booting) { b.log.err = &jetstream.StreamConfigError{Setting: "max_age"} }, 0, "max_age"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBooting()
				b.self = hello{Node: "n1", Catalog: catalogOf("n1"), Cluster: wire.ID{2}, Cursor: 8}
				b.says[0] = b.self
				c.set(b)
				began := time.Now()
				ended, stop := b.begin(t)
				defer stop()
				var r result
				select {
				case r = <-ended:
				case <-time.After(time.Hour):
					t.Fatal("it waits for ever")
				}
				if !strings.Contains(r.fence, c.fence) || r.err != nil {
					t.Errorf("%+v: want a fence with %q", r, c.fence)
				}
				if took := time.Since(began); took < c.after || took > c.after+2*time.Second {
					t.Errorf("it took %s: want %s", took, c.after)
				}
				if b.log.first != nil || b.log.created > 0 {
					t.Error("it created a log")
				}
			})
		})
	}
}

// The log of a node that remembers is only not there yet.
// Checked: with a fence at the first look the node fenced.
func TestBootstrapOfANodeThatRemembersWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBooting()
		b.self = hello{Node: "n1", Catalog: catalogOf("n1"), Cluster: wire.ID{0xC1}, Cursor: 8}
		ended, stop := b.begin(t)
		defer stop()
		pass(9 * time.Second)
		b.log.mu.Lock()
		b.log.err = jetstream.ErrNoLeader // starts the ten seconds anew
		b.log.mu.Unlock()
		pass(time.Minute)
		b.log.mu.Lock()
		b.log.err = nil
		b.log.mu.Unlock()
		pass(9 * time.Second)
		b.log.mu.Lock()
		b.log.exists, b.log.last = true, 8
		b.log.mu.Unlock()
		if r := <-ended; r.err != nil || r.fence != "" || r.id.LastSeq != 8 {
			t.Errorf("%+v", r)
		}
	})
}
