package node

import (
	"sync"

	"github.com/allocnode/allocnode"
	"github.com/allocnode/allocnode/internal/next"
	"github.com/allocnode/allocnode/internal/propose"
	"github.com/allocnode/allocnode/internal/wire"
)

// guard decides what the node may do now. It works the proposer's gate at once, from whatever goroutine the reason comes,
// so that not one answer leaves after it; the service's subscriptions follow (see Node.serve).
//
// Reasons, strongest first; each is shown until it is lifted:
//
//	stopping   the process ends
//	fenced     a proof against the log: until an operator recovers it
//	           another state than a majority's: until a check ends well
//	halted     an entry is not understood (for as long as the process lives), or the catalog cannot be written
//	denied     the existing NATS does not permit what the node needs
//	foreign    another cluster, or a stream, is on the service's subjects
//	refused    the log does not accept this node: its name belongs to another catalog, or is not named
//	lagging    the log does not take this node's entries in time: until a check ends well; next goes on
//	checking   the check of DESIGN 8 is under way
type guard struct {
	mu       sync.Mutex        // guards all below; not held while the proposer is called
	prop     *propose.Proposer // nil until the log is known
	pool     *next.Pool        // as prop
	stopping bool
	fence    string
	digest   string // the fence that lifts itself
	stuck    string // an entry that is not understood: halted for as long as the process lives
	halt     string // the catalog cannot be written
	denied   string
	foreign  string
	refusal  string
	lag      string
	waiting  string // what a check, or the start, waits for
	started  bool   // the log was opened: checking, no longer starting
	checked  bool
	opened   bool   // a check has ended well in this run
	held     uint64 // ticket of the last Hold; 0 when something stronger came after it

	changed chan struct{} // capacity 1

	// Who keeps and tells fences; nil in tests. Called without the lock, after the gates are closed.
	raised func(class, reason string, stored bool)
	lifted func()
}

func newGuard() *guard {
	return &guard{waiting: "starting", changed: make(chan struct{}, 1)}
}

func (g *guard) setGates(prop *propose.Proposer, pool *next.Pool) {
	var fence string
	g.update(func() { g.prop, g.pool, fence = prop, pool, g.fence })
	if fence != "" { // of an earlier run
		fenceGates(prop, pool, fence)
	}
}

func fenceGates(prop *propose.Proposer, pool *next.Pool, reason string) {
	err := allocnode.Errorf(allocnode.CodeFenced, "%s", reason)
	prop.Fence(err)
	pool.Fence(err)
}

// gates are what the guard works, the proposer's first: its tickets are the pool's too.
func (g *guard) gates() (*propose.Proposer, *next.Pool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.prop, g.pool
}

// refuse works both gates.
func (g *guard) refuse(format, reason string) {
	g.refuseAs(allocnode.CodeUnavailable, format, reason)
}

func (g *guard) refuseAs(code allocnode.Code, format, reason string) {
	err := allocnode.Errorf(code, format, reason)
	prop, pool := g.gates()
	if prop == nil {
		return // nothing was opened yet
	}
	prop.Refuse(err)
	pool.Refuse(err)
}

func (g *guard) update(fn func()) {
	g.mu.Lock()
	fn()
	g.mu.Unlock()
	select {
	case g.changed <- struct{}{}:
	default:
	}
}

// State is what the node does now, as wire.State… names it, and why it does not serve.
func (g *guard) State() (state, reason string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.stopping:
		return wire.StateStopping, "the node is stopping"
	case g.fence != "":
		return wire.StateFenced, g.fence
	case g.digest != "":
		return wire.StateFenced, g.digest
	case g.stuck != "":
		return wire.StateHalted, g.stuck
	case g.halt != "":
		return wire.StateHalted, g.halt
	case g.denied != "" && !g.started:
		return wire.StateStarting, g.denied
	case g.denied != "":
		return wire.StateChecking, g.denied
	case g.foreign != "":
		return wire.StateChecking, g.foreign
	case g.refusal != "":
		return wire.StateChecking, g.refusal
	case g.lag != "":
		return wire.StateChecking, g.lag
	case g.checked:
		return wire.StateServing, ""
	case g.started:
		return wire.StateChecking, g.waiting
	}
	return wire.StateStarting, g.waiting
}

// Serving reports whether the node answers requests now.
func (g *guard) Serving() bool {
	state, _ := g.State()
	return state == wire.StateServing
}

// Fence stops issuing for good. The first reason is kept; Fence reports whether this was it.
func (g *guard) Fence(reason string) (first bool) { return g.fenceAs(reason, false) }

// Restore is Fence with the reason of an earlier run.
func (g *guard) Restore(reason string) { g.fenceAs(reason, true) }

func (g *guard) fenceAs(reason string, stored bool) (first bool) {
	if prop, pool := g.gates(); prop != nil {
		fenceGates(prop, pool, reason)
	}
	g.update(func() {
		if first = g.fence == ""; first {
			g.fence = reason
		}
	})
	if first && g.raised != nil {
		g.raised(fenceLog, reason, stored)
	}
	return first
}

