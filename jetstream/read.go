package jetstream

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	natsjs "github.com/nats-io/nats.go/jetstream"
)

// A batch is sent while the replica holds a lock that its writes need, so it is kept small.
const (
	readBatch = 256
	readBytes = 1 << 20

	numPendingHeader = "Nats-Num-Pending"
)

// GapError says that the log holds Got but nothing between Want and Got, and was not purged up to there: a middle is missing.
type GapError struct{ Want, Got uint64 }

func (e *GapError) Error() string {
	return fmt.Sprintf("jetstream: log has a gap: seq %d follows where %d is wanted", e.Got, e.Want)
}

// PurgedError says that the stream begins after the seq that was wanted, as its leader confirms.
type PurgedError struct{ Want, First uint64 }

func (e *PurgedError) Error() string {
	return fmt.Sprintf("jetstream: seq %d was purged: the log begins at %d", e.Want, e.First)
}

// Get is the message at seq as the stream's leader holds it. Errors: [ErrNoMessage], [ErrNoStream], and after the end of ctx
// [ErrNoLeader].
func (l *Log) Get(ctx context.Context, seq uint64) (Message, error) {
	var found struct {
		Message struct {
			Subject string `json:"subject"`
			Seq     uint64 `json:"seq"`
			Data    []byte `json:"data"`
		} `json:"message"`
	}
	err := retry(ctx, func() error {
		err := call(ctx, l.nc, "STREAM.MSG.GET."+l.stream, seqRequest{Seq: seq}, &found)
		switch {
		case isCode(err, codeNoMessage):
			return ErrNoMessage
		case isCode(err, codeNoStream):
			return ErrNoStream
		case err == nil && found.Message.Seq != seq:
			return fmt.Errorf("leader sent seq %d", found.Message.Seq)
		}
		return err
	})
	if err != nil {
		return Message{}, fmt.Errorf("get seq %d of %s: %w", seq, l.stream, err)
	}
	return Message{Seq: seq, Subject: found.Message.Subject, Data: found.Message.Data}, nil
}

// seqRequest asks for messages from Seq on. Seq 0 would leave the field out, which the server takes for a malformed request.
type seqRequest struct {
	Seq      uint64 `json:"seq,omitempty"`
	Batch    int    `json:"batch,omitempty"`
	MaxBytes int    `json:"max_bytes,omitempty"`
}

// GetDirect is the message at seq as some replica holds it, taken at random: ask several times to hear several of them. Errors:
// [ErrNoMessage] where that replica has none, which proves nothing; [ErrNoStream]; [ErrNoLeader] after the end of ctx.
func (l *Log) GetDirect(ctx context.Context, seq uint64) (Message, error) {
	var msg Message
	err := retry(ctx, func() error {
		body := fmt.Appendf(nil, `{"seq":%d}`, seq)
		m, err := try(ctx, l.nc, &nats.Msg{Subject: l.directGet(), Data: body})
		if errors.Is(err, nats.ErrNoResponders) {
			return l.nobody(ctx)
		}
		if err != nil {
			return err
		}
		var ok bool
		if msg, _, ok = l.parseMessage(m); !ok {
			return l.statusError(ctx, m)
		}
		if msg.Seq != seq {
			return fmt.Errorf("replica sent seq %d", msg.Seq)
		}
		return nil
	})
	if err != nil {
		return Message{}, fmt.Errorf("get seq %d of %s from a replica: %w", seq, l.stream, err)
	}
	return msg, nil
}

func (l *Log) directGet() string { return apiPrefix + "DIRECT.GET." + l.stream }

// statusError is the meaning of an answer that carries a status instead of a message.
func (l *Log) statusError(ctx context.Context, m *nats.Msg) error {
	switch status := m.Header.Get("Status"); status {
	case "404":
		return ErrNoMessage
	case "503":
		return l.nobody(ctx)
	default:
		return fmt.Errorf("answer with status %q %q", status, m.Header.Get("Description"))
	}
}

// nobody says why no replica answers: the stream does not exist, or not yet.
func (l *Log) nobody(ctx context.Context) error {
	if _, err := l.identity(ctx); errors.Is(err, ErrNoStream) {
		return err
	}
	return nats.ErrNoResponders
}

