package node

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/allocnode/allocnode/apply"
	"github.com/allocnode/allocnode/internal/wire"
	"github.com/allocnode/allocnode/jetstream"
	"github.com/allocnode/allocnode/kv"
)

// Recovery from a lost or rolled-back log (DESIGN 8) is three steps of an operator, on stopped nodes, each of which can be
// repeated and changes nothing that the next needs:
//
//	Export           on each node: what its catalog holds           n1.floors, n2.floors, n3.floors
//	PlanRecovery     anywhere, once: one state out of all of them   recovery
//	PrepareRecovery  on each node: the recovery into its directory
//
// Then the nodes are started. The first that finds no log of the new epoch makes it from the file; see rejoin.go.

// open opens the directory of cfg's node, which must not run, for as long as fn takes.
func (c *Config) open(create bool, fn func(*kv.Catalog, *apply.Machine) error) (err error) {
	if err := c.Validate(); err != nil {
		return err
	}
	dir := filepath.Join(c.DataDir, "catalog")
	if _, err := os.Stat(filepath.Join(dir, "witness")); err != nil && !create {
		return fmt.Errorf("there is no catalog in %s: %w", c.DataDir, err)
	}
	lock, err := jetstream.LockDir(c.DataDir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	catalog, err := kv.Open(dir, c.identity(), c.Logger)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, catalog.Close()) }()
	r := apply.NewRestorer()
	head, err := catalog.Load(r.Add)
	m := apply.New()
	switch {
	case errors.Is(err, kv.ErrStateDropped):
	case err != nil:
		return fmt.Errorf("read the catalog in %s: %w", c.DataDir, err)
	default:
		if m, err = r.Machine(head); err != nil {
			return fmt.Errorf("read the catalog in %s: %w", c.DataDir, err)
		}
	}
	return fn(catalog, m)
}

// Export writes to path what the catalog of cfg's node holds, and says on out what that is. The node must not run.
func Export(cfg Config, path string, out io.Writer) error {
	return cfg.open(false, func(c *kv.Catalog, m *apply.Machine) error {
		f := floors{state: m, fileHead: fileHead{
			Cluster: m.Head().ClusterID, Node: cfg.Name, Catalog: c.ID(), Head: m.Head(), Witness: c.Witness(), Clean: c.Clean(),
		}}
		if f.Cluster.IsZero() {
			f.Cluster = c.Witness().ClusterID
		}
		b, err := f.encode()
		if err != nil {
			return err
		}
		if err := writeWhole(path, b); err != nil {
			return fmt.Errorf("write floors: %w", err)
		}
		_, err = fmt.Fprintf(out, "%s: %s, cluster %s, epoch %d, seq %d, %d sequences, %s\n", path, f.Node, f.Cluster, f.Head.Epoch,
			f.Head.Cursor, m.Len(), f.condition())
		return err
	})
}

func (f *floors) condition() string {
	switch {
	case f.empty():
		return "empty"
	case f.behind():
		return fmt.Sprintf("its state is behind seq %d of epoch %d, which it had applied", f.Witness.Cursor, f.Witness.Epoch)
	case !f.Clean:
		return "not stopped cleanly"
	}
	return "stopped cleanly"
}

// empty reports whether the catalog never held anything.
func (f *floors) empty() bool { return f.Head == apply.Head{} && f.Witness == apply.Head{} }

// behind reports whether the state is older than what the catalog once held: it was lost, or is being rebuilt.
func (f *floors) behind() bool {
	return f.Head.Epoch < f.Witness.Epoch || f.Head.Epoch == f.Witness.Epoch && f.Head.Cursor < f.Witness.Cursor
}

// RecoveryRisk is what an operator must say who recovers without the word of every node.
const RecoveryRisk = "ids may be issued twice"

// RecoveryOptions are the operator's word on a recovery.
type RecoveryOptions struct {
	Epoch    uint64 // of the new log; 0 is one above the catalogs'
	RaiseBy  uint64 // without the word of every node: no sequence has issued more ids than this beyond what the catalogs hold
	Accepted string // RecoveryRisk, with RaiseBy
}

