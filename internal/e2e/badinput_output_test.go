package e2e

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// TestFullOutput wants every command to fail when what it prints is lost. Checked: with run not looking at what its commands
// print to, help ends well.
func TestFullOutput(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close()
	listen := fmt.Sprintf("127.0.0.1:%d", freePort(t))
	start(t, t.TempDir(), nil, "serve", "--data", t.TempDir(), "--listen", listen)
	nc := connect(t, "nats://"+listen)
	eventually(t, "it serves", func() error { return servingAll(statuses(t, nc, 1), 1) })
	ask(t, nc, "alloc.reserve.orders", "1")
	for _, args := range []string{
		"reserve orders", "reserve orders --json", "next orders", "next orders --json", "create orders", "create orders --json",
		"advance orders 5", "advance orders 5 --json", "info orders", "info orders --json", "list", "list --json",
		"status", "status --json", "resume orders", "resume orders --json", "forget alone", "forget alone --json",
		"bench next --count 10", "bench reserve --count 10 --json",
		"version", "help", "help reserve", "--help", "completion bash", "dev --nodes 1",
	} {
		cmd := exec.CommandContext(t.Context(), binary, strings.Fields(args)...)
		cmd.Env = append(os.Environ(), "NATS_URL=nats://"+listen, "TMPDIR="+t.TempDir())
		var errs buffer
		cmd.Stdout, cmd.Stderr = full, &errs
		err := cmd.Run()
		if code := cmd.ProcessState.ExitCode(); code != 1 || !strings.Contains(errs.String(), "no space left on device") {
			t.Errorf("%s: exit status %d, %v, %s", args, code, err, errs.String())
		}
	}
}

// TestDevLosesItsReader closes the pipe that dev prints to, and the one that it logs to: it ends, and leaves nothing.
// Checked: without signal.Ignore the directory is left behind; without the output around stderr the second never ends.
func TestDevLosesItsReader(t *testing.T) {
	for _, stream := range []string{"stdout", "stderr"} {
		t.Run(stream, func(t *testing.T) {
			tmp := t.TempDir()
			cmd := exec.CommandContext(t.Context(), binary, "dev", "--nodes", "1", "--log-level", "debug")
			cmd.Env = append(os.Environ(), "TMPDIR="+tmp)
			var other buffer
			var pipe io.ReadCloser
			var err error
			if stream == "stdout" {
				cmd.Stderr = &other
				pipe, err = cmd.StdoutPipe()
			} else {
				cmd.Stdout = &other
				pipe, err = cmd.StderrPipe()
			}
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			line, err := bufio.NewReader(pipe).ReadString('\n')
			if err != nil {
				t.Errorf("%q, %v", line, err)
			}
			pipe.Close()
			done := make(chan struct{})
			go func() { _ = cmd.Wait(); close(done) }() // ProcessState has it
			eventually(t, "it ends", func() error {
				select {
				case <-done:
					return nil
				default:
					return fmt.Errorf("it runs")
				}
			})
			if code := cmd.ProcessState.ExitCode(); code != 1 {
				t.Errorf("exit status %d, %s", code, other.String())
			}
			if n := entries(t, tmp); n != 0 {
				t.Errorf("%d directories left behind", n)
			}
		})
	}
}