// lastValue is the server's own of the headers of one name: see [Log.parseMessage].
func lastValue(m *nats.Msg, key string) string {
	if v := m.Header[key]; len(v) > 0 {
		return v[len(v)-1]
	}
	return ""
}

// parseMessage reads a message of the stream that the server sent by direct get or by RePublish. prev is the sequence before
// it: of the same answer for a direct get, of the same subject for a republished one. ok is false if m is none.
//
// The server appends its headers to those under which the message was published, so only the last value of each is its word;
// and any status before them is the publisher's. Whoever may publish to the log could otherwise write another seq there.
func (l *Log) parseMessage(m *nats.Msg) (msg Message, prev uint64, ok bool) {
	seq, err := strconv.ParseUint(lastValue(m, natsjs.SequenceHeader), 10, 64)
	if err != nil || seq == 0 || lastValue(m, natsjs.StreamHeader) != l.stream {
		return Message{}, 0, false
	}
	prev, _ = strconv.ParseUint(lastValue(m, natsjs.LastSequenceHeader), 10, 64)
	return Message{Seq: seq, Subject: lastValue(m, natsjs.SubjectHeader), Data: m.Data}, prev, true
}

// Read calls fn with every message from seq from (at least 1) on, in order and without a gap, up to the end that the answering
// replicas know, which may lie before the leader's. from beyond that end reads nothing and is no error. last is the last seq
// for which fn returned nil, from-1 if there is none.
//
// A message that a replica lacks is taken from the leader. If the leader lacks it too the error is a [*PurgedError] where the
// stream begins later, else a [*GapError]. An error of fn ends the reading and is returned as it is. Other errors:
// [ErrNoStream], and without answers [ErrNoLeader] after the end of ctx. A stream that was made anew looks like any other:
// begin at the cursor itself and compare what stands there.
func (l *Log) Read(ctx context.Context, from uint64, fn func(Message) error) (last uint64, err error) {
	if from == 0 {
		return 0, errors.New("read from seq 0: the first is 1")
	}
	r := &reader{l: l, next: from, fn: fn, inbox: l.nc.NewInbox() + ".", ch: make(chan *nats.Msg, 4*(readBatch+1))}
	sub, err := l.nc.ChanSubscribe(r.inbox+"*", r.ch)
	if err != nil {
		return from - 1, fmt.Errorf("read %s from seq %d: %w", l.stream, from, err)
	}
	defer sub.Unsubscribe() // fails only where the connection is closed, and the subscription with it
	for {
		end, err := r.batch(ctx)
		switch {
		case r.fnErr != nil:
			return r.next - 1, r.fnErr
		case err != nil && !passing(err):
			return r.next - 1, fmt.Errorf("read %s at seq %d: %w", l.stream, r.next, err)
		case err != nil && !pause(ctx):
			return r.next - 1, fmt.Errorf("read %s at seq %d: %w: %w (last try: %v)",
				l.stream, r.next, ErrNoLeader, context.Cause(ctx), err)
		case err == nil && end:
			return r.next - 1, nil
		}
	}
}

// reader is one call of Read. Each batch has its own token in the inbox, so that what is left of one that was given up is not
// taken for the next one's. The batch after the one that is being read is asked for with the first message of this one, so that
// the replica loads it meanwhile.
type reader struct {
	l     *Log
	next  uint64 // the seq that fn gets next
	fn    func(Message) error
	fnErr error
	inbox string
	ch    chan *nats.Msg // room for two batches, and for what is left of two that were given up
	tries uint64
	ahead *question // asked before its turn; nil if none is
}

// question is a batch that was asked for.
type question struct {
	from  uint64
	reply string
	early []*nats.Msg // what came before its turn, at most a batch
}

// ask asks for a batch from from on.
func (r *reader) ask(from uint64) (*question, error) {
	r.tries++
	q := &question{from: from, reply: r.inbox + strconv.FormatUint(r.tries, 36)}
	body := fmt.Appendf(nil, `{"seq":%d,"batch":%d,"max_bytes":%d}`, from, readBatch, readBytes)
	return q, r.l.nc.PublishRequest(r.l.directGet(), q.reply, body)
}

// turn is the question whose batch begins at r.next: the one that was asked ahead, or a new one.
func (r *reader) turn() (*question, error) {
	q := r.ahead
	r.ahead = nil
	if q == nil || q.from != r.next { // the batch before was cut short, or broke off
		return r.ask(r.next)
	}
	return q, nil
}

