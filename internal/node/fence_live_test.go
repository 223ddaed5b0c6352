package node

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/allocnode/allocnode/apply"
	"github.com/allocnode/allocnode/internal/wire"
	"github.com/allocnode/allocnode/jetstream"
	"github.com/allocnode/allocnode/kv"
)

// A catalog that remembers more than a recovery that was made without it, and comes when the others serve already: all fence.
// Checked: without remembersMore in rejoin.complete n3 archived its catalog, and ids that it knew were issued again.
func TestRecoverOldCatalogAbove(t *testing.T) {
	t.Parallel()
	c := newTrio(t)
	c.start(names...)
	c.serve(names...)
	c.issue(2, "early")
	c.alike()
	c.stop(names...)
	for _, name := range []string{"n1", "n2"} { // a backup
		if err := os.CopyFS(filepath.Join(c.base, "old-"+name), os.DirFS(c.dir(name))); err != nil {
			t.Fatal(err)
		}
	}
	c.start(names...)
	c.serve(names...)
	given := c.issue(20, "late")
	c.alike()
	c.stop(names...)
	kept := c.dir("n1") + ".kept"
	for _, name := range names { // two disks are restored from it, and the third's log is gone
		if name != "n3" {
			if err := errors.Join(os.Rename(c.dir(name), c.dir(name)+".kept"), os.Rename(filepath.Join(c.base, "old-"+name), c.dir(name))); err != nil {
				t.Fatal(err)
			}
		}
		remove(t, c.dir(name), "jetstream")
	}
	o := c.operator()
	files := o.export("n1", "n2")
	o.plan("forced", RecoveryOptions{RaiseBy: 5, Accepted: RecoveryRisk}, files...)
	refuses(t, PrepareRecovery(c.cfg("n3"), o.file("forced"), &strings.Builder{}), "has carved orders up to", "the recovery only up to", "plan anew")
	// The disk that was taken out remembers too.
	cfg := c.cfg("n1")
	cfg.DataDir, cfg.Server.StoreDir = kept, ""
	refuses(t, PrepareRecovery(cfg, o.file("forced"), &strings.Builder{}), "has carved orders up to")

	o.apply("forced", "n1", "n2")
	c.start(names...)
	eventually(t, func() error { // n3 may be quicker than their check: then they do not even begin
		for _, name := range []string{"n1", "n2"} {
			if s := c.nodes[name].Status(); s.State != wire.StateServing && s.State != wire.StateFenced {
				return fmt.Errorf("%s is %s: %s", name, s.State, s.Reason)
			}
		}
		return nil
	})
	select { // n3 had looked before there was a log of epoch 2
	case <-c.nodes["n3"].done:
		c.start("n3")
	case <-time.After(2 * epochInterval):
	}
	c.fenced("has carved orders up to", names...)
	c.stop(names...)
	if _, err := os.Stat(filepath.Join(c.dir("n3"), "catalog", "badger.epoch-1")); err == nil {
		t.Error("the catalog of n3 was put away")
	}
	refuses(t, Unfence(c.cfg("n1"), UnfenceRisk, &strings.Builder{}), "the proof stands in the log itself")
	refuses(t, Unfence(c.cfg("n3"), "", &strings.Builder{}), `give --i-know "the reason is gone"`)

	// With n3's word nothing is in doubt any more.
	o = c.operator()
	o.plan("recovery", RecoveryOptions{}, o.export(names...)...)
	o.apply("recovery", names...)
	c.start(names...)
	c.recovered(given)
}

// diverge has the stopped node apply the log's next entry to another state than it makes.
func (c *trio) diverge(name string) {
	c.t.Helper()
	nc, err := c.nodes["n1"].server.LogConn()
	if err != nil {
		c.t.Fatal(err)
	}
	defer nc.Close()
	log, err := jetstream.NewLog(nc, jetstream.LogConfig{Replicas: 3}, "x")
	if err != nil {
		c.t.Fatal(err)
	}
	defer log.Close()
	err = c.cfgOf(name).open(false, func(catalog *kv.Catalog, m *apply.Machine) error {
		msg, err := log.Get(c.t.Context(), m.Head().Cursor+1)
		if err != nil {
			return err
		}
		_, delta, err := m.Apply(msg.Seq, slices.Clone(msg.Data))
		if err != nil {
			return err
		}
		delta.Head.Digest[0] ^= 1
		return catalog.Commit([]apply.Delta{delta})
	})
	if err != nil {
		c.t.Fatal(err)
	}
}

func (c *trio) cfgOf(name string) *Config {
	cfg := c.cfg(name)
	return &cfg
}

// One node's state is another than the others': it fences and says so, the others go on; a restart finds the fence, rebuilds
// the state from the log, and the fence is lifted.
// Checked: without distrust in Node.run it stayed fenced after the restart.
func TestDigestFenceLiftsItself(t *testing.T) {
	t.Parallel()
	c := newTrio(t)
	c.start(names...)
	c.serve(names...)
	given := c.issue(5, "early")
	c.alike()
	c.stop("n3")
	given.last = must(t, c.nodes["n1"].connect(), "alloc.reserve.orders", `{"count":100,"key":"meanwhile"}`).End - 1
	c.diverge("n3")
	sub := c.events("n1")
	c.start("n3")
	c.fenced("no majority can have it", "n3")
	if m, err := sub.NextMsg(liveWait); err != nil || !strings.Contains(string(m.Data), `"class":"digest"`) {
		t.Errorf("event: %v, %v", m, err)
	}
	c.serve("n1", "n2")
	stored := filepath.Join(c.dir("n3"), "catalog", "fence")
	if b, err := os.ReadFile(stored); err != nil || !strings.Contains(string(b), `"class":"digest"`) {
		t.Errorf("stored: %.200s, %v", b, err)
	}
	c.stop("n3")
	c.start("n3")
	c.serve(names...)
	eventually(t, func() error {
		if n := c.nodes["n3"].log.count("the fence is lifted"); n != 1 {
			return fmt.Errorf("n3 has logged %d times that its fence is lifted", n)
		}
		if _, err := os.Stat(stored); !errors.Is(err, os.ErrNotExist) {
			return errors.New("the fence is still stored")
		}
		return nil
	})
	must(t, c.nodes["n1"].connect(), "alloc.reserve.small", `{"count":7,"key":"small"}`)
	c.recovered(given)
	if s := c.nodes["n3"].Status(); s.State != wire.StateServing {
		t.Errorf("n3 is %s", s.State)
	}
}
