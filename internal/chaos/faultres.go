//go:build linux

package chaos

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/allocnode/allocnode/internal/chaos/lab"
)

var resourceKinds = []kind{
	{name: "clock-one", least: 2 * time.Second, most: 5 * time.Second, plan: planClock(false)},
	{name: "clock-all", least: 2 * time.Second, most: 5 * time.Second, plan: planClock(true)},
	{
		name: "descriptors", least: 2 * time.Second, most: 4 * time.Second,
		plan: func(_ context.Context, r *rig, rnd *rand.Rand) (*fault, error) {
			n := r.some(rnd)
			mark := logMark(n)
			const line = "too many open files"
			f := r.faultOf(n, rnd,
				func(ctx context.Context, r *rig, n *lab.Node, _ *rand.Rand) (string, error) {
					had, err := n.LimitDescriptors(0)
					if err != nil {
						return "", err
					}
					// A client that comes now gets none.
					nc, err := r.lab.Connect(n)
					if err != nil {
						return "", err
					}
					defer nc.Close()
					err = until(ctx, 10*time.Second, "the node runs out of descriptors", func() error {
						if logged(n, mark, line) == "" {
							return fmt.Errorf("it does not say %q", line)
						}
						return nil
					})
					return fmt.Sprintf("limited to the %d that it had: %s", had, line), err
				},
				revive)
			return f, nil
		},
	},
	{
		name: "memory-kill", least: 500 * time.Millisecond, most: 2 * time.Second,
		plan: onOne(
			func(ctx context.Context, _ *rig, n *lab.Node, _ *rand.Rand) (string, error) { return n.MemoryKill(ctx) },
			func(_ context.Context, _ *rig, n *lab.Node, _ *rand.Rand) (string, error) {
				if err := n.LimitMemory(0); err != nil {
					return "", err
				}
				return "", n.Start()
			}),
	},
	{
		name: "cpu-starved", least: 3 * time.Second, most: 6 * time.Second, long: 20 * time.Second,
		plan: func(_ context.Context, r *rig, rnd *rand.Rand) (*fault, error) {
			var before uint64
			return r.faultOf(r.some(rnd), rnd,
				func(_ context.Context, _ *rig, n *lab.Node, _ *rand.Rand) (_ string, err error) {
					if before, err = n.Throttled(); err != nil {
						return "", err
					}
					return "", n.StarveCPU(0.03)
				},
				func(_ context.Context, _ *rig, n *lab.Node, _ *rand.Rand) (string, error) {
					after, err := n.Throttled()
					if err == nil && after == before {
						err = fmt.Errorf("starved CPU of %s: it was never throttled", n.Name)
					}
					if err != nil {
						return "", err
					}
					return fmt.Sprintf("throttled in %d periods of 100 ms", after-before), n.StarveCPU(0)
				}), nil
		},
	},
}

// planClock moves the wall clocks by an hour, of one node in one direction, or of all in different ones, and back.
func planClock(all bool) func(context.Context, *rig, *rand.Rand) (*fault, error) {
	return func(_ context.Context, r *rig, rnd *rand.Rand) (*fault, error) {
		nodes := []*lab.Node{r.some(rnd)}
		if all {
			nodes = r.shuffled(rnd)
		}
		offset := time.Hour
		if rnd.IntN(2) == 0 {
			offset = -offset
		}
		return &fault{
			target: names(nodes),
			begin: func(context.Context) (string, error) {
				for _, n := range nodes {
					if err := n.SetClock(offset); err != nil {
						return "", err
					}
					offset = -offset
				}
				return "", nil
			},
			heal: func(ctx context.Context) (proof string, err error) {
				// What nodes log now bears their time.
				for _, n := range nodes {
					text, err := n.LoggedTime()
					if err != nil {
						return "", err
					}
					at, err := time.Parse(time.RFC3339, text)
					if off := time.Until(at).Abs(); err == nil && (off < 59*time.Minute || off > 61*time.Minute) {
						err = fmt.Errorf("clock of %s: it is off by %s", n.Name, round(off))
					}
					if err != nil {
						return "", err
					}
					proof += n.Name + " logged at " + text + "; "
					if err := n.SetClock(0); err != nil {
						return "", err
					}
				}
				return proof + "the machine's clock was at " + time.Now().UTC().Format(time.RFC3339), nil
			},
		}, nil
	}
}
