package client

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/allocnode/allocnode"
	"github.com/allocnode/allocnode/internal/wire"
)

// question is one request: bytes that are sent until they are answered.
type question struct {
	subject string
	body    []byte

	// decode reads an answer into wherever the asker wants it. An *allocnode.Error is a refusal.
	decode func(body []byte) (wire.Origin, error)

	// once makes ask return an unsentError instead of sending again, where it is certain that nothing has happened.
	once bool

	overdue func() // called once, when the first try has had no answer in time; may be nil

	tries int // tries sent so far
	open  int // of those, the ones that may have taken effect, or may yet
}

// statusNoResponders is the status that the server answers with when nobody listens on the subject.
const statusNoResponders = "503"

func noResponders(m *nats.Msg) bool {
	return len(m.Data) == 0 && m.Header.Get("Status") == statusNoResponders
}

var errNoResponders = allocnode.Errorf(allocnode.CodeUnavailable,
	"no node serves on this prefix: is the cluster up, and the prefix right?")

var errNoAnswers = allocnode.Errorf(allocnode.CodeUnavailable, "no node answers")

// ask sends q until it is answered or ctx ends. It returns nil when q.decode took an answer; an [*allocnode.Error] that is
// final; an *unsentError when ctx ended and certainly nothing has happened; an [*UnknownOutcomeError] without a key
// otherwise.
func (c *Client) ask(ctx context.Context, q *question) error {
	box, err := c.inbox.open(boxSize)
	if err != nil {
		return &unsentError{cause: err}
	}
	defer box.close()
	var last error
	var foreign *ClusterError
	pause := backoff{c.cfg.minBackoff, c.cfg.maxBackoff}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return q.ended(ctx, last)

		case <-timer.C: // to send, for the first time or again
			if foreign != nil {
				return &UnknownOutcomeError{Err: foreign}
			}
			if q.tries > 0 {
				c.logger.Debug("asking again", "subject", q.subject, "try", q.tries+1, "after", last)
				if q.open > 0 && q.overdue != nil {
					q.overdue()
					q.overdue = nil
				}
			}
			if err := c.send(ctx, q, box); err != nil {
				last = err
				if q.once && q.open == 0 || errors.Is(err, nats.ErrConnectionClosed) {
					return q.ended(ctx, last)
				}
				timer.Reset(pause.next())
				continue
			}
			timer.Reset(c.cfg.try << min(q.tries-1, 2))

		case a := <-box.ch:
			v, err := c.judge(q, a.msg)
			switch v {
			case final:
				return err
			case noAnswer:
				last = err
			case otherCluster:
				last = err
				errors.As(err, &foreign)
			case notDone, refused:
				last = err
				if v == notDone {
					q.open--
				}
				if q.once && q.open == 0 {
					return q.ended(ctx, last)
				}
				if a.try == q.tries {
					timer.Reset(pause.next())
				}
			}
		}
	}
}

// ended is how ask ends when it gives up.
func (q *question) ended(ctx context.Context, last error) error {
	why := cause(ctx)
	if why == nil {
		why, last = last, nil
	}
	if q.open == 0 {
		return &unsentError{cause: why, last: last}
	}
	if last == nil {
		return &UnknownOutcomeError{Err: fmt.Errorf("no answer: %w", why)}
	}
	return &UnknownOutcomeError{Err: fmt.Errorf("%w: %w", last, why)}
}

// send publishes one try. After an error nothing was sent, and nothing will be.
func (c *Client) send(ctx context.Context, q *question, box *box) error {
	// While nats.go reconnects it would keep the bytes and send them later, when nobody wants them any more.
	if !c.nc.IsConnected() {
		if c.nc.IsClosed() {
			return nats.ErrConnectionClosed
		}
		return nats.ErrDisconnected
	}
	if err := c.inbox.listen(ctx); err != nil {
		return err
	}
	q.tries++
	if q.tries > 1 {
		c.stats.retries.Add(1)
	}
	if err := c.nc.PublishRequest(q.subject, box.reply+strconv.Itoa(q.tries), q.body); err != nil {
		return err
	}
	q.open++
	return nil
}

// verdict is what one message says about a try.
type verdict uint8

const (
	final        verdict = iota // an answer, or a refusal that repeating does not change
	notDone                     // this try did not happen, another may
	refused                     // this try may have happened, and no more will be said of it
	noAnswer                    // no word of a node: one may follow
	otherCluster                // not ours: ours may follow
)

func (c *Client) judge(q *question, m *nats.Msg) (verdict, error) {
	if noResponders(m) {
		return notDone, errNoResponders
	}
	origin, err := q.decode(m.Data)
	if isNotReply(err) {
		return noAnswer, err
	}
	if err := c.pin(origin.Cluster); err != nil {
		c.logger.Warn("an answer of another cluster was not used", "subject", q.subject, "error", err)
		return otherCluster, err
	}
	c.saw(origin.Seq)
	switch codeOf(err) {
	case allocnode.CodeFenced, allocnode.CodeUnavailable:
		return notDone, err
	case allocnode.CodeUnknownOutcome:
		return refused, err
	}
	return final, err
}

// backoff is the pause before the next try.
type backoff struct{ d, most time.Duration }

func (b *backoff) next() time.Duration {
	d := b.d
	b.d = min(2*d, b.most)
	return d - rand.N(d/2+1)
}
