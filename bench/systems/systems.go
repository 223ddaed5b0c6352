// Package systems starts what is compared, and makes the loads that drive it.
//
// A [System] is started for one round and stopped before the next system is; several rows may be measured on it, each at
// every concurrency. Everything a system writes is below its [Env.Dir]. Servers in Go run in this process, as the product's
// nodes do; PostgreSQL and Redis are child processes that end with this one.
//
// # Connections
//
// What carries many requests at once over one connection (NATS, gRPC, a pipelined Redis connection) has [Env.Conns] of
// them, what carries one at a time (PostgreSQL, plain Redis) a pool of [Env.Pool]; never more than there are callers, who
// are divided evenly. Replicated systems are always dialled in the same way: the first connection goes to the node that
// leads, the others to the next nodes in turn. So one caller has the shortest way in each of them, whoever was elected.
package systems

import (
	"context"
	"io"
	"slices"

	"github.com/allocnode/allocnode/bench/load"
)

// Env is what a system is given for one round.
type Env struct {
	Dir   string    // an empty directory
	Conns int       // connections that carry many requests at once: 1 or more
	Pool  int       // connections that carry one request at a time: 1 or more
	Log   io.Writer // what its servers say
}

// Row is one line of the comparison, at each concurrency.
type Row struct {
	Name       string
	Durability string // when an answer is given
	Copies     int    // how many disks have it then
	Dialled    Dial
	NoIDs      bool  // a yardstick that hands out none
	Only       []int // the concurrencies that it is for; nil: all
}

// Dial says how a row's callers reach the system.
type Dial int

// The ways to reach a system.
const (
	InProcess Dial = iota // a call in this process
	Shared                // connections that carry many requests at once
	Pooled                // connections that carry one at a time
)

// Connections is how many connections a row has for so many callers.
func (r *Row) Connections(e Env, callers int) int {
	switch r.Dialled {
	case Shared:
		return min(callers, e.Conns)
	case Pooled:
		return min(callers, e.Pool)
	}
	return 0
}

// For reports whether the row is measured with so many callers.
func (r *Row) For(callers int) bool { return r.Only == nil || slices.Contains(r.Only, callers) }

// Open makes the load of one row for so many callers.
type Open func(ctx context.Context, callers int) (*load.Load, error)

// System is something that is started once a round.
type System struct {
	Name string
	Rows []Row
	// Start returns when the system answers, with a way to open each row by name. stop is never nil, returns when all that
	// was started has ended, and is to be called after an error too.
	Start func(ctx context.Context, e Env) (opens map[string]Open, stop func(), err error)
}

// All is every system, in the order of the table.
func All() []System {
	return []System{allocnodeR3(), allocnodeR1(), limits(), disk(), natsPeers(), etcdPeers(), postgresPeers(), redisPeers(), generators()}
}

// same is one Draw for every caller.
func same(callers int, d load.Draw) []load.Draw {
	return slices.Repeat([]load.Draw{d}, callers)
}

// divide gives each caller the draw of its connection, in turn.
func divide(callers int, perConn []load.Draw) []load.Draw {
	draws := make([]load.Draw, callers)
	for i := range draws {
		draws[i] = perConn[i%len(perConn)]
	}
	return draws
}

// stopper collects what is to be undone, last first.
type stopper []func()

func (s *stopper) add(f func()) { *s = append(*s, f) }

func (s *stopper) stop() {
	for _, f := range slices.Backward(*s) {
		f()
	}
	*s = nil
}
