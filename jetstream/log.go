package jetstream

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/nats-io/nats.go"
	natsjs "github.com/nats-io/nats.go/jetstream"
)

// Errors on which callers branch.
var (
	// ErrNoStream says that the cluster knows no stream of the log's name.
	ErrNoStream = errors.New("jetstream: no such stream")

	// ErrNoLeader says that the context ended without an answer, or with answers of servers that know no leader. It comes
	// together with the context's cause.
	ErrNoLeader = errors.New("jetstream: no leader or no answer")

	// ErrNotEmpty says that the log already holds an entry, and that it is not the one to be put first.
	ErrNotEmpty = errors.New("jetstream: log is not empty")

	// ErrOneServer says that the stream cannot be replicated: the system's JetStream is one server.
	ErrOneServer = errors.New("jetstream: one server cannot replicate the log three ways")

	// ErrNoMessage says that the server that answered holds no message under the seq.
	ErrNoMessage = errors.New("jetstream: no message")
)

const (
	// MaxData bounds the bytes of one entry. It leaves a kibibyte of the usual max_payload of 1 MiB for headers.
	MaxData = maxMessage - 1<<10

	maxMessage = 1 << 20
	maxToken   = 128

	// More acknowledgements than a proposer can have in flight. One that is dropped is an append of unknown outcome.
	ackPendingMsgs  = 1 << 18
	ackPendingBytes = 64 << 20
)

// LogConfig says which stream holds the log. It must be alike on all nodes.
type LogConfig struct {
	// Prefix is the first part of every subject: tokens of [A-Za-z0-9_-] joined by dots. Default "alloc".
	Prefix string

	// Replicas is 3 in a cluster and 1 alone. Default 1.
	Replicas int

	// Epoch is the log's: 1, and one more after each recovery. Each has a stream of its own, so that a recovery deletes nothing.
	// 0 is the first.
	Epoch uint64
}

// DefaultLogConfig is the log of a node that is alone.
func DefaultLogConfig() LogConfig { return LogConfig{Prefix: "alloc", Replicas: 1} }

// Validate reports every fault of c.
func (c LogConfig) Validate() error {
	var faults []error
	for token := range strings.SplitSeq(c.Prefix, ".") {
		if !isToken(token) {
			faults = append(faults, fmt.Errorf("prefix %q: want tokens of 1 to %d characters of [A-Za-z0-9_-], joined by dots",
				c.Prefix, maxToken))
			break
		}
	}
	if c.Replicas != 1 && c.Replicas != 3 {
		faults = append(faults, fmt.Errorf("replicas %d: want 1 or 3", c.Replicas))
	}
	return errors.Join(faults...)
}

// StreamName is the name of the stream that holds the log under prefix: "ALLOC_LOG" for "alloc". What is no letter, digit,
// '-' or '_' becomes '_', so "a.b" and "a_b" share a name; the second is then refused, as its subjects differ.
func StreamName(prefix string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z':
			return r - 'a' + 'A'
		case r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '-', r == '_':
			return r
		}
		return '_'
	}, prefix) + "_LOG"
}

// streamName is the name of the stream that holds the log of an epoch: StreamName, and behind it _2, _3, … for later ones.
func streamName(prefix string, epoch uint64) string {
	if epoch <= 1 {
		return StreamName(prefix)
	}
	return StreamName(prefix) + "_" + strconv.FormatUint(epoch, 10)
}

// logSubject is what the entries' subjects have before the node's name, with the dot: no stream captures another epoch's.
func logSubject(prefix string, epoch uint64) string {
	if epoch <= 1 {
		return prefix + ".log."
	}
	return prefix + ".log." + strconv.FormatUint(epoch, 10) + "."
}

func isToken(s string) bool {
	if s == "" || len(s) > maxToken {
		return false
	}
	for i := range len(s) {
		switch c := s[i]; {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '-', c == '_':
		default:
			return false
		}
	}
	return true
}

// Message is one entry as the log holds it. Data belongs to the receiver: nobody else reads or writes it.
type Message struct {
	Seq     uint64
	Subject string
	Data    []byte
}

// Ack is the answer to one append.
type Ack struct {
	// Seq is where the entry stands in the log; 0 where Err is set.
	Seq uint64

	// Duplicate says that the message id was known, and Seq is that of the first copy.
	Duplicate bool

	// Err is [nats.ErrNoResponders] (nobody took the entry), a [*natsjs.APIError] (JetStream refused it), or says what was
	// wrong with the answer (then the outcome is unknown).
	Err error
}

