package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/url"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/allocnode/allocnode"
	"github.com/allocnode/allocnode/internal/freeport"
	"github.com/allocnode/allocnode/internal/node"
)

// devFlags are the flags of dev.
type devFlags struct {
	serveFlags
	nodes int
	try   string
}

func newDev() *cobra.Command {
	var f devFlags
	cmd := &cobra.Command{
		Use:   "dev",
		Short: "Run a whole cluster in this process, for trying and developing",
		Long: `Run a cluster of nodes in one process until it is told to stop (Ctrl-C or SIGTERM); a second time ends it at once.

It is a real cluster: each node has its own server, its own data and its own routes on the loopback interface, and the
log is replicated three ways. What it is not is safe from this machine's failure.

Without --data the data are in a temporary directory, which is removed at the end. With it they stay, and the next start
finds the sequences where they were.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd.Context(), cmd.OutOrStdout()) },
	}
	f.add(cmd, "client `HOST:PORT` of the first node; the default, 127.0.0.1:0, picks a free port and prints it",
		"what the nodes' `NAME`s begin with (default n: n1, n2, n3)")
	cmd.Flags().IntVar(&f.nodes, "nodes", 3, "how `MANY` nodes: 1, 3, 5, 7 or 9")
	cmd.Flags().StringVar(&f.try, "try", "", "reserve over NATS once the cluster serves: `SEQUENCE:COUNT`, such as orders:1000")
	return cmd
}

func (f *devFlags) run(ctx context.Context, out io.Writer) error {
	if f.nodes != 1 && (f.nodes < 3 || f.nodes > 9 || f.nodes%2 == 0) {
		return fmt.Errorf("--nodes %d: want 1, or an odd number from 3 to 9", f.nodes)
	}
	sequence, count, err := f.reservation()
	if err != nil {
		return err
	}
	// A reader that has gone ends dev in order, so that it leaves nothing behind: by default the signal would kill it.
	signal.Ignore(syscall.SIGPIPE)
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	lost := func(err error) { end(&lostOutputError{err}) }
	out = &output{w: out, lost: lost}
	logger, err := f.log.loggerTo(&output{w: os.Stderr, lost: lost}, isTerminal(os.Stderr), keepForDev)
	if err != nil {
		return err
	}
	note, cleanup := "kept at the end", func() {}
	if f.data == "" {
		if f.data, err = os.MkdirTemp("", "allocnode-dev-"); err != nil {
			return fmt.Errorf("make a temporary directory: %w: name a directory with --data DIR", err)
		}
		note, cleanup = "removed at the end", func() { _ = os.RemoveAll(f.data) }
		defer cleanup()
	}
	defer endAtOnce(ctx, cleanup)()

	nodes, prefix, err := f.cluster(logger)
	if err != nil {
		return err
	}
	began := time.Now()
	fmt.Fprintf(out, "starting %s; data in %s, %s\n", plural(f.nodes, "node"), f.data, note)
	err = runAll(ctx, nodes, logger, func(ctx context.Context) error {
		fmt.Fprintf(out, "serving after %.1f s\n\n", time.Since(began).Seconds())
		for i, n := range nodes {
			fmt.Fprintf(out, "  %-4s  %s\n", f.nodeName(i), n.ClientURL())
		}
		if sequence != "" {
			if err := try(ctx, out, nodes[0].ClientURL(), prefix, sequence, count); err != nil {
				return err
			}
		}
		hints(out, nodes[0].ClientURL(), prefix)
		return nil
	})
	if unwritten := (*lostOutputError)(nil); err == nil && errors.As(context.Cause(ctx), &unwritten) {
		return unwritten
	}
	if err == nil {
		fmt.Fprintf(out, "stopped; data in %s, %s\n", f.data, strings.TrimSuffix(note, " at the end"))
	}
	return err
}

// lostOutputError ends dev: nobody reads what it prints.
type lostOutputError struct{ err error }

func (e *lostOutputError) Error() string {
	return fmt.Sprintf("stopped, since nobody reads the output: %v", e.err)
}

func (e *lostOutputError) Unwrap() error { return e.err }

// reservation reads --try.
func (f *devFlags) reservation() (sequence string, count uint64, err error) {
	if f.try == "" {
		return "", 0, nil
	}
	sequence, digits, _ := strings.Cut(f.try, ":")
	count, err = strconv.ParseUint(digits, 10, 64)
	if err != nil || count < 1 || count > allocnode.DefaultMaxCount || allocnode.CheckName(sequence) != nil {
		return "", 0, fmt.Errorf("--try %q: want SEQUENCE:COUNT, such as orders:1000, with 1 to %d ids",
			f.try, allocnode.DefaultMaxCount)
	}
	return sequence, count, nil
}

func (f *devFlags) nodeName(i int) string {
	base := f.name
	if base == "" {
		base = "n"
	}
	return base + strconv.Itoa(i+1)
}

// cluster makes the nodes. It starts nothing.
func (f *devFlags) cluster(logger *slog.Logger) (nodes []*node.Node, prefix string, err error) {
	names := make([]string, f.nodes)
	for i := range names {
		names[i] = f.nodeName(i)
	}
	if err := f.sameNodes(names); err != nil {
		return nil, "", err
	}
	if f.listen == "" && f.config == "" {
		f.listen = "127.0.0.1:0"
	}
	routes, err := freeport.Take(f.nodes)
	if err != nil {
		return nil, "", err
	}
	for i, name := range names {
		serve := serveFlags{config: f.config, listen: f.listen}
		cfg, err := serve.nodeConfig()
		if err != nil {
			return nil, "", err
		}
		cfg.Name, cfg.DataDir, cfg.Nodes = name, filepath.Join(f.data, name), names
		cfg.Logger, prefix = logger.With("node", name), cfg.Prefix
		if i > 0 {
			cfg.Host, cfg.Port = "127.0.0.1", -1
		}
		if cfg.Server == nil {
			cfg.Server = &server.Options{}
		}
		place(cfg.Server, i, routes)
		n, err := node.New(cfg)
		if err != nil {
			return nil, "", err
		}
		nodes = append(nodes, n)
	}
	return nodes, prefix, nil
}

// sameNodes refuses a data directory of a cluster of other nodes: they would wait for one another for ever.
func (f *devFlags) sameNodes(names []string) error {
	found, err := fs.Glob(os.DirFS(f.data), "*/catalog")
	if err != nil || len(found) == 0 {
		return err
	}
	same := len(found) == len(names)
	for i := range found {
		found[i] = filepath.Base(filepath.Dir(found[i]))
	}
	for _, n := range names {
		if _, err := os.Stat(filepath.Join(f.data, n, "catalog")); err != nil {
			same = false
		}
	}
	if same {
		return nil
	}
	return fmt.Errorf(
		"--data %s holds the nodes %s, not %s: give --nodes and --name as at its first start, or another directory",
		f.data, strings.Join(found, ", "), strings.Join(names, ", "))
}

// place makes one configuration that of node i: what is one node's alone, its name, directory and ports, is not every
// node's, and the cluster is on the loopback interface.
func place(opts *server.Options, i int, ports []int) {
	opts.ServerName, opts.StoreDir = "", ""
	if i > 0 {
		opts.HTTPPort, opts.HTTPSPort, opts.ProfPort = 0, 0, 0
		opts.LeafNode.Port, opts.Websocket.Port, opts.MQTT.Port = 0, 0, 0
		opts.Gateway = server.GatewayOpts{}
	}
	opts.Cluster, opts.Routes = server.ClusterOpts{}, nil
	if len(ports) == 1 {
		return
	}
	opts.Cluster = server.ClusterOpts{Name: "allocnode-dev", Host: "127.0.0.1", Port: ports[i]}
	for _, p := range ports {
		opts.Routes = append(opts.Routes, &url.URL{Scheme: "nats", Host: net.JoinHostPort("127.0.0.1", strconv.Itoa(p))})
	}
}

// sayAfter is how long a cluster may be silent while it starts.
const sayAfter = 10 * time.Second

// runAll runs nodes until ctx ends or one of them cannot go on, and calls ready once all of them serve.
func runAll(ctx context.Context, nodes []*node.Node, logger *slog.Logger, ready func(context.Context) error) error {
	g, ctx := errgroup.WithContext(ctx)
	for _, n := range nodes {
		g.Go(func() error { return n.Run(ctx) })
	}
	g.Go(func() error {
		say := time.NewTicker(sayAfter)
		defer say.Stop()
		for _, n := range nodes {
			for serves := false; !serves; {
				select {
				case <-ctx.Done():
					return nil
				case <-n.Ready():
					serves = true
				case <-say.C:
					select {
					case <-n.Started():
						s := n.Status()
						logger.Info("still waiting", "node", s.Name, "state", s.State, "reason", s.Reason)
					default:
						logger.Info("still waiting for the servers to start")
					}
				}
			}
		}
		if err := ready(ctx); ctx.Err() == nil {
			return err
		}
		return nil
	})
	return g.Wait()
}

// try reserves count ids of sequence as any client would, and prints the range.
func try(ctx context.Context, out io.Writer, server, prefix, sequence string, count uint64) error {
	subject := prefix + ".reserve." + sequence
	nc, err := nats.Connect(server, nats.Name("allocnode dev"))
	if err != nil {
		return fmt.Errorf("--try: connect to %s as a client without credentials: %w", server, err)
	}
	defer nc.Close()
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	m, err := nc.RequestWithContext(ctx, subject, strconv.AppendUint(nil, count, 10))
	if err != nil {
		return fmt.Errorf("--try: request %s: %w", subject, err)
	}
	var answer struct {
		Start, End uint64
		Error      *allocnode.Error
	}
	if err := json.Unmarshal(m.Data, &answer); err != nil {
		return fmt.Errorf("--try: the answer to %s is %q: %w", subject, m.Data, err)
	}
	switch {
	case answer.Error != nil:
		return fmt.Errorf("--try: %w", answer.Error)
	case answer.Start == 0:
		return errors.New("--try: the answer holds no range: " + string(m.Data))
	}
	fmt.Fprintf(out, "\nreserved %d ids of %s over NATS: %d to %d\n  %s\n",
		answer.End-answer.Start, sequence, answer.Start, answer.End-1, m.Data)
	return nil
}

// hints prints what to try next.
func hints(out io.Writer, server, prefix string) {
	self := os.Args[0]
	fmt.Fprintf(out, `
try, in another terminal:
  nats --server %[1]s request %[2]s.reserve.orders 1000
  nats --server %[1]s request %[2]s.info.orders ''
  nats --server %[1]s micro ls
  %[3]s status --server %[1]s

Ctrl-C ends it.
`, server, prefix, self)
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
