package service

import (
	"context"
	"encoding/json"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/allocnode/allocnode"
	"github.com/allocnode/allocnode/internal/next"
	"github.com/allocnode/allocnode/internal/propose"
	"github.com/allocnode/allocnode/internal/wire"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
)

var (
	testCluster = wire.ID{0xc1, 15: 0x01}
	wait        = 10 * time.Second // bounds what must happen; nothing takes that long
)

// fakeLog is a log and a state in one: every request is an entry that is applied at once, unless hold says otherwise.
type fakeLog struct {
	mu         sync.Mutex
	seq        uint64
	seqs       []wire.SequenceInfo
	submitted  []wire.Op
	held       []*propose.Request
	hold       bool                       // keep requests until release
	reject     func(*wire.Op) wire.Reject // nil accepts
	err        error                      // the answer to every request
	short      bool                       // return one outcome too few
	behind     uint64                     // how far Cursor lags behind
	hide       bool                       // Info knows nothing
	afterwards func()                     // called after each Done
	instant    bool                       // accept without looking, for benchmarks
	arrived    chan struct{}              // gets a token for each request that is held

	takes []*next.Request // that Take has seen, in order
	given uint64          // ids that Take has given: it begins at 1, and leaves out every tenth
}

func newFakeLog() *fakeLog { return &fakeLog{arrived: make(chan struct{}, 4096)} }

func (l *fakeLog) Submit(r *propose.Request) {
	l.mu.Lock()
	if l.hold {
		l.held = append(l.held, r)
		l.mu.Unlock()
		l.arrived <- struct{}{}
		return
	}
	l.mu.Unlock()
	l.apply(r)
}

// Take gives ids as a pool does, at once; or err, or nothing while hold is set: then release gives.
func (l *fakeLog) Take(r *next.Request) {
	l.mu.Lock()
	l.takes = append(l.takes, r)
	if l.hold {
		l.mu.Unlock()
		l.arrived <- struct{}{}
		return
	}
	l.mu.Unlock()
	l.give(r)
}

func (l *fakeLog) give(r *next.Request) {
	l.mu.Lock()
	var ranges []allocnode.Range
	for range r.Count {
		if l.given++; l.given%10 == 0 {
			l.given++
		}
		if n := len(ranges); n > 0 && ranges[n-1].End == l.given {
			ranges[n-1].End++
		} else {
			ranges = append(ranges, allocnode.Range{Start: l.given, End: l.given + 1})
		}
	}
	err := l.err
	l.mu.Unlock()
	if err != nil {
		r.Done(nil, err)
		return
	}
	r.Done(ranges, nil)
	clear(ranges) // valid during the call only
}

// taken returns the requests that Take has seen, and forgets them.
func (l *fakeLog) taken() []*next.Request {
	l.mu.Lock()
	defer l.mu.Unlock()
	takes := l.takes
	l.takes = nil
	return takes
}

// release applies what is held, in order.
func (l *fakeLog) release() {
	l.mu.Lock()
	held := l.held
	l.held, l.hold = nil, false
	l.mu.Unlock()
	for _, r := range held {
		l.apply(r)
	}
}

func (l *fakeLog) apply(r *propose.Request) {
	l.mu.Lock()
	if l.err != nil {
		l.mu.Unlock()
		r.Done(propose.Result{Err: l.err})
		return
	}
	l.seq++
	if l.instant {
		res := propose.Result{Seq: l.seq, Outcomes: []wire.Outcome{{Start: l.seq*10 + 1, End: l.seq*10 + 11}}}
		l.mu.Unlock()
		r.Done(res)
		return
	}
	ops := decodeOps(r.Ops)
	if len(ops) != r.N {
		panic("Request.N is not the number of operations")
	}
	l.submitted = append(l.submitted, ops...)
	res := propose.Result{Seq: l.seq}
	for i := range ops {
		res.Outcomes = append(res.Outcomes, l.applyOp(&ops[i]))
	}
	if l.short {
		res.Outcomes = res.Outcomes[1:]
	}
	l.mu.Unlock()
	for i := range r.Ops { // the proposer owns them: it may write there
		r.Ops[i] = 0xee
	}
	r.Done(res)
	clear(res.Outcomes) // valid during the call only
	if l.afterwards != nil {
		l.afterwards()
	}
}

