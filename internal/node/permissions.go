package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/allocnode/allocnode/jetstream"
)

// permissions is what an existing NATS does not let this node do. NATS says so once for each try, in passing, and a node
// that went on would be one that nobody hears, or that cannot hear a proof against it. So a node that is denied what it
// needs does not serve, and names the subject, until it has connected again without being denied. While it is denied
// something it connects again by itself from time to time: a subscription that was refused is not made good by new rights.
//
// A requester's inbox that the node may not publish to is the requester's affair; counting it would let a client stop the
// node by the reply subject that it names. What users other than this one may do cannot be seen from here.
type permissions struct {
	needs  []string         // subjects that this node publishes to of its own accord; one that ends in '.' stands for all below
	deny   func(why string) // "" when nothing is denied any more
	logger *slog.Logger

	mu     sync.Mutex // guards all below; held while deny is called, which never comes back here, so that the last word stands
	denied map[*nats.Conn][]denial
}

// denial is one thing that is not permitted.
type denial struct {
	what string // as "publish to alloc.log.n1"
	old  bool   // of a connection that was lost since
}

// reconnectEvery is how often a node that is denied something connects again.
const reconnectEvery = 30 * time.Second

// streamNames is the one request to JetStream on the service's connection.
const streamNames = "$JS.API.STREAM.NAMES"

func newPermissions(cfg *Config, deny func(string)) *permissions {
	p := &permissions{deny: deny, logger: cfg.Logger, denied: make(map[*nats.Conn][]denial)}
	p.needs = append(p.needs, cfg.Prefix+".log."+cfg.Name, cfg.Prefix+".node.", cfg.inboxPrefix()+".", streamNames)
	p.needs = append(p.needs, streamRequests(cfg)...)
	p.needs = append(p.needs, jetstream.ProbeSubjects(cfg.Prefix)...)
	return p
}

// streamRequests are what the log asks of JetStream.
func streamRequests(cfg *Config) (subjects []string) {
	for _, verb := range []string{"STREAM.INFO.", "STREAM.MSG.GET.", "DIRECT.GET."} {
		subjects = append(subjects, "$JS.API."+verb+jetstream.StreamName(cfg.Prefix))
	}
	return subjects
}

// permissionText is nats-server's words.
var permissionText = regexp.MustCompile(`Permissions Violation for (Publish|Subscription) to "([^"]+)"`)

// readDenial reads an error of a connection. what is empty for one that is no denial.
func readDenial(err error) (what, subject string, publish bool) {
	if !errors.Is(err, nats.ErrPermissionViolation) {
		return "", "", false
	}
	m := permissionText.FindStringSubmatch(err.Error())
	if m == nil {
		return "", "", false
	}
	if publish = m[1] == "Publish"; publish {
		return "publish to " + m[2], m[2], true
	}
	return "subscribe to " + m[2], m[2], false
}

