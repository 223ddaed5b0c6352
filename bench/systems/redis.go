package systems

import (
	"context"
	"fmt"
	"strconv"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/allocnode/allocnode/bench/load"
	"github.com/allocnode/allocnode/internal/freeport"
)

// redisPeers is Redis with every write synced before it is answered. Redis syncs once for all that came in one turn of its loop.
func redisPeers() System {
	const durability = "fsync (appendfsync always)"
	return System{
		Name: "Redis",
		Rows: []Row{
			{Name: RedisIncr, Durability: durability, Copies: 1, Dialled: Pooled},
			{Name: RedisPipe, Durability: durability, Copies: 1, Dialled: Shared},
		},
		Start: func(ctx context.Context, e Env) (map[string]Open, func(), error) {
			var s stopper
			addr, err := startRedis(ctx, e, &s)
			if err != nil {
				return nil, s.stop, err
			}
			return map[string]Open{RedisIncr: redisPool(e, addr), RedisPipe: redisPipelined(e, addr)}, s.stop, nil
		},
	}
}

func startRedis(ctx context.Context, e Env, s *stopper) (addr string, err error) {
	path, err := findProgram("redis-server")
	if err != nil {
		return "", err
	}
	ports, err := freeport.Take(1)
	if err != nil {
		return "", err
	}
	cmd, err := child(nil, e.Log, e.Dir, path, "--bind", "127.0.0.1", "--port", strconv.Itoa(ports[0]), "--dir", e.Dir,
		"--appendonly", "yes", "--appendfsync", "always", "--save", "", "--daemonize", "no")
	if err != nil {
		return "", err
	}
	p, err := startProcess(cmd)
	if err != nil {
		return "", err
	}
	s.add(func() { p.stop(syscall.SIGTERM) })
	addr = fmt.Sprintf("127.0.0.1:%d", ports[0])
	cl := redis.NewClient(&redis.Options{Addr: addr, MaxRetries: -1})
	defer cl.Close()
	return addr, p.await(ctx, func(ctx context.Context) error { return cl.Ping(ctx).Err() })
}

// redisOptions never retries: a command that was sent twice would count twice.
func redisOptions(addr string, pool int) *redis.Options {
	return &redis.Options{Addr: addr, PoolSize: pool, MaxRetries: -1, PoolTimeout: time.Minute, ReadTimeout: time.Minute}
}

func redisPool(e Env, addr string) Open {
	return func(_ context.Context, callers int) (*load.Load, error) {
		cl := redis.NewClient(redisOptions(addr, min(callers, e.Pool)))
		return &load.Load{
			Counter: "orders", Close: func() { _ = cl.Close() },
			Draws: same(callers, func(ctx context.Context, ids []load.ID) error {
				n, err := cl.IncrBy(ctx, "orders", 1).Result()
				ids[0].Lo = uint64(n)
				return err
			}),
		}, nil
	}
}

// redisPipelined has clients that put what waits into one pipeline, each over one connection.
func redisPipelined(e Env, addr string) Open {
	return func(_ context.Context, callers int) (*load.Load, error) {
		var s stopper
		var draws []load.Draw
		for range min(callers, e.Conns) {
			cl := redis.NewClient(redisOptions(addr, 1))
			s.add(func() { _ = cl.Close() })
			ap, err := cl.AutoPipeline()
			if err != nil {
				s.stop()
				return nil, err
			}
			s.add(func() { _ = ap.Close() })
			draws = append(draws, func(ctx context.Context, ids []load.ID) error {
				n, err := ap.IncrBy(ctx, "orders", 1).Result()
				ids[0].Lo = uint64(n)
				return err
			})
		}
		return &load.Load{Draws: divide(callers, draws), Counter: "orders", Close: s.stop}, nil
	}
}
