package systems

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	natsjs "github.com/nats-io/nats.go/jetstream"

	"github.com/allocnode/allocnode/bench/load"
	"github.com/allocnode/allocnode/internal/freeport"
)

// natsCluster is three bare NATS servers in this process, with the settings that an allocnode cluster gives its own.
type natsCluster struct {
	servers []*server.Server
	stopper
}

// natsConfig is the configuration of server i of a cluster whose routes listen at ports; alone it has no cluster block.
func natsConfig(dir string, i int, ports []int) string {
	var s strings.Builder
	fmt.Fprintf(&s, "listen: 127.0.0.1:-1\nserver_name: n%d\n", i+1)
	fmt.Fprintf(&s, "jetstream { store_dir: %q, sync_interval: always }\n", filepath.Join(dir, fmt.Sprintf("n%d", i+1)))
	if len(ports) > 1 {
		fmt.Fprintf(&s, "cluster { name: bench, listen: \"127.0.0.1:%d\", routes: [", ports[i])
		for _, p := range ports {
			fmt.Fprintf(&s, "\"nats://127.0.0.1:%d\", ", p)
		}
		s.WriteString("] }\n")
	}
	return s.String()
}

func startNATS(ctx context.Context, e Env) (*natsCluster, error) {
	c := &natsCluster{}
	ports, err := freeport.Take(3)
	if err != nil {
		return c, err
	}
	for i := range ports {
		path := filepath.Join(e.Dir, fmt.Sprintf("n%d.conf", i+1))
		if err := os.WriteFile(path, []byte(natsConfig(e.Dir, i, ports)), 0o600); err != nil {
			return c, err
		}
		opts, err := server.ProcessConfigFile(path)
		if err != nil {
			return c, err
		}
		opts.NoSigs = true
		opts.NoLog = true
		s, err := server.NewServer(opts)
		if err != nil {
			return c, fmt.Errorf("server %d: %w", i+1, err)
		}
		go s.Start()
		c.servers = append(c.servers, s)
		c.add(func() { s.Shutdown(); s.WaitForShutdown() })
	}
	for i, s := range c.servers {
		if !s.ReadyForConnections(30 * time.Second) {
			return c, fmt.Errorf("server %d takes no connections after 30 s", i+1)
		}
	}
	return c, nil
}

// connect opens n connections over TCP: the first to server first, the others to the next in turn.
func connectNATS(urls []string, first, n int) ([]*nats.Conn, func(), error) {
	var conns []*nats.Conn
	closeAll := func() {
		for _, nc := range conns {
			nc.Close()
		}
	}
	for i := range n {
		nc, err := nats.Connect(urls[(first+i)%len(urls)])
		if err != nil {
			closeAll()
			return nil, nil, err
		}
		conns = append(conns, nc)
	}
	return conns, closeAll, nil
}

func (c *natsCluster) urls() []string {
	var urls []string
	for _, s := range c.servers {
		urls = append(urls, s.ClientURL())
	}
	return urls
}

// stream makes a stream of three copies in files, waiting until JetStream takes it, and returns the index of its leader.
func (c *natsCluster) stream(ctx context.Context, cfg natsjs.StreamConfig) (leader int, err error) {
	cfg.Storage, cfg.Replicas = natsjs.FileStorage, 3
	return c.create(ctx, func(ctx context.Context, js natsjs.JetStream) (natsjs.Stream, error) {
		return js.CreateStream(ctx, cfg)
	})
}

// create calls make until it succeeds: before there is a meta leader JetStream refuses, or does not answer at all.
func (c *natsCluster) create(
	ctx context.Context, create func(context.Context, natsjs.JetStream) (natsjs.Stream, error),
) (leader int, err error) {
	nc, err := nats.Connect(c.servers[0].ClientURL())
	if err != nil {
		return 0, err
	}
	defer nc.Close()
	js, err := natsjs.New(nc)
	if err != nil {
		return 0, err
	}
	for {
		leader, err = func() (int, error) {
			ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
			defer cancel()
			s, err := create(ctx, js)
			if err != nil {
				return 0, err
			}
			info, err := s.Info(ctx)
			if err != nil {
				return 0, err
			}
			for i, srv := range c.servers {
				if info.Cluster != nil && srv.Name() == info.Cluster.Leader {
					return i, nil
				}
			}
			return 0, fmt.Errorf("stream %s has no leader", info.Config.Name)
		}()
		if err == nil {
			return leader, nil
		}
		select {
		case <-ctx.Done():
			return 0, fmt.Errorf("%w; last: %w", context.Cause(ctx), err)
		case <-time.After(200 * time.Millisecond): // between two tries
		}
	}
}

