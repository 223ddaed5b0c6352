package lab

import (
	"context"
	"encoding/binary"
	"io"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// frameEnd is a port's end without a TAP: frames that the switch is to read, and those that it wrote.
type frameEnd struct {
	in, out chan []byte
	closed  chan struct{}
}

func newFrameEnd() *frameEnd {
	return &frameEnd{in: make(chan []byte), out: make(chan []byte, 4096), closed: make(chan struct{})}
}

func (e *frameEnd) Read(p []byte) (int, error) {
	select {
	case f := <-e.in:
		return copy(p, f), nil
	case <-e.closed:
		return 0, io.EOF
	}
}

func (e *frameEnd) Write(p []byte) (int, error) {
	e.out <- slices.Clone(p)
	return len(p), nil
}

func (e *frameEnd) Close() error {
	close(e.closed)
	return nil
}

// got is the numbers of the frames that have come out.
func (e *frameEnd) got() (numbers []int) {
	for {
		select {
		case f := <-e.out:
			numbers = append(numbers, int(binary.BigEndian.Uint32(f[14:])))
		default:
			return numbers
		}
	}
}

var (
	macA, macB, macC = MAC{2, 0, 0, 0, 0, 1}, MAC{2, 0, 0, 0, 0, 2}, MAC{2, 0, 0, 0, 0, 3}
	broadcast        = MAC{255, 255, 255, 255, 255, 255}
)

func frame(to, from MAC, number int) []byte {
	f := append(slices.Clone(to[:]), from[:]...)
	return binary.BigEndian.AppendUint32(append(f, 8, 0), uint32(number))
}

// inBubble runs test with a switch of the ports a, b and c, in time that passes only when all wait.
func inBubble(t *testing.T, test func(t *testing.T, s *Switch, a, b, c *frameEnd)) {
	synctest.Test(t, func(t *testing.T) {
		s := NewSwitch(1)
		a, b, c := newFrameEnd(), newFrameEnd(), newFrameEnd()
		s.Attach("a", macA, a)
		s.Attach("b", macB, b)
		s.Attach("c", macC, c)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- s.Run(ctx) }()
		test(t, s, a, b, c)
		cancel()
		if err := <-done; err != nil {
			t.Errorf("the switch ends with %v", err)
		}
	})
}

func (e *frameEnd) send(to, from MAC, numbers ...int) {
	for _, n := range numbers {
		e.in <- frame(to, from, n)
	}
	synctest.Wait()
}

func wantFrames(t *testing.T, where string, e *frameEnd, want ...int) {
	t.Helper()
	if got := e.got(); !slices.Equal(got, want) {
		t.Errorf("%s got %v, want %v", where, got, want)
	}
}

func TestSwitchForwards(t *testing.T) {
	inBubble(t, func(t *testing.T, s *Switch, a, b, c *frameEnd) {
		a.send(macB, macA, 1, 2)
		wantFrames(t, "b", b, 1, 2)
		wantFrames(t, "c, a stranger to it,", c)
		a.send(broadcast, macA, 3)
		wantFrames(t, "b", b, 3)
		wantFrames(t, "c", c, 3)
		wantFrames(t, "the sender", a)
		if got := s.Count("a", "b"); got != (Count{Passed: 3}) {
			t.Errorf("counted %+v", got)
		}
	})
}

// TestSwitchCut cuts one direction, then both, then heals. Checked: with a rule that is looked up by the other direction,
// the first half fails; with a cut that broadcasts pass, the second.
func TestSwitchCut(t *testing.T) {
	inBubble(t, func(t *testing.T, s *Switch, a, b, c *frameEnd) {
		s.Set("a", "b", Rule{Cut: true})
		a.send(macB, macA, 1)
		b.send(macA, macB, 2)
		wantFrames(t, "b", b)
		wantFrames(t, "a, since the other direction is whole,", a, 2)
		if got := s.Count("a", "b"); got != (Count{Dropped: 1}) {
			t.Errorf("counted %+v", got)
		}
		s.Both("a", "b", Rule{Cut: true})
		a.send(broadcast, macA, 3)
		b.send(macA, macB, 4)
		wantFrames(t, "b", b)
		wantFrames(t, "a", a)
		wantFrames(t, "c", c, 3)
		s.Heal()
		a.send(macB, macA, 5)
		wantFrames(t, "b", b, 5)
	})
}

func TestSwitchLoss(t *testing.T) {
	inBubble(t, func(t *testing.T, s *Switch, a, b, _ *frameEnd) {
		s.Set("a", "b", Rule{Loss: 0.3})
		const n = 1000
		for i := range n {
			a.send(macB, macA, i)
		}
		got, c := len(b.got()), s.Count("a", "b")
		if uint64(got) != c.Passed || c.Passed+c.Dropped != n || c.Dropped < 250 || c.Dropped > 350 {
			t.Errorf("%d arrived, counted %+v", got, c)
		}
	})
}

// Time passes in the bubble only: each sleep is the delay that is awaited, or just less than that.
func TestSwitchDelay(t *testing.T) {
	inBubble(t, func(t *testing.T, s *Switch, a, b, _ *frameEnd) {
		s.Set("a", "b", Rule{Delay: 100 * time.Millisecond})
		a.send(macB, macA, 1)
		time.Sleep(99 * time.Millisecond)
		synctest.Wait()
		wantFrames(t, "b, before it is time,", b)
		a.send(macB, macA, 2)
		time.Sleep(time.Millisecond)
		synctest.Wait()
		wantFrames(t, "b, after 100 ms,", b, 1)
		time.Sleep(99 * time.Millisecond)
		synctest.Wait()
		wantFrames(t, "b", b, 2)

		// Late frames do not slip through a cut. Checked: without the second look at the rule 3 arrives.
		a.send(macB, macA, 3)
		s.Set("a", "b", Rule{Cut: true})
		time.Sleep(time.Second)
		synctest.Wait()
		wantFrames(t, "b, behind a cut,", b)
		if got := s.Count("a", "b"); got != (Count{Passed: 2, Dropped: 1, Delayed: 3}) {
			t.Errorf("counted %+v", got)
		}
	})
}

func TestSwitchReorder(t *testing.T) {
	inBubble(t, func(t *testing.T, s *Switch, a, b, _ *frameEnd) {
		s.Set("a", "b", Rule{Reorder: 0.2})
		var want []int
		for i := range 200 {
			want = append(want, i)
		}
		a.send(macB, macA, want...)
		time.Sleep(time.Second) // of the bubble: longer than any frame is held
		synctest.Wait()
		got := b.got()
		if slices.IsSorted(got) {
			t.Error("no frame was overtaken")
		}
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("%d frames arrived, want each of %d once", len(got), len(want))
		}
		if c := s.Count("a", "b"); c.Overtaken < 20 || c.Overtaken > 60 || c.Dropped != 0 {
			t.Errorf("counted %+v", c)
		}
	})
}
