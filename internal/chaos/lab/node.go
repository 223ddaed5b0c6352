//go:build linux

package lab

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	clientPort = 4222
	routePort  = 6222
)

// Node is one machine that runs the product. Its methods must not be called at the same time, but for Usage and Running.
type Node struct {
	Name string
	Disk *Disk

	lab    *Lab
	host   *host
	config string
	clock  string
	log    string
	binary string

	mu   sync.Mutex // guards proc
	proc *Process
}

func (l *Lab) newNode(ctx context.Context, name string, i int) (*Node, error) {
	h, err := l.newHost(ctx, name, i)
	if err != nil {
		return nil, err
	}
	if err := makeGroups(h.netns); err != nil {
		return nil, err
	}
	dir := filepath.Join(l.cfg.Dir, name)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the node's directory: %w", err)
	}
	n := &Node{
		Name: name, lab: l, host: h, binary: l.cfg.Binary,
		config: filepath.Join(dir, "node.conf"), clock: filepath.Join(dir, "clock"), log: filepath.Join(dir, "log"),
	}
	if n.Disk, err = newDisk(ctx, filepath.Join(dir, "disk.img"), filepath.Join(dir, "disk"), l.cfg.DiskBytes); err != nil {
		return nil, err
	}
	return n, n.SetClock(0)
}

// ConfigureAs gives the node the name of one of a cluster's nodes, and that cluster's routes.
func (n *Node) ConfigureAs(name string, nodes []*Node) error { return n.configure(name, nodes, "") }

// ConfigureMore gives the node its place in the cluster, and more settings.
func (n *Node) ConfigureMore(nodes []*Node, more string) error {
	return n.configure(n.Name, nodes, more)
}

// Configure writes a configuration of the caller's. In it %[1]s is the node's address, %[2]s its data directory, %[3]s the
// address of the lab's first node, and %[4]s that of the observer, which takes leaf nodes on port 7422.
func (n *Node) Configure(text string) error {
	return os.WriteFile(n.config, fmt.Appendf(nil, text, n.host.ip, n.DataDir(), n.lab.Nodes[0].host.ip, n.lab.ctl.ip), 0o600)
}

// configure writes the node's configuration. All of a cluster are named in each.
func (n *Node) configure(name string, nodes []*Node, extra string) error {
	var routes, names []string
	for _, m := range nodes {
		routes = append(routes, fmt.Sprintf("\"nats://%s:%d\"", m.host.ip, routePort))
		names = append(names, m.Name)
	}
	text := fmt.Sprintf(`server_name: %s
listen: "%s:%d"
cluster { name: chaos, listen: "%s:%d", routes: [%s] }
jetstream { store_dir: %q }
alloc { nodes: [%s], genesis { %s } }
%s
`, name, n.host.ip, clientPort, n.host.ip, routePort, strings.Join(routes, ", "), n.DataDir(),
		strings.Join(names, ", "), n.lab.cfg.Genesis, extra)
	return os.WriteFile(n.config, []byte(text), 0o600)
}

// DataDir is where the node keeps its data, on its disk.
func (n *Node) DataDir() string { return filepath.Join(n.Disk.mount, "data") }

// Log is the file of the node's output.
func (n *Node) Log() string { return n.log }

// URL is where its clients connect.
func (n *Node) URL() string { return fmt.Sprintf("nats://%s:%d", n.host.ip, clientPort) }

// Start starts the process, if none runs.
func (n *Node) Start() error {
	if n.Running() {
		return nil
	}
	p, err := n.lab.startProcess(n.host, n.log, []string{clockVariable + "=" + n.clock},
		inGroups(n.host.netns, n.binary, "serve", "--config", n.config)...)
	if err != nil {
		return err
	}
	n.mu.Lock()
	n.proc = p
	n.mu.Unlock()
	return nil
}

// Command runs another command of the product's binary with the node's configuration, and returns what it prints.
func (n *Node) Command(ctx context.Context, args ...string) (string, error) {
	return n.lab.Command(ctx, append(args, "--config", n.config)...)
}