func (l *fakeLog) applyOp(op *wire.Op) wire.Outcome {
	if l.reject != nil {
		if why := l.reject(op); why != wire.Accepted {
			return wire.Outcome{Reject: why, Remaining: 3}
		}
	}
	switch op.Kind {
	case wire.KindReserve, wire.KindCreate, wire.KindAdvance:
	default:
		return wire.Outcome{}
	}
	var s *wire.SequenceInfo
	for i := range l.seqs {
		if l.seqs[i].Name == string(op.Name) {
			s = &l.seqs[i]
		}
	}
	if s == nil {
		settings := wire.Settings{First: 1, Max: allocnode.DefaultMax, MaxCount: 1000}
		if op.Kind == wire.KindCreate {
			settings = op.Settings
		}
		l.seqs = append(l.seqs, wire.SequenceInfo{Name: string(op.Name), Settings: settings, HWM: settings.First - 1})
		s = &l.seqs[len(l.seqs)-1]
	}
	old := s.HWM
	switch op.Kind {
	case wire.KindReserve:
		s.HWM += op.Count
		return wire.Outcome{Start: old + 1, End: s.HWM + 1}
	case wire.KindAdvance:
		s.HWM = max(old, op.Count)
		return wire.Outcome{Start: old, End: s.HWM}
	}
	return wire.Outcome{}
}

func decodeOps(ops []byte) []wire.Op {
	h := wire.Header{ClusterID: testCluster, Level: 1, Node: []byte("n1"), ID: wire.EntryID{Incarnation: wire.ID{1}, Counter: 1},
		Defaults: wire.Settings{First: 1, Max: 1, MaxCount: 1}}
	b := append(wire.AppendHeader(nil, &h), ops...)
	wire.Seal(b)
	var e wire.Entry
	if err := wire.DecodeEntry(b, &e); err != nil {
		panic(err)
	}
	return e.Ops
}

func (l *fakeLog) Info(name string) (wire.SequenceInfo, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range l.seqs {
		if s.Name == name && !l.hide {
			return s, true
		}
	}
	return wire.SequenceInfo{}, false
}

func (l *fakeLog) List(after uint64, limit int) ([]wire.SequenceInfo, uint64, int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := uint64(len(l.seqs))
	from := min(after, n)
	to := min(from+uint64(limit), n)
	next := to
	if to == n {
		next = 0
	}
	return append([]wire.SequenceInfo(nil), l.seqs[from:to]...), next, len(l.seqs)
}

func (l *fakeLog) Cursor() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.seq - l.behind
}

// ops returns what has reached the log, and forgets it.
func (l *fakeLog) ops() []wire.Op {
	l.mu.Lock()
	defer l.mu.Unlock()
	ops := l.submitted
	l.submitted = nil
	return ops
}

func (l *fakeLog) set(f func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f()
}

// fixture is a server, a service on it, and a client.
type fixture struct {
	t    testing.TB
	url  string
	log  *fakeLog
	svc  *Service
	conn *nats.Conn // the service's
	nc   *nats.Conn // a client's
}

func startServer(t testing.TB, tune func(*server.Options)) string {
	t.Helper()
	opts := &server.Options{Host: "127.0.0.1", Port: -1, NoSigs: true, NoLog: true}
	if tune != nil {
		tune(opts)
	}
	srv, err := server.NewServer(opts)
	if err != nil {
		t.Fatal(err)
	}
	go srv.Start()
	t.Cleanup(func() { srv.Shutdown(); srv.WaitForShutdown() })
	if !srv.ReadyForConnections(wait) {
		t.Fatal("the server does not start")
	}
	return srv.ClientURL()
}

