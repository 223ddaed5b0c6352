package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/allocnode/allocnode/bench/load"
	"github.com/allocnode/allocnode/bench/report"
	"github.com/allocnode/allocnode/bench/systems"
)

// Bounds of what is not measured.
const (
	startWithin = 90 * time.Second
	openWithin  = 90 * time.Second
	stopWithin  = 60 * time.Second
	grace       = 2 * time.Second
	warmFor     = time.Second
	keptIDs     = 4_000_000 // of one cell's round, for the check
	keptLocal   = 250_000   // where keeping one takes longer than making one
)

// comparison fills the cells of a report.
type comparison struct {
	cfg     config
	systems []systems.System // with the rows that are wanted
	cells   map[string]map[int]*report.Cell
	stderr  io.Writer
}

func newComparison(cfg config, all []systems.System, r *report.Report, stderr io.Writer) *comparison {
	c := &comparison{cfg: cfg, cells: map[string]map[int]*report.Cell{}, stderr: stderr}
	for _, s := range all {
		var rows []systems.Row
		for _, row := range s.Rows {
			if !cfg.only.MatchString(row.Name) {
				continue
			}
			byCallers := map[int]*report.Cell{}
			for _, n := range cfg.callers {
				if !row.For(n) {
					continue
				}
				byCallers[n] = &report.Cell{
					System: row.Name, Callers: n, Conns: row.Connections(systems.Env{Conns: cfg.conns, Pool: cfg.pool}, n),
					Durability: row.Durability, Copies: row.Copies, NoIDs: row.NoIDs,
				}
				r.Cells = append(r.Cells, byCallers[n])
			}
			if len(byCallers) > 0 {
				rows = append(rows, row)
				c.cells[row.Name] = byCallers
			}
		}
		if len(rows) > 0 {
			s.Rows = rows
			c.systems = append(c.systems, s)
		}
	}
	return c
}

// measure does every round. It returns an error if it was interrupted, or if a system cannot be stopped: what is measured
// beside it would not count.
func (c *comparison) measure(ctx context.Context) error {
	for n := range c.cfg.rounds {
		for _, s := range c.systems {
			fmt.Fprintf(c.stderr, "%s round %d of %d: %s\n", time.Now().Format(time.TimeOnly), n+1, c.cfg.rounds, s.Name)
			if err := c.round(ctx, s); err != nil {
				return fmt.Errorf("%s: %w", s.Name, err)
			}
			if err := ctx.Err(); err != nil {
				return fmt.Errorf("interrupted: %w", context.Cause(ctx))
			}
		}
	}
	return nil
}

// round starts a system, measures its rows at each concurrency, and stops it. Every cell gets a round, of figures or with an error.
func (c *comparison) round(ctx context.Context, s systems.System) (err error) {
	dir, err := os.MkdirTemp(c.cfg.dir, "allocnode-bench-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if err := os.Chmod(dir, 0o755); err != nil { // a server may run as another user
		return err
	}
	log := &tail{}
	env := systems.Env{Dir: dir, Conns: c.cfg.conns, Pool: c.cfg.pool, Log: log}
	starting, cancel := context.WithTimeoutCause(ctx, startWithin, fmt.Errorf("not started within %v", startWithin))
	opens, stop, startErr := s.Start(starting, env)
	cancel()
	if startErr == nil {
		c.warm(ctx, s, opens)
	}
	var checked checker
	defer checked.ids.Close()
	for _, row := range s.Rows {
		for _, n := range c.cfg.callers {
			cell := c.cells[row.Name][n]
			if cell == nil || ctx.Err() != nil {
				continue
			}
			got := report.Round{}
			err := startErr
			if err == nil {
				got, err = c.cell(ctx, opens[row.Name], n, cell, &checked)
			}
			if err != nil {
				got = report.Round{Error: err.Error()}
				fmt.Fprintf(c.stderr, "  %s, %d in flight: %v\n", row.Name, n, err)
			}
			cell.Rounds = append(cell.Rounds, got)
		}
	}
	if startErr != nil {
		fmt.Fprintf(c.stderr, "%s\n", log)
	}
	stopped := make(chan struct{})
	go func() { stop(); close(stopped) }()
	select {
	case <-stopped:
	case <-time.After(stopWithin):
		return fmt.Errorf("not stopped within %v", stopWithin)
	}
	return checked.check()
}

// warm drives the first row for a moment, so that the first cell meets a system that has settled as the last one does. What
// goes wrong here goes wrong again where it is noted.
func (c *comparison) warm(ctx context.Context, s systems.System, opens map[string]systems.Open) {
	row := s.Rows[0]
	open := opens[row.Name]
	if open == nil || row.Only != nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, openWithin)
	defer cancel()
	l, err := open(ctx, 16)
	if err != nil {
		return
	}
	if l.Close != nil {
		defer l.Close()
	}
	_, _, _ = load.Run(ctx, l, load.Options{Duration: min(warmFor, c.cfg.duration), Grace: grace})
}

// cell measures one row once.
func (c *comparison) cell(ctx context.Context, open systems.Open, n int, cell *report.Cell, checked *checker) (report.Round, error) {
	if open == nil {
		return report.Round{}, errors.New("the system does not offer this row")
	}
	opening, cancel := context.WithTimeoutCause(ctx, openWithin, fmt.Errorf("not opened within %v", openWithin))
	l, err := open(opening, n)
	cancel()
	if err != nil {
		return report.Round{}, err
	}
	if l.Close != nil {
		defer l.Close()
	}
	runtime.GC() // what the cell before left behind is not this one's to clear
	keep := keptIDs
	if l.Chunk > 1 {
		keep = keptLocal
	}
	f, ids, err := load.Run(ctx, l, load.Options{
		Warm: max(c.cfg.duration/5, 100*time.Millisecond), Duration: c.cfg.duration, Grace: grace, Keep: keep,
	})
	if err != nil {
		return report.Round{}, err
	}
	if l.Counter != "" {
		if err := checked.add(l.Counter, ids, cell, len(cell.Rounds)); err != nil {
			return report.Round{}, err
		}
	}
	return report.Round{Rate: f.Rate, P50: f.P50, P99: f.P99, P999: f.P999, Calls: f.Calls, Cut: f.Cut, Checked: len(ids)}, nil
}

// checker holds the ids of a system against each other, over all rows and concurrencies of one counter.
type checker struct {
	ids   load.Unique
	parts map[string][]func(error) // by counter: marks the rounds that it was measured in
}

func (c *checker) add(counter string, ids []load.ID, cell *report.Cell, round int) error {
	if err := c.ids.Add(counter, ids); err != nil {
		return err
	}
	if c.parts == nil {
		c.parts = map[string][]func(error){}
	}
	c.parts[counter] = append(c.parts[counter], func(err error) { cell.Rounds[round].Error = err.Error() })
	return nil
}

// check makes every round an error whose counter handed out an id twice.
func (c *checker) check() error {
	found, err := c.ids.Check()
	for counter, twice := range found {
		for _, mark := range c.parts[counter] {
			mark(twice)
		}
	}
	return err
}

// tail keeps the end of what is written to it.
type tail struct {
	mu   sync.Mutex // guards text
	text []byte
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	const kept = 8 << 10
	t.text = append(t.text, p...)
	t.text = t.text[max(0, len(t.text)-kept):]
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return "    " + strings.ReplaceAll(strings.TrimSpace(string(t.text)), "\n", "\n    ")
}
