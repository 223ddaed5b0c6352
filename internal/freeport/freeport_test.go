package freeport

import (
	"net"
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"
)

// Checked: without the look at each port the one that is held was given out.
func TestTake(t *testing.T) {
	lowest := 49_152
	if runtime.GOOS == "linux" {
		b, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range")
		if err != nil {
			t.Fatal(err)
		}
		if lowest, err = strconv.Atoi(strings.Fields(string(b))[0]); err != nil {
			t.Fatal(err)
		}
	}
	l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(next)))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	held := next
	seen := make(map[int]bool)
	for range 20 {
		ports, err := Take(5)
		if err != nil || len(ports) != 5 {
			t.Fatal(ports, err)
		}
		for _, p := range ports {
			if p == held || seen[p] || p >= lowest || p < first {
				t.Errorf("port %d: held %d, seen before: %v, the kernel's begin at %d", p, held, seen[p], lowest)
			}
			seen[p] = true
		}
	}
	if p, err := One(); err != nil || seen[p] {
		t.Errorf("one: %d, %v", p, err)
	}

	defer func(n int) { left = n }(left)
	left = 3
	if ports, err := Take(4); err == nil {
		t.Errorf("used up: %v", ports)
	}
}
