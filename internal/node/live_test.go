package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/allocnode/allocnode"
	"github.com/allocnode/allocnode/internal/wire"
)

// logbook keeps what a node logs, and shows it when its test has failed.
type logbook struct {
	mu    sync.Mutex // guards lines
	lines []string
}

func (b *logbook) Enabled(_ context.Context, l slog.Level) bool { return l >= slog.LevelInfo }
func (b *logbook) WithAttrs([]slog.Attr) slog.Handler           { return b }
func (b *logbook) WithGroup(string) slog.Handler                { return b }
func (b *logbook) Handle(_ context.Context, r slog.Record) error {
	line := r.Time.Format("05.000 ") + r.Level.String() + " " + r.Message
	r.Attrs(func(a slog.Attr) bool { line += " " + a.String(); return true })
	b.mu.Lock()
	defer b.mu.Unlock()
	b.lines = append(b.lines, line)
	return nil
}

// count is how many lines hold words.
func (b *logbook) count(words string) (n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, l := range b.lines {
		if strings.Contains(l, words) {
			n++
		}
	}
	return n
}

// live is a node that runs.
type live struct {
	*Node
	t    *testing.T
	name string
	log  *logbook
	stop context.CancelCauseFunc
	done chan struct{} // closed when Run has returned
	err  error         // what it returned
}

// run starts a node with cfg.
func run(t *testing.T, cfg Config) *live {
	t.Helper()
	l := &live{t: t, name: cfg.Name, log: &logbook{}, done: make(chan struct{})}
	cfg.Logger = slog.New(l.log)
	var err error
	if l.Node, err = New(cfg); err != nil {
		t.Fatal(err)
	}
	var ctx context.Context
	ctx, l.stop = context.WithCancelCause(context.Background())
	go func() {
		defer close(l.done)
		l.err = l.Run(ctx)
	}()
	t.Cleanup(func() {
		l.end()
		if t.Failed() {
			l.log.mu.Lock()
			defer l.log.mu.Unlock()
			lines := l.log.lines
			t.Logf("%s:\n%s", l.name, strings.Join(lines[max(0, len(lines)-80):], "\n"))
		}
	})
	return l
}

// end stops the node in order.
func (l *live) end() {
	l.t.Helper()
	l.stop(errors.New("the test stops this node"))
	select {
	case <-l.done:
	case <-time.After(liveWait):
		l.t.Errorf("%s does not stop", l.name)
	}
}

// ended wants Run to return within a while, with an error that holds words.
func (l *live) ended(words string) {
	l.t.Helper()
	select {
	case <-l.done:
	case <-time.After(liveWait):
		l.t.Fatalf("%s runs on: want an error with %q", l.name, words)
	}
	if l.err == nil || !strings.Contains(l.err.Error(), words) {
		l.t.Fatalf("%s ended with %v: want %q", l.name, l.err, words)
	}
}

// liveWait is how long a test waits for what running nodes do by themselves: several elections, on a machine that is busy.
const liveWait = 90 * time.Second

// eventually wants check to return nil within a while.
func eventually(t *testing.T, check func() error) {
	t.Helper()
	deadline := time.Now().Add(liveWait)
	for {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("within %s: %v", liveWait, err)
		}
		time.Sleep(20 * time.Millisecond) // between two looks
	}
}

// becomes waits for a state, with a reason that holds words.
func (l *live) becomes(state, words string) {
	l.t.Helper()
	eventually(l.t, func() error {
		select {
		case <-l.done:
			l.t.Fatalf("%s has ended: %v", l.name, l.err)
		default:
		}
		if s := l.Status(); s.State != state || !strings.Contains(s.Reason, words) {
			return fmt.Errorf("%s is %s (%q): want %s (%q)", l.name, s.State, s.Reason, state, words)
		}
		return nil
	})
}

