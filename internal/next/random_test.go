package next

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/allocnode/allocnode"
	"github.com/allocnode/allocnode/internal/propose"
	"github.com/allocnode/allocnode/internal/wire"
)

// Everything at random, against what must hold of every answer: no id twice, none at or below an advance that was applied
// before, none while the gate is not open, one answer for each request.
func TestRandom(t *testing.T) {
	for seed := range uint64(60) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 7))
			tune := func(c *Config) {
				c.Least, c.Most = 1+rng.Uint64N(5), 5+rng.Uint64N(40)
				c.Batches, c.Waiting, c.Idle = 3+rng.IntN(3), 20, 3*time.Second
			}
			bubble(t, tune, func(g *rig) { (&run{rig: g, rng: rng}).steps(1500) })
		})
	}
}

// run is one random run.
type run struct {
	*rig
	rng  *rand.Rand
	held []heldAnswer // refills that were applied and are not answered yet, as during a check
}

type heldAnswer struct {
	r *propose.Request
	o wire.Outcome
}

func (x *run) steps(n int) {
	for i := range 4 {
		s := x.log.sequence(fmt.Sprintf("s%d", i))
		s.max, s.maxCount = 200+x.rng.Uint64N(2000), 1+x.rng.Uint64N(60)
	}
	for range n {
		x.step()
		x.check()
	}
	for x.log.apply() {
	}
	for _, h := range x.held {
		x.log.answer(h.r, h.o)
	}
	if len(x.given) == 0 {
		x.t.Error("nothing was given away")
	}
}

func (x *run) step() {
	name := fmt.Sprintf("s%d", x.rng.IntN(8))
	switch k := x.rng.IntN(100); {
	case k < 50:
		x.take(name, 1+x.rng.Uint64N(x.rng.Uint64N(12)+1))
	case k < 70:
		x.log.apply()
	case k < 75: // applied, and answered later
		if r := x.log.take(); r != nil {
			x.held = append(x.held, heldAnswer{r, x.log.carve(r)})
		}
	case k < 80 && len(x.held) > 0:
		h := x.held[0]
		x.held = x.held[1:]
		x.log.answer(h.r, h.o)
	case k < 83: // another node carves
		s := x.log.sequence(name)
		x.log.set(func() { s.hwm += min(s.max-s.hwm, x.rng.Uint64N(30)) })
	case k < 87: // also one that is below the hwm
		s := x.log.sequence(name)
		x.advance(name, min(s.max, s.hwm/2+x.rng.Uint64N(s.hwm+20)))
	case k < 89:
		s := x.log.sequence(name)
		x.log.set(func() { s.halted = !s.halted })
	case k < 91: // no answer, and maybe carved all the same
		if r := x.log.take(); r != nil {
			if x.rng.IntN(2) == 0 {
				x.log.carve(r)
			}
			r.Done(propose.Result{Err: allocnode.Errorf(allocnode.CodeUnknownOutcome, "no answer")})
		}
	case k < 93:
		before := x.gave()
		x.hold()
		x.take(name, 1)
		x.log.apply()
		x.pass(time.Duration(x.rng.IntN(3)) * time.Second)
		if x.gave() != before {
			x.t.Error("ids were given away while the gate was held")
		}
		x.p.Open(x.ticket)
	case k < 94:
		x.p.Refuse(errHalted)
		before := x.gave()
		x.take(name, 1)
		x.log.apply()
		if x.gave() != before {
			x.t.Error("ids were given away by a pool that refuses")
		}
		x.open()
	default:
		x.pass(time.Duration(x.rng.IntN(1500)) * time.Millisecond)
	}
}

func (x *run) gave() (n int) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, ids := range x.given {
		n += len(ids)
	}
	return n
}

// asyncLog applies each refill from a goroutine of its own.
type asyncLog struct {
	*fakeLog
	wg sync.WaitGroup
}

func (l *asyncLog) Submit(r *propose.Request) {
	l.wg.Go(func() { l.answer(r, l.carve(r)) })
}

// Many goroutines, small batches, and advances in between, in real time: run it with -race. Every request is answered with
// ids that nobody else has.
func TestConcurrent(t *testing.T) {
	log := &asyncLog{fakeLog: newLog(t)}
	cfg := DefaultConfig()
	cfg.Least, cfg.Most = 10, 200
	p := New(cfg, log)
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { _ = p.Run(ctx) })
	p.Hold(1)
	p.Open(1)

	const goroutines, each = 16, 2000
	got := make([][]string, goroutines)
	var wg sync.WaitGroup
	for i := range goroutines {
		wg.Go(func() {
			for n := range each {
				name := fmt.Sprintf("s%d", n%3)
				answers := make(chan error, 2)
				p.Take(&Request{Sequence: name, Count: 1 + uint64(n%4), Deadline: time.Now().Add(time.Minute),
					Done: func(ranges []allocnode.Range, err error) {
						for _, r := range ranges {
							for id := r.Start; id < r.End; id++ {
								got[i] = append(got[i], fmt.Sprint(name, " ", id))
							}
						}
						answers <- err
					}})
				if err := <-answers; err != nil {
					t.Error(err)
					return
				}
				if n%100 == 0 {
					s := log.sequence(name)
					var to uint64
					log.set(func() { s.hwm += 5; to = s.hwm })
					p.Advanced(name, to)
				}
			}
		})
	}
	wg.Wait()
	cancel()
	running.Wait()
	log.wg.Wait()
	seen := make(map[string]bool)
	total := 0
	for _, ids := range got {
		for _, id := range ids {
			if seen[id] {
				t.Fatal("twice: ", id)
			}
			seen[id] = true
		}
		total += len(ids)
	}
	if want := goroutines * each * 5 / 2; total != want {
		t.Errorf("%d ids, want %d", total, want)
	}
}

// openPool is a pool whose log answers at once.
func openPool(t testing.TB) *Pool {
	log := newLog(t)
	log.auto = true
	p := New(DefaultConfig(), log)
	p.Hold(1)
	p.Open(1)
	return p
}

// An id from the batch costs no allocation.
func TestTakeAllocatesNothing(t *testing.T) {
	p := openPool(t)
	given := 0
	r := &Request{Sequence: "a", Count: 1, Done: func([]allocnode.Range, error) { given++ }}
	p.Take(&Request{Sequence: "a", Count: 100_000, Done: r.Done})
	p.Take(r) // the batch after that one
	p.mu.Lock()
	p.batches["a"].low = 1 // no refill within the run
	p.mu.Unlock()
	if n := testing.AllocsPerRun(90, func() { p.Take(r) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
	if given != 93 {
		t.Errorf("%d answers", given)
	}
}

func BenchmarkTake(b *testing.B) {
	p := openPool(b)
	var given uint64
	r := &Request{Sequence: "orders", Count: 1, Done: func(ranges []allocnode.Range, err error) { given += ranges[0].Count() }}
	b.ReportAllocs()
	for b.Loop() {
		p.Take(r)
	}
	if given < uint64(b.N) {
		b.Errorf("%d ids for %d requests", given, b.N)
	}
}
