// Package freeport finds TCP ports of 127.0.0.1 for servers that are told theirs before they listen: nodes of a cluster name
// one another's.
//
// A port that the kernel gave for ":0" may be given away again before its server listens: to another ":0", or to a connection that goes
// out. So these lie below those that the kernel gives (32,768 and up on Linux, 49,152 elsewhere), begin at a random one, and
// come once in the life of a process. Another process may still take one; then the server's error says so.
package freeport

import (
	"errors"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
)

const (
	first = 12_000
	end   = 32_000 // the first that is not taken
)

var (
	mu   sync.Mutex // guards next and left
	next = first + rand.IntN(end-first)
	left = end - first // ports that this process has not looked at
)

// Take returns n ports, 1 and up, that nobody listens on. It fails when this process has used them up, after some 20,000.
func Take(n int) ([]int, error) {
	mu.Lock()
	defer mu.Unlock()
	var ports []int
	for ; left > 0 && len(ports) < n; left-- {
		port := next
		if next++; next == end {
			next = first
		}
		l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		if err != nil {
			continue
		}
		if err := l.Close(); err != nil {
			return nil, err
		}
		ports = append(ports, port)
	}
	if len(ports) < n {
		return nil, errors.New("no free port is left below 32000")
	}
	return ports, nil
}

// One is [Take] of one port.
func One() (int, error) {
	ports, err := Take(1)
	if err != nil {
		return 0, err
	}
	return ports[0], nil
}
