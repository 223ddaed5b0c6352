package client

import (
	"errors"
	"strconv"
	"strings"
	"sync"

	"github.com/nats-io/nats.go"
)

// inbox is the one subscription that all answers come in on. nats.go's own request inbox forgets a request when its
// context ends; here an answer to an earlier try still reaches who asked, and the subscription ends with the client.
type inbox struct {
	nc *nats.Conn

	mu     sync.Mutex // guards all below; held while subscribing, which only queues bytes
	prefix string     // ends in a dot; empty before the first use
	sub    *nats.Subscription
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
	if in.sub == nil {
		prefix := in.nc.NewInbox() + "."
		sub, err := in.nc.Subscribe(prefix+"*.*", in.deliver)
		if err != nil {
			return nil, err
		}
		in.prefix, in.sub, in.boxes = prefix, sub, make(map[string]*box)
	}
	in.last++
	b := &box{in: in, id: strconv.FormatUint(in.last, 36), ch: make(chan answer, size)}
	b.reply = in.prefix + b.id + "."
	in.boxes[b.id] = b
	return b, nil
}

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