// Command runs a command of the product's binary that needs no node. One that fails is an error, with what it said.
func (l *Lab) Command(ctx context.Context, args ...string) (string, error) {
	out, err := run(ctx, l.cfg.Binary, args...)
	return strings.TrimSpace(out), err
}

func (n *Node) process() *Process {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.proc
}

// Running reports whether the process has been started and has not ended.
func (n *Node) Running() bool {
	p := n.process()
	return p != nil && p.Running()
}

// End says how the process ended.
func (n *Node) End() string {
	if p := n.process(); p != nil {
		return p.End()
	}
	return "not started"
}

// Usage is what the process holds.
func (n *Node) Usage() (Usage, error) {
	p := n.process()
	if p == nil {
		return Usage{}, fmt.Errorf("%s is not started", n.Name)
	}
	return p.Usage()
}

// Stop ends it in order.
func (n *Node) Stop() error {
	if !n.Running() {
		return nil
	}
	return n.proc.Stop()
}

// Kill ends it by SIGKILL.
func (n *Node) Kill() (proof string, err error) {
	if !n.Running() {
		return "", fmt.Errorf("kill %s: it has ended already: %s", n.Name, n.End())
	}
	if err := n.proc.Kill(); err != nil {
		return "", err
	}
	return fmt.Sprintf("process %d: %s", n.proc.Pid(), n.proc.End()), nil
}

// Pause stops it with SIGSTOP, until Continue.
func (n *Node) Pause() (proof string, err error) {
	if !n.Running() {
		return "", fmt.Errorf("pause %s: it has ended already: %s", n.Name, n.End())
	}
	if err := n.proc.Signal(syscall.SIGSTOP); err != nil {
		return "", err
	}
	// All threads must have seen it before the state says so.
	for range 1000 {
		state, err := n.proc.State()
		if err != nil {
			return "", err
		}
		if state == "T" {
			return fmt.Sprintf("process %d is in state T", n.proc.Pid()), nil
		}
		pause()
	}
	return "", fmt.Errorf("pause %s: process %d does not stop", n.Name, n.proc.Pid())
}

// Continue undoes Pause.
func (n *Node) Continue() error {
	if !n.Running() {
		return nil
	}
	return n.proc.Signal(syscall.SIGCONT)
}

// PowerLoss takes the power away: the process ends, and what was not synced is gone, a few pages of the files being
// written excepted, if torn. The node is not started again.
func (n *Node) PowerLoss(ctx context.Context, torn bool, rnd *rand.Rand) (proof string, err error) {
	return n.lab.PowerLoss(ctx, []*Node{n}, torn, rnd)
}

// PowerLoss takes the power of several nodes away at one moment: all are stopped before the first is cut.
func (l *Lab) PowerLoss(ctx context.Context, nodes []*Node, torn bool, rnd *rand.Rand) (proof string, err error) {
	for _, n := range nodes {
		if n.Running() {
			if _, err := n.Pause(); err != nil {
				return "", err
			}
		}
	}
	var proofs []string
	for _, n := range nodes {
		text := ""
		if torn {
			pages, err := n.Disk.tear(rnd)
			if err != nil {
				return "", err
			}
			text = fmt.Sprintf("%d pages torn, ", pages)
		}
		if err := n.Disk.cut(); err != nil {
			return "", err
		}
		proofs = append(proofs, n.Name+": "+text)
	}
	for i, n := range nodes {
		if n.Running() {
			if _, err := n.Kill(); err != nil {
				return "", err
			}
		}
		text, err := n.Disk.replug(ctx)
		if err != nil {
			return "", err
		}
		proofs[i] += text
	}
	return strings.Join(proofs, "; "), nil
}

