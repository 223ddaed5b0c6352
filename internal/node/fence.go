package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/allocnode/allocnode/apply"
	"github.com/allocnode/allocnode/internal/wire"
	"github.com/allocnode/allocnode/kv"
)

// Classes of fences: what may lift one.
const (
	// fenceLog is a proof against the log, or a doubt about who this node is: an operator's affair.
	fenceLog = "log"

	// fenceDigest is a state that differs from a majority's, or from all others where there is no majority, over the same
	// entries. It lifts itself when a majority agrees again, and a restart rebuilds the state from the log.
	fenceDigest = "digest"
)

// fences keeps what fences this node: in the catalog's directory, in the log, as an event.
type fences struct {
	n *Node

	mu     sync.Mutex // guards all below; not held while files are written
	svc    *nats.Conn // nil until the clients can be told
	untold *kv.Fence
	unkept *kv.Fence // could not be stored yet
	proof  *kv.Fence // of class log, of this run
	epoch  uint64    // of the log that is followed, or was last
}

// fencedEvent is what is published on <prefix>.event.fenced, in the clients' account, once for each fence and each run that
// begins with one.
type fencedEvent struct {
	Node    string `json:"node"`
	Cluster string `json:"cluster,omitempty"`
	Epoch   uint64 `json:"epoch"`
	Class   string `json:"class"` // "log": wants an operator. "digest": lifts itself when the nodes agree again
	Reason  string `json:"reason"`
}

func eventSubject(prefix string) string { return prefix + ".event.fenced" }

// raised is told by the guard of each fence, after nothing more is issued.
func (f *fences) raised(class, reason string, stored bool) {
	f.n.logger.Error("fenced: this node issues no more ids", "reason", reason, "class", class)
	f.mu.Lock()
	fence := kv.Fence{Class: class, Reason: reason, Epoch: f.epoch}
	f.untold = &fence
	if class == fenceLog {
		f.proof = &fence
	}
	f.mu.Unlock()
	if !stored {
		f.keep(fence)
	}
	f.tell()
}

// lifted is told by the guard when a digest fence has ended. A proof that came at the same moment may have been stored in its
// place already, or is about to be: it stays.
func (f *fences) lifted() {
	f.mu.Lock()
	if f.unkept != nil && f.unkept.Class == fenceDigest {
		f.unkept = nil
	}
	f.mu.Unlock()
	if err := f.n.catalog.ClearFence(); err != nil {
		f.n.logger.Error("the fence that was lifted is still stored", "error", err)
		return
	}
	f.mu.Lock()
	proof := f.proof
	f.mu.Unlock()
	if proof != nil {
		f.keep(*proof)
		return
	}
	f.n.logger.Warn("the fence is lifted: a majority has the same state as this node")
}

// keep stores the fence. Where that fails it is tried again by Run; a process that ends before finds the reason again, by its
// check.
func (f *fences) keep(fence kv.Fence) {
	if before, ok, err := f.n.catalog.Fence(); err == nil && ok && before.Epoch == fence.Epoch && before.Class != fenceDigest {
		return // the first reason stands, but for one that could lift itself
	}
	err := f.n.catalog.StoreFence(fence)
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.unkept = nil; err != nil {
		f.unkept = &fence
		f.n.logger.Error("the fence is not stored yet", "error", err)
	}
}

// connected is that events can be published from now on.
func (f *fences) connected(svc *nats.Conn) {
	f.mu.Lock()
	f.svc = svc
	f.mu.Unlock()
	f.tell()
}

func (f *fences) tell() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.svc == nil || f.untold == nil {
		return
	}
	e := fencedEvent{Node: f.n.cfg.Name, Epoch: f.untold.Epoch, Class: f.untold.Class, Reason: f.untold.Reason}
	if id := f.n.clusterID(); !id.IsZero() {
		e.Cluster = id.String()
	}
	b, err := json.Marshal(e)
	if err == nil {
		err = f.svc.Publish(eventSubject(f.n.cfg.Prefix), b)
	}
	if err != nil {
		f.n.logger.Warn("publish the fence", "error", err)
		return
	}
	f.untold = nil
}

// Run stores what could not be stored, until ctx ends.
func (f *fences) Run(ctx context.Context) {
	ticker := time.NewTicker(5 * time.Second)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		f.mu.Lock()
		again := f.unkept
		f.mu.Unlock()
		if again != nil {
			f.keep(*again)
		}
		f.tell()
	}
}

// storedFence applies the fence that an earlier run stored, before anything is asked of the log. known is the epoch that the
// catalog belongs to: a fence of an earlier one is about a log that is over.
func (n *Node) storedFence(known uint64, pending *recovery) (digest string, err error) {
	fence, ok, err := n.catalog.Fence()
	switch {
	case err != nil || !ok:
		return "", err
	case fence.Epoch < known:
		return "", n.catalog.ClearFence()
	case fence.Class == fenceDigest:
		return fence.Reason, nil
	case pending != nil && pending.Epoch > fence.Epoch:
		return "", nil // it is stored until this node follows that log, and serves nothing before
	}
	n.guard.Restore(fence.Reason)
	return "", nil
}

// outgrown lifts the stored fence of an earlier epoch when this node follows the log of a recovery.
func (n *Node) outgrown(epoch uint64) error {
	n.fences.mu.Lock()
	before := n.fences.epoch
	n.fences.epoch = epoch
	n.fences.mu.Unlock()
	fence, ok, err := n.catalog.Fence()
	if fence.Class == kv.UnreadableFence { // it says no epoch, and the catalog may name the new one already
		fence.Epoch = before
	}
	if err != nil || !ok || fence.Epoch >= epoch {
		return err
	}
	n.guard.Outgrown()
	n.differed = ""
	n.logger.Warn("the fence is lifted: a recovery has begun another epoch", "was", fence.Reason, "epoch", epoch)
	return n.catalog.ClearFence()
}

// distrust sets a state aside that a majority contradicts: the log, which was found to hold the entries that this node has
// applied, makes another.
func (n *Node) distrust(m *apply.Machine, reason string) (*apply.Machine, error) {
	if m.Genesis() == nil || n.catalog.Witness().Digest == (wire.Digest{}) {
		return m, nil // it is being rebuilt already
	}
	if err := n.catalog.Distrust(errors.New(reason)); err != nil {
		return nil, fmt.Errorf("set the state aside: %w", err)
	}
	return apply.New(), nil
}