// maxEpochStep is how far above the next epoch one may be asked for.
const maxEpochStep = 1000

// PlanRecovery merges floors files into one recovery file at path, and says on out what it holds. It refuses where the file
// of a named node is missing, or its node was not stopped cleanly, unless opts says what is risked.
func PlanRecovery(files []string, path string, opts RecoveryOptions, out io.Writer) error {
	var all []*floors
	to, _ := os.Stat(path) // mostly it is not there yet
	for _, file := range files {
		if from, err := os.Stat(file); err == nil && os.SameFile(from, to) {
			return fmt.Errorf("%s is one of the floors: the recovery needs a file of its own", path)
		}
		f, err := readFloors(file)
		if err != nil {
			return err
		}
		for i, other := range all {
			switch {
			case other.Node == f.Node:
				return fmt.Errorf("%s and %s are both of the node %s: give one of each node, the newer", files[i], file, f.Node)
			case !f.Cluster.IsZero() && !other.Cluster.IsZero() && other.Cluster != f.Cluster:
				return fmt.Errorf("%s is of cluster %s, %s of cluster %s: they have nothing to do with each other", files[i], other.Cluster,
					file, f.Cluster)
			}
		}
		all = append(all, f)
	}
	best := newest(all)
	if best == nil {
		return errors.New("none of the files holds a state: there is nothing to recover from")
	}
	nodes := best.state.Genesis().Nodes
	for _, f := range all {
		if !slices.Contains(nodes, f.Node) {
			return fmt.Errorf("the node %s is not one of cluster %s: its nodes are %s", f.Node, best.Cluster, strings.Join(nodes, ", "))
		}
	}
	problems := doubts(nodes, all, best)
	if err := opts.judge(problems); err != nil {
		return err
	}
	p := apply.Plan{Epoch: best.Head.Epoch + 1, Complete: len(problems) == 0, RaiseBy: opts.RaiseBy}
	var catalogs []apply.Catalog
	for _, f := range all {
		p.Epoch = max(p.Epoch, f.Head.Epoch+1, f.Witness.Epoch+1)
		catalogs = append(catalogs, apply.Catalog{Name: f.Node, State: f.state})
	}
	if opts.Epoch != 0 {
		if opts.Epoch < p.Epoch {
			return fmt.Errorf("--epoch %d: the catalogs have seen epoch %d, so it must be %d or more", opts.Epoch, p.Epoch-1, p.Epoch)
		}
		if opts.Epoch-p.Epoch > maxEpochStep { // a slip of the finger could leave no room for the next
			return fmt.Errorf("--epoch %d: the catalogs have seen epoch %d, so it must be %d or less", opts.Epoch, p.Epoch-1, p.Epoch+maxEpochStep)
		}
		p.Epoch = opts.Epoch
	}
	made, err := apply.Recover(catalogs, p)
	if err != nil {
		return err
	}
	return writeRecovery(path, best.Cluster, made, problems, out)
}

func writeRecovery(path string, cluster wire.ID, made *apply.Recovered, problems []string, out io.Writer) error {
	b, err := encodeRecovery(cluster, made)
	if err != nil {
		return err
	}
	if err := writeWhole(path, b); err != nil {
		return fmt.Errorf("write recovery: %w", err)
	}
	r, err := readRecovery(path) // every node will: better that it fails here
	if err != nil {
		return err
	}
	for _, p := range problems {
		fmt.Fprintln(out, "accepted:", p)
	}
	for _, n := range made.Notes {
		fmt.Fprintln(out, "note:", n)
	}
	_, err = fmt.Fprintf(out, "%s: recovery %s of cluster %s, epoch %d, %d sequences, from seq %d on\n", path, r.Recovery, r.Cluster,
		r.Epoch, r.state.Len(), r.genesis.First())
	return err
}

