//go:build linux

package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"
)

const cgroupRoot = "/sys/fs/cgroup"

// controllers are those of control groups version 1 that faults need.
var controllers = []string{"cpu", "memory", "blkio"}

// memoryBound is what a node may use where nothing else is said, in bytes: many times what it needs. A damaged file can have
// nats-server fill memory without an end, and the machine is not the node's alone.
const memoryBound = 1 << 30

// makeGroups makes the node's control groups.
func makeGroups(name string) error {
	for _, c := range controllers {
		if err := os.Mkdir(filepath.Join(cgroupRoot, c, name), 0o755); err != nil && !errors.Is(err, os.ErrExist) {
			return fmt.Errorf("make a control group: %w", err)
		}
	}
	return limitMemory(name, memoryBound)
}

func limitMemory(name string, bytes int64) error {
	return setGroup(name, "memory", "memory.limit_in_bytes", strconv.FormatInt(bytes, 10))
}

// removeGroups removes them. They must be empty.
func removeGroups(name string) error {
	var faults []error
	for _, c := range controllers {
		if err := os.Remove(filepath.Join(cgroupRoot, c, name)); err != nil && !errors.Is(err, os.ErrNotExist) {
			faults = append(faults, err)
		}
	}
	return errors.Join(faults...)
}

// inGroups is the command line that enters the groups and then becomes args, in the same process. It has entered before
// args start: what a process had used before does not count against a bound on memory.
func inGroups(name string, args ...string) []string {
	line := []string{"sh", "-c", `n=$1; shift; while [ "$1" != -- ]; do echo $$ >"$1/$n/cgroup.procs" || exit 1; shift; done; ` +
		`shift; exec "$@"`, "sh", name}
	for _, c := range controllers {
		line = append(line, filepath.Join(cgroupRoot, c))
	}
	return append(append(line, "--"), args...)
}

func setGroup(name, controller, file, value string) error {
	if err := os.WriteFile(filepath.Join(cgroupRoot, controller, name, file), []byte(value), 0); err != nil {
		return fmt.Errorf("set %s of %s: %w", file, name, err)
	}
	return nil
}

// groupStat reads one number out of a file of "key number" lines; with an empty key the file is the number.
func groupStat(name, controller, file, key string) (uint64, error) {
	b, err := os.ReadFile(filepath.Join(cgroupRoot, controller, name, file))
	if err != nil {
		return 0, fmt.Errorf("read %s of %s: %w", file, name, err)
	}
	if key == "" {
		return strconv.ParseUint(strings.TrimSpace(string(b)), 10, 64)
	}
	for line := range strings.Lines(string(b)) {
		if k, v, ok := strings.Cut(strings.TrimSpace(line), " "); ok && k == key {
			return strconv.ParseUint(v, 10, 64)
		}
	}
	return 0, fmt.Errorf("read %s of %s: no %s", file, name, key)
}

// StarveCPU leaves a node share of one core, 0.01 to 1; 0 takes the limit away. Throttled is the proof.
func (n *Node) StarveCPU(share float64) error {
	quota := "-1"
	if share > 0 {
		quota = strconv.Itoa(int(share * 100_000))
	}
	return setGroup(n.host.netns, "cpu", "cpu.cfs_quota_us", quota)
}

// Throttled is in how many periods of 100 ms the node had used its share before they were over, so far.
func (n *Node) Throttled() (uint64, error) {
	return groupStat(n.host.netns, "cpu", "cpu.stat", "nr_throttled")
}

// SlowDisk lets the node's disk take ops writes a second of the node's; 0 takes the limit away. [Node.DiskTime] is the proof.
func (n *Node) SlowDisk(ops int) error {
	dev, err := n.Disk.device()
	if err != nil {
		return err
	}
	return setGroup(n.host.netns, "blkio", "blkio.throttle.write_iops_device", fmt.Sprintf("%s %d", dev, ops))
}

// DiskTime is how long ten synced writes take a process in the node's groups.
func (n *Node) DiskTime(ctx context.Context) (time.Duration, error) {
	file := filepath.Join(n.Disk.mount, "chaos-probe")
	line := inGroups(n.host.netns, "dd", "if=/dev/zero", "of="+file, "bs=4096", "count=10", "oflag=dsync", "status=none")
	begin := time.Now()
	_, err := run(ctx, line[0], line[1:]...)
	took := time.Since(begin)
	return took, errors.Join(err, os.Remove(file))
}

// LimitMemory bounds what the node's process may use, in bytes; 0 is the bound of 1 GiB that it starts with. With a bound
// below what it needs the kernel kills it.
func (n *Node) LimitMemory(bytes int64) error {
	if bytes == 0 {
		bytes = memoryBound
	}
	return limitMemory(n.host.netns, bytes)
}

// MemoryKills is how many processes of the node the kernel has killed for want of memory.
func (n *Node) MemoryKills() (uint64, error) {
	return groupStat(n.host.netns, "memory", "memory.oom_control", "oom_kill")
}

// LimitDescriptors lets the running process open none beyond those that it has and more others. It returns how many it
// had. A process that is started later is not limited.
func (n *Node) LimitDescriptors(more int) (had int, err error) {
	u, err := n.Usage()
	if err != nil {
		return 0, err
	}
	var limit syscall.Rlimit
	prlimit := func(set, get *syscall.Rlimit) error {
		_, _, errno := syscall.Syscall6(syscall.SYS_PRLIMIT64, uintptr(n.proc.Pid()), syscall.RLIMIT_NOFILE,
			uintptr(unsafe.Pointer(set)), uintptr(unsafe.Pointer(get)), 0, 0)
		if errno != 0 {
			return fmt.Errorf("limit the descriptors of %s: %w", n.Name, errno)
		}
		return nil
	}
	if err := prlimit(nil, &limit); err != nil {
		return 0, err
	}
	limit.Cur = uint64(u.Descriptors + more) // the hard limit stays: raising it again takes more than root here
	return u.Descriptors, prlimit(&limit, nil)
}
