//go:build linux

package chaos

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/allocnode/allocnode/internal/chaos/lab"
)

// link is one direction between two ports of the switch.
type link struct{ from, to string }

// shape plans a fault of the network: rule on each of the links, from its beginning to its healing. Its proof is what the
// switch has counted on them meanwhile.
func shape(target string, r *rig, rule lab.Rule, links []link) *fault {
	sw := r.lab.Switch()
	before := map[link]lab.Count{}
	return &fault{
		target: target,
		begin: func(context.Context) (string, error) {
			for _, l := range links {
				before[l] = sw.Count(l.from, l.to)
				sw.Set(l.from, l.to, rule)
			}
			return "", nil
		},
		heal: func(context.Context) (string, error) {
			var sum lab.Count
			for _, l := range links {
				sum = sum.Add(sw.Count(l.from, l.to).Sub(before[l]))
			}
			sw.Heal()
			if sum.Dropped+sum.Delayed+sum.Overtaken == 0 {
				return "", fmt.Errorf("network of %s: no frame was touched", target)
			}
			return fmt.Sprintf("frames dropped %d, delayed %d, overtaken %d, passed %d",
				sum.Dropped, sum.Delayed, sum.Overtaken, sum.Passed), nil
		},
	}
}

// between is both directions between each of a and each of b.
func between(a, b []*lab.Node) (links []link) {
	for _, x := range a {
		for _, y := range b {
			links = append(links, link{x.Name, y.Name}, link{y.Name, x.Name})
		}
	}
	return links
}

func names(nodes []*lab.Node) string {
	var all []string
	for _, n := range nodes {
		all = append(all, n.Name)
	}
	return strings.Join(all, ",")
}

// shuffled is the nodes in an order of chance.
func (r *rig) shuffled(rnd *rand.Rand) (all []*lab.Node) {
	for _, i := range rnd.Perm(len(r.lab.Nodes)) {
		all = append(all, r.lab.Nodes[i])
	}
	return all
}

var cut = lab.Rule{Cut: true}

// onLinks makes a plan out of a choice of links.
func onLinks(rule lab.Rule, choose func(r *rig, rnd *rand.Rand) (target string, links []link)) func(
	context.Context, *rig, *rand.Rand) (*fault, error) {
	return func(_ context.Context, r *rig, rnd *rand.Rand) (*fault, error) {
		target, links := choose(r, rnd)
		return shape(target, r, rule, links), nil
	}
}

// all is every direction between nodes.
func allLinks(r *rig, _ *rand.Rand) (string, []link) {
	var links []link
	for _, a := range r.lab.Nodes {
		for _, b := range r.others(a) {
			links = append(links, link{a.Name, b.Name})
		}
	}
	return "all", links
}

const (
	short = 2 * time.Second
	wide  = 5 * time.Second
)