func connect(t testing.TB, url string) *nats.Conn {
	t.Helper()
	nc, err := nats.Connect(url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return nc
}

func testConfig() Config {
	cfg := DefaultConfig()
	cfg.Node, cfg.Version = "n1", "1.2.3"
	cfg.Defaults.MaxCount = 1000
	return cfg
}

// start makes a service that was started, and serves if serving.
func start(t testing.TB, serving bool, tune func(*Config)) *fixture {
	t.Helper()
	return startOn(t, startServer(t, nil), serving, tune)
}

func startOn(t testing.TB, url string, serving bool, tune func(*Config)) *fixture {
	t.Helper()
	cfg := testConfig()
	if tune != nil {
		tune(&cfg)
	}
	if err := cfg.Validate(); err != nil {
		t.Fatal(err)
	}
	f := &fixture{t: t, url: url, log: newFakeLog(), conn: connect(t, url), nc: connect(t, url)}
	status := func() wire.Status {
		return wire.Status{Name: cfg.Node, Cluster: testCluster, State: wire.StateFenced, Reason: "why"}
	}
	f.svc = New(f.conn, cfg, f.log, f.log, f.log, f.log, status)
	if err := f.svc.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.svc.Close(deadline(t)); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	if serving {
		f.serve()
	}
	f.flush()
	return f
}

func deadline(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), wait)
	t.Cleanup(cancel)
	return ctx
}

func (f *fixture) serve() {
	f.t.Helper()
	if err := f.svc.StartServing(testCluster, true); err != nil {
		f.t.Fatal(err)
	}
	if err := f.svc.StartOperators(testCluster); err != nil && !strings.Contains(err.Error(), "twice") {
		f.t.Fatal(err)
	}
	f.flush()
}

// flush lets the server see what the service has subscribed to.
func (f *fixture) flush() {
	f.t.Helper()
	if err := f.conn.Flush(); err != nil {
		f.t.Fatal(err)
	}
}

func (f *fixture) request(subject, body string) *nats.Msg {
	f.t.Helper()
	m, err := f.nc.Request(subject, []byte(body), wait)
	if err != nil {
		f.t.Fatalf("request %s %.60q: %v", subject, body, err)
	}
	if !json.Valid(m.Data) {
		f.t.Errorf("%s %.60q was answered with %q", subject, body, m.Data)
	}
	return m
}

// want requests, and compares the answer; a leading { … ,"seq":N is given without the cluster that ends it.
func (f *fixture) want(subject, body, want string) {
	f.t.Helper()
	want += `,"cluster":"` + testCluster.String() + `"}`
	m := f.request(subject, body)
	if string(m.Data) != want || len(m.Header) != 0 {
		f.t.Errorf("%s %.60q:\ngot  %s %v\nwant %s", subject, body, m.Data, m.Header, want)
	}
}

// refused requests, and checks code and message in header and body.
func (f *fixture) refused(subject, body string, code allocnode.Code, message string) {
	f.t.Helper()
	m := f.request(subject, body)
	var got struct {
		Error   struct{ Code, Message string }
		Cluster wire.ID
	}
	err := json.Unmarshal(m.Data, &got)
	if err != nil || got.Error.Code != string(code) || !strings.Contains(got.Error.Message, message) || got.Cluster != testCluster {
		f.t.Errorf("%.60s %.60q: got %s (%v), want %s with %q", subject, body, m.Data, err, code, message)
	}
	if h := m.Header.Get("Nats-Service-Error"); h != got.Error.Message {
		f.t.Errorf("%.60s %.60q: header %q, body %q", subject, body, h, got.Error.Message)
	}
	if h, want := m.Header.Get("Nats-Service-Error-Code"), statusText[code]; h != want {
		f.t.Errorf("%.60s %.60q: header code %q, want %q", subject, body, h, want)
	}
}

// statusText is DESIGN's table, on purpose not taken from the code.
var statusText = map[allocnode.Code]string{
	"bad_request": "400", "not_found": "404", "conflict": "409", "exhausted": "410", "key_expired": "410", "too_large": "413",
	"fenced": "503", "unavailable": "503", "unknown_outcome": "504",
}
