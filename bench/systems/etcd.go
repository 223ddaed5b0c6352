package systems

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"

	"github.com/allocnode/allocnode/bench/load"
	"github.com/allocnode/allocnode/internal/freeport"
)

const etcdKey = "orders"

// etcdPeers is etcd with three members in this process. Its settings are etcd's own but for the election timeout: with
// more work than two cores can do, the default of 1 s costs it its leader.
func etcdPeers() System {
	const r3 = "fsync on a majority"
	return System{
		Name: "etcd, 3 members",
		Rows: []Row{
			{Name: EtcdPut, Durability: r3, Copies: 3, Dialled: Shared},
			{Name: EtcdCAS, Durability: r3, Copies: 3, Dialled: Shared},
		},
		Start: func(ctx context.Context, e Env) (map[string]Open, func(), error) {
			var s stopper
			urls, err := startEtcd(ctx, e, &s)
			if err != nil {
				return nil, s.stop, err
			}
			leader, err := etcdLeader(ctx, urls)
			if err != nil {
				return nil, s.stop, err
			}
			open := func(counter string, draw func(*clientv3.Client) load.Draw) Open {
				return openEtcd(e, urls, leader, counter, draw)
			}
			return map[string]Open{EtcdPut: open("revision", put), EtcdCAS: open("value", swapEtcd)}, s.stop, nil
		},
	}
}

func startEtcd(ctx context.Context, e Env, s *stopper) (clients []string, err error) {
	ports, err := freeport.Take(6)
	if err != nil {
		return nil, err
	}
	local := func(port int) url.URL { return url.URL{Scheme: "http", Host: fmt.Sprintf("127.0.0.1:%d", port)} }
	var cluster []string
	for i := range 3 {
		peer := local(ports[3+i])
		cluster = append(cluster, fmt.Sprintf("m%d=%s", i, peer.String()))
	}
	type started struct {
		etcd *embed.Etcd
		err  error
	}
	results := make(chan started, 3)
	for i := range 3 {
		client, peer := local(ports[i]), local(ports[3+i])
		clients = append(clients, client.String())
		cfg := embed.NewConfig()
		cfg.Name, cfg.Dir = fmt.Sprintf("m%d", i), filepath.Join(e.Dir, fmt.Sprintf("m%d", i))
		cfg.ListenClientUrls, cfg.AdvertiseClientUrls = []url.URL{client}, []url.URL{client}
		cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = []url.URL{peer}, []url.URL{peer}
		cfg.InitialCluster = strings.Join(cluster, ",")
		cfg.ElectionMs = 5000
		cfg.QuotaBackendBytes = 8 << 30
		cfg.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
		go func() {
			etcd, err := embed.StartEtcd(cfg)
			results <- started{etcd, err}
		}()
	}
	var members []*embed.Etcd
	var failures []error
	for range 3 {
		r := <-results
		failures = append(failures, r.err)
		if r.err == nil {
			members = append(members, r.etcd)
		}
	}
	s.add(func() {
		for _, m := range members {
			m.Close()
		}
	})
	if err := errors.Join(failures...); err != nil {
		return nil, err
	}
	for _, m := range members {
		select {
		case <-m.Server.ReadyNotify():
		case err := <-m.Err():
			return nil, err
		case <-ctx.Done():
			return nil, fmt.Errorf("a member is not ready: %w", context.Cause(ctx))
		}
	}
	return clients, nil
}

// etcdLeader is the index of the member that leads.
func etcdLeader(ctx context.Context, urls []string) (int, error) {
	cl, err := dialEtcd(urls[0])
	if err != nil {
		return 0, err
	}
	defer cl.Close()
	for i, u := range urls {
		st, err := cl.Status(ctx, u)
		if err != nil {
			return 0, err
		}
		if st.Header.MemberId == st.Leader {
			return i, nil
		}
	}
	return 0, errors.New("etcd has no leader")
}

func dialEtcd(endpoint string) (*clientv3.Client, error) {
	return clientv3.New(clientv3.Config{Endpoints: []string{endpoint}, DialTimeout: 10 * time.Second, Logger: zap.NewNop()})
}

func openEtcd(e Env, urls []string, leader int, counter string, draw func(*clientv3.Client) load.Draw) Open {
	return func(ctx context.Context, callers int) (*load.Load, error) {
		var s stopper
		var draws []load.Draw
		for i := range min(callers, e.Conns) {
			cl, err := dialEtcd(urls[(leader+i)%len(urls)])
			if err != nil {
				s.stop()
				return nil, err
			}
			s.add(func() { _ = cl.Close() })
			draws = append(draws, draw(cl))
		}
		return &load.Load{Draws: divide(callers, draws), Counter: counter, Close: s.stop}, nil
	}
}

// put writes, and takes the revision that the write got: etcd never gives one twice.
func put(cl *clientv3.Client) load.Draw {
	return func(ctx context.Context, ids []load.ID) error {
		r, err := cl.Put(ctx, "counter", "")
		if err != nil {
			return err
		}
		ids[0].Lo = uint64(r.Header.Revision)
		return nil
	}
}

// swapEtcd reads the counter and writes one more, if nobody else has meanwhile. A transaction that fails brings what stands
// there, so that only the first try reads.
func swapEtcd(cl *clientv3.Client) load.Draw {
	return func(ctx context.Context, ids []load.ID) error {
		got, err := cl.Get(ctx, etcdKey)
		if err != nil {
			return err
		}
		kvs := got.Kvs
		for try := 0; ; try++ {
			var n, revision uint64
			if len(kvs) > 0 {
				revision = uint64(kvs[0].ModRevision)
				if n, err = strconv.ParseUint(string(kvs[0].Value), 10, 64); err != nil {
					return err
				}
			}
			r, err := cl.Txn(ctx).
				If(clientv3.Compare(clientv3.ModRevision(etcdKey), "=", int64(revision))).
				Then(clientv3.OpPut(etcdKey, strconv.FormatUint(n+1, 10))).
				Else(clientv3.OpGet(etcdKey)).Commit()
			if err != nil {
				return err
			}
			if r.Succeeded {
				ids[0].Lo = n + 1
				return nil
			}
			if err := backOff(ctx, try); err != nil {
				return err
			}
			if kvs = r.Responses[0].GetResponseRange().Kvs; try > 0 {
				// After a long wait what the failed transaction brought is old.
				if got, err = cl.Get(ctx, etcdKey); err != nil {
					return err
				}
				kvs = got.Kvs
			}
		}
	}
}
