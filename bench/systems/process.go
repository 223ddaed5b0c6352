package systems

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"syscall"
	"time"
)

// findProgram looks on the path and in dirs, globs of which the last match counts.
func findProgram(name string, dirs ...string) (string, error) {
	for _, dir := range dirs {
		if found, _ := filepath.Glob(filepath.Join(dir, name)); len(found) > 0 {
			return slices.Max(found), nil
		}
	}
	path, err := exec.LookPath(name)
	if err != nil {
		return "", fmt.Errorf("%w: make bench-setup installs it", err)
	}
	return path, nil
}

// child is a command whose end is this process's to see to: it has a process group of its own, so that Ctrl-C in a terminal
// reaches us alone and servers are ended in order, and the kernel kills it when we die. It runs as owner; nil is this
// process's own user.
func child(owner *user.User, log io.Writer, dir, path string, args ...string) (*exec.Cmd, error) {
	cmd := exec.Command(path, args...)
	cmd.Stdout, cmd.Stderr, cmd.Dir = log, log, dir
	cmd.WaitDelay = 5 * time.Second // a grandchild may hold the pipe of the log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if owner == nil {
		return cmd, nil
	}
	uid, err := strconv.ParseUint(owner.Uid, 10, 32)
	if err != nil {
		return nil, err
	}
	gid, err := strconv.ParseUint(owner.Gid, 10, 32)
	if err != nil {
		return nil, err
	}
	cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	return cmd, nil
}

// unprivileged is whom a program that refuses root runs as: nil when this process is not root. dir becomes that user's.
func unprivileged(dir string) (*user.User, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	u, err := user.Lookup("postgres")
	if err != nil {
		if u, err = user.Lookup("nobody"); err != nil {
			return nil, err
		}
	}
	uid, _ := strconv.Atoi(u.Uid)
	gid, _ := strconv.Atoi(u.Gid)
	return u, os.Chown(dir, uid, gid)
}

// serverProcess is a child process that runs until it is told to stop.
type serverProcess struct {
	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended
	err  error         // set before
}

func startProcess(cmd *exec.Cmd) (*serverProcess, error) {
	p := &serverProcess{cmd: cmd, done: make(chan struct{})}
	started := make(chan error, 1)
	go func() {
		// The signal that Pdeathsig asks for comes when the thread ends that started the child: it is kept for that long.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			p.err = cmd.Wait()
			close(p.done)
		}
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	return p, nil
}

// stop asks with sig, and after 10 s kills the process group.
func (p *serverProcess) stop(sig syscall.Signal) {
	_ = p.cmd.Process.Signal(sig)
	select {
	case <-p.done:
	case <-time.After(10 * time.Second):
		_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
		<-p.done
	}
}

// await calls try until it succeeds, the process has ended, or ctx has.
func (p *serverProcess) await(ctx context.Context, try func(context.Context) error) error {
	for {
		err := try(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-p.done:
			return fmt.Errorf("%s ended: %w; %w", filepath.Base(p.cmd.Path), errors.Join(p.err, errors.New("see the log")), err)
		case <-ctx.Done():
			return fmt.Errorf("%s does not answer: %w", filepath.Base(p.cmd.Path), err)
		case <-time.After(50 * time.Millisecond): // between two tries
		}
	}
}

// runProcess runs a command to its end, which ctx may bring about.
func runProcess(ctx context.Context, cmd *exec.Cmd) error {
	p, err := startProcess(cmd)
	if err != nil {
		return err
	}
	select {
	case <-p.done:
		return p.err
	case <-ctx.Done():
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		<-p.done
		return context.Cause(ctx)
	}
}
