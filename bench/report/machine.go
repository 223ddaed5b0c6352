package report

import (
	"bufio"
	"fmt"
	"os"
	"runtime"
	"strings"
)

// Machine is what the figures were measured on.
type Machine struct {
	CPU    string  `json:"cpu"`
	Cores  int     `json:"cores"`
	Procs  int     `json:"gomaxprocs"`
	Memory float64 `json:"memory_gib"`
	Kernel string  `json:"kernel"`
	Disk   string  `json:"disk"` // file system and device of the servers' directories
	FS     string  `json:"fs"`   // the file system alone
}

// Version is of a program or a module.
type Version struct {
	Name    string `json:"name"`
	Version string `json:"version"`
}

// ThisMachine reads /proc; dir is where the servers keep their files.
func ThisMachine(dir string) (Machine, error) {
	m := Machine{Cores: runtime.NumCPU(), Procs: runtime.GOMAXPROCS(0)}
	kernel, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		return m, err
	}
	m.Kernel = strings.TrimSpace(string(kernel))
	cpu, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return m, err
	}
	m.CPU = field(string(cpu), "model name")
	mem, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return m, err
	}
	var kb float64
	if _, err := fmt.Sscan(field(string(mem), "MemTotal"), &kb); err != nil {
		return m, fmt.Errorf("read MemTotal: %w", err)
	}
	m.Memory = kb / (1 << 20)
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return m, err
	}
	m.FS, m.Disk = mountOf(string(mounts), dir)
	return m, nil
}

// InMemory reports that the servers' files would lie in memory.
func (m Machine) InMemory() bool { return m.FS == "tmpfs" || m.FS == "ramfs" }

// field is what stands behind the first "name :" of a file in /proc.
func field(text, name string) string {
	for line := range strings.Lines(text) {
		if key, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == name {
			return strings.TrimSpace(value)
		}
	}
	return "unknown"
}

// mountOf finds the mount that dir, an absolute path, lies in: the longest of those that contain it, the last of equals.
func mountOf(mounts, dir string) (fs, disk string) {
	best := -1
	for line := range strings.Lines(mounts) {
		f := strings.Fields(line)
		if len(f) < 4 || len(f[1]) < best {
			continue
		}
		if at := strings.TrimSuffix(f[1], "/"); dir == at || strings.HasPrefix(dir, at+"/") {
			best, fs, disk = len(f[1]), f[2], fmt.Sprintf("%s on %s (%s)", f[2], f[0], f[3])
		}
	}
	return fs, disk
}

func (m Machine) write(b *bufio.Writer) {
	fmt.Fprintf(b, "- machine: %s, %d cores, GOMAXPROCS %d, %.0f GiB; Linux %s; disk %s\n", m.CPU, m.Cores, m.Procs, m.Memory, m.Kernel, m.Disk)
}