// watch takes note of what nc is denied, from now on.
func (p *permissions) watch(nc *nats.Conn) {
	failed, lost, back := nc.ErrorHandler(), nc.DisconnectErrHandler(), nc.ReconnectHandler()
	nc.SetErrorHandler(func(nc *nats.Conn, sub *nats.Subscription, err error) {
		if failed != nil {
			failed(nc, sub, err)
		}
		p.saw(nc, err)
	})
	nc.SetDisconnectErrHandler(func(nc *nats.Conn, err error) {
		if lost != nil {
			lost(nc, err)
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		for i := range p.denied[nc] {
			p.denied[nc][i].old = true
		}
	})
	nc.SetReconnectHandler(func(nc *nats.Conn) {
		if back != nil {
			back(nc)
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		if before := len(p.denied[nc]); before > 0 {
			p.denied[nc] = slices.DeleteFunc(p.denied[nc], func(d denial) bool { return d.old })
			p.tellLocked()
		}
	})
}

func (p *permissions) saw(nc *nats.Conn, err error) {
	what, subject, publish := readDenial(err)
	if what == "" || publish && !p.needed(subject) {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range p.denied[nc] {
		if p.denied[nc][i].what == what {
			p.denied[nc][i].old = false
			return
		}
	}
	p.denied[nc] = append(p.denied[nc], denial{what: what})
	p.tellLocked()
}

func (p *permissions) needed(subject string) bool {
	return slices.ContainsFunc(p.needs, func(need string) bool {
		return subject == need || strings.HasSuffix(need, ".") && strings.HasPrefix(subject, need)
	})
}

func (p *permissions) tellLocked() {
	for _, all := range p.denied {
		if len(all) > 0 {
			p.deny("NATS does not permit this node to " + all[0].what + ": give its user the permissions of docs/OPERATIONS.md")
			return
		}
	}
	p.deny("")
}

// look tries what the node will need and what has no effect, so that it is known before the node serves; the subscriptions
// on which it serves are seen when it makes them.
func (p *permissions) look(ctx context.Context, cfg *Config, log, svc *nats.Conn) error {
	ctx, cancel := context.WithTimeout(ctx, lookPatience)
	defer cancel()
	// The name is none, or a message without a reply subject is no question: nobody acts on either.
	var served []string
	for _, s := range jetstream.ProbeSubjects(cfg.Prefix) {
		if strings.HasSuffix(s, "~probe") {
			served = append(served, s)
		}
	}
	for _, side := range []struct {
		nc        *nats.Conn
		subscribe []string
		publish   []string
	}{
		{
			log, []string{log.NewInbox(), cfg.Prefix + ".feed.~probe"},
			append(streamRequests(cfg), log.NewInbox(), helloSubject(cfg.Prefix)),
		},
		{svc, append(served, svc.NewInbox()), []string{svc.NewInbox(), cfg.Prefix + ".node.cluster", streamNames}},
	} {
		for _, subject := range side.subscribe {
			sub, err := side.nc.SubscribeSync(subject)
			if err != nil {
				return fmt.Errorf("subscribe to %s: %w", subject, err)
			}
			err = p.settled(ctx, side.nc)
			_ = sub.Unsubscribe() // it fails only where the connection is closed
			if err != nil {
				return err
			}
		}
		for _, subject := range side.publish {
			if err := side.nc.Publish(subject, nil); err != nil {
				return fmt.Errorf("publish to %s: %w", subject, err)
			}
			if err := p.settled(ctx, side.nc); err != nil {
				return err
			}
		}
	}
	return nil
}

const lookPatience = 5 * time.Second

// settled waits until the server has read what was sent: nats.go has its refusal, if it refuses, before the answer.
func (p *permissions) settled(ctx context.Context, nc *nats.Conn) error {
	if err := nc.FlushWithContext(ctx); err != nil {
		return fmt.Errorf("ask the existing NATS what it permits: %w", err)
	}
	p.saw(nc, nc.LastError())
	return nil
}

// Run connects again from time to time while something is denied, until ctx ends.
func (p *permissions) Run(ctx context.Context) {
	ticker := time.NewTicker(reconnectEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		p.mu.Lock()
		var again []*nats.Conn
		for nc, all := range p.denied {
			if len(all) > 0 {
				again = append(again, nc)
			}
		}
		p.mu.Unlock()
		for _, nc := range again {
			p.logger.Info("connect to NATS again: the permissions may have changed", "connection", nc.Opts.Name)
			_ = nc.ForceReconnect() // closed, or about to connect again anyway
		}
	}
}

// watchPermissions begins to refuse while the existing NATS denies what the node needs, and looks whether it does. The
// function that it returns ends the goroutine that it starts.
func (n *Node) watchPermissions(ctx context.Context, log, svc *nats.Conn) (stop func()) {
	p := newPermissions(&n.cfg, func(why string) {
		n.guard.Deny(why)
		if why != "" {
			n.logger.Error("not serving", "reason", why)
		} else if parts := n.link.get(); parts != nil {
			parts.checker.Begin("NATS permits all that is needed again")
		}
	})
	p.watch(log)
	p.watch(svc)
	if err := p.look(ctx, &n.cfg, log, svc); err != nil {
		n.logger.Warn("what NATS permits is not known", "error", err) // what it denies is seen when it is tried
	}
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() { p.Run(ctx) })
	return func() {
		cancel()
		running.Wait()
	}
}
