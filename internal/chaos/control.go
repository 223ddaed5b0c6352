//go:build linux

package chaos

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"time"

	"github.com/allocnode/allocnode/internal/chaos/history"
	"github.com/allocnode/allocnode/internal/chaos/lab"
	"github.com/allocnode/allocnode/internal/wire"
)

// controlBound is how long the cluster of the positive control may take to come back. Its log is gone, or
// a node fences; a cluster that syncs is back in less than ten seconds.
const controlBound = 30 * time.Second

// control shows that a power loss has teeth: nodes whose nats-server syncs every two minutes, as it does by default, take
// load, and lose power together. The run must see that acknowledged reservations are gone;
// flagged says how it did.
func control(ctx context.Context, cfg Config) (flagged string, err error) {
	cfg.Nodes = 3
	binary := filepath.Join(cfg.Dir, "allocnode-unsynced")
	if err := lab.BuildNode(ctx, cfg.Root, cfg.Dir, binary, cfg.Tags, true); err != nil {
		return "", err
	}
	r, err := newRig(ctx, cfg, "control", binary, 0)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, r.close(), r.removeImages()) }()
	if err := r.startNodes(ctx); err != nil {
		return "", err
	}
	if err := r.startClient(false); err != nil {
		return "", err
	}
	if err := hold(ctx, 3*time.Second); err != nil {
		return "", err
	}
	if _, err := r.lab.PowerLoss(ctx, r.lab.Nodes, false, rand.New(rand.NewPCG(cfg.Seed, 4))); err != nil {
		return "", err
	}
	for _, n := range r.lab.Nodes {
		if err := n.Start(); err != nil {
			return "", err
		}
	}
	proof := ""
	_ = until(ctx, controlBound, "the loss is noticed", func() error {
		all, err := r.statuses()
		well := err == nil && len(all) == len(r.lab.Nodes)
		for _, s := range all {
			if s.State == wire.StateFenced {
				proof = s.Name + " is fenced: " + s.Reason
				return nil
			}
			well = well && s.Ready
		}
		if well {
			return nil
		}
		return errors.New("not yet")
	})
	var unwell error
	if proof == "" {
		_, unwell = r.healthy(ctx, time.Second)
	}
	if err := r.stopClients(); err != nil {
		return "", err
	}
	h, err := history.ReadFile(r.file)
	if err != nil {
		return "", err
	}
	acked := h.Count(nil).Acked
	switch {
	case acked == 0:
		return "", fmt.Errorf("nothing was acknowledged before the power loss")
	case proof != "":
		return fmt.Sprintf("flagged: %d reservations were acknowledged, and after the power loss %s", acked, proof), nil
	case unwell != nil:
		return fmt.Sprintf("flagged: %d reservations were acknowledged, and after the power loss: %v", acked, unwell), nil
	}
	last, err := r.drained(ctx)
	if err != nil {
		return "", err
	}
	log, err := r.readLog(ctx, last)
	if err != nil {
		return "", err
	}
	if found := append(history.LogTruth(h, log), history.Unique(h)...); len(found) > 0 {
		return fmt.Sprintf("flagged: %d violations, the first: %s", len(found), found[0].Text), nil
	}
	return "", nil
}
