package client_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/allocnode/allocnode"
	"github.com/allocnode/allocnode/client"
	"github.com/allocnode/allocnode/internal/wire"
)

// fake is the service as its clients see it, over a map: the wire protocol, the key window and the seq of each entry, but
// no log. hook may change what becomes of a request.
type fake struct {
	t       testing.TB
	nc      *nats.Conn
	url     string
	cluster wire.ID

	mu        sync.Mutex // guards all below
	sequences map[string]*fakeSequence
	order     []string
	keys      map[string]fakeKeyed
	recent    []string // keys, oldest first
	window    int      // how many keys are kept
	floor     uint64   // seq of the newest one that was dropped
	seq       uint64
	bodies    []string // of reserve requests that arrived, in order
	entries   int      // reserve operations that were in an entry
	hook      func(n int, q *wire.ReserveRequest) what
	limit     uint64 // max_count of new sequences
	nexts     int    // requests for next
	loseNext  int    // so many answers to a next get lost
	stranger  string // answers a next before the fake does
}

type fakeSequence struct {
	wire.Settings
	hwm    uint64
	halted bool
}

type fakeKeyed struct {
	item wire.ReserveItem
	r    allocnode.Range
	seq  uint64
}

// what becomes of a request. The zero value is the ordinary.
type what struct {
	refuse *allocnode.Error // and do nothing
	lose   bool             // the request: do nothing, answer nothing
	mute   bool             // do it, answer nothing
	raw    string           // answer this before, as a stranger would
	wait   <-chan struct{}  // until this is closed, in a goroutine of its own
}

// newServer starts a nats-server for the test, and returns its URL.
func newServer(tb testing.TB) string { return startServer(tb, -1).ClientURL() }

// startServer starts a nats-server on port; -1 is any.
func startServer(tb testing.TB, port int) *server.Server {
	tb.Helper()
	srv, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: port, NoSigs: true, NoLog: true})
	if err != nil {
		tb.Fatal(err)
	}
	srv.Start()
	tb.Cleanup(func() { srv.Shutdown(); srv.WaitForShutdown() })
	if !srv.ReadyForConnections(10 * time.Second) {
		tb.Fatal("the server does not start")
	}
	return srv
}

func connect(tb testing.TB, url string, opts ...nats.Option) *nats.Conn {
	tb.Helper()
	opts = append([]nats.Option{nats.MaxReconnects(-1), nats.ReconnectWait(10 * time.Millisecond)}, opts...)
	nc, err := nats.Connect(url, opts...)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(nc.Close)
	return nc
}

func newFake(tb testing.TB) *fake { return newFakeOn(tb, newServer(tb)) }

func newFakeOn(tb testing.TB, url string) *fake {
	tb.Helper()
	f := &fake{
		t: tb, nc: connect(tb, url), url: url, cluster: wire.NewID(), window: 1 << 17, limit: allocnode.DefaultMaxCount,
		sequences: make(map[string]*fakeSequence), keys: make(map[string]fakeKeyed),
	}
	f.subscribe()
	return f
}

func (f *fake) subscribe() {
	f.t.Helper()
	for subject, h := range map[string]func(name string, m *nats.Msg) []byte{
		"reserve": f.reserve, "reserve.>": f.reserve, "create.>": f.create, "advance.>": f.advance, "info.>": f.info,
		"list": f.list, "resume.>": f.resume, "forget.*": f.forget, "status": f.status, "next.>": f.next,
	} {
		verb, _, _ := strings.Cut(subject, ".")
		_, err := f.nc.QueueSubscribe("alloc."+subject, "q", func(m *nats.Msg) {
			_, name, _ := strings.Cut(strings.TrimPrefix(m.Subject, "alloc."+verb), ".")
			if b := h(name, m); b != nil {
				m.Respond(b)
			}
		})
		if err != nil {
			f.t.Fatal(err)
		}
	}
	if err := f.nc.Flush(); err != nil {
		f.t.Fatal(err)
	}
}

// on sets the hook. n counts reserve requests from 1.
func (f *fake) on(hook func(n int, q *wire.ReserveRequest) what) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.hook = hook
}

func (f *fake) refusal(err error) []byte {
	e, ok := err.(*allocnode.Error)
	if !ok {
		e = allocnode.Errorf(allocnode.CodeUnknownOutcome, "%v", err)
	}
	return wire.AppendErrorReply(nil, e, f.cluster)
}

