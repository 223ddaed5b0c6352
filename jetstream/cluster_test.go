package jetstream

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	natsjs "github.com/nats-io/nats.go/jetstream"

	"github.com/allocnode/allocnode/internal/freeport"
	"github.com/allocnode/allocnode/internal/wire"
)

// logTestServer is one server that is alone, with JetStream and every write synced.
func logTestServer(t testing.TB) *server.Server {
	t.Helper()
	return logTestStart(t, &server.Options{JetStream: true, StoreDir: t.TempDir(), SyncAlways: true})
}

// logTestCluster is three such servers, and returns when they have a leader of all.
func logTestCluster(t testing.TB) []*server.Server {
	t.Helper()
	var routes, addresses []string
	ports, err := freeport.Take(3)
	logTestOK(t, err)
	for _, p := range ports {
		address := net.JoinHostPort("127.0.0.1", strconv.Itoa(p))
		addresses = append(addresses, address)
		routes = append(routes, "nats://"+address)
	}
	var servers []*server.Server
	for i, address := range addresses {
		_, port, err := net.SplitHostPort(address)
		logTestOK(t, err)
		o := &server.Options{JetStream: true, StoreDir: t.TempDir(), SyncAlways: true, ServerName: fmt.Sprintf("n%d", i+1)}
		o.Cluster = server.ClusterOpts{Name: "c", Host: "127.0.0.1"}
		o.Cluster.Port, err = strconv.Atoi(port)
		logTestOK(t, err)
		for _, r := range routes {
			o.Routes = append(o.Routes, server.RoutesFromStr(r)...)
		}
		servers = append(servers, logTestBegin(t, o))
	}
	for _, s := range servers {
		logTestReady(t, s)
	}
	return servers
}

// logTestStart is a server under o, which listens on the loopback only.
func logTestStart(t testing.TB, o *server.Options) *server.Server {
	t.Helper()
	s := logTestBegin(t, o)
	logTestReady(t, s)
	return s
}

func logTestBegin(t testing.TB, o *server.Options) *server.Server {
	t.Helper()
	o.Host, o.Port, o.NoLog, o.NoSigs = "127.0.0.1", server.RANDOM_PORT, true, true
	s, err := server.NewServer(o)
	logTestOK(t, err)
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	go s.Start()
	return s
}

func logTestReady(t testing.TB, s *server.Server) {
	t.Helper()
	if !s.ReadyForConnections(20 * time.Second) {
		t.Fatalf("server %s is not ready after 20 s", s.Name())
	}
}

