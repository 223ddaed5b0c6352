package systems

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/allocnode/allocnode/bench/load"
	"github.com/allocnode/allocnode/client"
	"github.com/allocnode/allocnode/internal/freeport"
	"github.com/allocnode/allocnode/internal/node"
	"github.com/allocnode/allocnode/internal/wire"
)

// manySequences is how many sequences the row of that name takes its ids from, in turn.
const manySequences = 100_000

type allocnodes struct {
	nodes []*node.Node
	stopper
}

// startAllocnodes starts count nodes in this process and returns when all serve.
func startAllocnodes(ctx context.Context, e Env, count int) (*allocnodes, error) {
	c := &allocnodes{}
	ports, err := freeport.Take(count)
	if err != nil {
		return c, err
	}
	names := make([]string, count)
	for i := range names {
		names[i] = fmt.Sprintf("n%d", i+1)
	}
	logger := slog.New(slog.NewTextHandler(e.Log, &slog.HandlerOptions{Level: slog.LevelWarn}))
	life, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var running sync.WaitGroup
	c.add(func() { cancel(); running.Wait() })
	failed := make(chan error, count)
	for i := range count {
		path := filepath.Join(e.Dir, names[i]+".conf")
		text := natsConfig(e.Dir, i, ports)
		if count > 1 {
			text += "alloc { nodes: [" + strings.Join(names, ", ") + "] }\n"
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			return c, err
		}
		cfg := node.DefaultConfig()
		cfg.Version, cfg.Logger = "0.0.0-bench", logger
		if err := cfg.LoadConfig(path, func(error) {}); err != nil {
			return c, err
		}
		n, err := node.New(cfg)
		if err != nil {
			return c, err
		}
		c.nodes = append(c.nodes, n)
		running.Go(func() {
			if err := n.Run(life); err != nil {
				failed <- err
			}
		})
	}
	for i, n := range c.nodes {
		select {
		case <-n.Ready():
		case err := <-failed:
			return c, err
		case <-ctx.Done():
			return c, fmt.Errorf("node %d does not serve, it is %s: %w", i+1, n.Status().State, context.Cause(ctx))
		}
	}
	return c, nil
}

func (c *allocnodes) urls() []string {
	var urls []string
	for _, n := range c.nodes {
		urls = append(urls, n.ClientURL())
	}
	return urls
}

// leader is the index of the node that leads the log.
func (c *allocnodes) leader() int {
	for i, n := range c.nodes {
		if n.Status().Role == wire.RoleLeader {
			return i
		}
	}
	return 0
}

func allocnodeR3() System {
	const r3 = "fsync on a majority"
	return System{
		Name: "allocnode R3",
		Rows: []Row{
			{Name: Reserve, Durability: r3, Copies: 3, Dialled: Shared},
			{Name: ReserveMerged, Durability: r3, Copies: 3, Dialled: Shared},
			{Name: NodeNext, Durability: "fsync on a majority, of each batch", Copies: 3, Dialled: Shared},
			{Name: Next, Durability: "fsync on a majority, of each batch", Copies: 3, Dialled: InProcess},
			{Name: ReserveMany, Durability: r3, Copies: 3, Dialled: Shared, Only: []int{256, 2048}},
		},
		Start: func(ctx context.Context, e Env) (map[string]Open, func(), error) {
			c, err := startAllocnodes(ctx, e, 3)
			if err != nil {
				return nil, c.stop, err
			}
			ask := func(verb, field string) Open {
				return openNATS(e, c.urls(), c.leader, "orders", request("alloc."+verb+".orders", field))
			}
			return map[string]Open{
				Reserve:       ask("reserve", `"start":`),
				NodeNext:      ask("next", `"id":`),
				ReserveMerged: c.merged(e),
				Next:          c.sequence(),
				ReserveMany:   c.many(e),
			}, c.stop, nil
		},
	}
}

func allocnodeR1() System {
	return System{
		Name: "allocnode R1",
		Rows: []Row{{Name: ReserveR1, Durability: "fsync", Copies: 1, Dialled: Shared}},
		Start: func(ctx context.Context, e Env) (map[string]Open, func(), error) {
			c, err := startAllocnodes(ctx, e, 1)
			if err != nil {
				return nil, c.stop, err
			}
			open := openNATS(e, c.urls(), c.leader, "orders", request("alloc.reserve.orders", `"start":`))
			return map[string]Open{ReserveR1: open}, c.stop, nil
		},
	}
}

// request asks with an empty body, as any NATS client would, and takes the id from a field of the answer.
func request(subject, field string) func(nc *nats.Conn) (load.Draw, error) {
	return func(nc *nats.Conn) (load.Draw, error) {
		return func(ctx context.Context, ids []load.ID) (err error) {
			ids[0].Lo, err = ask(ctx, nc, subject, field)
			return err
		}, nil
	}
}

