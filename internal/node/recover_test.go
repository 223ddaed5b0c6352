package node

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/allocnode/allocnode"
	"github.com/allocnode/allocnode/internal/wire"
	"github.com/allocnode/allocnode/jetstream"
)

// operator is an operator of a trio whose nodes do not run.
type operator struct {
	*trio
	dir string
}

func (c *trio) operator() *operator { return &operator{c, c.t.TempDir()} }

func (c *trio) cfg(name string) Config {
	cfg := c.config(c.base, name, c.ports[slices.Index(names, name)], "")
	cfg.Logger = quiet
	return cfg
}

func (c *trio) unfence(name string) {
	c.t.Helper()
	var out strings.Builder
	if err := Unfence(c.cfg(name), UnfenceRisk, &out); err != nil || !strings.Contains(out.String(), "not fenced any more") {
		c.t.Fatalf("unfence %s: %v, %s", name, err, out.String())
	}
}

func (o *operator) file(name string) string { return filepath.Join(o.dir, name) }

// export writes the floors of nodes, and returns the files.
func (o *operator) export(which ...string) (files []string) {
	o.t.Helper()
	for _, name := range which {
		var out strings.Builder
		if err := Export(o.cfg(name), o.file(name), &out); err != nil {
			o.t.Fatalf("export %s: %v", name, err)
		}
		o.t.Log(strings.TrimSpace(out.String()))
		files = append(files, o.file(name))
	}
	return files
}

func (o *operator) plan(to string, opts RecoveryOptions, files ...string) {
	o.t.Helper()
	var out strings.Builder
	if err := PlanRecovery(files, o.file(to), opts, &out); err != nil {
		o.t.Fatalf("plan: %v", err)
	}
	o.t.Log(strings.TrimSpace(out.String()))
}

func (o *operator) apply(file string, which ...string) {
	o.t.Helper()
	for _, name := range which {
		var out strings.Builder
		if err := PrepareRecovery(o.cfg(name), o.file(file), &out); err != nil {
			o.t.Fatalf("apply to %s: %v", name, err)
		}
	}
}

// refuses wants an operator's step to fail with all of the words.
func refuses(t *testing.T, err error, words ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("not refused: want %q", words)
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("refused with\n%v\nwant %q", err, w)
		}
	}
}

// issued is what clients were given before a recovery.
type issued struct {
	last  uint64            // of orders
	keyed map[string]uint64 // start by key
	seq   uint64
}

// issue has the cluster give out a few ranges.
func (c *trio) issue(n int, tag string) (i issued) {
	c.t.Helper()
	i.keyed = make(map[string]uint64)
	nc := c.nodes[names[0]].connect()
	for k := range n {
		key := fmt.Sprintf("%s%d", tag, k)
		r := must(c.t, nc, "alloc.reserve.orders", fmt.Sprintf(`{"count":10,"key":%q}`, key))
		i.keyed[key], i.last, i.seq = r.Start, max(i.last, r.End-1), r.Seq
	}
	must(c.t, nc, "alloc.create.small", `{"max":1000,"max_count":7}`)
	must(c.t, nc, "alloc.reserve.small", `{"count":7,"key":"small"}`)
	return i
}

// recovered wants all three to serve above what was issued, with the same ranges for the same keys.
func (c *trio) recovered(i issued) {
	c.t.Helper()
	c.serve(names...)
	for _, name := range names {
		nc := c.nodes[name].connect()
		for key, start := range i.keyed {
			r := must(c.t, nc, "alloc.reserve.orders", fmt.Sprintf(`{"count":10,"key":%q,"since":%d}`, key, i.seq-1))
			if r.Start != start {
				c.t.Errorf("through %s key %s got [%d, %d), it had %d", name, key, r.Start, r.End, start)
			}
		}
		r := must(c.t, nc, "alloc.reserve.orders", fmt.Sprintf(`{"count":5,"key":"after-%s-%d"}`, name, i.seq))
		if r.Start <= i.last || r.Seq <= i.seq {
			c.t.Errorf("through %s [%d, %d) at seq %d was given out again: %d were issued, at seq %d",
				name, r.Start, r.End, r.Seq, i.last, i.seq)
		}
		r = must(c.t, nc, "alloc.reserve.small", fmt.Sprintf(`{"count":7,"key":"small-%s-%d"}`, name, i.seq))
		if r.Start <= 7 {
			c.t.Errorf("through %s [%d, %d) of small was given out again", name, r.Start, r.End)
		}
	}
	if _, err := try(c.nodes["n1"].connect(), "alloc.create.small", `{"max":999}`); !errors.Is(err, allocnode.ErrConflict) {
		c.t.Errorf("the settings of small are forgotten: %v", err)
	}
	c.alike()
}

