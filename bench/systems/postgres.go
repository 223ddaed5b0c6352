package systems

import (
	"context"
	"fmt"
	"path/filepath"
	"strconv"
	"syscall"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/allocnode/allocnode/bench/load"
	"github.com/allocnode/allocnode/internal/freeport"
)

// postgresDir is where Debian keeps the server's programs, which are not on the path.
const postgresDir = "/usr/lib/postgresql/*/bin"

// postgresPeers is PostgreSQL with its own settings, but for max_connections: fsync and synchronous_commit are on.
func postgresPeers() System {
	return System{
		Name: "PostgreSQL",
		Rows: []Row{
			{Name: Nextval, Durability: "fsync, one for 32 ids", Copies: 1, Dialled: Pooled},
			{Name: NextvalCached, Durability: "fsync, one for 1000 ids", Copies: 1, Dialled: Pooled},
			{Name: UpdateRow, Durability: "fsync", Copies: 1, Dialled: Pooled},
		},
		Start: func(ctx context.Context, e Env) (map[string]Open, func(), error) {
			var s stopper
			dsn, err := startPostgres(ctx, e, &s)
			if err != nil {
				return nil, s.stop, err
			}
			open := func(counter, query string) Open { return openPostgres(e, dsn, counter, query) }
			return map[string]Open{
				Nextval:       open("s1", "SELECT nextval('s1')"),
				NextvalCached: open("s1000", "SELECT nextval('s1000')"),
				UpdateRow:     open("counters", "UPDATE counters SET n = n + 1 WHERE name = 'orders' RETURNING n"),
			}, s.stop, nil
		},
	}
}

const postgresSchema = `CREATE SEQUENCE s1 CACHE 1; CREATE SEQUENCE s1000 CACHE 1000;
CREATE TABLE counters (name text PRIMARY KEY, n bigint NOT NULL); INSERT INTO counters VALUES ('orders', 0)`

func startPostgres(ctx context.Context, e Env, s *stopper) (dsn string, err error) {
	initdb, err := findProgram("initdb", postgresDir)
	if err != nil {
		return "", err
	}
	owner, err := unprivileged(e.Dir)
	if err != nil {
		return "", err
	}
	data := filepath.Join(e.Dir, "data")
	cmd, err := child(owner, e.Log, e.Dir, initdb, "-D", data, "-U", "bench", "-A", "trust", "-E", "UTF8", "--no-locale")
	if err != nil {
		return "", err
	}
	if err := runProcess(ctx, cmd); err != nil {
		return "", fmt.Errorf("initdb: %w", err)
	}
	ports, err := freeport.Take(1)
	if err != nil {
		return "", err
	}
	cmd, err = child(owner, e.Log, e.Dir, filepath.Join(filepath.Dir(initdb), "postgres"), "-D", data, "-p", strconv.Itoa(ports[0]),
		"-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories=", "-c", "fsync=on", "-c", "synchronous_commit=on",
		"-c", fmt.Sprintf("max_connections=%d", e.Pool+20))
	if err != nil {
		return "", err
	}
	p, err := startProcess(cmd)
	if err != nil {
		return "", err
	}
	s.add(func() { p.stop(syscall.SIGINT) }) // its "fast" shutdown
	dsn = fmt.Sprintf("postgres://bench@127.0.0.1:%d/postgres?sslmode=disable", ports[0])
	return dsn, p.await(ctx, func(ctx context.Context) error {
		pool, err := pgxpool.New(ctx, dsn)
		if err != nil {
			return err
		}
		defer pool.Close()
		_, err = pool.Exec(ctx, postgresSchema)
		return err
	})
}

func openPostgres(e Env, dsn, counter, query string) Open {
	return func(ctx context.Context, callers int) (*load.Load, error) {
		cfg, err := pgxpool.ParseConfig(dsn)
		if err != nil {
			return nil, err
		}
		cfg.MaxConns = int32(min(callers, e.Pool))
		cfg.MinConns = cfg.MaxConns
		pool, err := pgxpool.NewWithConfig(ctx, cfg)
		if err != nil {
			return nil, err
		}
		return &load.Load{Counter: counter, Close: pool.Close, Draws: same(callers, func(ctx context.Context, ids []load.ID) error {
			var id int64
			err := pool.QueryRow(ctx, query).Scan(&id)
			ids[0].Lo = uint64(id)
			return err
		})}, nil
	}
}
