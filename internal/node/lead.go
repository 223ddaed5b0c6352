package node

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/allocnode/allocnode/internal/wire"
)

// lead keeps most requests that go through the log at one node: the one that leads the stream. Every node that serves can
// take them, but each that does makes entries of its own. Made by one, they are fewer and fuller, and none crosses the
// network twice: measured on two cores, 1.8 times the rate.
//
// The node that leads the stream says a few times a second that it takes them; the others stand by while they hear it.
// That is a preference, and nothing rests on it: two that both take requests, or none for a moment, are late answers and
// no wrong ones. So a clock may decide it, and a message may get lost.
//
// What is said, each followed by the speaker's name:
//
//	takes   by the one that leads the stream and serves, every leadInterval. Heard twice: the others stand by
//	leaves  by the same, when it takes no more: they come in
//	came    by each that comes in: one that leaves and waits for it can go
//
// Invariants:
//
//  1. The node that leads the stream never stands by.
//  2. A node stands by for at most leadPatience after it last heard "takes"; and not for what it heard before it led itself,
//     or of one that has left.
//  3. A node that does not answer now, for whatever reason, does not say "takes".
type lead struct {
	bus     leadBus // nil: no node can lead; the log is on an existing NATS, where anybody might say that he does
	subject string  // internal, in the log's account
	node    string
	leads   func() bool // whether this node leads the stream, as far as it knows
	serving func() bool // whether this node answers now; a check under way does not

	changed chan struct{} // capacity 1: StandBy may give another answer
	came    chan struct{} // capacity 1: another node takes the requests

	mu        sync.Mutex // guards all below
	heard     time.Time  // when another said "takes" last
	times     int        // how often without a pause, of whomever
	appending bool       // this node's subscriptions are there
	leaving   bool       // it says "takes" no more
	standBy   bool       // as last told by changed
}

// leadBus is what a connection is to lead.
type leadBus interface {
	Publish(subject string, data []byte) error
	Subscribe(subject string, fn nats.MsgHandler) (*nats.Subscription, error)
}

const (
	leadInterval = 200 * time.Millisecond

	// leadPatience is the silence that brings the others in. After a leader was killed the log takes nothing before the
	// stream has a new one, 4 to 9 s later: coming in sooner would gain nothing, and a busy machine is silent at times.
	leadPatience = time.Second

	// leadTwice is how often "takes" must be heard. The news that a node listens travels between servers by another way
	// than its word does; the second word is later than either, so no request finds nobody.
	leadTwice = 2

	handOverTimeout = 500 * time.Millisecond

	// leadOverlap is how long a node that leaves listens beside the one that has come in, for the same reason as leadTwice.
	leadOverlap = 50 * time.Millisecond
)

func newLead(bus leadBus, prefix string, cluster wire.ID, node string, leads, serving func() bool) *lead {
	return &lead{
		// With the cluster's id: nobody stands by for a node of another cluster, also where the two share an account.
		bus: bus, subject: prefix + ".node.lead." + cluster.String(), node: node, leads: leads, serving: serving,
		changed: make(chan struct{}, 1), came: make(chan struct{}, 1),
	}
}

// StandBy reports whether another node takes the requests that go through the log.
func (l *lead) StandBy() bool {
	leads := l.leads()
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.standByLocked(leads)
}

func (l *lead) standByLocked(leads bool) bool {
	if leads || time.Since(l.heard) >= leadPatience {
		l.forgetLocked()
	}
	return l.times >= leadTwice
}

func (l *lead) forgetLocked() { l.heard, l.times = time.Time{}, 0 }

// Appending tells whether this node takes them: after it has begun to listen, and before it ends.
func (l *lead) Appending(now bool) {
	leads := l.leads()
	l.mu.Lock()
	before := l.appending
	l.appending = now
	l.mu.Unlock()
	switch {
	case now && !before:
		l.say("came")
		l.tell()
	case !now && before && leads:
		l.say("leaves") // the others need not wait for the silence
	}
}

// HandOver says that this node leaves, where others stand by for it, and waits until one has come in, ctx ends or
// handOverTimeout has passed. Meanwhile this node is still to listen.
func (l *lead) HandOver(ctx context.Context) {
	leads := l.leads()
	l.mu.Lock()
	wait := l.appending && leads && !l.leaving
	l.leaving = true
	l.mu.Unlock()
	if !wait {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, handOverTimeout)
	defer cancel()
	select {
	case <-l.came: // of earlier
	default:
	}
	l.say("leaves")
	select {
	case <-l.came:
	case <-ctx.Done():
		return
	}
	select {
	case <-time.After(leadOverlap):
	case <-ctx.Done():
	}
}

// Run says that this node takes the requests while it does and leads, and listens to others, until ctx ends.
func (l *lead) Run(ctx context.Context) error {
	if l.bus == nil {
		<-ctx.Done()
		return nil
	}
	sub, err := l.bus.Subscribe(l.subject, func(m *nats.Msg) { l.hear(string(m.Data)) })
	if err != nil {
		return fmt.Errorf("subscribe to %s: %w", l.subject, err)
	}
	defer func() { _ = sub.Unsubscribe() }()
	ticker := time.NewTicker(leadInterval)
	defer ticker.Stop()
	for {
		l.tell()
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

func (l *lead) hear(text string) {
	word, node, _ := strings.Cut(text, " ")
	if node == l.node {
		return
	}
	answer := false
	l.mu.Lock()
	switch word {
	case "takes":
		l.heard, l.times = time.Now(), l.times+1
	case "leaves":
		l.forgetLocked() // of whomever: another that takes them is heard again soon
		answer = l.appending
	case "came":
		select {
		case l.came <- struct{}{}:
		default:
		}
	}
	l.mu.Unlock()
	if answer {
		l.say("came")
	}
	l.look()
}

func (l *lead) tell() {
	leads, serving := l.leads(), l.serving()
	l.mu.Lock()
	takes := leads && serving && l.appending && !l.leaving
	l.mu.Unlock()
	if takes {
		l.say("takes")
	}
	l.look()
}

func (l *lead) say(word string) {
	if l.bus == nil {
		return
	}
	_ = l.bus.Publish(l.subject, []byte(word+" "+l.node)) // unheard, the others come in
}

// look signals a change of mind.
func (l *lead) look() {
	leads := l.leads()
	l.mu.Lock()
	standBy := l.standByLocked(leads)
	changed := standBy != l.standBy
	l.standBy = standBy
	l.mu.Unlock()
	if changed {
		select {
		case l.changed <- struct{}{}:
		default:
		}
	}
}