func logTestConnect(t testing.TB, s *server.Server) *nats.Conn {
	t.Helper()
	// Slow consumers are counted by the tests that make them; the default handler would print.
	nc, err := nats.Connect("", nats.InProcessServer(s), nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
	logTestOK(t, err)
	t.Cleanup(nc.Close)
	return nc
}

func logTestNew(t testing.TB, nc *nats.Conn, cfg LogConfig, node string) *Log {
	t.Helper()
	l, err := NewLog(nc, cfg, node)
	logTestOK(t, err)
	t.Cleanup(l.Close)
	return l
}

// logTestAlone is a log on a server that is alone, created under logTestID(1) and epoch 1.
func logTestAlone(t testing.TB) (*Log, *nats.Conn) {
	t.Helper()
	nc := logTestConnect(t, logTestServer(t))
	l := logTestNew(t, nc, LogConfig{}, "n1")
	_, err := l.Create(logTestCtx(t), logTestID(1), 1)
	logTestOK(t, err)
	return l, nc
}

func logTestID(b byte) wire.ID { return wire.ID{15: b} }

// logTestCtx is long enough for an election on a busy machine.
func logTestCtx(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func logTestOK(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func logTestIs(t testing.TB, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Fatalf("error %v: want %v", err, want)
	}
}

// logTestRecv is the next value of ch.
func logTestRecv[T any](t testing.TB, ch <-chan T) T {
	t.Helper()
	select {
	case v := <-ch:
		return v
	case <-time.After(30 * time.Second):
		t.Fatal("nothing came within 30 s")
		panic("unreachable")
	}
}

// logTestFill appends n entries, "1" to "n", and returns when each has its seq.
func logTestFill(t testing.TB, l *Log, n int) {
	t.Helper()
	acks := make(chan Ack, n)
	l.OnAck(func(_ uint64, a Ack) { acks <- a })
	for i := range n {
		logTestOK(t, l.Append(uint64(i), fmt.Sprintf("fill-%d", i+1), fmt.Append(nil, i+1)))
	}
	for i := range n {
		if a := logTestRecv(t, acks); a.Err != nil || a.Seq != uint64(i+1) {
			t.Fatalf("ack %d of %d is %+v", i+1, n, a)
		}
	}
}

// logTestMust asks JetStream's API and fails on an error answer.
func logTestMust(t testing.TB, nc *nats.Conn, verb string, req any) {
	t.Helper()
	var any struct{}
	logTestOK(t, call(logTestCtx(t), nc, verb, req, &any))
}

// logTestFake answers in the place of JetStream, on a server that has none, so that a test decides what replicas and leader say.
type logTestFake struct {
	t  testing.TB
	nc *nats.Conn

	mu      sync.Mutex
	direct  []func(m *nats.Msg, seq uint64) // answers to direct gets, one each; the last stays
	info    natsjs.StreamInfo
	leader  map[uint64]string // what the leader holds
	ignored int               // how many STREAM.INFO are still to be left without an answer
	unknown int               // how many are still to be told that there is no stream
	asked   int               // how many came
}

func logTestFakeLog(t testing.TB) (*Log, *logTestFake) {
	t.Helper()
	s := logTestStart(t, &server.Options{})
	l := logTestNew(t, logTestConnect(t, s), LogConfig{}, "n1")
	f := &logTestFake{t: t, nc: logTestConnect(t, s), leader: make(map[uint64]string)}
	f.info.Config = l.streamConfig(logTestID(1), 1)
	f.info.Cluster = &natsjs.ClusterInfo{Leader: "n2"}
	f.info.State = natsjs.StreamState{FirstSeq: 1, LastSeq: 100}
	f.on("DIRECT.GET."+l.stream, func(m *nats.Msg) {
		var req seqRequest
		if err := json.Unmarshal(m.Data, &req); err != nil {
			t.Errorf("direct get %q: %v", m.Data, err)
		}
		answer := f.direct[0]
		if len(f.direct) > 1 {
			f.direct = f.direct[1:]
		}
		answer(m, req.Seq)
	})
	f.on("STREAM.INFO."+l.stream, func(m *nats.Msg) {
		f.asked++
		if f.ignored > 0 {
			f.ignored--
			return
		}
		if f.unknown > 0 {
			f.unknown--
			f.json(m, map[string]any{"error": natsjs.APIError{Code: 404, ErrorCode: codeNoStream}})
			return
		}
		f.json(m, f.info)
	})
	f.on("STREAM.MSG.GET."+l.stream, func(m *nats.Msg) {
		var req seqRequest
		if err := json.Unmarshal(m.Data, &req); err != nil {
			t.Errorf("get %q: %v", m.Data, err)
		}
		if data, ok := f.leader[req.Seq]; ok {
			f.json(m, map[string]any{"message": map[string]any{"seq": req.Seq, "subject": "alloc.log.x", "data": []byte(data)}})
			return
		}
		f.json(m, map[string]any{"error": natsjs.APIError{Code: 404, ErrorCode: codeNoMessage}})
	})
	logTestOK(t, f.nc.Flush())
	return l, f
}

func (f *logTestFake) on(verb string, fn func(*nats.Msg)) {
	f.t.Helper()
	_, err := f.nc.Subscribe(apiPrefix+verb, func(m *nats.Msg) {
		f.mu.Lock()
		defer f.mu.Unlock()
		fn(m)
	})
	logTestOK(f.t, err)
}

func (f *logTestFake) json(m *nats.Msg, v any) {
	b, err := json.Marshal(v)
	if err == nil {
		err = m.Respond(b)
	}
	if err != nil {
		f.t.Error(err)
	}
}

// send is one message of a batch, prev the one that the replica says it sent before.
func (f *logTestFake) send(m *nats.Msg, seq, prev uint64) { f.sendPending(m, seq, prev, 0) }

// sendPending is send where the replica says that pending follow.
func (f *logTestFake) sendPending(m *nats.Msg, seq, prev, pending uint64) {
	f.respond(m, nats.Header{
		numPendingHeader:          {strconv.FormatUint(pending, 10)},
		natsjs.StreamHeader:       {"ALLOC_LOG"},
		natsjs.SubjectHeader:      {"alloc.log.x"},
		natsjs.SequenceHeader:     {strconv.FormatUint(seq, 10)},
		natsjs.LastSequenceHeader: {strconv.FormatUint(prev, 10)},
	}, fmt.Append(nil, seq))
}

// end ends a batch whose last message was last, with pending more to come.
func (f *logTestFake) end(m *nats.Msg, last, pending uint64) {
	f.respond(m, nats.Header{
		"Status":                  {"204"},
		natsjs.LastSequenceHeader: {strconv.FormatUint(last, 10)},
		numPendingHeader:          {strconv.FormatUint(pending, 10)},
	}, nil)
}

func (f *logTestFake) respond(m *nats.Msg, h nats.Header, data []byte) {
	if err := m.RespondMsg(&nats.Msg{Header: h, Data: data}); err != nil {
		f.t.Error(err)
	}
}
