// Command bench compares allocnode with what a user would pick instead: the same work, one unique id, on each system, in
// one run on one machine. It prints a table and the ratios that allocnode has to show, and writes both, a plot and
// every round's figures into a directory.
//
// All rows are measured in turn, once in each round, so that a disturbance of the machine meets each of them. A system is
// started, measured at each concurrency, its ids held against each other, and stopped before the next one starts: only one
// has the machine at a time. Everything has a bound in time. On an interrupt the system that runs is stopped like any other;
// on a second one the process dies, and its children with it.
//
// It exits with 0 if every row has figures of every round, whatever the ratios are; with 1 if one has not; with 2 if it could not
// begin; with 130 when it was interrupted.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/allocnode/allocnode/bench/report"
	"github.com/allocnode/allocnode/bench/systems"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // the second one ends the process
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

type config struct {
	duration time.Duration
	rounds   int
	only     *regexp.Regexp
	out, dir string
	callers  []int
	conns    int
	pool     int
	procs    int
}

func parse(args []string, stderr io.Writer) (c config, err error) {
	f := flag.NewFlagSet("bench", flag.ContinueOnError)
	f.SetOutput(stderr)
	f.DurationVar(&c.duration, "duration", 2*time.Second, "how long each row is measured at each concurrency, in each round")
	f.IntVar(&c.rounds, "rounds", 3, "how often every row is measured")
	only := f.String("only", "", "only the rows whose name this regular expression matches")
	f.StringVar(&c.out, "out", "results", "where the results are written; empty: nowhere")
	f.StringVar(&c.dir, "dir", os.TempDir(), "where the servers keep their files: on a disk, or syncing costs nothing")
	callers := f.String("concurrency", "1,16,256,2048", "how many requests are in flight, a list")
	f.IntVar(&c.conns, "conns", 4, "connections, where one carries many requests at once")
	f.IntVar(&c.pool, "pool", 64, "connections, where one carries one request at a time")
	f.IntVar(&c.procs, "procs", 2*runtime.NumCPU(), "GOMAXPROCS of this process, in which the servers in Go run")
	if err := f.Parse(args); err != nil {
		return c, err
	}
	if f.NArg() > 0 {
		return c, fmt.Errorf("unknown argument %q", f.Arg(0))
	}
	if c.only, err = regexp.Compile(*only); err != nil {
		return c, fmt.Errorf("-only: %w", err)
	}
	for s := range strings.SplitSeq(*callers, ",") {
		n, err := strconv.Atoi(strings.TrimSpace(s))
		if err != nil || n < 1 || n > 100_000 {
			return c, fmt.Errorf("-concurrency %q: numbers from 1 to 100000, with commas between", *callers)
		}
		c.callers = append(c.callers, n)
	}
	slices.Sort(c.callers)
	c.callers = slices.Compact(c.callers)
	switch {
	case c.duration < 10*time.Millisecond || c.duration > 10*time.Minute:
		return c, fmt.Errorf("-duration %v: 10ms to 10m", c.duration)
	case c.rounds < 1 || c.rounds > 1000:
		return c, fmt.Errorf("-rounds %d: 1 to 1000", c.rounds)
	case c.conns < 1 || c.conns > 1000 || c.pool < 1 || c.pool > 1000:
		return c, fmt.Errorf("-conns %d -pool %d: 1 to 1000", c.conns, c.pool)
	case c.procs < 1 || c.procs > 10_000:
		return c, fmt.Errorf("-procs %d: 1 to 10000", c.procs)
	}
	return c, nil
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	cfg, err := parse(args, stderr)
	if errors.Is(err, flag.ErrHelp) {
		return 0
	} else if err != nil {
		fmt.Fprintln(stderr, "bench:", err)
		return 2
	}
	// Three servers of one process sync their files, and while a goroutine waits for a disk it holds one of these. With as many as
	// there are cores a core idles then, of whatever system it is.
	runtime.GOMAXPROCS(cfg.procs)
	r, err := prepare(ctx, &cfg)
	if err != nil {
		fmt.Fprintln(stderr, "bench:", err)
		return 2
	}
	return conduct(ctx, cfg, systems.All(), r, stdout, stderr)
}

// conduct measures, prints and writes, and returns the exit code.
func conduct(ctx context.Context, cfg config, all []systems.System, r *report.Report, stdout, stderr io.Writer) int {
	c := newComparison(cfg, all, r, stderr)
	if len(r.Cells) == 0 {
		fmt.Fprintln(stderr, "bench: no row is left to measure: see -only and -concurrency")
		return 2
	}
	if err := c.measure(ctx); err != nil {
		fmt.Fprintln(stderr, "bench:", err)
		if ctx.Err() != nil {
			return 130
		}
		return 1
	}
	ratios := targets(r)
	if err := r.WriteTable(stdout, ratios, ""); err != nil {
		fmt.Fprintln(stderr, "bench:", err)
		return 1
	}
	if cfg.out != "" {
		path, err := write(r, ratios, cfg.out)
		if err != nil {
			fmt.Fprintln(stderr, "bench:", err)
			return 1
		}
		fmt.Fprintf(stdout, "\nwritten: %s.md, .json, .svg\n", path)
	}
	if r.Failed() {
		fmt.Fprintln(stderr, "bench: not every row could be measured, see the errors in the table")
		return 1
	}
	return 0
}

// prepare makes the report's head, and looks whether the directory is one that fsync means something in.
func prepare(ctx context.Context, cfg *config) (*report.Report, error) {
	dir, err := filepath.Abs(cfg.dir)
	if err != nil {
		return nil, err
	}
	if dir, err = filepath.EvalSymlinks(dir); err != nil {
		return nil, err
	}
	cfg.dir = dir
	m, err := report.ThisMachine(dir)
	if err != nil {
		return nil, err
	}
	if m.InMemory() {
		return nil, fmt.Errorf("%s is in memory (%s): syncing costs nothing there, use -dir", dir, m.FS)
	}
	r := &report.Report{Date: time.Now().UTC(), Duration: cfg.duration, Rounds: cfg.rounds, Machine: m}
	for _, v := range systems.Versions(ctx) {
		r.Versions = append(r.Versions, report.Version{Name: v.Name, Version: v.Version})
	}
	return r, nil
}

// write puts the three files into dir, named after the day and time, and returns their common path. Each is complete or not
// there.
func write(r *report.Report, ratios []report.Ratio, dir string) (path string, err error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	name := r.Date.Format("2006-01-02T1504")
	path = filepath.Join(dir, name)
	for ext, fn := range map[string]func(io.Writer) error{
		".md":   func(w io.Writer) error { return r.WriteTable(w, ratios, name+".svg") },
		".json": r.WriteJSON,
		".svg":  r.WritePlot,
	} {
		f, err := os.CreateTemp(dir, name+".*")
		if err != nil {
			return "", err
		}
		err = errors.Join(fn(f), f.Chmod(0o644), f.Close())
		if err == nil {
			err = os.Rename(f.Name(), path+ext)
		}
		if err != nil {
			_ = os.Remove(f.Name())
			return "", fmt.Errorf("write %s: %w", path+ext, err)
		}
	}
	return path, nil
}
