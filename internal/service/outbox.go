package service

import (
	"errors"
	"strconv"
	"sync"

	"github.com/allocnode/allocnode"
	"github.com/allocnode/allocnode/internal/wire"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"
)

// answer is one answer on its way out.
type answer struct {
	to   *origin
	body *[]byte          // from bufs
	err  *allocnode.Error // what body says, if it is an error: it stands in the headers too
}

// bufs holds the bodies of answers. A publish copies, so a buffer is free again as soon as it returns.
var bufs = sync.Pool{New: func() any { return new(make([]byte, 0, 256)) }}

// maxPooled is the capacity above which a buffer is left to the collector, in bytes.
const maxPooled = 16 << 10

// outbox publishes answers from a goroutine of its own. A publish may wait for the server to read, and whoever calls
// Done, the goroutine that applies the log, must not wait for one client.
type outbox struct {
	nc   *nats.Conn
	wake chan struct{} // holds a token while the goroutine has something to look at
	done chan struct{} // closed when it has ended

	mu     sync.Mutex // guards the two below
	queue  []answer   // bounded by the requests in flight
	closed bool
}

func newOutbox(nc *nats.Conn) *outbox {
	return &outbox{nc: nc, wake: make(chan struct{}, 1), done: make(chan struct{})}
}

func (o *outbox) start() { go o.run() }

// close ends the goroutine after it has published what is there. Later answers are dropped.
func (o *outbox) close() {
	o.mu.Lock()
	o.closed = true
	o.mu.Unlock()
	o.signal()
	<-o.done
}

func (o *outbox) signal() {
	select {
	case o.wake <- struct{}{}:
	default:
	}
}

// put takes a over. It never waits.
func (o *outbox) put(a answer) {
	o.mu.Lock()
	if o.closed {
		o.mu.Unlock()
		a.to.run.s.counters[a.to.ep].unsent.Add(1)
		a.to.run.release()
		return
	}
	first := len(o.queue) == 0
	o.queue = append(o.queue, a)
	o.mu.Unlock()
	if first {
		o.signal()
	}
}

func (o *outbox) run() {
	defer close(o.done)
	var batch []answer
	for range o.wake {
		o.mu.Lock()
		batch, o.queue = o.queue, batch[:0]
		closed := o.closed
		o.mu.Unlock()
		for i := range batch {
			o.publish(&batch[i])
			batch[i] = answer{}
		}
		if closed {
			return
		}
	}
}

func (o *outbox) publish(a *answer) {
	to := a.to
	if err := o.send(to.reply, *a.body, a.err); err != nil {
		to.run.s.counters[to.ep].unsent.Add(1)
		if errors.Is(err, nats.ErrMaxPayload) { // silence would make the requester wait, and then retry for nothing
			e := allocnode.Errorf(allocnode.CodeUnknownOutcome,
				"the request was done, but its answer of %d bytes is above the server's max_payload", len(*a.body))
			*a.body = wire.AppendErrorReply((*a.body)[:0], e, to.run.cluster)
			_ = o.send(to.reply, *a.body, e)
		}
	}
	if cap(*a.body) <= maxPooled {
		bufs.Put(a.body)
	}
	to.run.release()
}

func (o *outbox) send(reply string, body []byte, e *allocnode.Error) error {
	if e == nil {
		return o.nc.Publish(reply, body)
	}
	return o.nc.PublishMsg(&nats.Msg{Subject: reply, Data: body, Header: nats.Header{
		micro.ErrorHeader:     {e.Message},
		micro.ErrorCodeHeader: {strconv.Itoa(e.Code.Status())},
	}})
}
