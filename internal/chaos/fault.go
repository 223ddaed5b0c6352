//go:build linux

package chaos

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/allocnode/allocnode/internal/chaos/lab"
)

// fault is one that is about to be injected.
type fault struct {
	target string
	// begin injects it and heal undoes it; each may return a proof that it took effect, and one of the two must.
	begin, heal func(ctx context.Context) (proof string, err error)
}

// kind is one kind of fault.
type kind struct {
	name        string
	least, most time.Duration // how long it lasts
	long        time.Duration // the most in a long run; 0: most
	nodes       int           // the fewest nodes that it makes sense with
	plan        func(ctx context.Context, r *rig, rnd *rand.Rand) (*fault, error)
}

// kinds is all that a window may hold. Each leaves what can be recovered: after healing all nodes serve again.
var kinds = concat(processKinds, networkKinds, powerKinds, diskKinds, resourceKinds, dataKinds, logKinds)

func concat(lists ...[]kind) (all []kind) {
	for _, l := range lists {
		all = append(all, l...)
	}
	return all
}

// Kinds is the names of all kinds of faults.
func Kinds() (names []string) {
	for _, k := range kinds {
		names = append(names, k.name)
	}
	return names
}

func nothing(context.Context) (string, error) { return "", nil }

// start is the healing of nodes that have ended.
func start(nodes ...*lab.Node) func(context.Context) (string, error) {
	return func(context.Context) (string, error) {
		for _, n := range nodes {
			if err := n.Start(); err != nil {
				return "", err
			}
		}
		return "", nil
	}
}

// onOne makes a plan for a fault of one node that is picked at random.
func onOne(begin, heal func(ctx context.Context, r *rig, n *lab.Node, rnd *rand.Rand) (string, error)) func(
	context.Context, *rig, *rand.Rand) (*fault, error) {
	return func(_ context.Context, r *rig, rnd *rand.Rand) (*fault, error) {
		return r.faultOf(r.some(rnd), rnd, begin, heal), nil
	}
}

func (r *rig) faultOf(n *lab.Node, rnd *rand.Rand,
	begin, heal func(ctx context.Context, r *rig, n *lab.Node, rnd *rand.Rand) (string, error)) *fault {
	return &fault{
		target: n.Name,
		begin:  func(ctx context.Context) (string, error) { return begin(ctx, r, n, rnd) },
		heal:   func(ctx context.Context) (string, error) { return heal(ctx, r, n, rnd) },
	}
}

func restart(_ context.Context, _ *rig, n *lab.Node, _ *rand.Rand) (string, error) {
	return "", n.Start()
}

func kill(_ context.Context, _ *rig, n *lab.Node, _ *rand.Rand) (string, error) { return n.Kill() }

