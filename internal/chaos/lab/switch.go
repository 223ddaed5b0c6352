package lab

import (
	"container/heap"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"time"
)

// maxFrame is the largest frame that a port carries, in bytes: a TAP of MTU 1500 needs 1514.
const maxFrame = 2048

// MAC is an Ethernet address.
type MAC [6]byte

func (m MAC) String() string {
	return fmt.Sprintf("%02x:%02x:%02x:%02x:%02x:%02x", m[0], m[1], m[2], m[3], m[4], m[5])
}

// Rule is what happens to the frames of one direction of one link. The zero value forwards at once.
type Rule struct {
	Cut     bool          // nothing passes
	Loss    float64       // share that is dropped, 0 to 1
	Delay   time.Duration // of every frame
	Jitter  time.Duration // up to this much more, without keeping the order
	Reorder float64       // share that waits for ReorderBy more, while later ones overtake it
	// ReorderBy is how long an overtaken frame waits. Zero: 5 ms.
	ReorderBy time.Duration
}

// Count is what one direction of one link has carried.
type Count struct {
	Passed, Dropped, Delayed, Overtaken uint64
}

// Add returns the sum.
func (c Count) Add(d Count) Count {
	return Count{c.Passed + d.Passed, c.Dropped + d.Dropped, c.Delayed + d.Delayed, c.Overtaken + d.Overtaken}
}

// Sub returns what came since d.
func (c Count) Sub(d Count) Count {
	return Count{c.Passed - d.Passed, c.Dropped - d.Dropped, c.Delayed - d.Delayed, c.Overtaken - d.Overtaken}
}

type direction struct{ from, to string }

type port struct {
	name string
	mac  MAC
	end  io.ReadWriteCloser
	mu   sync.Mutex // guards writes to end
}

// Switch forwards Ethernet frames between ports, by rules that may change at any moment. Make one with [NewSwitch], add
// ports, then Run it.
type Switch struct {
	mu    sync.Mutex // guards all below
	ports map[string]*port
	rules map[direction]Rule
	count map[direction]Count
	rand  *rand.Rand
	late  lateHeap
	order uint64
	woken chan struct{} // capacity 1: late has a new first
}

// NewSwitch returns a switch without ports; seed decides which frames are lost or overtaken.
func NewSwitch(seed uint64) *Switch {
	return &Switch{
		ports: map[string]*port{}, rules: map[direction]Rule{}, count: map[direction]Count{},
		rand: rand.New(rand.NewPCG(seed, 1)), woken: make(chan struct{}, 1),
	}
}

// Attach adds a port. Each Read of end must return one whole frame, and each Write take one. Run closes end. Call it before
// Run.
func (s *Switch) Attach(name string, mac MAC, end io.ReadWriteCloser) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ports[name] = &port{name: name, mac: mac, end: end}
}

// Set gives the direction from → to a rule, in place of the one it had. Frames that are late already still arrive, but
// not through a cut.
func (s *Switch) Set(from, to string, r Rule) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rules[direction{from, to}] = r
}

// Both sets a rule for both directions.
func (s *Switch) Both(a, b string, r Rule) {
	s.Set(a, b, r)
	s.Set(b, a, r)
}

// Heal removes every rule.
func (s *Switch) Heal() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.rules)
}

// Count is what from → to has carried so far.
func (s *Switch) Count(from, to string) Count {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.count[direction{from, to}]
}

// Total is the sum over all directions.
func (s *Switch) Total() (sum Count) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.count {
		sum = sum.Add(c)
	}
	return sum
}

// Run forwards until ctx ends, then closes the ports and waits for its goroutines. A port that fails by itself ends Run
// with its error.
func (s *Switch) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	s.mu.Lock()
	ports := make([]*port, 0, len(s.ports))
	for _, p := range s.ports {
		ports = append(ports, p)
	}
	s.mu.Unlock()
	var all sync.WaitGroup
	for _, p := range ports {
		all.Go(func() {
			if err := s.read(ctx, p); err != nil {
				cancel(err)
			}
		})
	}
	all.Go(func() { s.deliverLate(ctx) })
	<-ctx.Done()
	for _, p := range ports {
		p.end.Close()
	}
	all.Wait()
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

