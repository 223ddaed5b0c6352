package e2e

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
)

const stopSignal = syscall.SIGTERM

var (
	devURL   = regexp.MustCompile(`(?m)^  n\d+ +(nats://\S+)$`)
	devRange = regexp.MustCompile(`(?m)^reserved (\d+) ids of orders over NATS: (\d+) to (\d+)$`)
)

// startDev runs `allocnode dev` with its temporary directory in tmp, and waits until it serves.
func startDev(t *testing.T, tmp string, args ...string) *process {
	t.Helper()
	p := start(t, t.TempDir(), []string{"TMPDIR=" + tmp}, append([]string{"dev"}, args...)...)
	p.awaitHints(t)
	return p
}

// awaitHints waits for the last line that dev prints while it serves.
func (p *process) awaitHints(t *testing.T) {
	t.Helper()
	eventually(t, "dev serves", func() error {
		switch {
		case strings.Contains(p.stdout.String(), "Ctrl-C ends it."):
			return nil
		case !p.running():
			return fmt.Errorf("%w: it has ended", errStop)
		}
		return errors.New("not yet")
	})
}

func entries(t *testing.T, dir string) int {
	t.Helper()
	list, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

// TestDev is what `make run` runs: three nodes that serve, one real reservation, an end in order, and nothing left behind.
func TestDev(t *testing.T) {
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
		t.Run(sig.String(), func(t *testing.T) {
			tmp := t.TempDir()
			p := startDev(t, tmp, "--try", "orders:1000")
			urls := devURL.FindAllStringSubmatch(p.stdout.String(), -1)
			if got := devRange.FindStringSubmatch(p.stdout.String()); got == nil || got[2] != "1" || got[3] != "1000" || len(urls) != 3 {
				t.Fatalf("printed:\n%s", p.stdout)
			}
			for i, u := range urls {
				a := ask(t, connect(t, u[1]), "alloc.reserve.orders", "10")
				if want := uint64(1001 + 10*i); a.Error != nil || a.Start != want {
					t.Errorf("at %s: %+v, want start %d", u[1], a, want)
				}
			}
			runHints(t, p.stdout.String())
			if n := entries(t, tmp); n != 1 {
				t.Errorf("%d directories in use, want 1", n)
			}
			p.signal(sig)
			if code := p.exit(t); code != 0 {
				t.Errorf("exit status %d, want 0", code)
			}
			if n := entries(t, tmp); n != 0 {
				t.Errorf("%d directories left behind", n)
			}
		})
	}
}

// runHints runs the commands that dev tells people to try.
func runHints(t *testing.T, printed string) {
	t.Helper()
	_, hints, _ := strings.Cut(printed, "try, in another terminal:\n")
	hints, _, _ = strings.Cut(hints, "\n\n")
	lines := strings.Split(hints, "\n")
	if len(lines) < 4 {
		t.Errorf("%d hints", len(lines))
	}
	shell := newCLI(t, "")
	for _, l := range lines {
		cmd := exec.CommandContext(t.Context(), "sh", "-c", l)
		cmd.Env, cmd.Dir = shell.env(), shell.home
		if out, err := cmd.CombinedOutput(); err != nil || strings.Contains(string(out), `"error"`) {
			t.Errorf("%s: %v\n%s", l, err, out)
		}
	}
}

// TestDevKeepsData starts dev twice on one directory: other ports, the same sequences. Other nodes are refused there.
func TestDevKeepsData(t *testing.T) {
	data := filepath.Join(t.TempDir(), "data")
	for _, want := range []string{"1", "1001"} {
		p := startDev(t, t.TempDir(), "--data", data, "--try", "orders:1000")
		if got := devRange.FindStringSubmatch(p.stdout.String()); got == nil || got[2] != want {
			t.Fatalf("want a range from %s:\n%s", want, p.stdout)
		}
		p.signal(stopSignal)
		if code := p.exit(t); code != 0 {
			t.Fatalf("exit status %d", code)
		}
	}
	for _, args := range [][]string{{"--nodes", "1"}, {"--nodes", "5"}, {"--name", "x"}} {
		p := start(t, t.TempDir(), nil, append([]string{"dev", "--data", data}, args...)...)
		refused(t, p, false, data, "n1, n2, n3", "--nodes", "another directory")
	}
}

// TestDevEndsAtOnce interrupts twice. How it was checked: without endAtOnce the exit status is 0.
func TestDevEndsAtOnce(t *testing.T) {
	tmp := t.TempDir()
	p := startDev(t, tmp, "--nodes", "1")
	// Clients are closed one after the other, over two seconds: so long does the orderly stop take.
	for range 4 {
		ask(t, connect(t, devURL.FindStringSubmatch(p.stdout.String())[1]), "alloc.reserve.orders", "1")
	}
	eventually(t, "the end", func() error {
		if !p.running() {
			return nil
		}
		p.signal(syscall.SIGINT)
		return errors.New("it runs")
	})
	if code := p.exit(t); code != 130 || !strings.Contains(p.stderr.String(), "ended at once") {
		t.Errorf("exit status %d:\n%s", code, p.stderr)
	}
	if n := entries(t, tmp); n != 0 {
		t.Errorf("%d directories left behind", n)
	}
}

// TestDevLogsJSON wants every line on stderr to be an object, also nats-server's.
func TestDevLogsJSON(t *testing.T) {
	p := startDev(t, t.TempDir(), "--nodes", "1", "--log-format", "json", "--log-level", "debug")
	p.signal(stopSignal)
	if code := p.exit(t); code != 0 {
		t.Errorf("exit status %d", code)
	}
	lines := strings.Split(strings.TrimSpace(p.stderr.String()), "\n")
	if len(lines) < 10 {
		t.Errorf("%d lines at debug", len(lines))
	}
	for _, l := range lines {
		if !strings.HasPrefix(l, `{"time":`) || !strings.HasSuffix(l, "}") {
			t.Errorf("no JSON: %s", l)
		}
	}
}

// TestMake is what a person does first: bare make tells what there is, make run runs it.
func TestMake(t *testing.T) {
	env := []string{"MAKEFLAGS=", "MAKELEVEL=", "MFLAGS="} // the tests may run under make
	help := startProgram(t, "make", "../..", env)
	if code := help.exit(t); code != 0 {
		t.Errorf("exit status %d", code)
	}
	for _, target := range []string{"build", "run", "test", "bench", "fuzz", "fmt", "lint", "clean", "tools"} {
		if !regexp.MustCompile(`(?m)^  make ` + target + ` +\S`).MatchString(help.stdout.String()) {
			t.Errorf("make does not tell of %s:\n%s", target, help.stdout)
		}
	}

	data := filepath.Join(t.TempDir(), "kept here")
	p := startProgram(t, "make", "../..", env, "run", "DATA="+data)
	p.awaitHints(t)
	if got := devRange.FindStringSubmatch(p.stdout.String()); got == nil || got[1] != "1000" || got[2] != "1" {
		t.Errorf("no range of 1000:\n%s", p.stdout)
	}
	p.signal(syscall.SIGINT)
	p.exit(t) // with make's own status: it was interrupted too
	if !strings.Contains(p.stdout.String(), "stopped; data in "+data+", kept") {
		t.Errorf("no orderly end:\n%s", p.stdout)
	}
	if n := entries(t, data); n != 3 {
		t.Errorf("%d directories kept, want 3", n)
	}
}