// receive is the next message of q's batch. What comes of the one asked ahead is kept for its turn.
func (r *reader) receive(ctx context.Context, q *question, timeout <-chan time.Time) (*nats.Msg, error) {
	if len(q.early) > 0 {
		m := q.early[0]
		q.early = q.early[1:]
		return m, nil
	}
	for {
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("batch broke off: %w", errNotYet)
		case <-timeout:
			return nil, fmt.Errorf("no answer within %v: %w", tryTimeout, errNotYet)
		case m := <-r.ch:
			switch {
			case m.Subject == q.reply:
				return m, nil
			case r.ahead != nil && m.Subject == r.ahead.reply:
				r.ahead.early = append(r.ahead.early, m)
			}
		}
	}
}

// batch hands one batch from r.next on to fn. A passing error means that the batch broke off, and the next call goes on behind
// what fn has had.
func (r *reader) batch(ctx context.Context) (end bool, err error) {
	q, err := r.turn()
	if err != nil {
		return false, err
	}
	timer := time.NewTimer(tryTimeout)
	defer timer.Stop()
	var sent uint64 // the last seq of this batch, as received
	for {
		m, err := r.receive(ctx, q, timer.C)
		if err != nil {
			return false, err
		}
		msg, prev, ok := r.l.parseMessage(m)
		if !ok {
			return r.status(ctx, m, sent)
		}
		// The server names the message that it sent before. If that is not the one received, the connection or this channel
		// has dropped some, and the log is whole.
		if prev != sent || msg.Seq < r.next {
			return false, fmt.Errorf("seq %d came after %d in place of %d: %w", msg.Seq, sent, prev, errNotYet)
		}
		if sent == 0 {
			if pending, err := strconv.ParseUint(lastValue(m, numPendingHeader), 10, 64); err == nil && pending >= readBatch {
				if r.ahead, err = r.ask(q.from + readBatch); err != nil {
					return false, err
				}
			}
		}
		sent = msg.Seq
		for r.next < msg.Seq {
			filler, err := r.fill(ctx, msg.Seq)
			if err != nil {
				return false, err
			}
			if !r.hand(filler) {
				return false, r.fnErr
			}
		}
		if !r.hand(msg) {
			return false, r.fnErr
		}
		timer.Reset(tryTimeout)
	}
}

// status reads the answer that ends a batch whose last message was sent.
func (r *reader) status(ctx context.Context, m *nats.Msg, sent uint64) (end bool, err error) {
	switch m.Header.Get("Status") {
	case "204":
		pending, err := strconv.ParseUint(m.Header.Get(numPendingHeader), 10, 64)
		if err != nil {
			return false, fmt.Errorf("end of batch without a number of pending messages: %w", err)
		}
		if last := m.Header.Get(natsjs.LastSequenceHeader); last != strconv.FormatUint(sent, 10) {
			return false, fmt.Errorf("batch ended at seq %s, received %d: %w", last, sent, errNotYet)
		}
		return pending == 0, nil
	case "404":
		// Nothing at or behind next: the end, or an end that was purged.
		id, err := r.l.Identity(ctx)
		if err != nil {
			return false, err
		}
		if r.next < id.FirstSeq {
			return false, &PurgedError{Want: r.next, First: id.FirstSeq}
		}
		return true, nil
	}
	return false, r.l.statusError(ctx, m)
}

// fill gets the message at r.next, which the replica skipped on its way to got, from the leader.
func (r *reader) fill(ctx context.Context, got uint64) (Message, error) {
	msg, err := r.l.Get(ctx, r.next)
	if !errors.Is(err, ErrNoMessage) {
		return msg, err
	}
	id, err := r.l.Identity(ctx)
	if err != nil {
		return Message{}, err
	}
	if r.next < id.FirstSeq {
		return Message{}, &PurgedError{Want: r.next, First: id.FirstSeq}
	}
	return Message{}, &GapError{Want: r.next, Got: got}
}

// hand gives msg to fn. It reports false if fn failed.
func (r *reader) hand(msg Message) bool {
	if r.fnErr = r.fn(msg); r.fnErr != nil {
		return false
	}
	r.next = msg.Seq + 1
	return true
}
