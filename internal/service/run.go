package service

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/allocnode/allocnode/internal/wire"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"
)

// run is one life of a set of subscriptions, and the requests that arrived on them.
type run struct {
	s       *Service
	cluster wire.ID
	svc     micro.Service        // or
	subs    []*nats.Subscription // plain ones

	// pending counts the requests that have not been answered, and one for the subscriptions themselves until no handler
	// can run any more. So it reaches 0 once, and idle is closed then.
	pending atomic.Int64
	once    sync.Once
	idle    chan struct{}
}

func newRun(s *Service, cluster wire.ID) *run {
	r := &run{s: s, cluster: cluster, idle: make(chan struct{})}
	r.pending.Store(1)
	return r
}

func (r *run) release() {
	if r.pending.Add(-1) == 0 {
		r.once.Do(func() { close(r.idle) })
	}
}

// subscribe listens on ep's subject without micro, in a queue group unless queue is empty.
func (r *run) subscribe(ep endpoint, queue string) error {
	subject := r.s.subject(ep)
	h := func(m *nats.Msg) { r.handle(ep, m.Subject, m.Reply, m.Data) }
	var sub *nats.Subscription
	var err error
	if queue == "" {
		sub, err = r.s.nc.Subscribe(subject, h)
	} else {
		sub, err = r.s.nc.QueueSubscribe(subject, queue, h)
	}
	if err != nil {
		return fmt.Errorf("subscribe to %s: %w", subject, err)
	}
	r.subs = append(r.subs, sub)
	return nil
}

func (r *run) unsubscribe() error {
	var errs []error
	if r.svc != nil {
		errs = append(errs, r.svc.Stop())
	}
	for _, sub := range r.subs {
		if err := sub.Drain(); err != nil {
			errs = append(errs, fmt.Errorf("drain %s: %w", sub.Subject, err))
		}
	}
	return errors.Join(errs...)
}

// leave takes back the interest. Once r is idle after it, all that was received is answered.
func (r *run) leave(ctx context.Context) error {
	errs := []error{r.unsubscribe()}
	if r.s.nc.IsReconnecting() { // nothing arrives any more, and no flush would return
		r.release()
		return errors.Join(errs...)
	}

	// The server answers the flush after it has read the end of interest, so by then all that it will ever send lies in
	// the subscriptions' queues. nats.go calls the barrier once the handlers have returned from what lies there. (A
	// subscription that it removed meanwhile had an empty queue and no handler running.)
	errs = append(errs, r.s.nc.FlushWithContext(ctx))
	if err := r.s.nc.Barrier(r.release); err != nil {
		errs = append(errs, err)
		r.release()
	}
	return errors.Join(errs...)
}

// await waits, after leave, until all that was received is answered and sent. It does not while the connection is away:
// nothing arrives then and no answer can be sent, and whoever asked hears from another node, or asks again.
func (r *run) await(ctx context.Context) error {
	if r.s.nc.IsReconnecting() {
		if n := r.pending.Load(); n > 0 {
			return fmt.Errorf("%d requests cannot be answered: the connection is away", n)
		}
		return nil
	}
	select {
	case <-r.idle:
		return r.s.nc.FlushWithContext(ctx)
	case <-ctx.Done():
		return fmt.Errorf("%d requests not answered yet: %w", r.pending.Load(), context.Cause(ctx))
	}
}

// drain is leave and await. A nil run is drained.
func (r *run) drain(ctx context.Context) error {
	if r == nil {
		return nil
	}
	return errors.Join(r.leave(ctx), r.await(ctx))
}

func (r *run) isIdle() bool {
	select {
	case <-r.idle:
		return true
	default:
		return false
	}
}

// handle takes one request. It does not wait.
func (r *run) handle(ep endpoint, subject, reply string, body []byte) {
	s := r.s
	n := &s.counters[ep]
	n.requests.Add(1)
	switch {
	case reply == "":
		n.noReply.Add(1)
		if !table[ep].mute {
			return
		}
	case !s.mayAnswer(reply):
		n.noReply.Add(1)
		return
	}
	r.pending.Add(1)
	from, deadline := origin{run: r, ep: ep, reply: reply, name: s.named(ep, subject)}, time.Now().Add(s.cfg.Timeout)
	if ep == epNext {
		take := &take{origin: from}
		take.req.Deadline = deadline
		take.begin(body)
		return
	}
	c := &call{origin: from}
	c.req.Deadline = deadline
	if err := c.begin(body); err != nil {
		c.fail(err)
	}
}