var processKinds = []kind{
	{name: "kill", least: time.Second, most: 3 * time.Second, plan: onOne(kill, restart)},
	{
		name: killLeader, least: 3 * time.Second, most: 6 * time.Second,
		plan: func(ctx context.Context, r *rig, rnd *rand.Rand) (*fault, error) {
			n, err := r.leader(ctx)
			if err != nil {
				return nil, err
			}
			return r.faultOf(n, rnd, kill, restart), nil
		},
	},
	{
		name: "kill-meta-leader", least: time.Second, most: 4 * time.Second,
		plan: func(ctx context.Context, r *rig, rnd *rand.Rand) (*fault, error) {
			var name string
			err := until(ctx, gateBound, "there is a meta leader", func() (err error) {
				name, err = r.obs.MetaLeader(len(r.lab.Nodes))
				return err
			})
			if err != nil {
				return nil, err
			}
			n, err := r.node(name)
			if err != nil {
				return nil, err
			}
			return r.faultOf(n, rnd, kill, restart), nil
		},
	},
	{
		name: "kill-all", least: 100 * time.Millisecond, most: time.Second,
		plan: func(_ context.Context, r *rig, _ *rand.Rand) (*fault, error) {
			return &fault{target: "all", heal: start(r.lab.Nodes...), begin: func(context.Context) (proof string, err error) {
				for _, n := range r.lab.Nodes {
					text, err := n.Kill()
					if err != nil {
						return "", err
					}
					proof += text + "; "
				}
				return proof, nil
			}}, nil
		},
	},
	{name: "rolling-restart", plan: planRollingRestart},
	{name: "leader-flap", plan: planLeaderFlap},
	{name: "pause", least: 2 * time.Second, most: 6 * time.Second, long: 30 * time.Second, plan: onOne(pauseNode, resumeNode)},
	{
		name: "pause-then-kill", least: 2 * time.Second, most: 4 * time.Second, long: 12 * time.Second,
		plan: onOne(pauseNode, func(_ context.Context, _ *rig, n *lab.Node, _ *rand.Rand) (string, error) {
			proof, err := n.Kill()
			if err != nil {
				return "", err
			}
			return proof, n.Start()
		}),
	},
	{
		name: "kill-client", least: 100 * time.Millisecond, most: time.Second,
		plan: func(_ context.Context, r *rig, rnd *rand.Rand) (*fault, error) {
			i := rnd.IntN(len(r.clients))
			return &fault{
				target: "clients",
				begin: func(context.Context) (string, error) {
					p := r.clients[i]
					r.clients = append(r.clients[:i], r.clients[i+1:]...)
					err := p.Kill()
					return fmt.Sprintf("process %d: %s", p.Pid(), p.End()), err
				},
				heal: func(context.Context) (string, error) { return "", r.startClient(true) },
			}, nil
		},
	},
}

// killLeader has a bound of its own: Config.Failover.
const killLeader = "kill-leader"

func pauseNode(_ context.Context, _ *rig, n *lab.Node, _ *rand.Rand) (string, error) {
	return n.Pause()
}

func resumeNode(_ context.Context, _ *rig, n *lab.Node, _ *rand.Rand) (string, error) {
	return "", n.Continue()
}

func planRollingRestart(_ context.Context, r *rig, rnd *rand.Rand) (*fault, error) {
	order := rnd.Perm(len(r.lab.Nodes))
	return &fault{target: "all", heal: nothing, begin: func(ctx context.Context) (string, error) {
		for _, i := range order {
			n := r.lab.Nodes[i]
			if err := n.Stop(); err != nil {
				return "", err
			}
			if err := n.Start(); err != nil {
				return "", err
			}
			if _, err := r.healthy(ctx, gateBound); err != nil {
				return "", err
			}
		}
		return fmt.Sprintf("%d nodes stopped in order and started again", len(order)), nil
	}}, nil
}

// planLeaderFlap moves the log's leader from A to B and back, three times: what a single change hides shows then.
func planLeaderFlap(ctx context.Context, r *rig, rnd *rand.Rand) (*fault, error) {
	a, err := r.leader(ctx)
	if err != nil {
		return nil, err
	}
	var followers []string
	if err := until(ctx, gateBound, "a follower of the log is current", func() (err error) {
		followers, err = r.obs.StreamFollowers()
		return err
	}); err != nil {
		return nil, err
	}
	b := followers[rnd.IntN(len(followers))]
	return &fault{target: a.Name + "," + b, heal: nothing, begin: func(ctx context.Context) (string, error) {
		changes := 0
		for range 3 {
			for _, to := range []string{b, a.Name} {
				err := until(ctx, gateBound, "the leader moves to "+to, func() error {
					if now, _, err := r.obs.StreamLeader(); err != nil || now == to {
						return err
					}
					if err := r.obs.StepDown(to); err != nil {
						return err
					}
					return fmt.Errorf("it is not %s yet", to)
				})
				if err != nil {
					return "", err
				}
				changes++
			}
		}
		return fmt.Sprintf("the leader was moved %d times", changes), nil
	}}, nil
}
