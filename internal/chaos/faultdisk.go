//go:build linux

package chaos

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/allocnode/allocnode/internal/chaos/lab"
)

// power is a plan for a loss of power of one node or of all.
func power(all, torn bool) func(context.Context, *rig, *rand.Rand) (*fault, error) {
	return func(_ context.Context, r *rig, rnd *rand.Rand) (*fault, error) {
		nodes := r.lab.Nodes
		if !all {
			nodes = []*lab.Node{r.some(rnd)}
		}
		return &fault{target: names(nodes), heal: start(nodes...), begin: func(ctx context.Context) (string, error) {
			return r.lab.PowerLoss(ctx, nodes, torn, rnd)
		}}, nil
	}
}

var powerKinds = []kind{
	{name: "power-loss", least: 500 * time.Millisecond, most: 2 * time.Second, plan: power(false, false)},
	{name: "power-loss-torn", least: 500 * time.Millisecond, most: 2 * time.Second, plan: power(false, true)},
	{name: "power-loss-all", least: 500 * time.Millisecond, most: time.Second, plan: power(true, false)},
	{name: "power-loss-all-torn", least: 500 * time.Millisecond, most: time.Second, plan: power(true, true)},
	{
		// What the cut-off leader has taken from its clients meanwhile must not be there afterwards.
		name: "partition-then-power-loss", least: short, most: wide,
		plan: func(ctx context.Context, r *rig, rnd *rand.Rand) (*fault, error) {
			n, err := r.leader(ctx)
			if err != nil {
				return nil, err
			}
			f := shape(n.Name, r, cut, between([]*lab.Node{n}, r.others(n)))
			network := f.heal
			f.heal = func(ctx context.Context) (string, error) {
				lost, err := n.PowerLoss(ctx, true, rnd)
				if err != nil {
					return "", err
				}
				frames, err := network(ctx)
				if err != nil {
					return "", err
				}
				return frames + "; " + lost, n.Start()
			}
			return f, nil
		},
	},
}

// revive starts a node whose disk is well again. One that has not ended by itself is killed first: after a write error
// neither it nor nats-server may go on.
func revive(_ context.Context, _ *rig, n *lab.Node, _ *rand.Rand) (proof string, err error) {
	end := n.End()
	if n.Running() {
		if _, err := n.Kill(); err != nil {
			return "", err
		}
	}
	return "its process was then: " + end, n.Start()
}

// afterwards is what a node has come to by the time of healing.
func afterwards(n *lab.Node) string { return "its process was then: " + n.End() }

var diskKinds = []kind{
	{
		name: "disk-full", least: 2 * time.Second, most: 5 * time.Second,
		plan: onOne(
			func(_ context.Context, _ *rig, n *lab.Node, _ *rand.Rand) (string, error) { return n.Disk.Fill() },
			func(_ context.Context, _ *rig, n *lab.Node, _ *rand.Rand) (string, error) {
				proof := afterwards(n)
				if err := n.Disk.Empty(); err != nil {
					return "", err
				}
				return proof, n.Start()
			}),
	},
	{
		name: "disk-read-only", least: 2 * time.Second, most: 4 * time.Second,
		plan: onOne(
			func(ctx context.Context, _ *rig, n *lab.Node, _ *rand.Rand) (string, error) { return n.Disk.Abort(ctx) },
			func(ctx context.Context, _ *rig, n *lab.Node, _ *rand.Rand) (string, error) {
				proof := afterwards(n)
				if n.Running() {
					if _, err := n.Kill(); err != nil {
						return "", err
					}
				}
				if err := n.Disk.Repair(ctx); err != nil {
					return "", err
				}
				return proof, n.Start()
			}),
	},
	{
		name: "disk-frozen", least: 2 * time.Second, most: 6 * time.Second, long: 20 * time.Second,
		plan: onOne(
			func(ctx context.Context, _ *rig, n *lab.Node, _ *rand.Rand) (string, error) {
				return n.Disk.Freeze(ctx)
			},
			func(ctx context.Context, _ *rig, n *lab.Node, _ *rand.Rand) (string, error) {
				if err := n.Disk.Thaw(ctx); err != nil {
					return "", err
				}
				proof := afterwards(n)
				return proof, n.Start()
			}),
	},
	{
		name: "disk-slow", least: 2 * time.Second, most: 5 * time.Second, long: 20 * time.Second,
		plan: onOne(
			func(ctx context.Context, _ *rig, n *lab.Node, _ *rand.Rand) (string, error) {
				before, err := n.DiskTime(ctx)
				if err != nil {
					return "", err
				}
				if err := n.SlowDisk(20); err != nil {
					return "", err
				}
				slow, err := n.DiskTime(ctx)
				if err == nil && slow < 2*before {
					err = fmt.Errorf("slow disk: ten synced writes took %s before and %s now", before, slow)
				}
				return fmt.Sprintf("ten synced writes took %s, then %s", round(before), round(slow)), err
			},
			func(_ context.Context, _ *rig, n *lab.Node, _ *rand.Rand) (string, error) {
				if err := n.SlowDisk(0); err != nil {
					return "", err
				}
				return "", n.Start()
			}),
	},
	{
		name: "fsync-fails", least: 2 * time.Second, most: 4 * time.Second,
		plan: func(_ context.Context, r *rig, rnd *rand.Rand) (*fault, error) {
			n := r.some(rnd)
			var stop func() error
			var proof func() (string, error)
			return &fault{
				target: n.Name,
				begin: func(context.Context) (_ string, err error) {
					stop, proof, err = n.SyncFails()
					return "", err
				},
				heal: func(ctx context.Context) (string, error) {
					if err := stop(); err != nil {
						return "", err
					}
					text, err := proof()
					if err != nil {
						return "", err
					}
					end, err := revive(ctx, r, n, rnd)
					return strings.Join([]string{text, end}, "; "), err
				},
			}, nil
		},
	},
}

func round(d time.Duration) time.Duration { return d.Round(time.Millisecond) }
