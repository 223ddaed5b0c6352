package main

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
)

func TestReservation(t *testing.T) {
	f := devFlags{try: "orders.eu:1000"}
	if sequence, count, err := f.reservation(); err != nil || sequence != "orders.eu" || count != 1000 {
		t.Errorf("got %q %d %v", sequence, count, err)
	}
	f.try = ""
	if sequence, _, err := f.reservation(); err != nil || sequence != "" {
		t.Errorf("nothing to try: %q %v", sequence, err)
	}
	for _, bad := range []string{
		"orders", "orders:", ":5", "orders:0", "orders:-1", "orders:1000001", "or ders:5", "orders:5:6",
	} {
		f.try = bad
		if _, _, err := f.reservation(); err == nil || !strings.Contains(err.Error(), "SEQUENCE:COUNT") {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

// TestPlace wants one configuration to serve all nodes: nothing of it that only one node can have is left on the others.
func TestPlace(t *testing.T) {
	file := &server.Options{
		ServerName: "file", StoreDir: "file", HTTPPort: 8222, Cluster: server.ClusterOpts{Name: "file", Port: 1},
		LeafNode: server.LeafNodeOpts{Port: 7422}, Websocket: server.WebsocketOpts{Port: 8080}, MQTT: server.MQTTOpts{Port: 1883},
	}
	for i := range 3 {
		opts := file.Clone()
		place(opts, i, []int{11, 12, 13})
		if opts.ServerName != "" || opts.StoreDir != "" || opts.Cluster.Port != 11+i || opts.Cluster.Name == "file" ||
			len(opts.Routes) != 3 {
			t.Errorf("node %d: %+v", i, opts)
		}
		want := 0
		if i == 0 {
			want = 8222
		}
		if opts.HTTPPort != want || i > 0 && opts.LeafNode.Port+opts.Websocket.Port+opts.MQTT.Port != 0 {
			t.Errorf("node %d has ports of another: %+v", i, opts)
		}
	}
	alone := file.Clone()
	place(alone, 0, []int{11})
	if alone.Cluster.Port != 0 || len(alone.Routes) != 0 {
		t.Errorf("a node alone has a cluster: %+v", alone.Cluster)
	}
}

// Checked: with filepath.Glob, for which the directory's name is a pattern, other nodes were not refused.
func TestSameNodes(t *testing.T) {
	f := devFlags{serveFlags: serveFlags{data: filepath.Join(t.TempDir(), "a[bc]*")}}
	three := []string{"n1", "n2", "n3"}
	if err := f.sameNodes(three); err != nil {
		t.Errorf("an empty directory: %v", err)
	}
	for _, n := range three {
		if err := os.MkdirAll(filepath.Join(f.data, n, "catalog"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.sameNodes(three); err != nil {
		t.Errorf("the same nodes: %v", err)
	}
	for _, other := range [][]string{{"n1"}, {"n1", "n2", "n3", "n4", "n5"}, {"x1", "x2", "x3"}} {
		if err := f.sameNodes(other); err == nil || !strings.Contains(err.Error(), "n1, n2, n3") {
			t.Errorf("%v: %v", other, err)
		}
	}
}

// TestDevWithConfig runs dev with a file that is meant for one node, and uses it through the prefix that the file names.
func TestDevWithConfig(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "a.conf")
	text := "server_name: other\nlisten: '127.0.0.1:-1'\nhttp: '127.0.0.1:-1'\njetstream { store_dir: 'other' }\n" +
		"alloc { prefix: ids, nodes: [other] }\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	f := devFlags{nodes: 3, serveFlags: serveFlags{config: file, data: filepath.Join(dir, "data")}}
	logger := slog.New(slog.NewTextHandler(io.Discard, nil))
	nodes, prefix, err := f.cluster(logger)
	if err != nil || prefix != "ids" || len(nodes) != 3 {
		t.Fatalf("%d nodes, prefix %q: %v", len(nodes), prefix, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var out bytes.Buffer
	err = runAll(ctx, nodes, logger, func(ctx context.Context) error {
		defer cancel()
		if err := try(ctx, &out, nodes[0].ClientURL(), prefix, "orders", 1000); err != nil {
			return err
		}
		// What is refused is an error, and ends dev.
		err := try(ctx, &out, nodes[0].ClientURL(), prefix, "orders", 5_000_000)
		if err == nil || !strings.Contains(err.Error(), "max_count") {
			t.Errorf("too many: %v", err)
		}
		return nil
	})
	if err != nil || !strings.Contains(out.String(), "reserved 1000 ids of orders over NATS: 1 to 1000\n") {
		t.Errorf("%v\n%s", err, &out)
	}
	for i := range nodes {
		if _, err := os.Stat(filepath.Join(f.data, f.nodeName(i), "catalog")); err != nil {
			t.Error(err)
		}
	}
}

// TestOneNodeFails wants the whole of dev to end, with the reason, when one node cannot go on.
func TestOneNodeFails(t *testing.T) {
	f := devFlags{nodes: 3, serveFlags: serveFlags{data: t.TempDir()}}
	logger := slog.New(slog.NewTextHandler(io.Discard, nil))
	nodes, _, err := f.cluster(logger)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(f.data, "n2"), nil, 0o600); err != nil { // where its directory should be
		t.Fatal(err)
	}
	err = runAll(t.Context(), nodes, logger, func(context.Context) error {
		t.Error("ready, with a node missing")
		return nil
	})
	if err == nil || !strings.Contains(err.Error(), "n2") {
		t.Errorf("got %v", err)
	}
}