// Log is the log, seen from one node. Its methods may be called from any goroutine.
type Log struct {
	nc      *nats.Conn
	cfg     LogConfig
	stream  string
	subject string // of this node's entries
	acks    string // inbox of acknowledgements, up to and with the dot before the tag

	onAck atomic.Pointer[func(uint64, Ack)]
	lost  atomic.Uint64 // what Feed could not deliver, of subscriptions that have ended and of messages not understood

	mu   sync.Mutex
	subs map[*subscription]struct{} // guarded by mu; nil when closed
}

// NewLog is the log under cfg for the node of the given name, one token of [A-Za-z0-9_-]. It subscribes to the acknowledgements
// of appends and asks nothing of the stream, which need not exist. nc must be connected in the account that holds the log. It
// stays the caller's, who closes it after [Log.Close].
func NewLog(nc *nats.Conn, cfg LogConfig, node string) (*Log, error) {
	d := DefaultLogConfig()
	if cfg.Prefix == "" {
		cfg.Prefix = d.Prefix
	}
	if cfg.Replicas == 0 {
		cfg.Replicas = d.Replicas
	}
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("log: %w", err)
	}
	if !isToken(node) {
		return nil, fmt.Errorf("log: node name %q: want 1 to %d characters of [A-Za-z0-9_-]", node, maxToken)
	}
	l := &Log{
		nc:      nc,
		cfg:     cfg,
		stream:  streamName(cfg.Prefix, cfg.Epoch),
		subject: logSubject(cfg.Prefix, cfg.Epoch) + node,
		acks:    nc.NewInbox() + ".",
		subs:    make(map[*subscription]struct{}),
	}
	_, err := l.subscribe(l.acks+"*", ackPendingMsgs, ackPendingBytes, l.acked)
	if err != nil {
		return nil, fmt.Errorf("log: subscribe to acknowledgements: %w", err)
	}
	return l, nil
}

// Stream is the name of the stream.
func (l *Log) Stream() string { return l.stream }

// Close ends every subscription of l and returns when no callback runs any more. It must not be called from a callback.
func (l *Log) Close() {
	l.mu.Lock()
	subs := l.subs
	l.subs = nil
	l.mu.Unlock()
	for s := range subs {
		s.stop()
	}
}

// Append publishes data, at most [MaxData] bytes, under msgID and returns at once. The answer comes to the function given to
// [Log.OnAck] with the same tag, or never: then the outcome is unknown, and the same msgID may be appended again. Calls made
// one after another reach the leader in that order, but across a change of leader the log may hold them in another. An error
// says that nothing was published. data is not kept.
func (l *Log) Append(tag uint64, msgID string, data []byte) error {
	if len(data) > MaxData {
		return fmt.Errorf("append entry of %d bytes: at most %d", len(data), MaxData)
	}
	err := l.nc.PublishMsg(&nats.Msg{
		Subject: l.subject,
		Reply:   l.acks + strconv.FormatUint(tag, 36),
		Header:  nats.Header{natsjs.MsgIDHeader: {msgID}},
		Data:    data,
	})
	if err != nil {
		return fmt.Errorf("append entry %s of %d bytes: %w", msgID, len(data), err)
	}
	return nil
}

// OnAck sets the function that gets the answers to appends, one at a time and from one goroutine. Set it before the first
// append: an answer that finds none is dropped.
func (l *Log) OnAck(fn func(tag uint64, ack Ack)) { l.onAck.Store(&fn) }

func (l *Log) acked(m *nats.Msg) {
	fn := l.onAck.Load()
	if fn == nil {
		return
	}
	tag, err := strconv.ParseUint(strings.TrimPrefix(m.Subject, l.acks), 36, 64)
	if err != nil {
		return // not an answer to an append of ours: those carry a tag
	}
	(*fn)(tag, l.parseAck(m))
}

