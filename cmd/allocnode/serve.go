package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strconv"
	"time"

	"github.com/lmittmann/tint"
	"github.com/spf13/cobra"

	"github.com/allocnode/allocnode/internal/node"
)

// serveFlags are the flags of serve and dev.
type serveFlags struct {
	config    string
	data      string
	listen    string
	name      string
	logFormat string
	logLevel  string
}

func (f *serveFlags) add(cmd *cobra.Command, listen string) {
	cmd.Flags().StringVarP(&f.config, "config", "c", "", "configuration `FILE`: nats-server's settings and one alloc block")
	cmd.Flags().StringVar(&f.data, "data", "", "data `DIR`ectory")
	cmd.Flags().StringVar(&f.listen, "listen", "", listen)
	cmd.Flags().StringVar(&f.name, "name", "", "`NAME` of the node")
	cmd.Flags().StringVar(&f.logFormat, "log-format", "text", "`FORMAT` of the log: text or json")
	cmd.Flags().StringVar(&f.logLevel, "log-level", "info", "least `LEVEL` logged: debug, info, warn or error")
}

// logger writes to stderr: in colour on a terminal, plain elsewhere, or JSON.
func (f *serveFlags) logger() (*slog.Logger, error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(f.logLevel)); err != nil {
		return nil, fmt.Errorf("--log-level %q: want debug, info, warn or error", f.logLevel)
	}
	switch f.logFormat {
	case "json":
		return slog.New(slog.NewJSONHandler(os.Stderr, &slog.HandlerOptions{Level: level})), nil
	case "text":
		return slog.New(tint.NewHandler(os.Stderr, &tint.Options{
			Level: level, TimeFormat: time.TimeOnly, NoColor: !isTerminal(os.Stderr) || os.Getenv("NO_COLOR") != "",
		})), nil
	}
	return nil, fmt.Errorf("--log-format %q: want text or json", f.logFormat)
}

func isTerminal(f *os.File) bool {
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
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
func (f *serveFlags) nodeConfig(logger *slog.Logger) (node.Config, error) {
	cfg := node.DefaultConfig()
	cfg.Version, cfg.Logger = version, logger
	if f.config != "" {
		if err := cfg.LoadConfig(f.config, func(err error) { logger.Warn(err.Error()) }); err != nil {
			return cfg, err
		}
	}
	if f.name != "" {
		cfg.Name = f.name
	}
	if f.data != "" {
		cfg.DataDir = f.data
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
		Long: `Run one node until it is told to stop (Ctrl-C or SIGTERM).

Without a configuration file it is complete and alone: it listens on 127.0.0.1:4222 and keeps its data in ./allocnode-data.
In a cluster, each node has a file with nats-server's cluster block and alloc { nodes: [...] }.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			logger, err := f.logger()
			if err != nil {
				return err
			}
			cfg, err := f.nodeConfig(logger)
			if err != nil {
				return err
			}
			if cfg.DataDir == "" && f.config == "" {
				cfg.DataDir = "allocnode-data"
			}
			if f.config == "" && f.listen == "" {
				cfg.Host, cfg.Port = "127.0.0.1", 4222
			}
			return serve(cmd.Context(), cfg)
		},
	}
	f.add(cmd, "client `HOST:PORT`; :0 picks a free port and logs it (default 127.0.0.1:4222, or the file's)")
	return cmd
}

// serve runs one node, and logs where it can be reached and when it serves.
func serve(ctx context.Context, cfg node.Config) error {
	n, err := node.New(cfg)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- n.Run(ctx) }()
	started, ready := n.Started(), n.Ready()
	for {
		select {
		case err := <-done:
			return err
		case <-started:
			cfg.Logger.Info("listening", "url", n.ClientURL(), "data", cfg.DataDir)
			started = nil
		case <-ready:
			ready = nil
			if s := n.Status(); s.Ready {
				cfg.Logger.Info("ready", "cluster", s.Cluster, "role", s.Role, "sequences", s.Sequences)
			}
		}
	}
}

var errNoNodes = errors.New("--nodes: want 1, or an odd number from 3 to 9")
