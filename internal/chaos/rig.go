//go:build linux

package chaos

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/allocnode/allocnode/internal/chaos/history"
	"github.com/allocnode/allocnode/internal/chaos/lab"
	"github.com/allocnode/allocnode/internal/wire"
)

const (
	diskBytes = 512 << 20

	// gateBound is how long a cluster without a fault may take until all of its nodes serve.
	gateBound = 60 * time.Second

	lookEvery = 50 * time.Millisecond
)

// rig is one laboratory with its observer, its history and its clients.
type rig struct {
	cfg     Config
	dir     string
	lab     *lab.Lab
	obs     *lab.Observer
	hist    *history.Writer
	file    string // of the history
	clients []*lab.Process
	started int // clients, so far
	begin   time.Time
	holes   []uint64 // of the log, as readLog found them: seqs that a replica has lost

	asking sync.Mutex // held from a question for statuses to its last record, so that records are in the order of time
}

// newRig builds a laboratory below the run's directory. After an error nothing of it is left.
func newRig(ctx context.Context, cfg Config, name, binary string, extra int) (r *rig, err error) {
	r = &rig{cfg: cfg, dir: filepath.Join(cfg.Dir, name), begin: time.Now()}
	if err := os.MkdirAll(r.dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the directory of %s: %w", name, err)
	}
	r.file = filepath.Join(r.dir, "history.jsonl")
	if r.hist, err = history.Open(r.file, "campaign"); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.close())
		}
	}()
	r.lab, err = lab.New(ctx, lab.Config{
		Run: lab.NewRun(), Dir: r.dir, Nodes: cfg.Nodes, Extra: extra, Binary: binary, Self: cfg.Self, DiskBytes: diskBytes,
		Genesis: fmt.Sprintf("key_window: %d", cfg.KeyWindow), Seed: cfg.Seed,
	})
	if err != nil {
		return r, err
	}
	r.obs, err = r.lab.Observer(ctx)
	return r, err
}

func (r *rig) close() error {
	var faults []error
	if r.obs != nil {
		r.obs.Close()
	}
	for _, p := range r.clients {
		faults = append(faults, p.Kill())
	}
	if r.lab != nil {
		faults = append(faults, r.lab.Close())
	}
	return errors.Join(append(faults, r.hist.Close())...)
}

func (r *rig) say(format string, args ...any) {
	fmt.Fprintf(r.cfg.Out, "%7.1fs  %s\n", time.Since(r.begin).Seconds(), fmt.Sprintf(format, args...))
}

// startNodes starts all nodes and waits until all serve.
func (r *rig) startNodes(ctx context.Context) error {
	for _, n := range r.lab.Nodes {
		if err := n.Start(); err != nil {
			return err
		}
	}
	_, err := r.healthy(ctx, gateBound)
	return err
}

// startClient starts one more client process. With resume it first asks for what earlier ones left open.
func (r *rig) startClient(resume bool) error {
	r.started++
	args := []string{
		r.cfg.Self, "client", "--history", r.file, "--process", fmt.Sprintf("c%d", r.started),
		"--seed", fmt.Sprint(r.cfg.Seed), "--key-window", fmt.Sprint(r.cfg.KeyWindow), fmt.Sprintf("--resume=%t", resume),
	}
	for _, n := range r.lab.Nodes {
		args = append(args, "--node", n.Name+"="+n.URL())
	}
	p, err := r.lab.StartClient(filepath.Join(r.dir, "clients.log"), args...)
	if err == nil {
		r.clients = append(r.clients, p)
	}
	return err
}

// stopClients lets all clients end.
func (r *rig) stopClients() error {
	var faults []error
	for _, p := range r.clients {
		faults = append(faults, p.Stop())
		if end := p.End(); end != "exit status 0" {
			faults = append(faults, fmt.Errorf("a client ended with %s", end))
		}
	}
	r.clients = nil
	return errors.Join(faults...)
}

// until looks again and again until done says so, or bound is over; what done last said is in the error.
func until(ctx context.Context, bound time.Duration, what string, done func() error) error {
	ctx, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		err := done()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: not within %s: %w", what, bound, err)
		case <-tick.C:
		}
	}
}

// statuses asks all nodes, and puts what they say into the history.
func (r *rig) statuses() (map[string]wire.Status, error) {
	r.asking.Lock()
	defer r.asking.Unlock()
	all, err := r.obs.Statuses(len(r.lab.Nodes), 500*time.Millisecond)
	for _, s := range all {
		err = errors.Join(err, r.hist.Write(history.Record{
			Kind: history.KindStatus, Node: s.Name, Incarnation: s.Incarnation.String(), State: s.State, Cursor: s.Cursor,
			Digest: s.Digest, Text: s.Reason,
		}))
	}
	return all, err
}

