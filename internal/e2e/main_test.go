// Package e2e runs the real binary, as separate processes, and the real nats CLI against it. TestMain builds the binary
// once, with the race detector where the tests have it.
package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/allocnode/allocnode/internal/freeport"
)

var (
	raceEnabled bool
	binary      string // allocnode, as built
)

// patience bounds every wait for something that should come at once. It is not a measure: two busy cores, the race
// detector and elections of 4 to 9 s fit into it several times.
const patience = 90 * time.Second

func TestMain(m *testing.M) { os.Exit(testMain(m)) }

func testMain(m *testing.M) int {
	dir, err := os.MkdirTemp("", "allocnode-e2e-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	binary = filepath.Join(dir, "allocnode")
	args := []string{"build", "-o", binary}
	if raceEnabled {
		args = append(args, "-race")
	}
	if out, err := exec.Command("go", append(args, "../../cmd/allocnode")...).CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "build allocnode: %v\n%s", err, out)
		return 1
	}
	return m.Run()
}

// process is one run of a program.
type process struct {
	cmd    *exec.Cmd
	stdout *buffer
	stderr *buffer
	done   chan struct{} // closed when it has ended, and what it started
}

// buffer is a bytes.Buffer for two goroutines.
type buffer struct {
	mu sync.Mutex // guards b
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// start runs the binary in dir. It is killed at the end of the test, which fails if it had panicked or raced.
func start(t testing.TB, dir string, env []string, args ...string) *process {
	t.Helper()
	return startProgram(t, binary, dir, env, args...)
}

func startProgram(t testing.TB, program, dir string, env []string, args ...string) *process {
	t.Helper()
	p := &process{cmd: exec.Command(program, args...), stdout: &buffer{}, stderr: &buffer{}, done: make(chan struct{})}
	p.cmd.Dir, p.cmd.Stdout, p.cmd.Stderr = dir, p.stdout, p.stderr
	p.cmd.Env = append(append(os.Environ(), "GORACE=halt_on_error=1"), env...)
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // signals are for it and what it starts, not for the test
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(p.done)
		_ = p.cmd.Wait() // ProcessState has it
	}()
	t.Cleanup(func() {
		p.kill()
		for _, bad := range []string{"DATA RACE", "panic:", "goroutine 1 ["} {
			if strings.Contains(p.stderr.String(), bad) {
				t.Errorf("%q in the output of %v", bad, args)
			}
		}
		if t.Failed() {
			t.Logf("%v:\n%s%s", args, tail(p.stdout.String()), tail(p.stderr.String()))
		}
	})
	return p
}

func tail(s string) string {
	const most = 6000
	if len(s) > most {
		return "…" + s[len(s)-most:]
	}
	return s
}

func (p *process) running() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// signal signals the process's group, as a terminal does.
func (p *process) signal(sig syscall.Signal) {
	if p.running() {
		_ = syscall.Kill(-p.cmd.Process.Pid, sig) // it may end just now
	}
}

// kill is SIGKILL, and waits until the process is gone.
func (p *process) kill() {
	p.signal(syscall.SIGKILL)
	<-p.done
}

// exit waits for the process's end and returns its status, -1 for one that a signal ended.
func (p *process) exit(t testing.TB) int {
	t.Helper()
	select {
	case <-p.done:
		return p.cmd.ProcessState.ExitCode()
	case <-time.After(patience):
		t.Fatalf("%v has not ended after %v", p.cmd.Args, patience)
		return 0
	}
}

// eventually waits until check returns nil, and fails the test with its last word when that takes too long.
func eventually(t testing.TB, what string, check func() error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := poll(ctx, check); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

// errStop ends a poll at once.
var errStop = errors.New("no use to wait")

func poll(ctx context.Context, check func() error) error {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		err := check()
		if err == nil || errors.Is(err, errStop) {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", context.Cause(ctx), err)
		case <-tick.C:
		}
	}
}

// freePort finds a port that nobody listens on, and that no connection gets: a killed node comes back to its port.
func freePort(t testing.TB) int {
	t.Helper()
	port, err := freeport.One()
	if err != nil {
		t.Fatal(err)
	}
	return port
}