var networkKinds = []kind{
	{
		// Fewer than half are cut off from the rest. Their clients still reach them.
		name: "partition-minority", least: short, most: wide, long: 25 * time.Second,
		plan: onLinks(cut, func(r *rig, rnd *rand.Rand) (string, []link) {
			all := r.shuffled(rnd)
			few := all[:(len(all)-1)/2]
			return names(few), between(few, all[len(few):])
		}),
	},
	{
		// The log's leader is left with a minority, and loses the majority.
		name: "partition-majority", least: short, most: wide, long: 25 * time.Second,
		plan: func(ctx context.Context, r *rig, _ *rand.Rand) (*fault, error) {
			n, err := r.leader(ctx)
			if err != nil {
				return nil, err
			}
			return shape(n.Name, r, cut, between([]*lab.Node{n}, r.others(n))), nil
		},
	},
	{
		name: "partition-all", least: short, most: wide, long: 20 * time.Second,
		plan: onLinks(cut, allLinks),
	},
	{
		name: "partition-one-way", least: short, most: wide, long: 25 * time.Second,
		plan: func(ctx context.Context, r *rig, rnd *rand.Rand) (*fault, error) {
			n, err := r.leader(ctx)
			if err != nil {
				return nil, err
			}
			var links []link
			deaf := rnd.IntN(2) == 0
			for _, m := range r.others(n) {
				if deaf {
					links = append(links, link{m.Name, n.Name})
				} else {
					links = append(links, link{n.Name, m.Name})
				}
			}
			return shape(fmt.Sprintf("%s (deaf: %t)", n.Name, deaf), r, cut, links), nil
		},
	},
	{
		// Each hears only the one before it and is heard only by the one behind it; with five each reaches two neighbours.
		name: "partition-ring", least: short, most: wide, long: 15 * time.Second,
		plan: onLinks(cut, func(r *rig, rnd *rand.Rand) (string, []link) {
			all, links := r.shuffled(rnd), []link(nil)
			for i, a := range all {
				for j, b := range all {
					d := (j - i + len(all)) % len(all)
					if d != 0 && d != 1 && (len(all) < 5 || d != len(all)-1) {
						links = append(links, link{a.Name, b.Name})
					}
				}
			}
			return names(all), links
		}),
	},
	{
		// Two halves that only one node connects.
		name: "partition-bridge", least: short, most: wide, long: 25 * time.Second,
		plan: onLinks(cut, func(r *rig, rnd *rand.Rand) (string, []link) {
			all := r.shuffled(rnd)
			half := len(all) / 2
			return "all but " + all[len(all)-1].Name, between(all[:half], all[half:len(all)-1])
		}),
	},
	{
		name: "partition-clients", least: short, most: wide,
		plan: onLinks(cut, func(r *rig, _ *rand.Rand) (string, []link) {
			var links []link
			for _, n := range r.lab.Nodes {
				links = append(links, link{n.Name, r.lab.ClientsPort()}, link{r.lab.ClientsPort(), n.Name})
			}
			return "clients", links
		}),
	},
	{name: "partition-flapping", least: short, most: wide, long: 20 * time.Second, plan: planFlapping},
	{
		name: "loss", least: short, most: wide, long: 20 * time.Second,
		plan: onLinks(lab.Rule{Loss: 0.1}, allLinks),
	},
	{
		name: "delay", least: short, most: wide, long: 20 * time.Second,
		plan: onLinks(lab.Rule{Delay: 20 * time.Millisecond, Jitter: 40 * time.Millisecond}, allLinks),
	},
	{
		name: "reordering", least: short, most: wide, long: 20 * time.Second,
		plan: onLinks(lab.Rule{Reorder: 0.2, ReorderBy: 10 * time.Millisecond}, allLinks),
	},
	{
		name: "partition-then-kill", least: short, most: wide,
		plan: func(ctx context.Context, r *rig, _ *rand.Rand) (*fault, error) {
			n, err := r.leader(ctx)
			if err != nil {
				return nil, err
			}
			f := shape(n.Name, r, cut, between([]*lab.Node{n}, r.others(n)))
			network := f.heal
			f.heal = func(ctx context.Context) (string, error) {
				killed, err := n.Kill()
				if err != nil {
					return "", err
				}
				frames, err := network(ctx)
				if err != nil {
					return "", err
				}
				return frames + "; " + killed, n.Start()
			}
			return f, nil
		},
	},
}

// planFlapping cuts a node off and lets it in again, several times a second.
func planFlapping(ctx context.Context, r *rig, rnd *rand.Rand) (*fault, error) {
	n := r.some(rnd)
	links := between([]*lab.Node{n}, r.others(n))
	f := shape(n.Name, r, cut, links)
	frames := f.heal
	stop, flapping := context.WithCancel(ctx)
	var loop sync.WaitGroup
	begin := f.begin
	flaps := 0
	f.begin = func(ctx context.Context) (string, error) {
		proof, err := begin(ctx)
		loop.Go(func() {
			for rule := (lab.Rule{}); hold(stop, time.Duration(100+rnd.Int64N(900))*time.Millisecond) == nil; flaps++ {
				for _, l := range links {
					r.lab.Switch().Set(l.from, l.to, rule)
				}
				rule.Cut = !rule.Cut
			}
		})
		return proof, err
	}
	f.heal = func(ctx context.Context) (string, error) {
		flapping()
		loop.Wait()
		proof, err := frames(ctx)
		return fmt.Sprintf("%d changes, %s", flaps, proof), err
	}
	return f, nil
}
