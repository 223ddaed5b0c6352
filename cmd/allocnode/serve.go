package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/allocnode/allocnode/internal/node"
	"github.com/allocnode/allocnode/internal/wire"
)

// serveFlags are the flags of serve and dev.
type serveFlags struct {
	config string
	data   string
	listen string
	name   string
	log    logFlags
}

func (f *serveFlags) add(cmd *cobra.Command, listen, name string) {
	cmd.Flags().StringVarP(&f.config, "config", "c", "", "configuration `FILE`: nats-server's settings and one alloc block")
	cmd.Flags().StringVar(&f.data, "data", "", "data `DIR`ectory")
	cmd.Flags().StringVar(&f.listen, "listen", "", listen)
	cmd.Flags().StringVar(&f.name, "name", "", name)
	cmd.Flags().StringVar(&f.log.format, "log-format", "text", "`FORMAT` of the log: text or json")
	cmd.Flags().StringVar(&f.log.level, "log-level", "info", "least `LEVEL` logged: debug, info, warn or error")
}

// hostPort splits --listen. Port 0 means any free port.
func (f *serveFlags) hostPort() (host string, port int, err error) {
	host, p, err := net.SplitHostPort(f.listen)
	if err == nil {
		port, err = strconv.Atoi(p)
	}
	if err != nil || port < 0 || port > 65535 {
		return "", 0, fmt.Errorf("--listen %q: want HOST:PORT, such as 127.0.0.1:4222, or :0 for any free port", f.listen)
	}
	if port == 0 {
		port = -1
	}
	return host, port, nil
}

// nodeConfig is the configuration of one node from file and flags; a flag wins over the file.
func (f *serveFlags) nodeConfig() (node.Config, error) {
	cfg := node.DefaultConfig()
	cfg.Version = version
	if f.config != "" {
		// Warnings of nats-server stand in the log again when it starts.
		if err := cfg.LoadConfig(f.config, func(error) {}); err != nil {
			return cfg, err
		}
	}
	if f.name != "" {
		cfg.Name = f.name
		if cfg.Server != nil {
			cfg.Server.ServerName = ""
		}
	}
	if f.data != "" {
		cfg.DataDir = f.data
		if cfg.Server != nil {
			cfg.Server.StoreDir = ""
		}
	}
	if f.listen != "" {
		var err error
		if cfg.Host, cfg.Port, err = f.hostPort(); err != nil {
			return cfg, err
		}
	}
	return cfg, nil
}

func newServe() *cobra.Command {
	var f serveFlags
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run one node",
		Long: `Run one node until it is told to stop (Ctrl-C or SIGTERM); a second time ends it at once.

Without a configuration file it is complete and alone: it listens on 127.0.0.1:4222 and keeps its data in ./allocnode-data.
In a cluster, each node has a file with nats-server's cluster block and alloc { nodes: [...] }.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			logger, err := f.log.logger(keepForServe)
			if err != nil {
				return err
			}
			cfg, err := f.nodeConfig()
			if err != nil {
				return err
			}
			cfg.Logger = logger
			if f.config == "" {
				if cfg.DataDir == "" {
					cfg.DataDir = "allocnode-data"
				}
				if f.listen == "" {
					cfg.Host, cfg.Port = "127.0.0.1", 4222
				}
			}
			defer endAtOnce(cmd.Context(), func() {})()
			return serve(cmd.Context(), cfg)
		},
	}
	f.add(cmd, "client `HOST:PORT`; :0 picks a free port and logs it (default 127.0.0.1:4222, or the file's)",
		"`NAME` of the node")
	return cmd
}

// sameSignal is how soon a second signal is still the first one: timeout(1) and some supervisors signal a process and then
// its group, the process among it.
const sameSignal = 500 * time.Millisecond

// endAtOnce has the next signal after the one that ended ctx end the process, after cleanup, with the status that shells
// give to an interrupted one. The function that it returns takes that back.
func endAtOnce(ctx context.Context, cleanup func()) (stop func()) {
	signals, done := make(chan os.Signal, 1), make(chan struct{})
	off := context.AfterFunc(ctx, func() {
		first := time.Now()
		signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
		defer signal.Stop(signals)
		for {
			select {
			case <-done:
				return
			case <-signals:
				if time.Since(first) < sameSignal {
					continue
				}
				cleanup()
				fmt.Fprintln(os.Stderr, "allocnode: ended at once, without waiting for an orderly stop")
				os.Exit(130)
			}
		}
	})
	return func() {
		off()
		close(done)
	}
}

// watchEvery is how often a node that is not ready is asked why.
const watchEvery = time.Second

// serve runs one node, and logs where it can be reached, when it serves, and why not where that lasts.
func serve(ctx context.Context, cfg node.Config) error {
	n, err := node.New(cfg)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- n.Run(ctx) }()

	var tick <-chan time.Time
	var reasons lasting
	started, ready := n.Started(), n.Ready()
	for {
		select {
		case err := <-done:
			return err
		case <-started:
			cfg.Logger.Info("listening", "url", n.ClientURL(), "data", cfg.DataDir)
			started = nil
			ticker := time.NewTicker(watchEvery)
			defer ticker.Stop()
			tick = ticker.C
		case <-ready:
			ready = nil
			if s := n.Status(); s.Ready {
				cfg.Logger.Info("ready", "cluster", s.Cluster, "role", s.Role, "sequences", s.Sequences)
			}
		case <-tick:
			if s := n.Status(); reasons.news(s) {
				cfg.Logger.Info("not serving", "state", s.State, "reason", s.Reason)
			}
		}
	}
}

// lasting finds what is worth a line among the reasons for which a node does not serve: those that are still there at the
// next look, once each.
type lasting struct{ seen, told string }

func (l *lasting) news(s wire.Status) bool {
	before := l.seen
	l.seen = s.Reason
	switch {
	case s.Ready:
		l.told = ""
		return false
	case s.State == wire.StateFenced, s.State == wire.StateHalted, s.State == wire.StateStopping:
		return false // the node logs these itself
	case s.Reason != before || s.Reason == l.told || s.Reason == s.State: // "starting" says nothing
		return false
	}
	l.told = s.Reason
	return true
}