// fenced wants all that run to be fenced for a reason, and to say so.
func (c *trio) fenced(words string, which ...string) {
	c.t.Helper()
	for _, name := range which {
		c.nodes[name].connect() // a fence of an earlier run is there before the server is
		c.nodes[name].becomes(wire.StateFenced, words)
		eventually(c.t, func() error { // it is said a moment after nothing more is issued
			if n := c.nodes[name].log.count("ERROR fenced"); n != 1 {
				return fmt.Errorf("%s has logged its fence %d times", name, n)
			}
			return nil
		})
	}
}

// events listens for fences on the clients' side.
func (c *trio) events(name string) *nats.Subscription {
	c.t.Helper()
	nc := c.nodes[name].connect()
	sub, err := nc.SubscribeSync("alloc.event.fenced")
	if err := errors.Join(err, nc.Flush()); err != nil {
		c.t.Fatal(err)
	}
	return sub
}

// TestRecover is a cluster whose log is lost in each of the ways of DESIGN 9, one after the other, and recovered each time.
func TestRecover(t *testing.T) {
	t.Parallel()
	c := newTrio(t)
	c.start(names...)
	c.serve(names...)
	first := c.issue(20, "first")
	c.alike()

	// Deleted while it runs.
	sub := c.events("n1")
	c.nodes["n1"].api("STREAM.DELETE.ALLOC_LOG", nil)
	c.fenced("there is no stream", names...)
	heard := map[string]bool{}
	for len(heard) < 3 {
		m, err := sub.NextMsg(liveWait)
		if err != nil {
			t.Fatalf("heard of %v: %v", heard, err)
		}
		var e fencedEvent
		err = json.Unmarshal(m.Data, &e)
		if err != nil || e.Class != fenceLog || !strings.Contains(e.Reason, "there is no stream") || e.Cluster == "" {
			t.Errorf("event %s: %v", m.Data, err)
		}
		heard[e.Node] = true
	}
	c.stop(names...)

	// A restart changes nothing, and it stays fenced at once, from the first look on.
	c.start("n1")
	c.nodes["n1"].connect()
	if s := c.nodes["n1"].Status(); s.State != wire.StateFenced || !strings.Contains(s.Reason, "there is no stream") {
		t.Errorf("restarted, n1 is %s (%s)", s.State, s.Reason)
	}
	refuses(t, Export(c.cfg("n1"), c.operator().file("x"), &strings.Builder{}), "is in use by")
	c.stop("n1")

	o := c.operator()
	files := o.export(names...)
	o.plan("recovery", RecoveryOptions{}, files...)
	c.refusals(o, files)

	// Applied twice, and one node later than the others: two are a majority.
	o.apply("recovery", "n1", "n2")
	o.apply("recovery", "n1")
	c.start(names...)
	c.serve("n1", "n2")
	// n3 was not prepared, and follows the old log, until it sees that there is another; on a machine with much to do it may
	// find the other at once. Its catalog holds no more than the floors: it is archived.
	n3 := c.nodes["n3"]
	eventually(t, func() error {
		select {
		case <-n3.done:
			return nil
		default:
		}
		if s := n3.Status(); s.State != wire.StateServing || s.Epoch != 2 {
			return fmt.Errorf("n3 is %s in epoch %d: %s", s.State, s.Epoch, s.Reason)
		}
		return nil
	})
	select {
	case <-n3.done:
		n3.ended("goes on in epoch 2")
		c.start("n3")
	default:
	}
	c.recovered(first)
	if _, err := os.Stat(filepath.Join(c.dir("n3"), "catalog", "badger.epoch-1")); err != nil {
		t.Errorf("the old catalog of n3 is not archived: %v", err)
	}
	if s := c.nodes["n2"].Status(); s.Epoch != 2 {
		t.Errorf("epoch %d", s.Epoch)
	}
	second := c.issue(5, "second")
	c.alike()
	c.stop(names...)
	c.start(names...) // an ordinary restart in the new epoch
	c.recovered(second)
	second = c.issue(5, "third")
	c.alike()

	// Purged under stopped nodes is not to be had: nobody runs who could. Purged under two of three.
	c.stop("n3")
	c.nodes["n1"].api("STREAM.PURGE.ALLOC_LOG_2", nil)
	c.fenced("purged", "n1", "n2")
	c.stop("n1", "n2")
	o = c.operator()
	o.plan("recovery", RecoveryOptions{}, o.export(names...)...)
	o.apply("recovery", names...)
	c.start(names...)
	c.recovered(second)
	if s := c.nodes["n2"].Status(); s.Epoch != 3 {
		t.Errorf("epoch %d", s.Epoch)
	}
}