// healthy is the gate: all processes run, all nodes serve, and none is far behind. It returns how long that took.
func (r *rig) healthy(ctx context.Context, bound time.Duration) (time.Duration, error) {
	begin := time.Now()
	err := until(ctx, bound, "all nodes serve", func() error {
		for _, n := range r.lab.Nodes {
			if !n.Running() {
				return fmt.Errorf("%s has ended: %s", n.Name, n.End())
			}
		}
		all, err := r.statuses()
		if err != nil {
			return err
		}
		for _, n := range r.lab.Nodes {
			s, ok := all[n.Name]
			switch {
			case !ok:
				return fmt.Errorf("%s does not answer", n.Name)
			case !s.Ready:
				return fmt.Errorf("%s is %s: %s", n.Name, s.State, s.Reason)
			case s.Lag > 256:
				return fmt.Errorf("%s is %d entries behind", n.Name, s.Lag)
			}
		}
		return nil
	})
	return time.Since(begin), err
}

func (r *rig) fileSize() int64 {
	info, err := os.Stat(r.file)
	if err != nil {
		return 0
	}
	return info.Size()
}

// answered waits until a client has begun and got a reservation that stands in the history behind mark.
func (r *rig) answered(ctx context.Context, mark int64) error {
	type attempt struct {
		process string
		id      uint64
	}
	asked := map[attempt]bool{}
	return until(ctx, gateBound, "a client is answered", func() error {
		f, err := os.Open(r.file)
		if err != nil {
			return err
		}
		defer f.Close()
		b, err := io.ReadAll(io.NewSectionReader(f, mark, 1<<40))
		if err != nil {
			return err
		}
		for line := range bytes.Lines(b) {
			if line[len(line)-1] != '\n' {
				break
			}
			mark += int64(len(line))
			var rec history.Record
			if json.Unmarshal(line, &rec) != nil {
				continue
			}
			at := attempt{rec.Process, rec.ID}
			switch {
			case rec.Kind == history.KindBegin && rec.Action == history.Reserve:
				asked[at] = true
			case rec.Kind == history.KindEnd && rec.Outcome == history.OK && asked[at]:
				return nil
			}
		}
		return fmt.Errorf("%d reservations were asked for, none is answered", len(asked))
	})
}

// hold waits, unless ctx ends.
func hold(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// healAll undoes whatever may still be there, and starts what does not run.
func (r *rig) healAll(ctx context.Context) error {
	r.lab.Switch().Heal()
	var faults []error
	for _, n := range r.lab.Nodes {
		_ = n.Disk.Thaw(ctx) // says that it is not frozen
		faults = append(faults, n.Disk.Empty(), n.SetClock(0), n.StarveCPU(0), n.SlowDisk(0), n.LimitMemory(0), n.Continue())
		faults = append(faults, n.Disk.Mount(ctx), n.Start())
	}
	for _, n := range r.lab.Extra {
		if n.Running() {
			_, err := n.Kill()
			faults = append(faults, err)
		}
	}
	return errors.Join(faults...)
}

// leader is the node that leads the log.
func (r *rig) leader(ctx context.Context) (*lab.Node, error) {
	var name string
	err := until(ctx, gateBound, "the log has a leader", func() (err error) {
		name, _, err = r.obs.StreamLeader()
		return err
	})
	if err != nil {
		return nil, err
	}
	return r.node(name)
}

func (r *rig) node(name string) (*lab.Node, error) {
	for _, n := range r.lab.Nodes {
		if n.Name == name {
			return n, nil
		}
	}
	return nil, fmt.Errorf("there is no node %q", name)
}

// others are all nodes but n.
func (r *rig) others(n *lab.Node) (all []*lab.Node) {
	for _, m := range r.lab.Nodes {
		if m != n {
			all = append(all, m)
		}
	}
	return all
}

// some picks a node.
func (r *rig) some(rnd *rand.Rand) *lab.Node { return r.lab.Nodes[rnd.IntN(len(r.lab.Nodes))] }

// logMark is the place in a node's log from which logged looks.
func logMark(n *lab.Node) int64 {
	info, err := os.Stat(n.Log())
	if err != nil {
		return 0
	}
	return info.Size()
}

// logged returns the first line since mark that holds text, "" if none does.
func logged(n *lab.Node, mark int64, text string) string {
	f, err := os.Open(n.Log())
	if err != nil {
		return ""
	}
	defer f.Close()
	b, err := io.ReadAll(io.NewSectionReader(f, mark, 1<<30))
	if err != nil {
		return ""
	}
	i := bytes.Index(b, []byte(text))
	if i < 0 {
		return ""
	}
	line := b[bytes.LastIndexByte(b[:i], '\n')+1:]
	if end := bytes.IndexByte(line, '\n'); end >= 0 {
		line = line[:end]
	}
	return strings.TrimSpace(string(line))
}