func (s *Switch) read(ctx context.Context, p *port) error {
	buf := make([]byte, maxFrame)
	for {
		n, err := p.end.Read(buf)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			return fmt.Errorf("switch: read from port %s: %w", p.name, err)
		case n < 14:
			continue
		}
		s.forward(p, buf[:n])
	}
}

// forward sends frame to the port of its destination, or to all others where that is not one of ours: ARP's broadcasts.
func (s *Switch) forward(from *port, frame []byte) {
	var now []*port
	s.mu.Lock()
	for _, to := range s.ports {
		if to == from || frame[0]&1 == 0 && to.mac != MAC(frame[:6]) {
			continue
		}
		if s.passLocked(from, to, frame) {
			now = append(now, to)
		}
	}
	s.mu.Unlock()
	for _, to := range now {
		to.write(frame)
	}
}

// passLocked applies the rule, and reports whether the frame goes out now.
func (s *Switch) passLocked(from, to *port, frame []byte) bool {
	d := direction{from.name, to.name}
	r, c := s.rules[d], s.count[d]
	defer func() { s.count[d] = c }()
	if r.Cut || r.Loss > 0 && s.rand.Float64() < r.Loss {
		c.Dropped++
		return false
	}
	wait := r.Delay
	if r.Jitter > 0 {
		wait += time.Duration(s.rand.Int64N(int64(r.Jitter)))
	}
	if r.Reorder > 0 && s.rand.Float64() < r.Reorder {
		by := r.ReorderBy
		if by == 0 {
			by = 5 * time.Millisecond
		}
		wait += by
		c.Overtaken++
	}
	c.Passed++
	if wait == 0 {
		return true
	}
	c.Delayed++
	s.order++
	heap.Push(&s.late, lateFrame{at: time.Now().Add(wait), order: s.order, from: from, to: to, bytes: append([]byte(nil), frame...)})
	select {
	case s.woken <- struct{}{}:
	default:
	}
	return false
}

func (p *port) write(frame []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	// A full queue or an interface that is down loses frames, as a wire does.
	_, _ = p.end.Write(frame)
}

func (s *Switch) deliverLate(ctx context.Context) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		wait := time.Hour
		var due []lateFrame
		s.mu.Lock()
		for now := time.Now(); len(s.late) > 0; {
			if w := s.late[0].at.Sub(now); w > 0 {
				wait = w
				break
			}
			f := heap.Pop(&s.late).(lateFrame)
			if d := (direction{f.from.name, f.to.name}); s.rules[d].Cut {
				c := s.count[d]
				c.Passed, c.Dropped = c.Passed-1, c.Dropped+1
				s.count[d] = c
				continue
			}
			due = append(due, f)
		}
		s.mu.Unlock()
		for _, f := range due {
			f.to.write(f.bytes)
		}
		timer.Reset(wait)
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-s.woken:
		}
	}
}

type lateFrame struct {
	at       time.Time
	order    uint64 // of equal times the first comes first
	from, to *port
	bytes    []byte
}

type lateHeap []lateFrame

func (h lateHeap) Len() int { return len(h) }
func (h lateHeap) Less(i, j int) bool {
	if h[i].at.Equal(h[j].at) {
		return h[i].order < h[j].order
	}
	return h[i].at.Before(h[j].at)
}
func (h lateHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *lateHeap) Push(x any)   { *h = append(*h, x.(lateFrame)) }
func (h *lateHeap) Pop() any {
	old := *h
	last := old[len(old)-1]
	old[len(old)-1] = lateFrame{}
	*h = old[:len(old)-1]
	return last
}