func (f *fake) reserve(name string, m *nats.Msg) []byte {
	q, err := wire.ParseReserve(name, m.Data)
	if err != nil {
		return f.refusal(err)
	}
	f.mu.Lock()
	f.bodies = append(f.bodies, string(m.Data))
	var w what
	if f.hook != nil {
		w = f.hook(len(f.bodies), &q)
	}
	f.mu.Unlock()
	if w.wait != nil {
		go func() { <-w.wait; m.Respond(f.carve(&q)) }()
		return nil
	}
	if w.raw != "" {
		m.Respond([]byte(w.raw))
	}
	switch {
	case w.refuse != nil:
		return f.refusal(w.refuse)
	case w.lose:
		return nil
	}
	b := f.carve(&q)
	if w.mute {
		return nil
	}
	return b
}

// carve is one entry of the log.
func (f *fake) carve(q *wire.ReserveRequest) []byte {
	f.mu.Lock()
	defer f.mu.Unlock()
	list := q.List
	if list == nil {
		list = []wire.ReserveItem{q.ReserveItem}
	}
	for i := range list { // as the node does, before the log
		s := f.sequences[list[i].Sequence]
		if limit := f.limit; s != nil && list[i].Count > s.MaxCount || s == nil && list[i].Count > limit {
			return f.refusal(allocnode.Errorf(allocnode.CodeBadRequest, "count %d is above max_count", list[i].Count))
		}
	}
	f.seq++
	results := make([]wire.ReserveResult, len(list))
	for i := range list {
		it, res := list[i], &results[i]
		key := it.Key
		if key != "" {
			key = "item " + it.Sequence + " " + key
		} else if q.List != nil && q.Key != "" {
			key = fmt.Sprint("list ", i, " ", q.Key)
		}
		res.Sequence = it.Sequence
		var err error
		if res.Range, err = f.carveItem(it, key, q.Since); err != nil {
			res.Err = err.(*allocnode.Error)
		}
	}
	if q.List != nil {
		return wire.AppendReserveListReply(nil, results, f.seq, f.cluster, q.StringIDs)
	}
	if results[0].Err != nil {
		return f.refusal(results[0].Err)
	}
	return wire.AppendReserveReply(nil, list[0].Sequence, results[0].Range, f.seq, f.cluster, q.StringIDs)
}

func (f *fake) carveItem(it wire.ReserveItem, key string, since uint64) (allocnode.Range, error) {
	f.entries++
	if key != "" {
		if kept, ok := f.keys[key]; ok {
			if kept.item != it {
				return allocnode.Range{}, allocnode.Errorf(allocnode.CodeConflict,
					"the key was used for another sequence, count or partial")
			}
			return kept.r, nil
		}
		if since > 0 && since < f.floor {
			return allocnode.Range{}, allocnode.Errorf(allocnode.CodeKeyExpired, "the window does not reach back to %d", since)
		}
	}
	s := f.sequenceLocked(it.Sequence)
	remaining := s.Max - s.hwm
	n := it.Count
	switch {
	case s.halted:
		return allocnode.Range{}, &allocnode.Error{Code: allocnode.CodeExhausted, Message: "halted", Remaining: remaining}
	case n > remaining && (!it.Partial || remaining == 0):
		return allocnode.Range{}, &allocnode.Error{Code: allocnode.CodeExhausted, Message: "exhausted", Remaining: remaining}
	}
	n = min(n, remaining)
	r := allocnode.Range{Start: s.hwm + 1, End: s.hwm + 1 + n}
	s.hwm += n
	if key != "" {
		f.keys[key] = fakeKeyed{it, r, f.seq}
		f.recent = append(f.recent, key)
		for len(f.recent) > f.window {
			f.floor = f.keys[f.recent[0]].seq
			delete(f.keys, f.recent[0])
			f.recent = f.recent[1:]
		}
	}
	return r, nil
}

func (f *fake) sequenceLocked(name string) *fakeSequence {
	s := f.sequences[name]
	if s == nil {
		s = &fakeSequence{Settings: wire.Settings{First: 1, Max: allocnode.DefaultMax, MaxCount: f.limit}}
		f.sequences[name] = s
		f.order = append(f.order, name)
	}
	return s
}

