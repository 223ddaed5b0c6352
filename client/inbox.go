package client

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

// inbox is the one subscription that all answers come in on. nats.go's own request inbox forgets a request when its
// context ends; here an answer to an earlier try still reaches who asked, and the subscription ends with the client.
type inbox struct {
	nc *nats.Conn

	mu     sync.Mutex // guards all below; held while subscribing, which only queues bytes
	prefix string     // ends in a dot; empty before the first use
	sub    *nats.Subscription
	before error // the connection's last error before sub was made
	taken  bool  // the server has taken sub
	last   uint64
	boxes  map[string]*box
	closed bool
}

// box collects the answers to one request, over all its tries.
type box struct {
	in    *inbox
	id    string
	reply string // the reply subject without its last token, the number of the try
	ch    chan answer
}

// answer is one message that came, for the given try, counted from 1.
type answer struct {
	try int
	msg *nats.Msg
}

// boxSize is how many unread answers a box holds. More are dropped, as if they had been lost.
const boxSize = 16

// open makes a box that holds up to size unread answers.
func (in *inbox) open(size int) (*box, error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.closed {
		return nil, ErrClosed
	}
	if in.prefix == "" {
		in.prefix, in.boxes = in.nc.NewInbox()+".", make(map[string]*box)
	}
	in.last++
	b := &box{in: in, id: strconv.FormatUint(in.last, 36), ch: make(chan answer, size)}
	b.reply = in.prefix + b.id + "."
	in.boxes[b.id] = b
	return b, nil
}

// listen subscribes, and returns nil once the server has taken that. Nothing is sent before: a request whose answer may not
// come in is carried out all the same, and what it got is lost.
func (in *inbox) listen(ctx context.Context) error {
	sub, before, err := in.subscribe()
	if sub == nil || err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, listenTimeout) // nats.go wants a deadline
	defer cancel()
	if err := in.nc.FlushWithContext(ctx); err != nil {
		return fmt.Errorf("listen for answers: %w", err)
	}
	err = in.nc.LastError() // the server refuses before it answers the flush
	in.mu.Lock()
	defer in.mu.Unlock()
	switch {
	case in.sub != sub: // another call has seen it before
		return fmt.Errorf("listen for answers: %w", nats.ErrBadSubscription)
	case err != before && errors.Is(err, nats.ErrPermissionViolation) && strings.Contains(err.Error(), `"`+in.prefix):
		in.sub = nil
		_ = sub.Unsubscribe()
		return fmt.Errorf("listen for answers, see nats.CustomInboxPrefix: %w", err)
	}
	in.taken = true
	return nil
}

// subscribe returns the subscription that the server may not have taken yet, nil once it has, and the connection's last
// error before.
func (in *inbox) subscribe() (sub *nats.Subscription, before, err error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	switch {
	case in.closed:
		return nil, nil, ErrClosed
	case in.taken:
		return nil, nil, nil
	case in.sub == nil:
		in.before = in.nc.LastError()
		in.sub, err = in.nc.Subscribe(in.prefix+"*.*", in.deliver)
	}
	return in.sub, in.before, err
}

// listenTimeout bounds one wait for the server, which answers at once.
const listenTimeout = 2 * time.Second

func (in *inbox) deliver(m *nats.Msg) {
	id, try, _ := strings.Cut(m.Subject[min(len(in.prefix), len(m.Subject)):], ".")
	n, err := strconv.Atoi(try)
	if err != nil {
		return
	}
	in.mu.Lock()
	b := in.boxes[id]
	in.mu.Unlock()
	if b == nil {
		return // nobody waits any more
	}
	select {
	case b.ch <- answer{n, m}:
	default:
	}
}

func (b *box) close() {
	b.in.mu.Lock()
	delete(b.in.boxes, b.id)
	b.in.mu.Unlock()
}

// close takes the subscription back, and returns when its goroutine runs no handler any more or never will again.
func (in *inbox) close() error {
	in.mu.Lock()
	sub := in.sub
	in.closed, in.sub = true, nil
	in.mu.Unlock()
	if sub == nil {
		return nil
	}
	// Of a connection that is closed, the subscription is gone already.
	if err := sub.Unsubscribe(); err != nil && !errors.Is(err, nats.ErrConnectionClosed) &&
		!errors.Is(err, nats.ErrBadSubscription) {
		return err
	}
	return nil
}
