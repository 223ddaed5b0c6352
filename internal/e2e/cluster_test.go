package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/allocnode/allocnode/internal/wire"
)

// cluster is three nodes, each a process of its own.
type cluster struct {
	t     testing.TB
	dir   string
	names []string
	urls  []string
	nodes []*process
}

// newCluster writes the configurations, as a person would, and starts nothing.
func newCluster(t testing.TB) *cluster {
	t.Helper()
	c := &cluster{t: t, dir: t.TempDir(), names: []string{"n1", "n2", "n3"}, nodes: make([]*process, 3)}
	var routes []string
	for range c.names {
		routes = append(routes, fmt.Sprintf("127.0.0.1:%d", freePort(t)))
	}
	for i, name := range c.names {
		listen := fmt.Sprintf("127.0.0.1:%d", freePort(t))
		c.urls = append(c.urls, "nats://"+listen)
		conf := fmt.Sprintf(`server_name: %s
listen: %q
cluster { name: e2e, listen: %q, routes: ["nats://%s"] }
jetstream { store_dir: %q }
alloc { nodes: [n1, n2, n3] }
`, name, listen, routes[i], strings.Join(routes, `", "nats://`), filepath.Join(c.dir, name))
		if err := os.WriteFile(c.config(i), []byte(conf), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return c
}

func (c *cluster) config(i int) string { return filepath.Join(c.dir, c.names[i]+".conf") }

func (c *cluster) start(i int) {
	c.t.Helper()
	c.nodes[i] = start(c.t, c.dir, nil, "serve", "--config", c.config(i))
}

// startCluster starts all three and waits until all serve.
func startCluster(t testing.TB) *cluster {
	t.Helper()
	c := newCluster(t)
	for i := range c.names {
		c.start(i)
	}
	c.awaitServing(connect(t, c.urls...))
	return c
}

// awaitServing waits until every node serves, and nc's server knows it.
func (c *cluster) awaitServing(nc *nats.Conn) map[string]wire.Status {
	c.t.Helper()
	var all map[string]wire.Status
	eventually(c.t, "all nodes serve", func() error {
		for i, p := range c.nodes {
			if !p.running() {
				return fmt.Errorf("%w: %s has ended", errStop, c.names[i])
			}
		}
		all = statuses(c.t, nc, len(c.names))
		return servingAll(all, len(c.names))
	})
	return all
}

func servingAll(all map[string]wire.Status, want int) error {
	if len(all) != want {
		return fmt.Errorf("%d of %d nodes answer", len(all), want)
	}
	for name, s := range all {
		if !s.Ready {
			return fmt.Errorf("%s is %s: %s", name, s.State, s.Reason)
		}
	}
	return nil
}

// connect makes a connection that comes back for as long as the test runs.
func connect(t testing.TB, urls ...string) *nats.Conn {
	t.Helper()
	nc, err := nats.Connect(strings.Join(urls, ","), nats.RetryOnFailedConnect(true), nats.MaxReconnects(-1),
		nats.ReconnectWait(100*time.Millisecond), nats.Timeout(5*time.Second), nats.Name(t.Name()),
		nats.ReconnectErrHandler(func(*nats.Conn, error) {}),
		nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {})) // or nats.go prints each lost connection
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return nc
}

// statuses asks every node, and waits until want have answered or for a second.
func statuses(t testing.TB, nc *nats.Conn, want int) map[string]wire.Status {
	t.Helper()
	inbox := nc.NewInbox()
	sub, err := nc.SubscribeSync(inbox)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = sub.Unsubscribe() }()
	all := make(map[string]wire.Status)
	if nc.PublishRequest("alloc.status", inbox, nil) != nil {
		return all // not connected now
	}
	for deadline := time.Now().Add(time.Second); len(all) < want; {
		m, err := sub.NextMsg(time.Until(deadline))
		if err != nil {
			break
		}
		var s wire.Status
		if len(m.Data) == 0 {
			continue // no responders
		}
		if err := json.Unmarshal(m.Data, &s); err != nil {
			t.Fatalf("status %q: %v", m.Data, err)
		}
		all[s.Name] = s
	}
	return all
}

// answer is any reply of the service.
type answer struct {
	Sequence string `json:"sequence"`
	Start    uint64 `json:"start"`
	End      uint64 `json:"end"`
	Count    uint64 `json:"count"`
	HWM      uint64 `json:"hwm"`
	Seq      uint64 `json:"seq"`
	Cluster  string `json:"cluster"`
	Error    *struct {
		Code    string `json:"code"`
		Message string `json:"message"`
	} `json:"error"`
}

// ask makes one request, and fails the test unless an answer comes.
func ask(t testing.TB, nc *nats.Conn, subject, body string) answer {
	t.Helper()
	m, err := nc.Request(subject, []byte(body), 5*time.Second)
	if err != nil {
		t.Fatalf("request %s %q: %v", subject, body, err)
	}
	var a answer
	if err := json.Unmarshal(m.Data, &a); err != nil {
		t.Fatalf("answer to %s: %q: %v", subject, m.Data, err)
	}
	return a
}

// agree waits until all nodes have applied the same, and compares their digests.
func (c *cluster) agree(nc *nats.Conn) {
	c.t.Helper()
	eventually(c.t, "equal cursors", func() error {
		all := statuses(c.t, nc, len(c.names))
		if err := servingAll(all, len(c.names)); err != nil {
			return err
		}
		first := all[c.names[0]]
		for _, s := range all {
			if s.Cursor != first.Cursor {
				return fmt.Errorf("cursors %d and %d", first.Cursor, s.Cursor)
			}
		}
		for _, s := range all {
			if s.Digest != first.Digest || s.Digest == "" {
				c.t.Fatalf("at cursor %d the digest of %s is %q, that of %s is %q", s.Cursor, s.Name, s.Digest, first.Name, first.Digest)
			}
		}
		return nil
	})
}

// span is a range that a client was given.
type span struct {
	start, end uint64
	key        string
}

// disjoint returns an error that names two spans which share an id.
func disjoint(spans []span) error {
	sorted := slices.Clone(spans)
	slices.SortFunc(sorted, func(a, b span) int {
		if a.start < b.start {
			return -1
		}
		return 1
	})
	for i, s := range sorted {
		if s.start < 1 || s.end <= s.start {
			return fmt.Errorf("key %s has the range [%d, %d)", s.key, s.start, s.end)
		}
		if i > 0 && s.start < sorted[i-1].end {
			return fmt.Errorf("keys %s and %s share ids: [%d, %d) and [%d, %d)",
				sorted[i-1].key, s.key, sorted[i-1].start, sorted[i-1].end, s.start, s.end)
		}
	}
	return nil
}

func TestDisjoint(t *testing.T) {
	for _, tc := range []struct {
		spans []span
		ok    bool
	}{
		{[]span{{5, 8, "b"}, {1, 5, "a"}, {8, 9, "c"}}, true},
		{[]span{{5, 8, "b"}, {1, 6, "a"}}, false},
		{[]span{{1, 3, "a"}, {1, 3, "b"}}, false},
		{[]span{{0, 3, "a"}}, false},
		{[]span{{3, 3, "a"}}, false},
	} {
		if err := disjoint(tc.spans); (err == nil) != tc.ok {
			t.Errorf("%v: %v", tc.spans, err)
		}
	}
}
