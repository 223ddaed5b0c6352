//go:build linux

// Command chaosrun runs the chaos campaign; docs/TESTING.md says how to read it. It is a test: nothing of it is part of the
// product.
//
//	chaosrun run      the campaign (the default)
//	chaosrun client   a client process of it
//	chaosrun observe  the observer's server
//
// Exit status: 0 passed, 1 a promise was broken, 3 inconclusive (too little seen, partial, or the harness failed), 2 usage.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/allocnode/allocnode/internal/chaos"
	"github.com/allocnode/allocnode/internal/chaos/history"
	"github.com/allocnode/allocnode/internal/chaos/lab"
	"github.com/allocnode/allocnode/internal/chaos/workload"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	args := os.Args[1:]
	command := "run"
	if len(args) > 0 && !strings.HasPrefix(args[0], "-") {
		command, args = args[0], args[1:]
	}
	status, err := 0, error(nil)
	switch command {
	case "run":
		status, err = run(ctx, args)
	case "client":
		err = client(ctx, args)
	case "observe":
		if len(args) != 1 {
			err = errors.New("observe takes the configuration's file")
			break
		}
		err = lab.Observe(ctx, args[0])
	default:
		err = fmt.Errorf("unknown command %q: run, client or observe", command)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "chaosrun: %v\n", err)
		if status == 0 {
			status = 3
		}
	}
	os.Exit(status)
}

func run(ctx context.Context, args []string) (status int, err error) {
	cfg := chaos.DefaultConfig()
	cfg.Out = os.Stdout
	f := flag.NewFlagSet("chaosrun run", flag.ContinueOnError)
	f.StringVar(&cfg.Root, "root", ".", "`directory` of the module")
	f.StringVar(&cfg.Dir, "dir", "", "`directory` for what the run leaves; default: a new one below the system's temporary one")
	f.IntVar(&cfg.Nodes, "nodes", cfg.Nodes, "3 or 5")
	f.Uint64Var(&cfg.Seed, "seed", uint64(time.Now().UnixNano()%1_000_000), "of the schedule; the report names it")
	f.IntVar(&cfg.Windows, "windows", 0, "fault windows; 0: each kind once")
	f.DurationVar(&cfg.Length, "duration", 0, "of the fault windows, in place of their number")
	f.BoolVar(&cfg.Long, "long", false, "longer faults too")
	f.BoolVar(&cfg.Control, "control", true, "the positive control")
	f.StringVar(&cfg.Tags, "tags", "", "build `tags` of the nodes: a mutant's, which must not pass")
	only := f.String("faults", "", "`kinds`, separated by commas; empty: all")
	keep := f.Bool("keep", false, "keep the directory of a run that passed; that of another always stays")
	report := f.String("report", "", "`file` for a copy of report.json")
	list := f.String("scripts", "all", "`names`, separated by commas; all or none")
	if err := f.Parse(args); errors.Is(err, flag.ErrHelp) {
		return 0, nil
	} else if err != nil {
		return 2, err
	}
	if *only != "" {
		cfg.Only = strings.Split(*only, ",")
	}
	switch *list {
	case "all":
		cfg.Scripts = chaos.Scripts()
	case "none":
	default:
		cfg.Scripts = strings.Split(*list, ",")
	}
	if cfg.Self, err = os.Executable(); err != nil {
		return 3, err
	}
	if cfg.Root, err = filepath.Abs(cfg.Root); err != nil {
		return 3, err
	}
	temporary := cfg.Dir == ""
	if temporary {
		cfg.Dir, err = os.MkdirTemp("", "allocnode-chaos-")
	} else if cfg.Dir, err = filepath.Abs(cfg.Dir); err == nil {
		err = os.MkdirAll(cfg.Dir, 0o700)
	}
	if err != nil {
		return 3, err
	}
	fmt.Printf("chaos: seed %d, %d nodes, in %s\n", cfg.Seed, cfg.Nodes, cfg.Dir)
	rep, err := chaos.Run(ctx, cfg)
	if rep == nil {
		return 2, err
	}
	if *report != "" {
		b, readErr := os.ReadFile(filepath.Join(cfg.Dir, "report.json"))
		if readErr == nil {
			readErr = os.WriteFile(*report, b, 0o600)
		}
		err = errors.Join(err, readErr)
	}
	err = errors.Join(err, rep.Table(os.Stdout))
	switch {
	case rep.Verdict != chaos.Passed:
		fmt.Printf("everything is in %s; the same schedule: -seed %d\n", cfg.Dir, cfg.Seed)
		return rep.Verdict.Exit(), err
	case err != nil:
		return 3, err
	case temporary && !*keep:
		return 0, os.RemoveAll(cfg.Dir)
	}
	return 0, nil
}

func client(ctx context.Context, args []string) (err error) {
	cfg := workload.DefaultConfig()
	f := flag.NewFlagSet("chaosrun client", flag.ContinueOnError)
	path := f.String("history", "", "`file` of the history")
	resume := f.Bool("resume", false, "ask first for what earlier processes left open")
	f.StringVar(&cfg.Process, "process", "", "`name` in the history")
	f.Uint64Var(&cfg.Seed, "seed", 1, "of the generator")
	f.Uint64Var(&cfg.KeyWindow, "key-window", cfg.KeyWindow, "of the cluster, in keys")
	f.Func("node", "`NAME=URL`, once for each", func(s string) error {
		name, url, ok := strings.Cut(s, "=")
		if !ok {
			return fmt.Errorf("%q: want NAME=URL", s)
		}
		cfg.Nodes = append(cfg.Nodes, workload.Node{Name: name, URL: url})
		return nil
	})
	if err := f.Parse(args); err != nil {
		return err
	}
	if *resume {
		h, err := history.ReadFile(*path)
		if err != nil {
			return err
		}
		cfg.Resume = workload.Unfinished(h)
	}
	if cfg.History, err = history.Open(*path, cfg.Process); err != nil {
		return err
	}
	return errors.Join(workload.Run(ctx, cfg), cfg.History.Close())
}