// parseAck reads the answer to a publish. Both [Log.Append] and [Log.AppendFirst] need to see every way in which it is no proof.
func (l *Log) parseAck(m *nats.Msg) Ack {
	if len(m.Data) == 0 && m.Header.Get("Status") == "503" {
		return Ack{Err: nats.ErrNoResponders}
	}
	var p struct {
		Stream    string           `json:"stream"`
		Seq       uint64           `json:"seq"`
		Duplicate bool             `json:"duplicate"`
		Error     *natsjs.APIError `json:"error"`
	}
	if err := json.Unmarshal(m.Data, &p); err != nil {
		return Ack{Err: fmt.Errorf("acknowledgement of %d bytes: %w", len(m.Data), err)}
	}
	switch {
	case p.Error != nil:
		return Ack{Err: p.Error}
	case p.Stream != l.stream || p.Seq == 0:
		return Ack{Err: fmt.Errorf("acknowledgement of stream %q at seq %d: want stream %q", p.Stream, p.Seq, l.stream)}
	}
	return Ack{Seq: p.Seq, Duplicate: p.Duplicate}
}

// AppendFirst puts data, at most [MaxData] bytes, into the log under msgID if the log has never held anything, and waits for
// the acknowledgement. It succeeds too where the log's first entry is already byte for byte data: an earlier try got there.
// Otherwise the error is [ErrNotEmpty], or after the end of ctx [ErrNoLeader], and then the entry may be in the log or not.
func (l *Log) AppendFirst(ctx context.Context, msgID string, data []byte) error {
	if len(data) > MaxData {
		return fmt.Errorf("append first entry of %d bytes: at most %d", len(data), MaxData)
	}
	err := retry(ctx, func() error {
		m, err := try(ctx, l.nc, &nats.Msg{
			Subject: l.subject,
			Header:  nats.Header{natsjs.MsgIDHeader: {msgID}, natsjs.ExpectedLastSeqHeader: {"0"}},
			Data:    data,
		})
		if err != nil {
			return err
		}
		ack := l.parseAck(m)
		switch {
		case isCode(ack.Err, codeWrongLastSeq), isCode(ack.Err, codeWrongLastSeqConst):
			return l.sameFirst(ctx, data)
		case ack.Err == nil && ack.Seq != 1:
			return fmt.Errorf("%w: entry stands at seq %d", ErrNotEmpty, ack.Seq)
		}
		return ack.Err
	})
	if err != nil {
		return fmt.Errorf("append first entry %s to %s: %w", msgID, l.stream, err)
	}
	return nil
}

// ErrMoved says that the log does not end where the caller thought.
var ErrMoved = errors.New("jetstream: the log ends elsewhere")

// AnySeq, given to [Log.AppendAfter], is that the log may end anywhere.
const AnySeq = ^uint64(0)

// AppendAfter puts data, at most [MaxData] bytes, into the log at seq last+1, if the log ends at last, and waits for the
// acknowledgement. Otherwise the error is [ErrMoved], which a repetition also gets whose first try succeeded: read what is
// there. After the end of ctx it is [ErrNoLeader], and then the entry may be in the log or not.
func (l *Log) AppendAfter(ctx context.Context, last uint64, msgID string, data []byte) error {
	if len(data) > MaxData {
		return fmt.Errorf("append entry of %d bytes: at most %d", len(data), MaxData)
	}
	err := retry(ctx, func() error {
		msg := &nats.Msg{Subject: l.subject, Header: nats.Header{natsjs.MsgIDHeader: {msgID}}, Data: data}
		if last != AnySeq {
			msg.Header.Set(natsjs.ExpectedLastSeqHeader, strconv.FormatUint(last, 10))
		}
		m, err := try(ctx, l.nc, msg)
		if err != nil {
			return err
		}
		ack := l.parseAck(m)
		switch {
		case isCode(ack.Err, codeWrongLastSeq), isCode(ack.Err, codeWrongLastSeqConst):
			return ErrMoved
		case ack.Err == nil && last != AnySeq && ack.Seq != last+1:
			return fmt.Errorf("%w: entry stands at seq %d", ErrMoved, ack.Seq)
		}
		return ack.Err
	})
	if err != nil {
		return fmt.Errorf("append entry %s to %s behind seq %d: %w", msgID, l.stream, last, err)
	}
	return nil
}

// sameFirst returns nil if the first entry is data. A server alone checks the expected sequence before the message id, so the
// repetition of a try whose acknowledgement was lost is refused like anybody else's.
func (l *Log) sameFirst(ctx context.Context, data []byte) error {
	first, err := l.Get(ctx, 1)
	switch {
	case errors.Is(err, ErrNoMessage):
		return fmt.Errorf("%w: its first entry is gone", ErrNotEmpty)
	case err != nil:
		return err
	case !bytes.Equal(first.Data, data):
		return fmt.Errorf("%w: another entry of %d bytes stands first", ErrNotEmpty, len(first.Data))
	}
	return nil
}