// LoggedTime has the node log something now, and returns the time that the line bears.
func (n *Node) LoggedTime() (string, error) {
	info, err := os.Stat(n.log)
	if err != nil {
		return "", fmt.Errorf("look at the log of %s: %w", n.Name, err)
	}
	// A client that says nothing sensible is worth a line to nats-server.
	conn, err := Dialer{n.lab.ctl.netns}.Dial("tcp", fmt.Sprintf("%s:%d", n.host.ip, clientPort))
	if err != nil {
		return "", fmt.Errorf("have %s log: %w", n.Name, err)
	}
	defer conn.Close()
	if _, err := conn.Write([]byte("NONSENSE\r\n")); err != nil {
		return "", fmt.Errorf("have %s log: %w", n.Name, err)
	}
	for range 2000 {
		b, err := os.ReadFile(n.log)
		if err != nil {
			return "", fmt.Errorf("look at the log of %s: %w", n.Name, err)
		}
		if line := string(b[info.Size():]); strings.Contains(line, "\n") {
			stamp, _, _ := strings.Cut(line, " ")
			return stamp, nil
		}
		pause()
	}
	return "", fmt.Errorf("have %s log: it says nothing", n.Name)
}

// MemoryKill has the kernel kill the node for want of memory: beside it, in the same control group, something takes more
// than there is. LimitMemory(0) undoes the bound.
func (n *Node) MemoryKill(ctx context.Context) (proof string, err error) {
	const room = 8 << 20
	before, err := n.MemoryKills()
	if err != nil {
		return "", err
	}
	used, err := groupStat(n.host.netns, "memory", "memory.usage_in_bytes", "")
	if err != nil {
		return "", err
	}
	// The node is to be chosen, not its neighbour.
	if err := os.WriteFile(fmt.Sprintf("/proc/%d/oom_score_adj", n.proc.Pid()), []byte("1000"), 0); err != nil {
		return "", fmt.Errorf("memory kill of %s: %w", n.Name, err)
	}
	if err := n.LimitMemory(int64(used) + room); err != nil {
		return "", err
	}
	hog := inGroups(n.host.netns, "dd", "if=/dev/zero", "of=/dev/null", fmt.Sprintf("bs=%d", used+2*room), "count=1", "status=none")
	for range 5 {
		// It may be killed too: the kernel looks for more while the node's memory is not free yet.
		_, _ = run(ctx, hog[0], hog[1:]...)
		if ctx.Err() != nil {
			return "", fmt.Errorf("memory kill of %s: %w", n.Name, context.Cause(ctx))
		}
		timer := time.NewTimer(time.Second)
		select {
		case <-n.proc.Done():
		case <-timer.C:
		}
		timer.Stop()
		if !n.Running() {
			break
		}
	}
	kills, err := n.MemoryKills()
	if err == nil && (kills == before || n.Running()) {
		err = fmt.Errorf("memory kill of %s: %d kills, it is %s", n.Name, kills-before, n.End())
	}
	return fmt.Sprintf("killed by the kernel at a bound of %d MiB: %s", (used+room)>>20, n.End()), err
}

// SyncFails makes every fsync of the running process fail with EIO, until it has ended or stop is called. Proof counts
// them afterwards.
func (n *Node) SyncFails() (stop func() error, proof func() (string, error), err error) {
	trace := filepath.Join(n.lab.cfg.Dir, n.Name, "strace")
	if err := os.RemoveAll(trace); err != nil {
		return nil, nil, err
	}
	p, err := n.lab.startProcess(n.host, n.log, nil, "strace", "-f", "-o", trace, "-p", fmt.Sprint(n.proc.Pid()),
		"-e", "trace=fsync,fdatasync,msync", "-e", "inject=fsync,fdatasync,msync:error=EIO")
	if err != nil {
		return nil, nil, fmt.Errorf("%w (strace: `make chaos-setup` installs it)", err)
	}
	return p.Stop, func() (string, error) {
		b, err := os.ReadFile(trace)
		if err != nil {
			return "", fmt.Errorf("failing fsync: %w", err)
		}
		failed := strings.Count(string(b), "(INJECTED)")
		if failed == 0 {
			return "", fmt.Errorf("failing fsync: none of %s was hit", n.Name)
		}
		return fmt.Sprintf("%d fsyncs returned EIO", failed), nil
	}, nil
}
