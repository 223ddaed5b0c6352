package main

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/allocnode/allocnode/internal/node"
)

func newDev() *cobra.Command {
	var f serveFlags
	var nodes int
	cmd := &cobra.Command{
		Use:   "dev",
		Short: "Run a whole cluster in this process, for trying and developing",
		Long: `Run a cluster of nodes in one process until it is told to stop (Ctrl-C or SIGTERM).

It is a real cluster: each node has its own server, its own data and its own routes on the loopback interface, and the
log is replicated three ways. What it is not is safe from this machine's failure.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if nodes != 1 && (nodes < 3 || nodes > 9 || nodes%2 == 0) {
				return errNoNodes
			}
			logger, err := f.logger()
			if err != nil {
				return err
			}
			if f.data == "" {
				if f.data, err = os.MkdirTemp("", "allocnode-dev-"); err != nil {
					return err
				}
				defer os.RemoveAll(f.data)
			}
			return dev(cmd.Context(), &f, nodes, logger, func(urls []string) {
				for i, u := range urls {
					fmt.Fprintf(cmd.OutOrStdout(), "node %d of %d serves at %s\n", i+1, len(urls), u)
				}
				fmt.Fprintf(cmd.OutOrStdout(), "\ntry:  nats --server %s request alloc.reserve.orders 1000\n", urls[0])
			})
		},
	}
	f.add(cmd, "client `HOST:PORT` of the first node; the default, 127.0.0.1:0, picks a free port and prints it")
	cmd.Flags().IntVar(&nodes, "nodes", 3, "how `MANY` nodes: 1, 3, 5, 7 or 9")
	return cmd
}

// dev runs a cluster, and calls ready with the nodes' URLs once all of them serve.
func dev(ctx context.Context, f *serveFlags, count int, logger *slog.Logger, ready func(urls []string)) error {
	names := make([]string, count)
	base := f.name
	if base == "" {
		base = "n"
	}
	for i := range names {
		names[i] = base + strconv.Itoa(i+1)
	}
	if f.listen == "" {
		f.listen = "127.0.0.1:0"
	}
	routes, err := freePorts(count)
	if err != nil {
		return err
	}

	g, ctx := errgroup.WithContext(ctx)
	running := make([]*node.Node, count)
	for i, name := range names {
		cfg, err := f.nodeConfig(logger.With("node", name))
		if err != nil {
			return err
		}
		cfg.Name, cfg.DataDir = name, filepath.Join(f.data, name)
		if i > 0 {
			cfg.Host, cfg.Port = "127.0.0.1", -1
		}
		if count > 1 {
			cfg.Nodes = names
			if cfg.Server == nil {
				cfg.Server = &server.Options{}
			}
			joinCluster(cfg.Server, i, routes)
		}
		if running[i], err = node.New(cfg); err != nil {
			return err
		}
	}
	for _, n := range running {
		g.Go(func() error { return n.Run(ctx) })
	}
	g.Go(func() error {
		urls := make([]string, count)
		for i, n := range running {
			select {
			case <-ctx.Done():
				return nil
			case <-n.Ready():
				urls[i] = n.ClientURL()
			}
		}
		ready(urls)
		return nil
	})
	return g.Wait()
}

// joinCluster gives node i of a cluster on the loopback interface its route listener and the routes to all.
func joinCluster(opts *server.Options, i int, ports []int) {
	opts.Cluster = server.ClusterOpts{Name: "allocnode-dev", Host: "127.0.0.1", Port: ports[i]}
	opts.Routes = nil
	for _, p := range ports {
		opts.Routes = append(opts.Routes, &url.URL{Scheme: "nats", Host: net.JoinHostPort("127.0.0.1", strconv.Itoa(p))})
	}
}

// freePorts finds ports that nobody listens on. Another process may take one before the server does; then the server's
// error says so.
func freePorts(n int) ([]int, error) {
	ports := make([]int, n)
	for i := range ports {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer l.Close()
		ports[i] = l.Addr().(*net.TCPAddr).Port
	}
	return ports, nil
}