func (f *fake) create(name string, m *nats.Msg) []byte {
	q, err := wire.ParseCreate(name, m.Data, wire.Settings{First: 1, Max: allocnode.DefaultMax, MaxCount: f.limit})
	if err != nil {
		return f.refusal(err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.seq++
	s := f.sequences[name]
	if s == nil {
		s = f.sequenceLocked(name)
		s.Settings, s.hwm = q.Settings, q.Settings.First-1
	} else if s.Settings != q.Settings && q.Given != 0 {
		return f.refusal(allocnode.Errorf(allocnode.CodeConflict, "the sequence %s exists with other settings", name))
	}
	return wire.AppendCreateReply(nil, name, s.Settings, f.seq, f.cluster)
}

func (f *fake) advance(name string, m *nats.Msg) []byte {
	q, err := wire.ParseAdvance(name, m.Data)
	if err != nil {
		return f.refusal(err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.seq++
	s := f.sequenceLocked(name)
	old := s.hwm
	s.hwm = max(s.hwm, q.To)
	return wire.AppendAdvanceReply(nil, name, old, s.hwm, f.seq, f.cluster)
}

// next gives ids from batches of three, so that a larger count comes in several ranges; every other batch is another's.
func (f *fake) next(name string, m *nats.Msg) []byte {
	q, err := wire.ParseNext(name, m.Data)
	if err != nil {
		return f.refusal(err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.nexts++
	if f.stranger != "" {
		m.Respond([]byte(f.stranger))
	}
	if f.loseNext > 0 {
		f.loseNext--
		f.sequenceLocked(name).hwm += q.Count // given, and lost on the way
		return nil
	}
	s := f.sequenceLocked(name)
	if s.Max-s.hwm < q.Count {
		return f.refusal(&allocnode.Error{Code: allocnode.CodeExhausted, Message: "exhausted", Remaining: s.Max - s.hwm})
	}
	var ranges []allocnode.Range
	for left := q.Count; left > 0; {
		n := min(left, 3)
		ranges = append(ranges, allocnode.Range{Start: s.hwm + 1, End: s.hwm + 1 + n})
		s.hwm, left = s.hwm+n, left-n
		if left > 0 {
			s.hwm += 3
		}
	}
	return wire.AppendNextReply(nil, name, ranges, q.Count, f.cluster, q.StringIDs)
}

func (f *fake) infoLocked(name string) wire.SequenceInfo {
	s := f.sequences[name]
	return wire.SequenceInfo{Name: name, Settings: s.Settings, HWM: s.hwm, Halted: s.halted}
}

func (f *fake) info(name string, m *nats.Msg) []byte {
	if _, err := wire.ParseInfo(name, m.Data); err != nil {
		return f.refusal(err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.sequences[name] == nil {
		return f.refusal(allocnode.Errorf(allocnode.CodeNotFound, "there is no sequence %s", name))
	}
	info := f.infoLocked(name)
	return wire.AppendInfoReply(nil, &info, f.seq, f.cluster, false)
}

func (f *fake) list(_ string, m *nats.Msg) []byte {
	q, err := wire.ParseList(m.Data)
	if err != nil {
		return f.refusal(err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	q.Limit = min(q.Limit, 3) // small pages, so that there are several
	var page []wire.SequenceInfo
	i := int(q.After)
	for ; i < len(f.order) && len(page) < q.Limit; i++ {
		page = append(page, f.infoLocked(f.order[i]))
	}
	if i == len(f.order) {
		i = 0
	}
	return wire.AppendListReply(nil, page, uint64(i), len(f.order), f.seq, f.cluster, false)
}

func (f *fake) resume(name string, _ *nats.Msg) []byte {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.seq++
	f.sequenceLocked(name).halted = false
	return wire.AppendResumeReply(nil, name, f.seq, f.cluster)
}

func (f *fake) forget(name string, _ *nats.Msg) []byte {
	if name != "n1" {
		return f.refusal(allocnode.Errorf(allocnode.CodeNotFound, "no node %s is named by this cluster", name))
	}
	return wire.AppendForgetReply(nil, name, 7, f.cluster)
}

func (f *fake) status(string, *nats.Msg) []byte {
	b, err := json.Marshal(wire.Status{Name: "n1", Role: wire.RoleAlone, State: wire.StateServing, Ready: true,
		Cluster: f.cluster, Cursor: 9})
	if err != nil {
		f.t.Error(err)
	}
	return b
}

// requests is the bodies of the reserve requests so far.
func (f *fake) requests() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]string(nil), f.bodies...)
}

// client is a client of the fake on a connection of its own.
func (f *fake) client(opts ...client.Option) *client.Client {
	f.t.Helper()
	return newClient(f.t, connect(f.t, f.url), opts...)
}

func newClient(tb testing.TB, nc *nats.Conn, opts ...client.Option) *client.Client {
	tb.Helper()
	c, err := client.New(nc, opts...)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := c.Close(); err != nil {
			tb.Errorf("close: %v", err)
		}
	})
	return c
}

// deadline is a context for what must not take long; a test that runs into it has failed.
func deadline(tb testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	tb.Cleanup(cancel)
	return ctx
}

// taken collects ids and ranges, and fails the test when one comes twice.
type taken struct {
	mu   sync.Mutex
	seen map[uint64]bool
}

func (s *taken) add(tb testing.TB, r allocnode.Range) {
	tb.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.seen == nil {
		s.seen = make(map[uint64]bool)
	}
	for id := r.Start; id < r.End; id++ {
		if s.seen[id] || id == 0 {
			tb.Errorf("id %d came twice", id)
		}
		s.seen[id] = true
	}
}

// hwm is the high-water mark of a sequence.
func (f *fake) hwm(name string) uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.sequences[name].hwm
}
