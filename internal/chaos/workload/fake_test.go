package workload_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/allocnode/allocnode"
	"github.com/allocnode/allocnode/apply"
	"github.com/allocnode/allocnode/internal/chaos/history"
	"github.com/allocnode/allocnode/internal/wire"
)

var (
	cluster  = wire.ID{0xc1}
	defaults = wire.Settings{First: 1, Max: allocnode.DefaultMax, MaxCount: 2000}
)

const keyWindow = 60

// service answers as nodes do, from the real state machine, over a log that is a slice; and as unluckily as nodes do: with
// effects that nobody hears of, late, twice, or not at all.
type service struct {
	t   *testing.T
	nc  *nats.Conn
	url string

	mu       sync.Mutex // guards what follows
	rng      *rand.Rand
	m        *apply.Machine
	messages []history.Message
	counter  uint64
	batch    map[string]allocnode.Range
	requests int
	lists    int
	most     int           // requests after which enough is closed
	enough   chan struct{} // nil once closed

	at    map[int]func()                     // what happens with the n-th request
	fault func(op *wire.Op, o *wire.Outcome) // what a broken node would answer; nil: none
}

// startServer starts a NATS server, which routes to others where it is clustered.
func startServer(t *testing.T, name string, clustered bool, routes ...string) *server.Server {
	t.Helper()
	srv := newServer(t, name, -1, clustered, routes...)
	go srv.Start()
	if !srv.ReadyForConnections(10 * time.Second) {
		t.Fatal("the NATS server does not listen")
	}
	return srv
}

// newServer makes a server that is not started.
func newServer(t *testing.T, name string, port int, clustered bool, routes ...string) *server.Server {
	t.Helper()
	options := &server.Options{ServerName: name, Host: "127.0.0.1", Port: port, NoSigs: true, NoLog: true}
	if clustered {
		options.Cluster = server.ClusterOpts{Name: "c", Host: "127.0.0.1", Port: -1}
		options.Routes = server.RoutesFromStr(strings.Join(routes, ","))
	}
	srv, err := server.NewServer(options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		srv.Shutdown()
		srv.WaitForShutdown()
	})
	return srv
}

func startService(t *testing.T, most int) *service {
	t.Helper()
	return serveAt(t, startServer(t, "n1", false), most)
}

// serveAt has the service at a server; enough is closed after most requests.
func serveAt(t *testing.T, srv *server.Server, most int) *service {
	t.Helper()
	nc, err := nats.Connect(srv.ClientURL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	s := &service{
		t: t, nc: nc, url: srv.ClientURL(), rng: rand.New(rand.NewPCG(1, 2)), m: apply.New(), batch: map[string]allocnode.Range{},
		most: most, enough: make(chan struct{}),
	}
	s.apply(wire.Op{Kind: wire.KindGenesis, Genesis: &wire.Genesis{
		Epoch: 1, Nodes: []string{"n1"}, KeyWindow: keyWindow, EntryWindow: 1024, MaxSequences: 100,
	}})
	if _, err := nc.Subscribe("alloc.>", s.serve); err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	return s
}

// apply puts one operation into the log, in an entry of its own.
func (s *service) apply(op wire.Op) (uint64, wire.Outcome) {
	seq, outcomes := s.applyAll(op)
	return seq, outcomes[0]
}

// applyAll puts operations into the log, in one entry.
func (s *service) applyAll(ops ...wire.Op) (uint64, []wire.Outcome) {
	s.counter++
	seq := uint64(len(s.messages) + 1)
	entry := wire.AppendHeader(nil, &wire.Header{
		ClusterID: cluster, Level: wire.Level, Node: []byte("n1"), ID: wire.EntryID{Incarnation: wire.ID{1}, Counter: s.counter},
		Cursor: seq - 1, AutoCreate: true, Defaults: defaults,
	})
	for i := range ops {
		entry = wire.AppendOp(entry, &ops[i])
	}
	wire.Seal(entry)
	out, _, err := s.m.Apply(seq, entry)
	if err != nil {
		s.t.Errorf("apply seq %d: %v", seq, err)
		return 0, make([]wire.Outcome, len(ops))
	}
	s.messages = append(s.messages, history.Message{Seq: seq, Data: entry})
	return seq, out.Ops
}

func (s *service) serve(m *nats.Msg) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.requests++; s.requests == s.most {
		close(s.enough)
	}
	if do := s.at[s.requests]; do != nil {
		do()
	}
	unlucky := s.rng.IntN(100)
	if unlucky < 4 {
		s.send(m.Reply, wire.AppendErrorReply(nil, allocnode.Errorf(allocnode.CodeUnavailable, "not now"), cluster))
		return
	}
	body := s.answer(m)
	switch {
	case unlucky < 8:
		s.send(m.Reply, wire.AppendErrorReply(nil, allocnode.Errorf(allocnode.CodeUnknownOutcome, "who knows"), cluster))
	case unlucky < 10:
		s.send(m.Reply, []byte(`{"stream":"CAPTURED","seq":3}`))
	case unlucky < 11:
		s.send(m.Reply, nil)
	case unlucky < 12: // lost
	case unlucky < 14:
		time.AfterFunc(400*time.Millisecond, func() { s.send(m.Reply, body) })
	case unlucky < 16:
		s.send(m.Reply, body)
		s.send(m.Reply, body)
	default:
		s.send(m.Reply, body)
	}
}