// open makes the load of callers over connections to c.
func (c *natsCluster) open(e Env, leader int, counter string, draw func(nc *nats.Conn) (load.Draw, error)) Open {
	return openNATS(e, c.urls(), func() int { return leader }, counter, draw)
}

func openNATS(e Env, urls []string, leader func() int, counter string, draw func(nc *nats.Conn) (load.Draw, error)) Open {
	return func(_ context.Context, callers int) (*load.Load, error) {
		conns, closeAll, err := connectNATS(urls, leader(), min(callers, e.Conns))
		if err != nil {
			return nil, err
		}
		var draws []load.Draw
		for _, nc := range conns {
			d, err := draw(nc)
			if err != nil {
				closeAll()
				return nil, err
			}
			draws = append(draws, d)
		}
		return &load.Load{Draws: divide(callers, draws), Counter: counter, Close: closeAll}, nil
	}
}

func limits() System {
	const r3 = "fsync on a majority"
	return System{
		Name: "NATS, the limits",
		Rows: []Row{
			{Name: Echo, Durability: "none", Dialled: Shared, NoIDs: true},
			{Name: EchoInProcess, Durability: "none", Dialled: Shared, NoIDs: true},
			{Name: Publish, Durability: r3, Copies: 3, Dialled: Shared, NoIDs: true},
			{Name: Pipelined, Durability: r3, Copies: 3, Dialled: Shared, NoIDs: true},
		},
		Start: func(ctx context.Context, e Env) (map[string]Open, func(), error) {
			c, err := startNATS(ctx, e)
			if err != nil {
				return nil, c.stop, err
			}
			leader, err := c.stream(ctx, natsjs.StreamConfig{Name: "BARE", Subjects: []string{"bare"}})
			if err != nil {
				return nil, c.stop, err
			}
			for name, opts := range map[string][]nats.Option{"tcp": nil, "inprocess": {nats.InProcessServer(c.servers[0])}} {
				nc, err := nats.Connect(c.servers[0].ClientURL(), opts...)
				if err != nil {
					return nil, c.stop, err
				}
				c.add(nc.Close)
				if _, err := nc.Subscribe("echo."+name, func(m *nats.Msg) { _ = m.Respond(m.Data) }); err != nil {
					return nil, c.stop, err
				}
				if err := nc.Flush(); err != nil {
					return nil, c.stop, err
				}
			}
			return map[string]Open{
				Echo:          c.open(e, 0, "", echo("echo.tcp")),
				EchoInProcess: c.open(e, 0, "", echo("echo.inprocess")),
				Publish:       c.open(e, leader, "publish", publish),
				Pipelined:     c.pipelined(e, leader),
			}, c.stop, nil
		},
	}
}

func echo(subject string) func(nc *nats.Conn) (load.Draw, error) {
	return func(nc *nats.Conn) (load.Draw, error) {
		// A message of another server's client is interest that has to get there first.
		for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
			_, err := nc.Request(subject, nil, time.Second)
			if err == nil {
				break
			} else if time.Now().After(deadline) {
				return nil, err
			}
		}
		return func(ctx context.Context, _ []load.ID) error {
			_, err := nc.RequestWithContext(ctx, subject, nil)
			return err
		}, nil
	}
}

// payload is as long as an entry of the log with one reservation.
var payload = make([]byte, 100)

func publish(nc *nats.Conn) (load.Draw, error) {
	js, err := natsjs.New(nc)
	return func(ctx context.Context, ids []load.ID) error {
		ack, err := js.Publish(ctx, "bare", payload)
		if err != nil {
			return err
		}
		ids[0].Lo = ack.Sequence
		return nil
	}, err
}