// refusals are the words with which an operator's steps refuse.
func (c *trio) refusals(o *operator, files []string) {
	t := c.t
	var out strings.Builder
	plan := func(opts RecoveryOptions, files ...string) error {
		return PlanRecovery(files, o.file("no"), opts, &out)
	}
	words := []string{"the floors of n3 are missing", "would be issued again", `--raise-by N --i-know "ids may be issued twice"`}
	refuses(t, plan(RecoveryOptions{}, files[0], files[1]), words...)
	refuses(t, plan(RecoveryOptions{RaiseBy: 1000}, files[0], files[1]), words...)
	refuses(t, plan(RecoveryOptions{RaiseBy: 1000, Accepted: "yes"}, files[0], files[1]), words...)
	refuses(t, plan(RecoveryOptions{Accepted: RecoveryRisk}, files[0], files[1]), words...)
	refuses(t, plan(RecoveryOptions{RaiseBy: 1, Accepted: RecoveryRisk}, files...), "is not needed")
	refuses(t, plan(RecoveryOptions{}, files[0], files[0], files[1]), "both of the node n1")
	refuses(t, plan(RecoveryOptions{Epoch: 1}, files...), "--epoch 1", "2 or more")
	refuses(t, plan(RecoveryOptions{Epoch: 1 << 63}, files...), "1002 or less")
	refuses(t, PlanRecovery(files, files[1], RecoveryOptions{}, &strings.Builder{}), "is one of the floors")
	refuses(t, plan(RecoveryOptions{}, o.file("recovery")), "is not a file of allocnode floors")
	refuses(t, plan(RecoveryOptions{}, o.file("nowhere")), "no such file")

	whole, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	flipped := slices.Clone(whole)
	flipped[len(flipped)/2] ^= 1
	for name, b := range map[string][]byte{"cut": whole[:len(whole)-1], "flipped": flipped} {
		if err := os.WriteFile(o.file(name), b, 0o600); err != nil {
			t.Fatal(err)
		}
		refuses(t, plan(RecoveryOptions{}, o.file(name), files[1], files[2]), "damaged")
	}
	if _, err := os.Stat(o.file("no")); err == nil {
		t.Error("a refused plan has written a file")
	}

	// Another cluster's floors, and another's recovery.
	f, err := readFloors(files[2])
	if err != nil {
		t.Fatal(err)
	}
	f.Cluster = wire.ID{7}
	b, err := f.encode()
	if err == nil {
		err = os.WriteFile(o.file("foreign"), b, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	refuses(t, plan(RecoveryOptions{}, files[0], o.file("foreign")), "nothing to do with each other")
	other := c.cfg("n1")
	other.ClusterID = wire.ID{7}
	refuses(t, PrepareRecovery(other, o.file("recovery"), &out), "cluster_id is set")
	stranger := config(t, t.TempDir(), "n9", "")
	stranger.Logger = quiet
	refuses(t, PrepareRecovery(stranger, o.file("recovery"), &out), "n9, is not one of the recovery's")
	refuses(t, Export(stranger, o.file("no"), &out), "there is no catalog")
	refuses(t, PrepareRecovery(c.cfg("n1"), files[0], &out), "is not a file of allocnode recovery")
}

// A log that begins anew, or that an older copy of has been put back, under nodes that do not run.
func TestRecoverUnderStoppedNodes(t *testing.T) {
	t.Parallel()
	c := newTrio(t)
	c.start(names...)
	c.serve(names...)
	c.issue(3, "early")
	c.alike()
	c.stop(names...)
	for _, name := range names { // JetStream's files, as they were
		if err := os.CopyFS(filepath.Join(c.base, "old-"+name), os.DirFS(filepath.Join(c.dir(name), "jetstream"))); err != nil {
			t.Fatal(err)
		}
	}
	c.start(names...)
	c.serve(names...)
	given := c.issue(30, "late")
	c.alike()
	c.stop(names...)

	for _, name := range names { // rolled back, all of it
		remove(t, c.dir(name), "jetstream")
		if err := os.Rename(filepath.Join(c.base, "old-"+name), filepath.Join(c.dir(name), "jetstream")); err != nil {
			t.Fatal(err)
		}
	}
	c.start(names...)
	c.fenced("the log ", names...) // lost entries, or holds others already
	c.stop(names...)
	c.start(names...)
	c.fenced("the log ", names...) // lost entries, or holds others already
	c.stop(names...)
	o := c.operator()
	o.plan("recovery", RecoveryOptions{}, o.export(names...)...)
	o.apply("recovery", names...)
	c.start(names...)
	c.recovered(given)
	// Who still follows the old log is told there that it is over.
	// Checked: without seal the last entry was another.
	var last struct {
		Message struct {
			Data []byte `json:"data"`
		} `json:"message"`
	}
	text := c.nodes["n1"].api("STREAM.MSG.GET.ALLOC_LOG", map[string]string{"last_by_subj": "alloc.log.>"})
	if err := json.Unmarshal([]byte(text), &last); err != nil || !strings.Contains(string(last.Message.Data), "begins epoch 2: this log is over") {
		t.Errorf("the old log ends with %q, %v", last.Message.Data, err)
	}
	given = c.issue(3, "second")
	c.alike()
	c.stop(names...)

	// JetStream's files are gone, on all.
	for _, name := range names {
		remove(t, c.dir(name), "jetstream")
	}
	c.start(names...)
	c.fenced("the log is gone", names...)
	c.stop(names...)
	o = c.operator()
	o.plan("recovery", RecoveryOptions{}, o.export(names...)...)
	o.apply("recovery", names...)
	c.start(names...)
	c.recovered(given)
}

// A stream of the log's name that somebody made anew is not this log, and recovery goes past it.
func TestRecoverRecreated(t *testing.T) {
	t.Parallel()
	c := newTrio(t)
	c.start(names...)
	c.serve(names...)
	given := c.issue(5, "early")
	c.alike()
	cluster := c.nodes["n1"].Status().Cluster
	nc, err := c.nodes["n1"].server.LogConn()
	if err != nil {
		t.Fatal(err)
	}
	log, err := jetstream.NewLog(nc, jetstream.LogConfig{Replicas: 3}, "x")
	if err != nil {
		t.Fatal(err)
	}
	c.nodes["n1"].api("STREAM.DELETE.ALLOC_LOG", nil)
	eventually(t, func() error {
		_, err := log.Create(t.Context(), cluster, 1)
		return err
	})
	nc.Close()
	c.fenced("", names...)
	c.stop(names...)

	// n3 was killed, once; what it does not know of itself the log can no longer tell.
	if err := os.Remove(filepath.Join(c.dir("n3"), "catalog", "clean")); err != nil {
		t.Fatal(err)
	}
	o := c.operator()
	files := o.export(names...)
	refuses(t, PlanRecovery(files, o.file("no"), RecoveryOptions{}, &strings.Builder{}), "n3: not stopped cleanly")
	// n2's disk is gone: what comes under its name has another catalog.
	remove(t, c.dir("n2"))
	c.start("n2")
	c.nodes["n2"].connect()
	c.stop("n2")
	files = o.export(names...)
	refuses(t, PlanRecovery(files, o.file("no"), RecoveryOptions{}, &strings.Builder{}), "n2 has another catalog", "n3: not stopped cleanly")

	opts := RecoveryOptions{RaiseBy: 500, Accepted: RecoveryRisk}
	o.plan("forced", opts, files...)
	opts.RaiseBy = 501
	o.plan("other", opts, files...)

	// Two recoveries: the second node that comes finds the first's log, and refuses.
	o.apply("forced", "n1")
	o.apply("other", "n2")
	refuses(t, PrepareRecovery(c.cfg("n2"), o.file("forced"), &strings.Builder{}), "is prepared for recovery", "--epoch 3")
	c.start(names...) // n3, which is not prepared, is the third server that JetStream wants for three replicas
	const mismatch = "this node was prepared for recovery"
	loser := ""
	eventually(t, func() error {
		for _, name := range []string{"n1", "n2"} {
			if s := c.nodes[name].Status(); s.State == wire.StateFenced && strings.Contains(s.Reason, mismatch) {
				loser = name
				return nil
			}
		}
		return errors.New("neither refuses the other's recovery")
	})
	// n3 follows whichever log there is: its catalog holds no more than either. It may have to be started again for that.
	select {
	case <-c.nodes["n3"].done:
		c.start("n3")
	case <-time.After(2 * epochInterval):
	}
	c.serve("n3")
	c.nodes[loser].becomes(wire.StateFenced, mismatch)
	c.stop(names...)

	// The way out: a plan of a later epoch.
	files = o.export(names...)
	o.plan("third", RecoveryOptions{Epoch: 3}, files...)
	o.apply("third", names...)
	c.start(names...)
	c.serve(names...)
	client := c.nodes["n1"].connect()
	r := must(t, client, "alloc.reserve.orders", `{"key":"raised"}`)
	if r.Start <= given.last+500 {
		t.Errorf("raised by 500 or 501, orders goes on at %d, %d were issued", r.Start, given.last)
	}
	if r := must(t, client, "alloc.reserve.unknown", `{"key":"raised too"}`); r.Start <= 500 {
		t.Errorf("raised, a sequence that nobody remembers begins at %d", r.Start)
	}
	// A key of before that the catalogs do not hold may have been used.
	if r, err := try(client, "alloc.reserve.orders", fmt.Sprintf(`{"key":"lost","since":%d}`, given.seq)); !errors.Is(err, allocnode.ErrKeyExpired) {
		t.Errorf("a key that may have been lost: %+v, %v", r, err)
	}
}
