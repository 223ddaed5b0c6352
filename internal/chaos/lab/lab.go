//go:build linux

package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	dialTimeout = 2 * time.Second

	// registry has a file for each run, from which a later one removes what a killed run left.
	registry = "/run/allocnode-chaos"

	// runPrefix begins the name of everything.
	runPrefix = "acx"
)

// pause is one step of a wait that looks again and again, where nothing announces the change.
func pause() { time.Sleep(2 * time.Millisecond) }

// Config says what the laboratory is to have.
type Config struct {
	Run       string // the run's name, of [NewRun]; made once for each Lab
	Dir       string // for images, configurations and logs; it must exist
	Nodes     int
	Extra     int    // further nodes, of no cluster, for faults that need them
	Binary    string // of BuildNode
	Self      string // the campaign's own binary, which has the command observe
	DiskBytes int64  // of each node
	Genesis   string // settings in the genesis block of alloc { }
	Seed      uint64 // of the switch
}

// Lab is one computer centre.
type Lab struct {
	Nodes    []*Node
	Extra    []*Node
	cfg      Config
	sw       *Switch
	clients  *host
	ctl      *host
	observer *Process
	stop     context.CancelFunc
	ended    chan error // capacity 1: the switch's
}

var runs atomic.Uint64

// NewRun returns a name that no other laboratory has.
func NewRun() string { return fmt.Sprintf("%s%x-%x", runPrefix, os.Getpid(), runs.Add(1)) }

// Missing is what this machine lacks for the laboratory; where it is empty, everything can be injected.
func Missing() (missing []string) {
	if os.Geteuid() != 0 {
		return []string{"root: no namespaces, no mounts, no control groups"}
	}
	for _, c := range []struct{ path, what string }{
		{"/dev/net/tun", "TAP devices: no network of its own for a node, so no partition, loss, delay"},
		{"/dev/loop-control", "loop devices: no disk of its own for a node, so no power loss, no full disk"},
		{cgroupRoot + "/cpu/tasks", "control group cpu: no starved CPU"},
		{cgroupRoot + "/memory/tasks", "control group memory: no memory kill"},
		{cgroupRoot + "/blkio/tasks", "control group blkio: no slow disk"},
	} {
		if _, err := os.Stat(c.path); err != nil {
			missing = append(missing, c.what)
		}
	}
	for _, tool := range []string{"ip", "mount", "umount", "mkfs.ext4", "e2fsck", "fsfreeze", "strace", "cp", "dd", "sh"} {
		if !onPath(tool) {
			missing = append(missing, tool+": the command is not installed")
		}
	}
	return missing
}

func onPath(tool string) bool {
	for _, dir := range filepath.SplitList(os.Getenv("PATH")) {
		if info, err := os.Stat(filepath.Join(dir, tool)); err == nil && info.Mode()&0o111 != 0 {
			return true
		}
	}
	return false
}

// registered is what a run says of itself.
type registered struct {
	Run   string `json:"run"`
	Dir   string `json:"dir"`
	Pid   int    `json:"pid"`
	Start string `json:"start"` // of the process, in ticks: a pid is used again
}

func startOf(pid int) string {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return ""
	}
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	if len(fields) < 20 {
		return ""
	}
	return fields[19]
}

// Sweep removes what dead runs left: namespaces, mounts, control groups. Directories stay, they may be evidence.
func Sweep(ctx context.Context) error {
	files, err := filepath.Glob(filepath.Join(registry, runPrefix+"*.json"))
	if err != nil {
		return err
	}
	var faults []error
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			faults = append(faults, err)
			continue
		}
		var r registered
		if err := json.Unmarshal(b, &r); err != nil || !strings.HasPrefix(r.Run, runPrefix) {
			faults = append(faults, os.Remove(file))
			continue
		}
		if r.Pid == os.Getpid() || startOf(r.Pid) == r.Start {
			continue // it runs, or is this one's other laboratory
		}
		faults = append(faults, remove(ctx, r.Run, r.Dir), os.Remove(file))
	}
	return errors.Join(faults...)
}

