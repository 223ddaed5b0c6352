package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/allocnode/allocnode"
	"github.com/allocnode/allocnode/internal/wire"
)

// maxListBody bounds the body of a merged request, in bytes.
const maxListBody = wire.MaxBody - 1024

// flight is one request with its callers, frozen: the bytes and who has which part of the answer never change.
type flight struct {
	q     question
	key   string // of the list; empty where there is one caller, whose item has the key
	since uint64
	items []item
	seats []*seat // in order of their arrival
	reply wire.ReserveListReply
	gate  chan struct{} // opened when it has landed: its callers have their outcomes, or wait at another gate

	// Below is guarded by merger.mu.
	attached int  // callers that wait for it
	running  bool // a goroutine flies it
	landed   bool // its callers have been answered, or are in the queue again
	cancel   context.CancelCauseFunc
	done     chan struct{} // closed when ask has returned
	err      error         // what ask returned last
	open     int           // tries that may have taken effect, at that moment
}

// item is one reservation on the wire. Callers without a key of their own share one, and divide its range in their order.
type item struct {
	sequence string
	partial  bool
	key      string
	count    uint64 // of all its seats together
	seats    []*seat
}

// shared finds the item that callers without a key share.
type shared struct {
	sequence string
	partial  bool
}

// freezeLocked makes a flight of the first seat in the queue, and of as many of the others as may go with it.
func (m *merger) freezeLocked(c *Client) *flight {
	first := m.queue[0]
	f := &flight{seats: make([]*seat, 0, len(m.queue))}
	index := make(map[shared]int)
	last, at, bound := shared{}, -1, uint64(0) // of the seat before: most callers want the same
	size := 256
	var rest []*seat
	for n, s := range m.queue {
		if s.group != first.group || c.cfg.perSequence && s.sequence != first.sequence {
			rest = append(rest, s)
			continue
		}
		if want := (shared{s.sequence, s.partial}); at < 0 || want != last {
			last, at, bound = want, -1, m.boundLocked(s.sequence)
			if i, ok := index[want]; ok {
				at = i
			}
		}
		if at >= 0 && s.sharable() && f.items[at].count+s.count <= bound {
			f.items[at].count += s.count
			f.items[at].seats = append(f.items[at].seats, s)
		} else {
			size += 64 + len(s.sequence) + len(quoted(s.key))
			if len(f.items) == wire.MaxListItems || len(f.items) > 0 && size > maxListBody {
				rest = append(rest, m.queue[n:]...)
				break
			}
			if s.sharable() {
				at = len(f.items)
				index[last] = at
			}
			f.items = append(f.items, item{sequence: s.sequence, partial: s.partial, key: s.key, count: s.count,
				seats: []*seat{s}})
		}
		s.flight, s.place, s.wireKey = f, len(f.seats), s.key
		f.seats = append(f.seats, s)
	}
	f.gate, m.queue = m.gate, rest
	m.gate = make(chan struct{})
	if len(rest) > 0 { // those wait at the same gate
		close(f.gate)
		f.gate = make(chan struct{})
	}
	f.attached = len(f.seats)
	f.since = c.since()
	if first.alone && !first.fresh {
		f.since = first.since
	}
	switch {
	case len(f.seats) > 1:
		f.key = newKey(f.since)
	case first.key == "":
		first.wireKey = newKey(f.since)
		f.items[0].key = first.wireKey
	}
	f.q = question{once: true, decode: f.decode}
	f.q.subject, f.q.body = f.encode(c.cfg.prefix)
	return f
}

func (s *seat) sharable() bool { return s.key == "" && !s.apart }

// boundLocked is how many ids a shared item may ask for. Where the sequence's max_count is lower, a refusal teaches that.
func (m *merger) boundLocked(sequence string) uint64 {
	if n, ok := m.bounds[sequence]; ok {
		return n
	}
	return allocnode.DefaultMaxCount
}

// encode makes the request's subject and body: a list, also for one caller, since its answer tells the seq of a refusal.
func (f *flight) encode(prefix string) (subject string, body []byte) {
	subject = prefix + ".reserve." + f.items[0].sequence
	one := true
	for i := range f.items {
		one = one && f.items[i].sequence == f.items[0].sequence
	}
	if !one {
		subject = prefix + ".reserve"
	}
	b := make([]byte, 0, 128+64*len(f.items))
	b = append(b, '{')
	if f.key != "" {
		b = append(append(append(b, `"key":`...), quoted(f.key)...), ',')
	}
	if f.since > 0 {
		b = append(strconv.AppendUint(append(b, `"since":`...), f.since, 10), ',')
	}
	b = append(b, `"requests":[`...)
	for i := range f.items {
		it := &f.items[i]
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendUint(append(b, `{"count":`...), it.count, 10)
		if !one {
			b = append(append(append(b, `,"sequence":"`...), it.sequence...), '"')
		}
		if it.key != "" {
			b = append(append(b, `,"key":`...), quoted(it.key)...)
		}
		if it.partial {
			b = append(b, `,"partial":true`...)
		}
		b = append(b, '}')
	}
	return subject, append(b, "]}"...)
}

func quoted(key string) []byte {
	if key == "" {
		return nil
	}
	if strings.IndexFunc(key, func(r rune) bool { return r < ' ' || r > '~' || r == '"' || r == '\\' }) < 0 {
		return append(append(append(make([]byte, 0, len(key)+2), '"'), key...), '"') // most often: without reflection
	}
	b, err := json.Marshal(key)
	if err != nil {
		panic(fmt.Sprintf("client: key %q as JSON: %v", key, err)) // a string always is
	}
	return b
}