func ask(ctx context.Context, nc *nats.Conn, subject, field string) (uint64, error) {
	m, err := nc.RequestWithContext(ctx, subject, nil)
	if err != nil {
		return 0, err
	}
	id := numberAfter(m.Data, field)
	if id == 0 {
		return 0, fmt.Errorf("%s: answered %s", subject, m.Data)
	}
	return id, nil
}

// numberAfter reads the digits behind field; 0 if there are none.
func numberAfter(data []byte, field string) (n uint64) {
	i := bytes.Index(data, []byte(field))
	if i < 0 {
		return 0
	}
	for _, b := range data[i+len(field):] {
		if b < '0' || b > '9' {
			break
		}
		n = n*10 + uint64(b-'0')
	}
	return n
}

// merged has a client for each connection, which merges its own share of the callers.
func (c *allocnodes) merged(e Env) Open {
	return func(_ context.Context, callers int) (*load.Load, error) {
		conns, closeAll, err := connectNATS(c.urls(), c.leader(), min(callers, e.Conns))
		if err != nil {
			return nil, err
		}
		var s stopper
		s.add(closeAll)
		var draws []load.Draw
		for _, nc := range conns {
			cl, err := client.New(nc)
			if err != nil {
				s.stop()
				return nil, err
			}
			s.add(func() { _ = cl.Close() })
			draws = append(draws, func(ctx context.Context, ids []load.ID) error {
				r, err := cl.Reserve(ctx, "orders", 1)
				ids[0].Lo = r.Start
				return err
			})
		}
		return &load.Load{Draws: divide(callers, draws), Counter: "orders", Close: s.stop}, nil
	}
}

// sequence is one Sequence with the default settings that all callers share, as the generators are one value that all share.
func (c *allocnodes) sequence() Open {
	return func(ctx context.Context, callers int) (*load.Load, error) {
		conns, closeAll, err := connectNATS(c.urls(), c.leader(), 1)
		if err != nil {
			return nil, err
		}
		var s stopper
		s.add(closeAll)
		cl, err := client.New(conns[0])
		if err != nil {
			s.stop()
			return nil, err
		}
		s.add(func() { _ = cl.Close() })
		seq, err := cl.Sequence("next")
		if err != nil {
			s.stop()
			return nil, err
		}
		s.add(func() { _ = seq.Close() })
		return &load.Load{Chunk: chunk, Counter: "next", Close: s.stop, Draws: same(callers, func(ctx context.Context, ids []load.ID) error {
			for i := range ids {
				id, err := seq.Next(ctx)
				if err != nil {
					return err
				}
				ids[i].Lo = id
			}
			return nil
		})}, nil
	}
}

// many reserves from 100,000 sequences in turn, which the first call makes.
func (c *allocnodes) many(e Env) Open {
	subjects := make([]string, manySequences)
	for i := range subjects {
		subjects[i] = fmt.Sprintf("alloc.reserve.many.s%d", i)
	}
	var made bool
	var turn atomic.Uint64
	open := openNATS(e, c.urls(), c.leader, "many", func(nc *nats.Conn) (load.Draw, error) {
		return func(ctx context.Context, ids []load.ID) error {
			n := turn.Add(1) % manySequences
			id, err := ask(ctx, nc, subjects[n], `"start":`)
			ids[0] = load.ID{Hi: n, Lo: id}
			return err
		}, nil
	})
	return func(ctx context.Context, callers int) (*load.Load, error) {
		if !made {
			if err := makeAll(ctx, c.urls()[c.leader()], subjects); err != nil {
				return nil, err
			}
			made = true
		}
		return open(ctx, callers)
	}
}

// makeAll brings sequences into being by reserving one id of each, 1,024 requests in flight.
func makeAll(ctx context.Context, url string, subjects []string) error {
	nc, err := nats.Connect(url)
	if err != nil {
		return err
	}
	defer nc.Close()
	ctx, cancel := context.WithTimeoutCause(ctx, time.Minute, errors.New("100,000 sequences were not made in a minute"))
	defer cancel()
	var next atomic.Int64
	var failure atomic.Pointer[error]
	var running sync.WaitGroup
	for range 1024 {
		running.Go(func() {
			for i := next.Add(1) - 1; int(i) < len(subjects) && failure.Load() == nil; i = next.Add(1) - 1 {
				if _, err := ask(ctx, nc, subjects[i], `"start":`); err != nil {
					failure.CompareAndSwap(nil, &err)
				}
			}
		})
	}
	running.Wait()
	if err := failure.Load(); err != nil {
		return fmt.Errorf("make %d sequences: %w", len(subjects), *err)
	}
	return nil
}
