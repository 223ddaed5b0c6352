package jetstream

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	natsjs "github.com/nats-io/nats.go/jetstream"

	"github.com/allocnode/allocnode/internal/freeport"
)

// logBuffer collects log lines from many goroutines.
type logBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer // guarded by mu
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *logBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

func within(t testing.TB, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

// testConfig is a standalone server on a free port, with text, if not empty, as its configuration file.
func testConfig(t testing.TB, text string) (ServerConfig, *logBuffer) {
	t.Helper()
	logs := &logBuffer{}
	cfg := ServerConfig{
		Name: "n1", DataDir: t.TempDir(), Host: "127.0.0.1", Port: -1,
		Logger: slog.New(slog.NewTextHandler(logs, nil)),
	}
	if text != "" {
		opts, _, err := ParseConfig(writeConfig(t, text))
		if err != nil {
			t.Fatal(err)
		}
		cfg.Options = opts
	}
	return cfg, logs
}

func startServer(t testing.TB, cfg ServerConfig) *Server {
	t.Helper()
	s, err := NewServer(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Start(within(t, 30*time.Second)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Shutdown(within(t, 30*time.Second)); err != nil {
			t.Error(err)
		}
	})
	return s
}

func connected(t testing.TB, nc *nats.Conn, err error) *nats.Conn {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return nc
}

func logConn(t testing.TB, s *Server) *nats.Conn {
	t.Helper()
	nc, err := s.LogConn()
	return connected(t, nc, err)
}

func client(t testing.TB, s *Server, opts ...nats.Option) *nats.Conn {
	t.Helper()
	nc, err := nats.Connect(s.ClientURL(), opts...)
	return connected(t, nc, err)
}

func createStream(t testing.TB, nc *nats.Conn, replicas int) natsjs.JetStream {
	t.Helper()
	js, err := natsjs.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	cfg := natsjs.StreamConfig{Name: "LOG", Subjects: []string{"log.*"}, Replicas: replicas}
	ctx := within(t, 30*time.Second)
	for {
		// There may be no leader of the meta group yet.
		try, cancel := context.WithTimeout(ctx, 2*time.Second)
		_, err = js.CreateStream(try, cfg)
		cancel()
		if err == nil {
			return js
		}
		if ctx.Err() != nil {
			t.Fatalf("create a stream with %d replicas: %v", replicas, err)
		}
	}
}

// answers subscribes on the service's connection and checks that the client's request reaches it.
func answers(t testing.TB, s *Server, c *nats.Conn) {
	t.Helper()
	svc, err := s.ServiceConn()
	connected(t, svc, err)
	sub, err := svc.Subscribe("ask", func(m *nats.Msg) { m.Respond([]byte("yes")) })
	if err != nil {
		t.Fatal(err)
	}
	defer sub.Unsubscribe()
	if err := svc.Flush(); err != nil {
		t.Fatal(err)
	}
	m, err := c.Request("ask", nil, 5*time.Second)
	for ctx := within(t, 30*time.Second); errors.Is(err, nats.ErrNoResponders) && ctx.Err() == nil; {
		// Another node has not heard of the subscription yet.
		m, err = c.Request("ask", nil, 5*time.Second)
	}
	if err != nil || string(m.Data) != "yes" {
		t.Fatalf("request to the service: %v", err)
	}
}

func TestServerDefaults(t *testing.T) {
	cfg, logs := testConfig(t, "")
	begin := time.Now()
	s := startServer(t, cfg)
	js := createStream(t, logConn(t, s), 1)
	if _, err := js.Publish(within(t, 30*time.Second), "log.n1", nil); err != nil {
		t.Fatal(err)
	}
	if d := time.Since(begin); d > 2*time.Second {
		t.Errorf("a fresh node took %v to its first acknowledged entry; want at most 2 s", d)
	}
	if s.Clustered() || s.ClusterAddr() != nil || s.Name() != "n1" || !strings.HasPrefix(s.ClientURL(), "nats://127.0.0.1:") {
		t.Errorf("clustered %v, cluster address %v, name %q, URL %q", s.Clustered(), s.ClusterAddr(), s.Name(), s.ClientURL())
	}
	if err := s.Health(); err != nil {
		t.Error(err)
	}
	if got := s.ns.JetStreamConfig(); !got.SyncAlways || got.StoreDir != filepath.Join(cfg.DataDir, "jetstream") {
		t.Errorf("JetStream: sync always %v, store dir %q", got.SyncAlways, got.StoreDir)
	}
	answers(t, s, client(t, s))
	if out := logs.String(); !strings.Contains(out, "Server is ready") || strings.Contains(out, "Plaintext") ||
		strings.Contains(out, "-----") {
		t.Errorf("log lacks the server's lines, or has misleading ones:\n%s", out)
	}
	if err := s.Start(t.Context()); err == nil {
		t.Error("a second Start succeeded")
	}
}

func TestServerRestartKeepsLog(t *testing.T) {
	cfg, _ := testConfig(t, "")
	s, err := NewServer(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Start(within(t, 30*time.Second)); err != nil {
		t.Fatal(err)
	}
	nc := logConn(t, s)
	if _, err := createStream(t, nc, 1).Publish(within(t, 30*time.Second), "log.n1", []byte("kept")); err != nil {
		t.Fatal(err)
	}
	nc.Close()
	for range 2 { // Shutdown is idempotent
		if err := s.Shutdown(within(t, 30*time.Second)); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Health(); err == nil {
		t.Error("healthy after Shutdown")
	}

	again := startServer(t, cfg)
	js, err := natsjs.New(logConn(t, again))
	if err != nil {
		t.Fatal(err)
	}
	stream, err := js.Stream(within(t, 30*time.Second), "LOG")
	if err != nil {
		t.Fatal(err)
	}
	if m, err := stream.GetMsg(within(t, 30*time.Second), 1); err != nil || string(m.Data) != "kept" {
		t.Fatalf("entry 1 after a restart: %v", err)
	}
}

func TestNewServerRefuses(t *testing.T) {
	for _, tc := range []struct {
		name, text string
		change     func(*ServerConfig)
		want       string
	}{
		{"no name", "", func(c *ServerConfig) { c.Name = "" }, "server_name is not set"},
		{"two names", "server_name: other", nil, `server_name is "other"`},
		{"name with a space", "", func(c *ServerConfig) { c.Name = "a b" }, "white space"},
		{"no data directory", "", func(c *ServerConfig) { c.DataDir = "" }, "store_dir is not set"},
		{"two data directories", "store_dir: elsewhere", nil, `store_dir is "elsewhere"`},
		{"sync interval", "", func(c *ServerConfig) { c.Options = &server.Options{SyncInterval: time.Second} }, "sync_interval"},
		{"account ALLOC", "accounts { ALLOC { } }", nil, "accounts: the account ALLOC is the log's own"},
		{"other log account", "accounts { IDS { } }", func(c *ServerConfig) { c.LogAccount = "IDS" }, "account IDS is the log's own"},
		{"system account", "accounts { A {} }", func(c *ServerConfig) { c.Options.SystemAccount = "ALLOC" }, "system_account"},
		{"leaf account", "leafnodes { port: -1, authorization { account: ALLOC } }", nil, "leafnodes.authorization.account"},
		{"log account's name", "", func(c *ServerConfig) { c.LogAccount = "a b" }, "cannot be named"},
		{"unknown service account", "", func(c *ServerConfig) { c.ServiceAccount = "APP" }, "account APP is not defined"},
		{"service in the log account", "", func(c *ServerConfig) { c.ServiceAccount = "ALLOC" }, "internal"},
		{"service in the system account", "", func(c *ServerConfig) { c.ServiceAccount = "$SYS" }, "internal"},
		{"no cluster name", "cluster { port: -1, routes: [nats://127.0.0.1:1] }", nil, "cluster.name is not set"},
		{"no routes", "cluster { port: -1, name: c }", nil, "cluster.routes is empty"},
		{"no cluster port", "cluster { name: c, routes: [nats://127.0.0.1:1] }", nil, "no cluster.listen"},
		{"operator mode", "", func(c *ServerConfig) { c.Options = &server.Options{TrustedKeys: []string{"OX"}} }, "JWT"},
		{"server's own check", "",
			func(c *ServerConfig) { c.Options = &server.Options{MaxPayload: 2 << 20, MaxPending: 1 << 20} }, "max_pending"},
		{"small max_payload", "max_payload: 64KB", nil, "max_payload is 65536: at least 1048576"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			cfg, _ := testConfig(t, tc.text)
			if tc.change != nil {
				tc.change(&cfg)
			}
			_, err := NewServer(cfg)
			wantError(t, err, "configure nats server", tc.want)
		})
	}
}

// Each of these hangs or is silent in nats-server. Checked by not calling fatal in Fatalf: Start then runs into its
// deadline.
func TestStartFails(t *testing.T) {
	busy, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer busy.Close()
	port := busy.Addr().(*net.TCPAddr).Port
	for _, tc := range []struct {
		name, text string
		change     func(t *testing.T, c *ServerConfig)
		want       []string
	}{
		{"client port in use", "", func(_ *testing.T, c *ServerConfig) { c.Port = port },
			[]string{fmt.Sprint(port), "address already in use", "configure another port"}},
		{"route port in use", fmt.Sprintf("cluster { name: c, listen: \"127.0.0.1:%d\", routes: [nats://127.0.0.1:1] }", port), nil,
			[]string{fmt.Sprint(port), "address already in use", "configure another port"}},
		{"monitoring port in use", fmt.Sprintf("http: \"127.0.0.1:%d\"", port), nil, []string{fmt.Sprint(port), "in use"}},
		{"data directory is a file", "", func(t *testing.T, c *ServerConfig) {
			c.DataDir = filepath.Join(c.DataDir, "file")
			if err := os.WriteFile(c.DataDir, nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}, []string{"Can't start JetStream", "must be a directory"}},
		{"a file where the store goes", "", func(t *testing.T, c *ServerConfig) {
			if err := os.WriteFile(filepath.Join(c.DataDir, "jetstream"), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}, []string{"Can't start JetStream", "must be a directory"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			cfg, _ := testConfig(t, tc.text)
			if tc.change != nil {
				tc.change(t, &cfg)
			}
			s, err := NewServer(cfg)
			if err != nil {
				t.Fatal(err)
			}
			err = s.Start(within(t, 30*time.Second))
			wantError(t, err, append(tc.want, `start nats server "n1"`)...)
			if errors.Is(err, context.DeadlineExceeded) {
				t.Error("Start waited for its deadline")
			}
			if err := s.Shutdown(within(t, 30*time.Second)); err != nil {
				t.Errorf("Shutdown after a failed Start: %v", err)
			}
		})
	}
}

// onLines is a log handler that calls a function for each line that holds its key. It holds no lock meanwhile.
type onLines map[string]func()

func (w onLines) Enabled(context.Context, slog.Level) bool { return true }
func (w onLines) WithAttrs([]slog.Attr) slog.Handler       { return w }
func (w onLines) WithGroup(string) slog.Handler            { return w }
func (w onLines) Handle(_ context.Context, r slog.Record) error {
	for part, f := range w {
		if strings.Contains(r.Message, part) {
			f()
		}
	}
	return nil
}

// Checked by calling abort before started is closed: the server then comes up after its shutdown, and runs on. The wait
// in the logger only gives that fault its chance; correct code never shuts down there.
func TestStartCancelled(t *testing.T) {
	cause := errors.New("enough")
	for _, line := range []string{"Starting nats-server", "Starting JetStream", "Server is ready"} {
		t.Run(line, func(t *testing.T) {
			ctx, cancel := context.WithCancelCause(t.Context())
			cfg, _ := testConfig(t, "")
			down := make(chan struct{})
			logs := onLines{line: func() {
				cancel(cause)
				select {
				case <-down:
				case <-time.After(100 * time.Millisecond):
				}
			}, "Initiating Shutdown": func() { close(down) }}
			cfg.Logger = slog.New(logs)
			s, err := NewServer(cfg)
			if err != nil {
				t.Fatal(err)
			}
			if err := s.Start(ctx); !errors.Is(err, cause) {
				t.Errorf("Start with an ended context: %v; want its cause", err)
			}
			if s.ns.Running() || s.Health() == nil {
				t.Error("the server runs on")
			}
			if err := s.Start(ctx); !errors.Is(err, cause) {
				t.Errorf("Start again: %v; want the cause", err)
			}
		})
	}
}

func TestShutdownBeforeStart(t *testing.T) {
	cfg, _ := testConfig(t, "")
	s, err := NewServer(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Shutdown(within(t, 30*time.Second)); err != nil {
		t.Error(err)
	}
	if err := s.Start(t.Context()); err == nil {
		t.Error("Start after Shutdown succeeded")
	}
}

// Checked by not calling ns.Shutdown where ctx ends: the test then takes the grace of a minute.
func TestShutdownCutShort(t *testing.T) {
	cfg, _ := testConfig(t, `lame_duck_duration: "2m"`+"\n"+`lame_duck_grace_period: "1m"`)
	s := startServer(t, cfg)
	client(t, s)
	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("now")
	cancel(cause)
	begin := time.Now()
	if err := s.Shutdown(ctx); !errors.Is(err, cause) {
		t.Errorf("Shutdown: %v; want the cause", err)
	}
	if d := time.Since(begin); d > 20*time.Second || s.ns.Running() {
		t.Errorf("took %v, running %v", d, s.ns.Running())
	}
}

// Checked by not starting watchJetStream.
func TestFailedReportsJetStreamOff(t *testing.T) {
	cfg, _ := testConfig(t, "")
	s := startServer(t, cfg)
	if err := s.ns.ShutdownJetStream(); err != nil { // what the server does by itself when the disk is full
		t.Fatal(err)
	}
	select {
	case err := <-s.Failed():
		wantError(t, err, "turned JetStream off", cfg.DataDir)
	case <-within(t, 30*time.Second).Done():
		t.Fatal("no report")
	}
	if err := s.Health(); err == nil {
		t.Error("healthy without JetStream")
	}
}

func TestFailedReportsFatal(t *testing.T) {
	cfg, logs := testConfig(t, "")
	s := startServer(t, cfg)
	s.ns.Fatalf("the %s\nfell over", "cat")
	wantError(t, <-s.Failed(), "the cat fell over")
	if !strings.Contains(logs.String(), "level=ERROR") {
		t.Error("nothing logged as an error")
	}
}

func TestClusterOfThree(t *testing.T) {
	ports, err := freeport.Take(3)
	if err != nil {
		t.Fatal(err)
	}
	var routes []string
	for _, p := range ports {
		routes = append(routes, fmt.Sprintf("nats://127.0.0.1:%d", p))
	}
	servers := make([]*Server, 3)
	for i, p := range ports {
		cfg, _ := testConfig(t, fmt.Sprintf(
			`cluster { name: c, listen: "127.0.0.1:%d", routes: [%s] }`, p, strings.Join(routes, ", ")))
		cfg.Name = fmt.Sprintf("n%d", i+1)
		servers[i] = startServer(t, cfg)
		if !servers[i].Clustered() || servers[i].ClusterAddr() == nil {
			t.Fatalf("n%d does not know that it is clustered", i+1)
		}
	}
	begin := time.Now()
	js := createStream(t, logConn(t, servers[0]), 3)
	t.Logf("R3 stream after %v", time.Since(begin))
	if _, err := js.Publish(within(t, 30*time.Second), "log.n1", nil); err != nil {
		t.Fatal(err)
	}
	if err := servers[0].Health(); err != nil {
		t.Error(err)
	}

	begin = time.Now()
	if err := servers[2].Shutdown(within(t, 30*time.Second)); err != nil {
		t.Fatal(err)
	}
	t.Logf("orderly shutdown took %v", time.Since(begin))
	begin = time.Now()
	ctx := within(t, 30*time.Second)
	for {
		// The id makes a retry harmless: a publish that meets a leader in the act of leaving gets no answer.
		try, cancel := context.WithTimeout(ctx, 2*time.Second)
		_, err := js.Publish(try, "log.n1", nil, natsjs.WithMsgID("second"))
		cancel()
		if err == nil {
			break
		}
		if ctx.Err() != nil {
			t.Fatalf("publish with two of three nodes: %v", err)
		}
	}
	t.Logf("published %v after the shutdown", time.Since(begin))
	answers(t, servers[0], client(t, servers[1])) // also from another node
}