// decode takes an answer whose every range is what was asked for. Anything else could give two callers one id.
func (f *flight) decode(body []byte) (wire.Origin, error) {
	reply, err := wire.DecodeReserveList(body, len(f.items))
	if err != nil {
		return reply.Origin, err
	}
	for i := range reply.Results {
		r, it := &reply.Results[i], &f.items[i]
		if n := r.Range.Count(); r.Err == nil && (r.Sequence != it.sequence || n > it.count || n < it.count && !it.partial) {
			why := fmt.Sprintf("result %d is %s of %q, for %d ids of %q", i, r.Range, r.Sequence, it.count, it.sequence)
			return reply.Origin, &wire.NotReplyError{Body: string(body[:min(len(body), 256)]), Why: why}
		}
	}
	f.reply = reply
	return reply.Origin, nil
}

// landLocked decides what becomes of f's callers after ask: they are given their outcomes, or another request. again: f must
// be asked on, because a caller came back. unsent: they are in the queue because nothing could be sent.
func (c *Client) landLocked(f *flight, err error) (again, unsent bool) {
	m := &c.merge
	var nothing *unsentError
	var unknown *UnknownOutcomeError
	var refusal *allocnode.Error
	closed := m.closed || errors.Is(err, ErrClosed)
	abandoned := f.attached == 0 && err != nil
	switch {
	case err == nil:
		c.divideLocked(f)
	case errors.As(err, &unknown):
		var other *ClusterError
		if !closed && !errors.As(err, &other) {
			if abandoned { // it stays as it is, for who asks again
				f.running = false
				delete(m.flying, f)
				return false, false
			}
			return true, false
		}
		for _, s := range f.seats {
			s.giveLocked(outcome{err: &UnknownOutcomeError{Key: f.keyOf(s), Err: unknown.Err}})
		}
	case errors.As(err, &nothing):
		if closed || c.nc.IsClosed() {
			f.giveAllLocked(err)
			break
		}
		why := nothing.last
		if why == nil {
			why = nothing.cause
		}
		unsent = !abandoned
		m.requeueLocked(f.seats, why)
	case errors.As(err, &refusal):
		m.refusedLocked(f, refusal)
	default:
		panic(fmt.Sprintf("client: ask ended with %v", err))
	}
	f.landed, f.running = true, false
	delete(m.flying, f)
	return false, unsent
}

func (f *flight) giveAllLocked(err error) {
	for _, s := range f.seats {
		s.giveLocked(outcome{err: err})
	}
}

// refusedLocked handles the refusal of a whole list. One caller's mistake must not cost the others their answer, so the
// list is halved until the mistake stands alone. Nothing has reached the log.
func (m *merger) refusedLocked(f *flight, refusal *allocnode.Error) {
	n := len(f.seats)
	switch {
	case n == 1 || m.closed:
		f.giveAllLocked(refusal)
		return
	case len(f.items) == 1: // together they may ask for too much
		m.bounds[f.items[0].sequence] = f.items[0].count / 2
	}
	m.groups += 2
	for i, s := range f.seats {
		s.group = m.groups - 1
		if i >= n/2 {
			s.group = m.groups
		}
	}
	m.requeueLocked(f.seats, refusal)
}

// maxExpired is how often a first attempt is repeated with a newer since.
const maxExpired = 3

// divideLocked gives every caller its part of the answer.
func (c *Client) divideLocked(f *flight) {
	m := &c.merge
	var back []*seat
	for i := range f.items {
		it, res := &f.items[i], &f.reply.Results[i]
		joined := len(it.seats) > 1
		switch {
		case res.Err == nil:
			it.divideLocked(res.Range, f.reply.Seq)
			continue
		case m.closed:
		case joined && res.Err.Code == allocnode.CodeExhausted && !it.partial:
			// Together they do not fit: each for itself, what remains goes to whom it is enough for.
			m.bounds[it.sequence] = 0
			back = append(back, apart(it.seats)...)
			continue
		case joined && res.Err.Code == allocnode.CodeBadRequest:
			m.bounds[it.sequence] = it.count / 2
			back = append(back, apart(it.seats)...)
			continue
		case res.Err.Code == allocnode.CodeKeyExpired && f.q.tries == 1 && (!it.seats[0].alone || it.seats[0].fresh) &&
			it.seats[0].expired < maxExpired:
			// This client is new, or has been idle for longer than the window reaches back. The request was sent once, and
			// carved nothing; and its answer tells a newer seq.
			for _, s := range it.seats {
				s.expired++
			}
			back = append(back, it.seats...)
			continue
		}
		for _, s := range it.seats {
			s.giveLocked(outcome{seq: f.reply.Seq, err: res.Err})
		}
	}
	if len(back) > 0 {
		m.requeueLocked(back, nil)
	}
}

func apart(seats []*seat) []*seat {
	for _, s := range seats {
		s.apart = true
	}
	return seats
}

// divideLocked cuts r up among the item's seats, in their order.
func (it *item) divideLocked(r allocnode.Range, seq uint64) {
	for _, s := range it.seats {
		n := min(s.count, r.Count())
		if n == 0 {
			err := allocnode.Errorf(allocnode.CodeExhausted, "%d ids asked of %s, 0 remain", s.count, s.sequence)
			s.giveLocked(outcome{seq: seq, err: err})
			continue
		}
		s.giveLocked(outcome{seq: seq, r: allocnode.Range{Start: r.Start, End: r.Start + n}})
		r.Start += n
	}
}

// sleep waits for d, or until stop is closed.
func sleep(d time.Duration, stop <-chan struct{}) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-stop:
	}
}