// newest is the catalog with the highest cursor in the latest epoch.
func newest(all []*floors) (best *floors) {
	for _, f := range all {
		if f.state.Genesis() == nil {
			continue
		}
		if best == nil || f.Head.Epoch > best.Head.Epoch || f.Head.Epoch == best.Head.Epoch && f.Head.Cursor > best.Head.Cursor {
			best = f
		}
	}
	return best
}

// doubts is why the catalogs may not hold everything that was issued.
func doubts(nodes []string, all []*floors, best *floors) (problems []string) {
	for _, n := range nodes {
		i := slices.IndexFunc(all, func(f *floors) bool { return f.Node == n })
		if i < 0 {
			problems = append(problems, fmt.Sprintf("the floors of %s are missing", n))
			continue
		}
		f := all[i]
		member, registered := best.state.Member(n)
		switch {
		case registered && member.CatalogID != f.Catalog:
			problems = append(problems, fmt.Sprintf("%s has another catalog than the one that served: its disk was lost", n))
		case f.empty() && registered && !f.Clean:
			problems = append(problems, n+" had joined, and its catalog is empty: it ended before anything was stored")
		case f.empty():
		case f.behind(), !f.Clean:
			problems = append(problems, fmt.Sprintf("%s: %s", n, f.condition()))
		case f.state.Restoring():
			problems = append(problems, fmt.Sprintf("%s holds a part of an earlier recovery only", n))
		}
	}
	return problems
}

// judge holds what the operator says against what is in doubt.
func (o RecoveryOptions) judge(problems []string) error {
	switch {
	case len(problems) == 0 && o.RaiseBy > 0:
		return errors.New("--raise-by is not needed: every named node's catalog is there, and each was stopped cleanly")
	case len(problems) == 0:
		return nil
	case o.RaiseBy > 0 && o.Accepted == RecoveryRisk:
		return nil
	}
	errs := make([]error, 0, len(problems)+1)
	for _, p := range problems {
		errs = append(errs, errors.New(p))
	}
	return errors.Join(append(errs, fmt.Errorf("what those catalogs know is not in the others: an id that was issued, and that "+
		"only they remember, would be issued again. Bring them, each of a node stopped cleanly. If they are gone for good: every "+
		"sequence can be raised by N, which is safe where none has issued more than N ids since; then give --raise-by N --i-know %q",
		RecoveryRisk))...)
}