// Outgrown lifts Restore, before there are gates: the fence was about the log of an epoch that is over.
func (g *guard) Outgrown() { g.update(func() { g.fence = "" }) }

// FenceDigest stops issuing until a check ends well. stored says that an earlier run had found the reason.
func (g *guard) FenceDigest(reason string, stored bool) {
	first := false
	g.update(func() {
		first = g.digest == ""
		g.digest, g.checked, g.held = reason, false, 0
	})
	g.refuseAs(allocnode.CodeFenced, "%s", reason)
	if first && g.raised != nil {
		g.raised(fenceDigest, reason, stored)
	}
}

// Opened reports whether a check has ended well in this run.
func (g *guard) Opened() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.opened
}

// MayIssue reports whether the node has served in this run and may do so again at any moment, whatever holds it up now.
func (g *guard) MayIssue() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.opened && g.fence == ""
}

// Fenced reports whether Fence was called.
func (g *guard) Fenced() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.fence != ""
}

// Halt refuses requests until Unhalt: the catalog cannot be written.
func (g *guard) Halt(reason string) {
	g.refuse("the node is halted: %s", reason)
	g.update(func() { g.halt, g.checked, g.held = reason, false, 0 })
}

// HaltForGood refuses requests for as long as the process lives: nothing further is applied. No Unhalt lifts it.
func (g *guard) HaltForGood(reason string) {
	g.refuse("the node is halted: %s", reason)
	g.update(func() { g.stuck, g.checked, g.held = reason, false, 0 })
}

// Unhalt lifts Halt. The node serves again after its next check.
func (g *guard) Unhalt() { g.update(func() { g.halt = "" }) }

// Refuse refuses requests until a check is accepted.
func (g *guard) Refuse(reason string) {
	g.refuse("%s", reason)
	g.update(func() { g.refusal, g.checked, g.held = reason, false, 0 })
}

// Lag refuses what goes through the log, until a check ends well.
func (g *guard) Lag(reason string) {
	prop, _ := g.gates()
	prop.Refuse(allocnode.Errorf(allocnode.CodeUnavailable, "%s", reason))
	g.update(func() { g.lag, g.checked, g.held = reason, false, 0 })
}

// Foreign refuses requests, whatever is checked, until it is called with "". The node serves again after its next check.
func (g *guard) Foreign(reason string) {
	if reason == "" {
		g.update(func() { g.foreign = "" })
		return
	}
	g.update(func() { g.foreign, g.checked, g.held = reason, false, 0 }) // first, so that an Open either sees it or is undone
	g.refuse("%s", reason)
}

// Deny is as Foreign, for what the existing NATS does not permit.
func (g *guard) Deny(reason string) {
	if reason == "" {
		g.update(func() { g.denied = "" })
		return
	}
	g.update(func() { g.denied, g.checked, g.held = reason, false, 0 })
	g.refuse("%s", reason)
}

// Hold begins a check: requests and answers wait. The ticket is for Open.
func (g *guard) Hold(waiting string) (ticket uint64) {
	prop, pool := g.gates()
	ticket = prop.Hold()
	pool.Hold(ticket)
	g.update(func() {
		g.checked, g.started = false, true
		if ticket > g.held { // of two that begin at once the later ticket opens
			g.held, g.waiting = ticket, waiting
		}
	})
	return ticket
}

// Await says what the start, or the check under way, waits for.
func (g *guard) Await(waiting string) { g.update(func() { g.waiting = waiting }) }

// Open ends the check that began with the Hold that gave ticket, unless something came in between.
func (g *guard) Open(ticket uint64) bool {
	g.mu.Lock()
	prop, pool, barred := g.prop, g.pool, g.foreign != "" || g.denied != ""
	g.mu.Unlock()
	if barred || !prop.Open(ticket) {
		return false
	}
	lifted := false
	pool.Open(ticket) // not, where a Hold or a refusal has come in between
	g.update(func() {
		// What came between the two steps stands: a Refuse would be forgotten, a Hold shown as serving.
		if g.held == ticket {
			lifted = g.digest != "" && g.fence == ""
			g.checked, g.opened, g.refusal, g.digest, g.lag = true, true, "", "", ""
		}
	})
	if lifted && g.lifted != nil {
		g.lifted()
	}
	return true
}

// Listen reports whether the service should listen, given whether it does: a short check is waited out, so that requests
// are late and not lost; a node that will not answer soon takes itself out.
func (g *guard) Listen(now bool) bool {
	state, _ := g.State()
	g.mu.Lock()
	defer g.mu.Unlock()
	barred := g.refusal != "" || g.foreign != "" || g.denied != ""
	return state == wire.StateServing || state == wire.StateChecking && !barred && now
}

// Stop says that the process ends. What is under way may still be answered.
func (g *guard) Stop() { g.update(func() { g.stopping = true }) }