func (s *service) send(to string, body []byte) {
	_ = s.nc.Publish(to, body) // at the end of the test the connection is gone
}

func (s *service) answer(m *nats.Msg) []byte {
	if m.Subject == "alloc.reserve" {
		return s.list(m.Data)
	}
	action, name, _ := strings.Cut(strings.TrimPrefix(m.Subject, "alloc."), ".")
	var op wire.Op
	var err error
	switch action {
	case "reserve":
		var q wire.ReserveRequest
		q, err = wire.ParseReserve(name, m.Data)
		op = wire.Op{Kind: wire.KindReserve, Name: []byte(name), Count: q.Count, Partial: q.Partial, Key: []byte(q.Key), Since: q.Since}
	case "create":
		var q wire.CreateRequest
		q, err = wire.ParseCreate(name, m.Data, defaults)
		op = wire.Op{Kind: wire.KindCreate, Name: []byte(name), Settings: q.Settings, Given: q.Given}
	case "advance":
		var q wire.AdvanceRequest
		q, err = wire.ParseAdvance(name, m.Data)
		op = wire.Op{Kind: wire.KindAdvance, Name: []byte(name), Count: q.To}
	case "next":
		return s.next(name, m.Data)
	case "info":
		if _, err = wire.ParseInfo(name, m.Data); err == nil {
			seq, _ := s.apply(wire.Op{Kind: wire.KindBarrier})
			if info, ok := s.m.Info(name); ok {
				return wire.AppendInfoReply(nil, &info, seq, cluster, false)
			}
			err = allocnode.Errorf(allocnode.CodeNotFound, "no %s", name)
		}
	default:
		err = fmt.Errorf("a request to %s", m.Subject)
	}
	if err != nil {
		return s.refuse(err)
	}
	seq, o := s.apply(op)
	if s.fault != nil {
		s.fault(&op, &o)
	}
	if err := o.Err(&op); err != nil {
		return s.refuse(err)
	}
	switch op.Kind {
	case wire.KindCreate:
		info, _ := s.m.Info(name)
		return wire.AppendCreateReply(nil, name, info.Settings, seq, cluster)
	case wire.KindAdvance:
		return wire.AppendAdvanceReply(nil, name, o.Start, o.End, seq, cluster)
	}
	return wire.AppendReserveReply(nil, name, allocnode.Range{Start: o.Start, End: o.End}, seq, cluster, false)
}

func (s *service) list(body []byte) []byte {
	q, err := wire.ParseReserve("", body)
	if err != nil {
		return s.refuse(err)
	}
	var ops []wire.Op
	for _, i := range q.List {
		ops = append(ops, wire.Op{
			Kind: wire.KindReserve, Name: []byte(i.Sequence), Count: i.Count, Partial: i.Partial, Key: []byte(i.Key), Since: q.Since,
		})
	}
	s.lists++
	seq, outcomes := s.applyAll(ops...)
	results := make([]wire.ReserveResult, len(ops))
	for i := range ops {
		o, r := &outcomes[i], &results[i]
		if s.fault != nil {
			s.fault(&ops[i], o)
		}
		r.Sequence, r.Range = q.List[i].Sequence, allocnode.Range{Start: o.Start, End: o.End}
		if err := o.Err(&ops[i]); err != nil {
			r.Err = err.(*allocnode.Error)
		}
	}
	return wire.AppendReserveListReply(nil, results, seq, cluster, false)
}

// next gives ids from a batch, and reserves the rest where it holds too few: an answer may have two ranges.
func (s *service) next(name string, body []byte) []byte {
	q, err := wire.ParseNext(name, body)
	if err != nil {
		return s.refuse(err)
	}
	var got []allocnode.Range
	for need := q.Count; need > 0; {
		b := s.batch[name]
		if b.Empty() {
			_, o := s.apply(wire.Op{Kind: wire.KindReserve, Name: []byte(name), Count: 120, Partial: true})
			b = allocnode.Range{Start: o.Start, End: o.End}
		}
		n := min(need, b.Count())
		got = append(got, allocnode.Range{Start: b.Start, End: b.Start + n})
		b.Start += n
		s.batch[name], need = b, need-n
	}
	return wire.AppendNextReply(nil, name, got, q.Count, cluster, false)
}

func (s *service) refuse(err error) []byte {
	refusal, ok := err.(*allocnode.Error)
	if !ok {
		s.t.Errorf("refused with %v", err)
		return nil
	}
	return wire.AppendErrorReply(nil, refusal, cluster)
}
