package benchmark

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// buildBinary builds the product's binary.
func buildBinary(b *testing.B) string {
	b.Helper()
	bin := filepath.Join(b.TempDir(), "allocnode")
	if out, err := exec.Command("go", "build", "-o", bin, "../../cmd/allocnode").CombinedOutput(); err != nil {
		b.Fatalf("build: %v\n%s", err, out)
	}
	return bin
}

// process is one node as users run it.
type process struct {
	*exec.Cmd
	log string // path of what it says
}

// startProcess runs bin serve with args and the log at path.
func startProcess(b *testing.B, bin, path string, args ...string) *process {
	b.Helper()
	p := &process{exec.Command(bin, append([]string{"serve", "--log-format", "json"}, args...)...), path}
	log, err := os.Create(path)
	if err != nil {
		b.Fatal(err)
	}
	defer log.Close()
	p.Stderr = log
	if err := p.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(p.kill)
	return p
}

// kill ends p, once.
func (p *process) kill() {
	if p.ProcessState == nil {
		_ = p.Process.Kill()
		_ = p.Wait()
	}
}

// terminate has p stop in order, and waits for it.
func (p *process) terminate(b *testing.B) {
	b.Helper()
	if err := p.Process.Signal(syscall.SIGTERM); err != nil {
		b.Fatal(err)
	}
	if err := p.Wait(); err != nil {
		b.Fatal(err)
	}
}

// startProcesses runs a fresh cluster of count nodes, or one that is alone, and returns when all serve.
func startProcesses(b *testing.B, bin, dir string, count int) []*process {
	b.Helper()
	routes := freePorts(b, count)
	ps := make([]*process, count)
	for i := range ps {
		path := filepath.Join(dir, fmt.Sprintf("n%d.conf", i+1))
		if err := os.WriteFile(path, []byte(configFor(dir, i, routes)), 0o600); err != nil {
			b.Fatal(err)
		}
		ps[i] = startProcess(b, bin, path+".log", "--config", path)
	}
	for _, p := range ps {
		awaitLine(b, p.log, `"ready"`)
	}
	return ps
}

// awaitLine looks for want in a file that another process writes, every 20 ms.
func awaitLine(b *testing.B, path, want string) {
	b.Helper()
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if text, err := os.ReadFile(path); err == nil && strings.Contains(string(text), want) {
			return
		}
	}
	text, _ := os.ReadFile(path)
	b.Fatalf("%s does not say %s:\n%s", path, want, text)
}

func residentMB(b *testing.B, pid int) float64 {
	b.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		b.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		if kb, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			n, err := strconv.ParseFloat(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(kb), "kB")), 64)
			if err != nil {
				b.Fatal(err)
			}
			return n / 1024
		}
	}
	b.Fatalf("no VmRSS of process %d", pid)
	return 0
}
