package systems

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	natsjs "github.com/nats-io/nats.go/jetstream"

	"github.com/allocnode/allocnode/bench/load"
	"github.com/allocnode/allocnode/internal/freeport"
)

func TestRowsAreDistinct(t *testing.T) {
	seen := map[string]bool{}
	for _, s := range All() {
		if len(s.Rows) == 0 || s.Start == nil {
			t.Errorf("%s has nothing to measure", s.Name)
		}
		for _, row := range s.Rows {
			if seen[row.Name] || row.Name == "" || row.Durability == "" {
				t.Errorf("%q is there twice, or says too little", row.Name)
			}
			seen[row.Name] = true
		}
	}
}

// What needs no program of others is really driven: every row is there, hands out ids that differ, and says who closes it.
func TestSystemsOfThisProcess(t *testing.T) {
	for _, s := range []System{allocnodeR1(), disk(), generators()} {
		t.Run(s.Name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			opens, stop, err := s.Start(ctx, Env{Dir: t.TempDir(), Conns: 2, Pool: 2, Log: io.Discard})
			defer stop()
			if err != nil {
				t.Fatal(err)
			}
			for _, row := range s.Rows {
				callers := 3
				if row.Only != nil {
					callers = row.Only[0]
				}
				l, err := opens[row.Name](ctx, callers)
				if err != nil {
					t.Fatalf("%s: %v", row.Name, err)
				}
				if len(l.Draws) != callers {
					t.Errorf("%s: %d callers, want %d", row.Name, len(l.Draws), callers)
				}
				ids := make([]load.ID, max(1, l.Chunk))
				seen := map[load.ID]bool{}
				for _, draw := range l.Draws {
					if err := draw(ctx, ids); err != nil {
						t.Fatalf("%s: %v", row.Name, err)
					}
					for _, id := range ids {
						if !row.NoIDs && (seen[id] || id == load.ID{}) {
							t.Fatalf("%s: id %v after %d others", row.Name, id, len(seen))
						}
						seen[id] = true
					}
				}
				if l.Close != nil {
					l.Close()
				}
			}
		})
	}
}

func start(t *testing.T, script string) *serverProcess {
	t.Helper()
	cmd, err := child(nil, io.Discard, t.TempDir(), "/bin/sh", "-c", script)
	if err != nil {
		t.Fatal(err)
	}
	p, err := startProcess(cmd)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.stop(syscall.SIGKILL) })
	return p
}

func TestProcess(t *testing.T) {
	p := start(t, "exec sleep 1000")
	p.stop(syscall.SIGTERM)
	if err := syscall.Kill(p.cmd.Process.Pid, 0); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("after stop: %v", err)
	}

	never := func(context.Context) error { return errors.New("connection refused") }
	p = start(t, "exit 3")
	if err := p.await(t.Context(), never); err == nil || !strings.Contains(err.Error(), "exit status 3") {
		t.Errorf("awaiting what has ended: %v", err)
	}
	p = start(t, "exec sleep 1000")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := p.await(ctx, never); err == nil || !strings.Contains(err.Error(), "connection refused") {
		t.Errorf("awaiting without time: %v", err)
	}
	if err := p.await(t.Context(), func(context.Context) error { return nil }); err != nil {
		t.Error(err)
	}
}

// A command that is interrupted takes its children along. Checked: with a kill of the process alone its child went on.
func TestRunProcessIsInterrupted(t *testing.T) {
	r, w := io.Pipe()
	cmd, err := child(nil, w, t.TempDir(), "/bin/sh", "-c", "sleep 1000 & echo $!; wait")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var pid int
	go func() { // the child is there when its number is
		defer cancel()
		_, _ = fmt.Fscan(r, &pid)
	}()
	if err := runProcess(ctx, cmd); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	// Whoever inherits a dead process may take a moment to collect it, and tells nobody: it is looked for every millisecond.
	for deadline := time.Now().Add(10 * time.Second); syscall.Kill(pid, 0) == nil; time.Sleep(time.Millisecond) {
		if stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)); err != nil || strings.Contains(string(stat), ") Z ") {
			break
		}
		if time.Now().After(deadline) {
			_ = syscall.Kill(pid, syscall.SIGKILL)
			t.Fatalf("process %d goes on", pid)
		}
	}
}

func TestProgramThatIsMissing(t *testing.T) {
	_, err := findProgram("no-such-program", "/no/such/*/directory")
	if err == nil || !strings.Contains(err.Error(), "make bench-setup") {
		t.Errorf("got %v", err)
	}
}

func TestNumberAfter(t *testing.T) {
	for data, want := range map[string]uint64{
		`{"sequence":"orders","start":17,"end":18}`: 17, `{"start":9}`: 9,
		`{"error":{"code":"fenced"}}`: 0, `{"start":`: 0, `{"start":"7"}`: 0,
	} {
		if got := numberAfter([]byte(data), `"start":`); got != want {
			t.Errorf("%s: got %d, want %d", data, got, want)
		}
	}
}

// Only a lost race is tried again. Checked: with every API error taken for one, a full stream was.
func TestLostSwap(t *testing.T) {
	for code, want := range map[natsjs.ErrorCode]bool{10071: true, 10164: true, 10077: false} {
		if got := lostSwap(fmt.Errorf("update: %w", &natsjs.APIError{ErrorCode: code})); got != want {
			t.Errorf("error %d: got %v", code, got)
		}
	}
	if lostSwap(context.DeadlineExceeded) {
		t.Error("a deadline is taken for a lost race")
	}
}

func TestPortsAndDivision(t *testing.T) {
	ports, err := freeport.Take(6)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[int]bool{}
	for _, p := range ports {
		if seen[p] {
			t.Errorf("port %d twice", p)
		}
		seen[p] = true
	}
	var calls [3]int
	var perConn []load.Draw
	for i := range calls {
		perConn = append(perConn, func(context.Context, []load.ID) error { calls[i]++; return nil })
	}
	for _, draw := range divide(8, perConn) {
		_ = draw(t.Context(), nil)
	}
	if calls != [3]int{3, 3, 2} {
		t.Errorf("connections have %v callers", calls)
	}
}

func TestStopperGoesBackwards(t *testing.T) {
	var s stopper
	var got []int
	for i := range 3 {
		s.add(func() { got = append(got, i) })
	}
	s.stop()
	s.stop()
	if fmt.Sprint(got) != "[2 1 0]" {
		t.Errorf("got %v", got)
	}
}