// connect is a client's connection.
func (l *live) connect(opts ...nats.Option) *nats.Conn {
	l.t.Helper()
	select {
	case <-l.Started():
	case <-l.done:
		l.t.Fatalf("%s has ended: %v", l.name, l.err)
	case <-time.After(liveWait):
		l.t.Fatalf("%s has not started", l.name)
	}
	opts = append([]nats.Option{nats.MaxReconnects(-1), nats.ReconnectWait(50 * time.Millisecond)}, opts...)
	nc, err := nats.Connect(l.ClientURL(), opts...)
	if err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(nc.Close)
	return nc
}

// api asks JetStream in the log's account. What is asked of a stream whose leader has just gone is lost, or refused for now:
// it is asked again. So it must bear being carried out twice; a lead that steps down twice has still moved, as a rule.
func (l *live) api(subject string, body any) (answer string) {
	l.t.Helper()
	nc, err := l.server.LogConn()
	if err != nil {
		l.t.Fatal(err)
	}
	defer nc.Close()
	var data []byte
	if body != nil {
		if data, err = json.Marshal(body); err != nil {
			l.t.Fatal(err)
		}
	}
	eventually(l.t, func() error {
		m, err := nc.Request("$JS.API."+subject, data, 2*time.Second)
		if err != nil {
			return fmt.Errorf("%s: %w", subject, err)
		}
		answer = string(m.Data)
		if strings.Contains(answer, `"code":503`) {
			return fmt.Errorf("%s: %s", subject, answer)
		}
		return nil
	})
	return answer
}

// reply is any answer of the service.
type reply struct {
	Sequence string           `json:"sequence"`
	Start    uint64           `json:"start"`
	End      uint64           `json:"end"`
	HWM      uint64           `json:"hwm"`
	Seq      uint64           `json:"seq"`
	Cluster  wire.ID          `json:"cluster"`
	Error    *allocnode.Error `json:"error"`
}

func (r reply) rng() allocnode.Range { return allocnode.Range{Start: r.Start, End: r.End} }

// try makes one request. An error is the service's, or that there was no answer.
func try(nc *nats.Conn, subject, body string) (reply, error) {
	m, err := nc.Request(subject, []byte(body), 5*time.Second)
	if err != nil {
		return reply{}, err
	}
	var r reply
	if err := json.Unmarshal(m.Data, &r); err != nil {
		return reply{}, fmt.Errorf("%s: answered %q: %w", subject, m.Data, err)
	}
	if r.Error != nil {
		return r, r.Error
	}
	return r, nil
}

// must repeats a request until it succeeds. Give it a key, or the ranges of tries that got lost are gaps.
func must(t *testing.T, nc *nats.Conn, subject, body string) (r reply) {
	t.Helper()
	eventually(t, func() (err error) {
		r, err = try(nc, subject, body)
		if err != nil {
			return fmt.Errorf("%s %s: %w", subject, body, err)
		}
		return nil
	})
	return r
}

// refused wants one request to be refused with an error of a kind.
func refused(t *testing.T, nc *nats.Conn, subject, body string, want error) {
	t.Helper()
	if r, err := try(nc, subject, body); !errors.Is(err, want) {
		t.Errorf("%s %s: answered %+v, %v: want %v", subject, body, r, err, want)
	}
}

// config is a node of its own from a file, whose directory is base/name.
func config(t *testing.T, base, name, text string) Config {
	t.Helper()
	path := filepath.Join(base, name+".conf")
	text = fmt.Sprintf("server_name: %s\nlisten: \"127.0.0.1:-1\"\njetstream { store_dir: %q }\n%s",
		name, filepath.Join(base, name), text)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg := DefaultConfig()
	if err := cfg.LoadConfig(path, nil); err != nil {
		t.Fatal(err)
	}
	return cfg
}

// remove deletes files of a node that does not run.
func remove(t *testing.T, path ...string) {
	t.Helper()
	if err := os.RemoveAll(filepath.Join(path...)); err != nil {
		t.Fatal(err)
	}
}