// PrepareRecovery puts the recovery file at path into the directory of cfg's node, which must not run: at its next start the
// node follows the log of the recovery's epoch, and makes it where there is none yet. What the directory holds stays as it
// is. It refuses where the catalog remembers more than the recovery.
func PrepareRecovery(cfg Config, path string, out io.Writer) error {
	r, err := readRecovery(path)
	if err != nil {
		return err
	}
	if !slices.Contains(r.genesis.Nodes, cfg.Name) {
		return fmt.Errorf("this node, %s, is not one of the recovery's: %s", cfg.Name, strings.Join(r.genesis.Nodes, ", "))
	}
	if want := cfg.ClusterID; !want.IsZero() && want != r.Cluster {
		return fmt.Errorf("the recovery is of cluster %s, cluster_id is set to %s", r.Cluster, want)
	}
	return cfg.open(true, func(c *kv.Catalog, m *apply.Machine) error {
		done, err := r.fits(c, m)
		if err != nil {
			return err
		}
		if done {
			_, err = fmt.Fprintf(out, "%s follows recovery %s already: there is nothing to do\n", cfg.Name, r.Recovery)
			return err
		}
		switch followed, err := followedEpoch(cfg.DataDir); {
		case err != nil:
			return err
		case followed >= r.Epoch:
			return fmt.Errorf("%s has followed the log of epoch %d before, and its catalog does not know it: what was issued from that log is "+
				"not in this recovery. Plan anew, with --epoch %d", cfg.Name, followed, followed+1)
		}
		switch other, err := pendingRecovery(cfg.DataDir); {
		case err != nil: // damaged: this one replaces it
		case other == nil || other.Recovery == r.Recovery || other.Epoch < r.Epoch:
		default:
			return fmt.Errorf("%s is prepared for recovery %s of epoch %d, and its log may exist: plan this one anew, with --epoch %d",
				cfg.Name, other.Recovery, other.Epoch, other.Epoch+1)
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if err := writeWhole(filepath.Join(cfg.DataDir, recoveryName), b); err != nil {
			return fmt.Errorf("prepare recovery: %w", err)
		}
		_, err = fmt.Fprintf(out, "%s is prepared for recovery %s: start it\n", cfg.Name, r.Recovery)
		return err
	})
}

// fits holds a catalog against the recovery, and reports whether it follows it already.
func (r *recovery) fits(c *kv.Catalog, m *apply.Machine) (done bool, err error) {
	head, witness := m.Head(), c.Witness()
	for _, h := range []apply.Head{head, witness} {
		if !h.ClusterID.IsZero() && h.ClusterID != r.Cluster {
			return false, fmt.Errorf("the recovery is of cluster %s, the catalog of cluster %s", r.Cluster, h.ClusterID)
		}
	}
	switch epoch := max(head.Epoch, witness.Epoch); {
	case epoch > r.Epoch:
		return false, fmt.Errorf("the recovery is of epoch %d, the catalog has seen epoch %d: plan anew", r.Epoch, epoch)
	case epoch == r.Epoch && m.Genesis() != nil && m.Genesis().RecoveryID(r.Cluster) != r.Recovery:
		return false, fmt.Errorf("the catalog is of another recovery of epoch %d: plan anew, with its floors", r.Epoch)
	case epoch == r.Epoch:
		return true, nil
	}
	if why := remembersMore(m, r.state, witness, c.Archived(witness.Epoch)); why != "" {
		return false, fmt.Errorf("%s: plan anew, with the floors of this node", why)
	}
	return false, nil
}

// remembersMore is why the catalog of an older epoch, with state m, holds more than the state that a recovery began with.
func remembersMore(m, recovered *apply.Machine, witness apply.Head, archived bool) string {
	if name, here, there, above := m.Above(recovered); above {
		return fmt.Sprintf("this node's catalog of epoch %d has carved %s up to %d, the recovery only up to %d", witness.Epoch, name, here, there)
	}
	base := recovered.Genesis().Recovery.Base
	if h := m.Head(); h.Cursor < witness.Cursor && witness.Cursor > base && !archived {
		return fmt.Sprintf("this node had applied seq %d of epoch %d, its state is lost, and the recovery knows seq %d", witness.Cursor,
			witness.Epoch, base)
	}
	return ""
}

// UnfenceRisk is what an operator must say who lifts a fence.
const UnfenceRisk = "the reason is gone"

// Unfence removes the fence that is stored in the directory of cfg's node, which must not run. It is for a reason that lies
// outside the log: a copy of this node that was stopped, a route to another cluster that was taken out. The node compares what
// it remembers with the log at its next start, and fences again where the two differ. accepted is [UnfenceRisk].
func Unfence(cfg Config, accepted string, out io.Writer) error {
	return cfg.open(false, func(c *kv.Catalog, m *apply.Machine) error {
		fence, ok, err := c.Fence()
		if err != nil {
			return err
		}
		proof, proven := m.Fence()
		switch {
		case proven:
			return fmt.Errorf("the proof stands in the log itself, at seq %d: %s: only a recovery leaves that log", proof.Seq, proof.Reason)
		case !ok:
			_, err := fmt.Fprintf(out, "%s is not fenced\n", cfg.Name)
			return err
		case accepted != UnfenceRisk:
			return fmt.Errorf("%s is fenced: %s: when you know why, and it is over, give --i-know %q", cfg.Name, fence.Reason, UnfenceRisk)
		}
		if err := c.ClearFence(); err != nil {
			return err
		}
		_, err = fmt.Fprintf(out, "%s is not fenced any more: it checks the log at its next start. It was: %s\n", cfg.Name, fence.Reason)
		return err
	})
}
