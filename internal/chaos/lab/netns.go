//go:build linux

package lab

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"unsafe"
)

const netnsDir = "/var/run/netns/"

// run runs a command, whose output is part of the error.
func run(ctx context.Context, name string, args ...string) (string, error) {
	out, err := exec.CommandContext(ctx, name, args...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return string(out), nil
}

// inNamespace runs f on a thread that is in the network namespace. Sockets, TAPs and processes that f makes itself, not in
// another goroutine, belong to it.
func inNamespace(netns string, f func() error) error {
	target, err := os.Open(netnsDir + netns)
	if err != nil {
		return fmt.Errorf("enter namespace %s: %w", netns, err)
	}
	defer target.Close()
	runtime.LockOSThread()
	home, err := os.Open(fmt.Sprintf("/proc/self/task/%d/ns/net", syscall.Gettid()))
	if err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("enter namespace %s: %w", netns, err)
	}
	defer home.Close()
	if err := setns(target); err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("enter namespace %s: %w", netns, err)
	}
	err = f()
	if back := setns(home); back != nil {
		// Still locked: the thread ends with its goroutine. All else would find itself in the wrong network.
		panic(fmt.Sprintf("lab: a thread cannot leave namespace %s: %v", netns, back))
	}
	runtime.UnlockOSThread()
	return err
}

// sysSetns is the number of setns(2), which package syscall does not have.
var sysSetns = map[string]uintptr{"amd64": 308, "arm64": 268}[runtime.GOARCH]

func setns(f *os.File) error {
	if _, _, errno := syscall.RawSyscall(sysSetns, f.Fd(), syscall.CLONE_NEWNET, 0); errno != 0 {
		return errno
	}
	return nil
}

// Dialer makes connections from within a namespace; nats.go takes it as a CustomDialer.
type Dialer struct{ netns string }

// Dial connects to an address given in numbers.
func (d Dialer) Dial(network, address string) (conn net.Conn, err error) {
	err = inNamespace(d.netns, func() error {
		conn, err = net.DialTimeout(network, address, dialTimeout)
		return err
	})
	return conn, err
}

// openTAP makes the interface eth0 in the namespace, and returns the switch's end of it.
func openTAP(netns string) (*os.File, error) {
	var fd int
	err := inNamespace(netns, func() (err error) {
		fd, err = syscall.Open("/dev/net/tun", syscall.O_RDWR|syscall.O_CLOEXEC|syscall.O_NONBLOCK, 0)
		if err != nil {
			return fmt.Errorf("open /dev/net/tun: %w", err)
		}
		var req struct {
			name  [16]byte
			flags uint16
			_     [22]byte
		}
		copy(req.name[:], "eth0")
		req.flags = syscall.IFF_TAP | syscall.IFF_NO_PI
		_, _, errno := syscall.Syscall(syscall.SYS_IOCTL, uintptr(fd), syscall.TUNSETIFF, uintptr(unsafe.Pointer(&req)))
		if errno != 0 {
			syscall.Close(fd)
			return fmt.Errorf("make a TAP in namespace %s: %w", netns, errno)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), "tap "+netns), nil
}

// host is one machine on the switch.
type host struct {
	name  string // its port
	netns string
	ip    string
	mac   MAC
}

// newHost makes the i-th host's namespace and attaches it to the switch.
func (l *Lab) newHost(ctx context.Context, name string, i int) (*host, error) {
	h := &host{name: name, netns: l.cfg.Run + "-" + name, ip: fmt.Sprintf("10.77.0.%d", i), mac: MAC{2, 0, 10, 77, 0, byte(i)}}
	if _, err := run(ctx, "ip", "netns", "add", h.netns); err != nil {
		return nil, err
	}
	tap, err := openTAP(h.netns)
	if err != nil {
		return nil, err
	}
	l.sw.Attach(name, h.mac, tap)
	for _, args := range [][]string{
		{"link", "set", "lo", "up"},
		{"link", "set", "eth0", "address", h.mac.String()},
		{"addr", "add", h.ip + "/24", "dev", "eth0"},
		{"link", "set", "eth0", "up"},
	} {
		if _, err := run(ctx, "ip", append([]string{"-n", h.netns}, args...)...); err != nil {
			return nil, err
		}
	}
	return h, nil
}
