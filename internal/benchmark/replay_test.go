package benchmark

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/allocnode/allocnode/apply"
	"github.com/allocnode/allocnode/internal/node"
	"github.com/allocnode/allocnode/internal/wire"
	"github.com/allocnode/allocnode/jetstream"
)

func aloneConfig(dir string) node.Config {
	cfg := node.DefaultConfig()
	cfg.DataDir, cfg.Host, cfg.Port = dir, "127.0.0.1", -1
	cfg.Version, cfg.Logger = "0.0.0-bench", slog.New(slog.DiscardHandler)
	return cfg
}

// startAlone starts a node that is alone and returns when it serves. It is stopped when the benchmark ends.
func startAlone(b *testing.B, dir string) *node.Node {
	b.Helper()
	n, err := node.New(aloneConfig(dir))
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		if err := n.Run(ctx); err != nil {
			b.Error(err)
		}
	})
	b.Cleanup(func() { cancel(); running.Wait() })
	select {
	case <-n.Ready():
	case <-time.After(time.Minute):
		b.Fatalf("the node does not serve after a minute: %+v", n.Status())
	}
	return n
}

// writeLog makes the log of a node that is alone, as that node would have: a genesis and entries of one reservation each.
func writeLog(b *testing.B, dir string, entries int) {
	b.Helper()
	cfg := aloneConfig(dir)
	ctx := context.Background()
	srv, err := jetstream.NewServer(jetstream.ServerConfig{Name: cfg.Name, DataDir: dir, Host: cfg.Host, Port: cfg.Port, Logger: cfg.Logger})
	if err != nil {
		b.Fatal(err)
	}
	if err := srv.Start(ctx); err != nil {
		b.Fatal(err)
	}
	defer srv.Shutdown(ctx)
	nc, err := srv.LogConn()
	if err != nil {
		b.Fatal(err)
	}
	defer nc.Close()
	log, err := jetstream.NewLog(nc, jetstream.DefaultLogConfig(), cfg.Name)
	if err != nil {
		b.Fatal(err)
	}
	defer log.Close()
	id, err := log.Create(ctx, wire.NewID(), 1)
	if err != nil {
		b.Fatal(err)
	}

	h := wire.Header{ClusterID: id.ClusterID, Level: wire.Level, Node: []byte(cfg.Name), AutoCreate: true, Defaults: cfg.Defaults,
		ID: wire.EntryID{Incarnation: wire.NewID(), Counter: 1}}
	g := cfg.Genesis
	g.Epoch, g.Created, g.Nodes = id.Epoch, id.Created.UnixNano(), []string{cfg.Name}
	m := apply.New()
	fold := func(seq uint64, entry []byte) []byte {
		if _, _, err := m.Apply(seq, entry); err != nil {
			b.Fatal(err)
		}
		return entry
	}
	first := fold(1, sealed(&h, &wire.Op{Kind: wire.KindGenesis, Genesis: &g}))
	if err := log.AppendFirst(ctx, h.ID.String(), first); err != nil {
		b.Fatal(err)
	}
	var acked atomic.Int64
	failed := make(chan error, 1)
	window := make(chan struct{}, 1000)
	log.OnAck(func(_ uint64, ack jetstream.Ack) {
		if ack.Err != nil {
			select {
			case failed <- ack.Err:
			default:
			}
		}
		acked.Add(1)
		<-window
	})
	for i := range entries {
		window <- struct{}{}
		h.ID.Counter, h.Cursor, h.Digest = uint64(i+2), m.Head().Cursor, m.Head().Digest // as a proposer that has applied all before it
		op := &wire.Op{Kind: wire.KindReserve, Name: []byte("orders"), Count: 1000}
		if err := log.Append(h.ID.Counter, h.ID.String(), fold(uint64(i+2), sealed(&h, op))); err != nil {
			b.Fatal(err)
		}
	}
	for range cap(window) {
		select {
		case window <- struct{}{}:
		case err := <-failed:
			b.Fatal(err)
		}
	}
	if acked.Load() != int64(entries) {
		b.Fatalf("%d of %d entries acknowledged", acked.Load(), entries)
	}
}

func sealed(h *wire.Header, op *wire.Op) []byte {
	entry := wire.AppendOp(wire.AppendHeader(nil, h), op)
	wire.Seal(entry)
	return entry
}
