package benchmark

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/allocnode/allocnode/internal/freeport"
	"github.com/allocnode/allocnode/internal/node"
)

// cluster is nodes in this process, with the service in an account that has JetStream too, so that the yardsticks run in
// the same servers and over the same connections.
type cluster struct {
	nodes []*node.Node
	logs  *bytes.Buffer
}

func freePorts(b *testing.B, n int) []int {
	b.Helper()
	ports, err := freeport.Take(n)
	if err != nil {
		b.Fatal(err)
	}
	return ports
}

// configFor is node i's configuration file; one node has no cluster block.
func configFor(dir string, i int, routes []int) string {
	var s strings.Builder
	fmt.Fprintf(&s, "listen: 127.0.0.1:-1\nserver_name: n%d\njetstream { store_dir: %q }\n", i+1, filepath.Join(dir, fmt.Sprintf("n%d", i+1)))
	s.WriteString("accounts { BENCH { jetstream: enabled, users: [{user: bench, password: bench}] } }\nno_auth_user: bench\n")
	if len(routes) == 1 {
		s.WriteString("alloc { account: BENCH }\n")
		return s.String()
	}
	fmt.Fprintf(&s, "cluster { name: bench, listen: \"127.0.0.1:%d\", routes: [", routes[i])
	for _, p := range routes {
		fmt.Fprintf(&s, "\"nats://127.0.0.1:%d\", ", p)
	}
	s.WriteString("] }\nalloc { account: BENCH, nodes: [")
	for j := range routes {
		fmt.Fprintf(&s, "n%d, ", j+1)
	}
	s.WriteString("] }\n")
	return s.String()
}

// startCluster starts count nodes and returns when all serve. They are stopped when the benchmark ends.
func startCluster(b *testing.B, count int) *cluster {
	b.Helper()
	c := &cluster{logs: new(bytes.Buffer)}
	var mu sync.Mutex
	logger := slog.New(slog.NewTextHandler(writerFunc(func(p []byte) (int, error) {
		mu.Lock()
		defer mu.Unlock()
		return c.logs.Write(p)
	}), &slog.HandlerOptions{Level: slog.LevelWarn}))
	dir := b.TempDir()
	routes := freePorts(b, count)
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	b.Cleanup(func() {
		cancel()
		running.Wait()
		mu.Lock()
		defer mu.Unlock()
		if b.Failed() {
			b.Log(c.logs.String())
		}
	})
	for i := range count {
		path := filepath.Join(dir, fmt.Sprintf("n%d.conf", i+1))
		if err := os.WriteFile(path, []byte(configFor(dir, i, routes)), 0o600); err != nil {
			b.Fatal(err)
		}
		cfg := node.DefaultConfig()
		cfg.Version, cfg.Logger = "0.0.0-bench", logger
		if err := cfg.LoadConfig(path, func(error) {}); err != nil {
			b.Fatal(err)
		}
		n, err := node.New(cfg)
		if err != nil {
			b.Fatal(err)
		}
		c.nodes = append(c.nodes, n)
		running.Go(func() {
			if err := n.Run(ctx); err != nil {
				b.Error(err)
			}
		})
	}
	for _, n := range c.nodes {
		select {
		case <-n.Ready():
		case <-time.After(time.Minute):
			b.Fatalf("a node does not serve after a minute: %+v", n.Status())
		}
	}
	return c
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// connect is a client of node i, over TCP as any client.
func (c *cluster) connect(b *testing.B, i int) *nats.Conn {
	b.Helper()
	nc, err := nats.Connect(c.nodes[i].ClientURL())
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(nc.Close)
	return nc
}
