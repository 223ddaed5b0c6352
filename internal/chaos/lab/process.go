//go:build linux

package lab

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Process is one process in a namespace. Its output goes to a file.
type Process struct {
	cmd   *exec.Cmd
	out   *os.File
	done  chan struct{}
	since time.Time

	mu  sync.Mutex // guards end
	end error
}

// startProcess runs args in the namespace and the control groups of host h, in dir, with more environment.
func (l *Lab) startProcess(h *host, log string, env []string, args ...string) (*Process, error) {
	out, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", args[0], err)
	}
	fmt.Fprintf(out, "=== %s %s\n", time.Now().UTC().Format(time.RFC3339Nano), strings.Join(args[slices.Index(args, "--")+1:], " "))
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = l.cfg.Dir, out, out
	cmd.Env = append(os.Environ(), env...)
	// A process group of its own: Ctrl-C is the campaign's, which then ends it in order.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := inNamespace(h.netns, cmd.Start); err != nil {
		out.Close()
		return nil, fmt.Errorf("start %s on %s: %w", args[0], h.name, err)
	}
	p := &Process{cmd: cmd, out: out, done: make(chan struct{}), since: time.Now()}
	go func() {
		err := cmd.Wait()
		p.mu.Lock()
		p.end = err
		p.mu.Unlock()
		out.Close()
		close(p.done)
	}()
	return p, nil
}

// Pid is its process id.
func (p *Process) Pid() int { return p.cmd.Process.Pid }

// Done is closed when it has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Running reports whether it has not ended.
func (p *Process) Running() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// End says how it ended, "running" if it has not.
func (p *Process) End() string {
	if p.Running() {
		return "running"
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.end == nil {
		return "exit status 0"
	}
	return p.end.Error()
}

// Signal sends sig. One that has ended already is no error.
func (p *Process) Signal(sig syscall.Signal) error {
	if err := p.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("signal %v to process %d: %w", sig, p.Pid(), err)
	}
	return nil
}

// Kill ends it by SIGKILL and waits.
func (p *Process) Kill() error {
	if err := p.Signal(syscall.SIGKILL); err != nil {
		return err
	}
	<-p.done
	return nil
}

// stopBound is how long a process may take to stop in order.
const stopBound = 20 * time.Second

// Stop asks it to end, and kills it when it does not within 20 s, which is an error.
func (p *Process) Stop() error {
	if err := p.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	timer := time.NewTimer(stopBound)
	defer timer.Stop()
	select {
	case <-p.done:
		return nil
	case <-timer.C:
		return errors.Join(fmt.Errorf("process %d did not stop within %s", p.Pid(), stopBound), p.Kill())
	}
}

// State is the letter of its state in /proc: T is stopped, R running, S asleep, D waiting for the disk.
func (p *Process) State() (string, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.Pid()))
	if err != nil {
		return "", fmt.Errorf("state of process %d: %w", p.Pid(), err)
	}
	i := bytes.LastIndexByte(stat, ')') // the name may hold anything
	if i < 0 || len(stat) < i+3 {
		return "", fmt.Errorf("state of process %d: %q", p.Pid(), stat)
	}
	return string(stat[i+2]), nil
}

// Usage is what a process holds of the machine.
type Usage struct {
	Descriptors int
	Threads     int
	RSS         int64 // bytes
}

// Usage looks at a process that runs.
func (p *Process) Usage() (u Usage, err error) {
	fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", p.Pid()))
	if err != nil {
		return u, fmt.Errorf("descriptors of process %d: %w", p.Pid(), err)
	}
	u.Descriptors = len(fds)
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.Pid()))
	if err != nil {
		return u, fmt.Errorf("memory of process %d: %w", p.Pid(), err)
	}
	for line := range strings.Lines(string(status)) {
		var n int64
		if k, _ := fmt.Sscanf(line, "VmRSS: %d kB", &n); k == 1 {
			u.RSS = n << 10
		}
		if k, _ := fmt.Sscanf(line, "Threads: %d", &n); k == 1 {
			u.Threads = int(n)
		}
	}
	return u, nil
}
