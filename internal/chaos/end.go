//go:build linux

package chaos

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/allocnode/allocnode/apply"
	"github.com/allocnode/allocnode/internal/chaos/history"
	"github.com/allocnode/allocnode/internal/chaos/lab"
	"github.com/allocnode/allocnode/kv"
)

// catalog reads what a node that does not run has on its disk.
func (r *rig) catalog(n *lab.Node) (rep history.Replica, err error) {
	return readCatalog(n, filepath.Join(n.DataDir(), "catalog"))
}

// copyOfCatalog is the same, and leaves the disk as it is: to read a catalog is to open badger, which tidies up.
func (r *rig) copyOfCatalog(n *lab.Node) (rep history.Replica, err error) {
	dir, err := os.MkdirTemp(r.dir, "catalog-")
	if err != nil {
		return rep, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	to := filepath.Join(dir, "catalog")
	if err := os.CopyFS(to, os.DirFS(filepath.Join(n.DataDir(), "catalog"))); err != nil {
		return rep, err
	}
	return readCatalog(n, to)
}

func readCatalog(n *lab.Node, dir string) (rep history.Replica, err error) {
	c, err := kv.Open(dir, kv.Identity{Node: n.Name, Clustered: true}, slog.New(slog.DiscardHandler))
	if err != nil {
		return rep, fmt.Errorf("read the catalog of %s: %w", n.Name, err)
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	restorer := apply.NewRestorer()
	head, err := c.Load(restorer.Add)
	if err != nil {
		return rep, fmt.Errorf("read the catalog of %s: %w", n.Name, err)
	}
	machine, err := restorer.Machine(head)
	if err != nil {
		return rep, fmt.Errorf("read the catalog of %s: %w", n.Name, err)
	}
	rep = history.Replica{
		Node: n.Name, Cluster: head.ClusterID.String(), Cursor: head.Cursor, Digest: head.Digest.String(), HWM: map[string]uint64{},
	}
	for _, s := range machine.List(nil, 0, machine.Len()) {
		rep.HWM[s.Name] = s.HWM
	}
	return rep, nil
}

// quiet is for how long the log must not grow until it counts as drained.
const quiet = time.Second

// drained waits until every node stands at the log's last seq, and that seq no longer moves.
func (r *rig) drained(ctx context.Context) (last uint64, err error) {
	since := time.Now()
	err = until(ctx, gateBound, "every node stands at the end of the log", func() error {
		_, end, err := r.obs.StreamLeader()
		if err != nil {
			return err
		}
		all, err := r.statuses()
		if err != nil {
			return err
		}
		for _, n := range r.lab.Nodes {
			if s, ok := all[n.Name]; !ok || s.Cursor != end {
				return fmt.Errorf("%s stands at %d, the log ends at %d", n.Name, s.Cursor, end)
			}
		}
		if end != last {
			last, since = end, time.Now()
		}
		if time.Since(since) < quiet {
			return fmt.Errorf("the log ends at %d since a moment ago", end)
		}
		return nil
	})
	return last, err
}

// readLog reads the whole log, keeps it beside the history, and says what it means.
func (r *rig) readLog(ctx context.Context, last uint64) (*history.Log, error) {
	var messages []history.Message
	holes, err := r.obs.ReadLog(ctx, last, func(seq uint64, data []byte) {
		messages = append(messages, history.Message{Seq: seq, Data: data})
	})
	if err != nil {
		return nil, err
	}
	if err := history.WriteLog(filepath.Join(r.dir, "log.jsonl"), messages); err != nil {
		return nil, err
	}
	r.holes = holes
	return history.Fold(messages)
}

// evidence is what the checkers judge.
type evidence struct {
	history  *history.History
	log      *history.Log
	replicas []history.Replica
	output   map[string]string // by node
	dropped  []string          // lines in which a node says that it dropped its state
}

// collect ends the nodes and gathers the evidence. The clients have ended.
func (r *rig) collect(ctx context.Context) (*evidence, error) {
	if err := r.samples(ctx, "end"); err != nil {
		return nil, err
	}
	e := &evidence{output: map[string]string{}}
	for {
		last, err := r.drained(ctx)
		if err != nil {
			return nil, err
		}
		if e.log, err = r.readLog(ctx, last); err != nil {
			return nil, err
		}
		if _, end, err := r.obs.StreamLeader(); err == nil && end == last {
			break
		}
	}
	// All stop at one moment, so that none sees another go and writes that into the log.
	for _, n := range r.lab.Nodes {
		if _, err := n.Pause(); err != nil {
			return nil, err
		}
	}
	for _, n := range r.lab.Nodes {
		if _, err := n.Kill(); err != nil {
			return nil, err
		}
	}
	for _, n := range r.lab.Nodes {
		rep, err := r.catalog(n)
		if err != nil {
			return nil, err
		}
		e.replicas = append(e.replicas, rep)
		b, err := os.ReadFile(n.Log())
		if err != nil {
			return nil, fmt.Errorf("read the output of %s: %w", n.Name, err)
		}
		e.output[n.Name] = unharmed(string(b))
		for line := range strings.Lines(string(b)) {
			if strings.Contains(line, stateDropped) {
				e.dropped = append(e.dropped, n.Name+": "+strings.TrimSpace(line))
			}
		}
	}
	var err error
	e.history, err = history.ReadFile(r.file)
	return e, err
}

// stateDropped is what a node says whose catalog is no state: after damage that is as it must be, after a kill it is not.
const stateDropped = "kv: state dropped"

// unharmed is output without the lines in which a node says that it opened a damaged table, where badger panics: kv catches
// that, drops the state, and tells the reason.
func unharmed(output string) string {
	var b strings.Builder
	for line := range strings.Lines(output) {
		if !strings.Contains(line, stateDropped) {
			b.WriteString(line)
		}
	}
	return b.String()
}

// samples notes what each node's process holds, and keeps where its goroutines are under a name, for whom they are too many.
func (r *rig) samples(ctx context.Context, name string) error {
	for _, n := range r.lab.Nodes {
		u, err := n.Usage()
		if err != nil {
			return err
		}
		goroutines, profile := 0, []byte(nil)
		err = until(ctx, gateBound, "goroutines are counted", func() (err error) {
			goroutines, profile, err = r.obs.Goroutines(n.Name)
			return err
		})
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(r.dir, n.Name, "goroutines-"+name), profile, 0o600); err != nil {
			return err
		}
		err = r.hist.Write(history.Record{
			Kind: history.KindSample, Node: n.Name, Goroutines: uint64(goroutines), FDs: uint64(u.Descriptors), RSS: uint64(u.RSS),
			Text: fmt.Sprintf("%d threads", u.Threads),
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// salvage is what can be said of a run that did not come to its end: what clients were told, without the log, and who crashed.
// Checked: without it a mutant whose nodes panicked within a second was inconclusive.
func (r *rig) salvage() (found []string) {
	var nodes []string
	output := map[string]string{}
	for _, n := range r.lab.Nodes {
		if b, err := os.ReadFile(n.Log()); err == nil {
			nodes, output[n.Name] = append(nodes, n.Name), unharmed(string(b))
		}
	}
	violations := history.Crashes(nodes, output)
	if h, err := history.ReadFile(r.file); err == nil {
		violations = append(violations, history.Unique(h)...)
	}
	for _, v := range violations {
		found = append(found, v.String())
	}
	return found
}

// judge runs every checker. healed is when the last fault was over; 0 leaves liveness out.
func (r *rig) judge(e *evidence, healed int64) (found []history.Violation, err error) {
	var nodes []string
	for _, n := range r.lab.Nodes {
		nodes = append(nodes, n.Name)
	}
	found = append(found, history.Unique(e.history)...)
	found = append(found, history.Idempotent(e.history, e.log)...)
	found = append(found, history.LogTruth(e.history, e.log)...)
	found = append(found, history.Order(e.history, e.log)...)
	found = append(found, history.Drained(nodes, e.replicas, e.log)...)
	if e.log.Fence != "" {
		found = append(found, history.Violation{Rule: history.RuleLogTruth, Text: "the log proves that it lost entries: " + e.log.Fence})
	}
	digests, err1 := history.Digests(e.history, e.log)
	hygiene, err2 := history.Hygiene(nodes, e.history.Samples, e.output, history.DefaultSlack())
	found = append(append(found, digests...), hygiene...)
	if healed > 0 {
		actions := []history.Action{history.Reserve, history.Next, history.Create, history.Advance, history.Info}
		live, err3 := history.Liveness(e.history, healed, r.cfg.Recovery, actions, nodes)
		found, err = append(found, live...), err3
	}
	return found, errors.Join(err, err1, err2)
}

// settle is how long the load goes on after the last healing.
const settle = 10 * time.Second
