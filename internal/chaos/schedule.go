//go:build linux

package chaos

import (
	"math/rand/v2"
	"time"
)

// Window is one part of the schedule.
type Window struct {
	Kind string // of fault; empty: calm
	Hold time.Duration
	Seed uint64 // of what the fault itself decides
}

// Schedule is the windows of a run, which follow from the configuration alone. Every kind comes once before one comes again,
// and each fourth window is calm. With a Length it is longer than any run can use.
func Schedule(cfg Config) []Window {
	rnd := rand.New(rand.NewPCG(cfg.Seed, 2))
	var usable []kind
	for _, k := range kinds {
		if cfg.Nodes >= k.nodes && (len(cfg.Only) == 0 || contains(cfg.Only, k.name)) {
			usable = append(usable, k)
		}
	}
	want := cfg.Windows
	switch {
	case cfg.Length > 0:
		want = int(cfg.Length/time.Second) + 1
	case want == 0:
		want = (len(usable)*4 + 2) / 3
	}
	var all []Window
	var deck []int
	for len(all) < want && len(usable) > 0 {
		if len(all)%4 == 3 {
			all = append(all, Window{Hold: 500*time.Millisecond + time.Duration(rnd.Int64N(int64(time.Second)))})
			continue
		}
		if len(deck) == 0 {
			deck = rnd.Perm(len(usable))
		}
		k := usable[deck[0]]
		deck = deck[1:]
		longest := k.most
		if cfg.Long && k.long > 0 {
			longest = k.long
		}
		all = append(all, Window{
			Kind: k.name, Hold: k.least + time.Duration(rnd.Int64N(int64(longest-k.least)+1)), Seed: rnd.Uint64(),
		})
	}
	return all
}

func contains(list []string, s string) bool {
	for _, e := range list {
		if e == s {
			return true
		}
	}
	return false
}