// remove takes away all that a run has made, by its name. Its processes have ended.
func remove(ctx context.Context, name, dir string) error {
	var faults []error
	mounts, err := os.ReadFile("/proc/self/mounts")
	faults = append(faults, err)
	for line := range strings.Lines(string(mounts)) {
		if f := strings.Fields(line); len(f) > 1 && strings.HasPrefix(f[1], dir+"/") {
			_, err := run(ctx, "umount", f[1])
			faults = append(faults, err)
		}
	}
	spaces, err := filepath.Glob(netnsDir + name + "-*")
	faults = append(faults, err)
	for _, path := range spaces {
		_, err := run(ctx, "ip", "netns", "delete", filepath.Base(path))
		faults = append(faults, err, removeGroups(filepath.Base(path)))
	}
	return errors.Join(faults...)
}

// New builds the centre and starts its switch and observer, but no node. After an error everything is removed again.
func New(ctx context.Context, cfg Config) (l *Lab, err error) {
	if err := os.MkdirAll(registry, 0o755); err != nil {
		return nil, fmt.Errorf("register the run: %w", err)
	}
	b, err := json.Marshal(registered{Run: cfg.Run, Dir: cfg.Dir, Pid: os.Getpid(), Start: startOf(os.Getpid())})
	if err != nil {
		return nil, fmt.Errorf("register the run: %w", err)
	}
	if err := os.WriteFile(filepath.Join(registry, cfg.Run+".json"), b, 0o600); err != nil {
		return nil, fmt.Errorf("register the run: %w", err)
	}
	l = &Lab{cfg: cfg, sw: NewSwitch(cfg.Seed), ended: make(chan error, 1)}
	defer func() {
		if err != nil {
			err = errors.Join(err, l.Close())
		}
	}()
	for i := 1; i <= cfg.Nodes+cfg.Extra; i++ {
		n, err := l.newNode(ctx, "n"+strconv.Itoa(i), i)
		if n != nil && i <= cfg.Nodes {
			l.Nodes = append(l.Nodes, n)
		} else if n != nil {
			l.Extra = append(l.Extra, n)
		}
		if err != nil {
			return l, err
		}
	}
	for _, n := range l.Nodes {
		if err := n.configure(n.Name, l.Nodes, ""); err != nil {
			return l, err
		}
	}
	if l.clients, err = l.newHost(ctx, "clients", 100); err != nil {
		return l, err
	}
	if l.ctl, err = l.newHost(ctx, "ctl", 200); err != nil {
		return l, err
	}
	swCtx, stop := context.WithCancel(context.WithoutCancel(ctx)) // the nodes are stopped before the network
	l.stop = stop
	go func() { l.ended <- l.sw.Run(swCtx) }()
	return l, l.startObserver()
}

// Switch is the network.
func (l *Lab) Switch() *Switch { return l.sw }

// StartClient starts a process of the clients' machine; its output goes to the file log.
func (l *Lab) StartClient(log string, args ...string) (*Process, error) {
	return l.startProcess(l.clients, log, nil, args...)
}

// ClientsPort is the clients' name at the switch.
func (l *Lab) ClientsPort() string { return l.clients.name }

// Close ends all processes and removes everything but the directory. It may be called once.
func (l *Lab) Close() error {
	var faults []error
	ctx := context.Background() // also after the campaign's has ended
	all := append(append([]*Node{}, l.Nodes...), l.Extra...)
	for _, n := range all {
		if n.Running() {
			faults = append(faults, n.proc.Signal(syscall.SIGKILL))
		}
	}
	for _, n := range all {
		// A frozen disk keeps its writers from dying.
		_, _ = run(ctx, "fsfreeze", "--unfreeze", n.Disk.mount)
		if n.Running() {
			<-n.proc.Done()
		}
	}
	if l.observer != nil {
		faults = append(faults, l.observer.Kill())
	}
	if l.stop != nil {
		l.stop()
		faults = append(faults, <-l.ended)
	} else {
		for _, p := range l.sw.ports { // it never ran
			faults = append(faults, p.end.Close())
		}
	}
	faults = append(faults, remove(ctx, l.cfg.Run, l.cfg.Dir), os.Remove(filepath.Join(registry, l.cfg.Run+".json")))
	return errors.Join(faults...)
}