// pipelined has one sender for each connection, and the callers' number in flight over all of them.
func (c *natsCluster) pipelined(e Env, leader int) Open {
	return func(_ context.Context, callers int) (*load.Load, error) {
		conns, closeAll, err := connectNATS(c.urls(), leader, min(callers, e.Conns))
		if err != nil {
			return nil, err
		}
		l := &load.Load{Window: callers / len(conns), Counter: "publish", Close: closeAll}
		for _, nc := range conns {
			js, err := natsjs.New(nc, natsjs.WithPublishAsyncMaxPending(l.Window+1))
			if err != nil {
				closeAll()
				return nil, err
			}
			l.Sends = append(l.Sends, func(context.Context) (func(context.Context) (load.ID, error), error) {
				ack, err := js.PublishAsync("bare", payload)
				return func(ctx context.Context) (load.ID, error) {
					select {
					case a := <-ack.Ok():
						return load.ID{Lo: a.Sequence}, nil
					case err := <-ack.Err():
						return load.ID{}, err
					case <-ctx.Done():
						return load.ID{}, context.Cause(ctx)
					}
				}, err
			})
		}
		return l, nil
	}
}

func natsPeers() System {
	const r3 = "fsync on a majority"
	return System{
		Name: "NATS, the peers",
		Rows: []Row{
			{Name: NATSCounter, Durability: r3, Copies: 3, Dialled: Shared},
			{Name: NATSCAS, Durability: r3, Copies: 3, Dialled: Shared},
		},
		Start: func(ctx context.Context, e Env) (map[string]Open, func(), error) {
			c, err := startNATS(ctx, e)
			if err != nil {
				return nil, c.stop, err
			}
			counting, err := c.stream(ctx, natsjs.StreamConfig{
				Name: "COUNTER", Subjects: []string{"counter.*"}, AllowMsgCounter: true, AllowDirect: true,
			})
			if err != nil {
				return nil, c.stop, err
			}
			kv, err := c.create(ctx, func(ctx context.Context, js natsjs.JetStream) (natsjs.Stream, error) {
				b, err := js.CreateOrUpdateKeyValue(ctx, natsjs.KeyValueConfig{
					Bucket: "bench", Storage: natsjs.FileStorage, Replicas: 3,
				})
				if err != nil {
					return nil, err
				}
				if _, err := b.Create(ctx, "orders", []byte("0")); err != nil && !errors.Is(err, natsjs.ErrKeyExists) {
					return nil, err
				}
				return js.Stream(ctx, "KV_bench")
			})
			if err != nil {
				return nil, c.stop, err
			}
			return map[string]Open{
				NATSCounter: c.open(e, counting, "counter", increment),
				NATSCAS:     c.open(e, kv, "kv", swapKV),
			}, c.stop, nil
		},
	}
}

// increment adds one to a NATS counter (ADR-49); its acknowledgement has the new value.
func increment(nc *nats.Conn) (load.Draw, error) {
	js, err := natsjs.New(nc)
	return func(ctx context.Context, ids []load.ID) error {
		ack, err := js.PublishMsg(ctx, &nats.Msg{Subject: "counter.orders", Header: nats.Header{"Nats-Incr": {"1"}}})
		if err != nil {
			return err
		}
		ids[0].Lo, err = strconv.ParseUint(ack.Value, 10, 64)
		return err
	}, err
}

func swapKV(nc *nats.Conn) (load.Draw, error) {
	js, err := natsjs.New(nc)
	if err != nil {
		return nil, err
	}
	bind, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	kv, err := js.KeyValue(bind, "bench")
	return func(ctx context.Context, ids []load.ID) error {
		for try := 0; ; try++ {
			entry, err := kv.Get(ctx, "orders")
			if err != nil {
				return err
			}
			n, err := strconv.ParseUint(string(entry.Value()), 10, 64)
			if err != nil {
				return err
			}
			if _, err = kv.Update(ctx, "orders", strconv.AppendUint(nil, n+1, 10), entry.Revision()); err == nil {
				ids[0].Lo = n + 1
				return nil
			} else if !lostSwap(err) {
				return err
			}
			if err := backOff(ctx, try); err != nil {
				return err
			}
		}
	}, err
}

// lostSwap reports that another came first: the revision is not the last, or one of that subject is in flight.
func lostSwap(err error) bool {
	var api natsjs.JetStreamError
	if !errors.As(err, &api) || api.APIError() == nil {
		return false
	}
	switch api.APIError().ErrorCode {
	case 10071, 10164, 10158:
		return true
	}
	return false
}

// backOff waits before a compare-and-swap is tried again: a random time up to 1 ms doubled for each try, about 1 s at most.
// Without it, or with a bound of 64 ms, 2,048 losers leave the winner no processor.
func backOff(ctx context.Context, try int) error {
	t := time.NewTimer(rand.N(time.Millisecond << min(try, 10)))
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
