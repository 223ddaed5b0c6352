package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/allocnode/allocnode/internal/wire"
)

// command runs the binary in the cluster's directory, to its end.
func (c *cluster) command(args ...string) (out string, status int) {
	c.t.Helper()
	p := start(c.t, c.dir, nil, args...)
	status = p.exit(c.t)
	return p.stdout.String() + p.stderr.String(), status
}

// does wants a command to succeed and to print words.
func (c *cluster) does(words string, args ...string) {
	c.t.Helper()
	out, status := c.command(args...)
	if status != 0 || !strings.Contains(out, words) {
		c.t.Fatalf("%v ended with status %d and %q: want %q", args, status, out, words)
	}
	c.t.Logf("$ allocnode %s\n%s", strings.Join(args, " "), strings.TrimSpace(out))
}

// refuses wants a command to fail and to print words.
func (c *cluster) refuses(words string, args ...string) {
	c.t.Helper()
	out, status := c.command(args...)
	if status != 1 || !strings.Contains(out, words) {
		c.t.Fatalf("%v ended with status %d and %q: want 1 and %q", args, status, out, words)
	}
}

// stop ends nodes as a service manager does.
func (c *cluster) stop(which ...int) {
	c.t.Helper()
	for _, i := range which {
		c.nodes[i].signal(syscall.SIGTERM)
	}
	for _, i := range which {
		if status := c.nodes[i].exit(c.t); status != 0 {
			c.t.Errorf("%s ended with status %d", c.names[i], status)
		}
	}
}

// allFenced waits until every node says that it is fenced, with words.
func (c *cluster) allFenced(nc *nats.Conn, words string) {
	c.t.Helper()
	eventually(c.t, "all nodes are fenced", func() error {
		all := statuses(c.t, nc, len(c.names))
		if len(all) != len(c.names) {
			return fmt.Errorf("%d nodes answer", len(all))
		}
		for name, s := range all {
			if s.State != wire.StateFenced || !strings.Contains(s.Reason, words) {
				return fmt.Errorf("%s is %s: %s", name, s.State, s.Reason)
			}
		}
		return nil
	})
}

// reserveKeyed asks until there is an answer.
func (c *cluster) reserveKeyed(nc *nats.Conn, key string) (a answer) {
	c.t.Helper()
	eventually(c.t, "reserve under "+key, func() error {
		m, err := nc.Request("alloc.reserve.orders", fmt.Appendf(nil, `{"count":10,"key":%q}`, key), 5*time.Second)
		if err != nil {
			return err
		}
		a = answer{}
		if err := json.Unmarshal(m.Data, &a); err != nil {
			return err
		}
		if a.Error != nil {
			return fmt.Errorf("%s: %s", a.Error.Code, a.Error.Message)
		}
		return nil
	})
	return a
}

// TestRecoverWalk is the walk of docs/OPERATIONS.md, after the log was lost under stopped nodes.
func TestRecoverWalk(t *testing.T) {
	t.Parallel()
	c := startCluster(t)
	nc := connect(t, c.urls...)
	ranges := make(map[string]answer)
	last := uint64(0)
	for i := range 30 {
		key := fmt.Sprint("before", i)
		ranges[key] = c.reserveKeyed(nc, key)
		last = max(last, ranges[key].End-1)
	}
	export := func(i int) []string {
		return []string{"recover", "export", "--config", c.config(i), "-o", filepath.Join(c.dir, c.names[i]+".floors")}
	}
	floors := func(which ...int) (files []string) {
		for _, i := range which {
			files = append(files, filepath.Join(c.dir, c.names[i]+".floors"))
		}
		return files
	}
	recovery := filepath.Join(c.dir, "recovery")
	plan := func(which ...int) []string {
		return append([]string{"recover", "plan", "-o", recovery}, floors(which...)...)
	}

	c.refuses("is in use by process", export(0)...)
	// n3 is killed: what it applied last may not be in its catalog. The log is whole still: it comes back, and knows all again.
	c.nodes[2].kill()
	c.does("not stopped cleanly", export(2)...)
	c.stop(0, 1)
	c.does("stopped cleanly", export(0)...)
	c.does("stopped cleanly", export(1)...)
	c.refuses("n3: not stopped cleanly", plan(0, 1, 2)...)
	for i := range c.names {
		c.start(i)
	}
	c.awaitServing(nc)
	c.stop(0, 1, 2)

	for _, name := range c.names { // the log is lost
		if err := os.RemoveAll(filepath.Join(c.dir, name, "jetstream")); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 { // and a restart does not change it
		for i := range c.names {
			c.start(i)
		}
		c.allFenced(nc, "the log is gone")
		c.stop(0, 1, 2)
	}
	for i := range c.names {
		c.does("stopped cleanly", export(i)...)
	}
	c.refuses(`--raise-by N --i-know "ids may be issued twice"`, plan(0, 1)...)
	c.refuses("no such file", "recover", "apply", "--config", c.config(0), recovery)
	c.does("of cluster", plan(0, 1, 2)...)
	for i, name := range c.names {
		for range 2 {
			c.does(name+" is prepared for recovery", "recover", "apply", "--config", c.config(i), recovery)
		}
	}
	for i := range c.names {
		c.start(i)
	}
	for name, s := range c.awaitServing(nc) {
		if s.Epoch != 2 {
			t.Errorf("%s is in epoch %d", name, s.Epoch)
		}
	}
	for key, want := range ranges {
		if got := c.reserveKeyed(nc, key); got.Start != want.Start || got.End != want.End {
			t.Errorf("%s got [%d, %d): it had [%d, %d)", key, got.Start, got.End, want.Start, want.End)
		}
	}
	if a := c.reserveKeyed(nc, "after"); a.Start <= last || a.Seq <= ranges["before29"].Seq {
		t.Errorf("[%d, %d) at seq %d: ids up to %d were issued, at seq %d", a.Start, a.End, a.Seq, last, ranges["before29"].Seq)
	}
	c.agree(nc)
	c.stop(0, 1, 2)
	c.does("already: there is nothing to do", "recover", "apply", "--config", c.config(0), recovery)
	c.does("n1 is not fenced", "recover", "unfence", "--config", c.config(0))
	if _, err := os.Stat(filepath.Join(c.dir, "n1", "catalog", "badger.epoch-1")); errors.Is(err, os.ErrNotExist) {
		t.Error("the old catalog was not kept")
	}

	// Log and catalogs are lost, all of them: the recovery that is still there is not carried out a second time.
	for _, name := range c.names {
		for _, part := range []string{"jetstream", "catalog"} {
			if err := os.RemoveAll(filepath.Join(c.dir, name, part)); err != nil {
				t.Fatal(err)
			}
		}
	}
	const followed = "has followed the log of epoch 2"
	c.refuses(followed, "recover", "apply", "--config", c.config(0), recovery)
	for i := range c.names {
		c.start(i)
	}
	c.allFenced(nc, followed)
}
