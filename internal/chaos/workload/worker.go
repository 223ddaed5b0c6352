package workload

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/allocnode/allocnode/internal/chaos/history"
)

const (
	keepOld     = 512  // bounds the keys that a worker may ask for again soon
	keepAncient = 4096 // and those that it keeps until the window has forgotten them: every sixteenth
)

// worker does one thing after the other.
type worker struct {
	p    *process
	n    int
	rng  *rand.Rand
	keys uint64

	old, ancient []oldKey // oldest first
}

// oldKey is a reservation that was acknowledged.
type oldKey struct {
	ask   ask
	acked uint64 // process.acked then
}

// run works until ctx ends.
func (w *worker) run(ctx context.Context) {
	w.prepare(ctx)
	for i := w.n; i < len(w.p.cfg.Resume); i += w.p.cfg.Workers {
		a := askOf(&w.p.cfg.Resume[i])
		w.settle(ctx, &a)
	}
	tick := time.NewTicker(w.p.cfg.Pace)
	defer tick.Stop()
	for ctx.Err() == nil {
		w.step(ctx)
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
}

// prepare makes the sequence that will run out. Its answer also brings the first seq, without which a key carries no since.
func (w *worker) prepare(ctx context.Context) {
	a := w.tight()
	w.settle(ctx, &a)
}

// tight makes a sequence of this process that 20,000 ids exhaust.
func (w *worker) tight() ask {
	return ask{
		action: history.Create, sequence: "tight-" + w.p.cfg.Process, first: 1 + w.p.cfg.Seed%100, max: 20_100, maxCount: 1000,
	}
}

// chances is what a worker does, in a hundred.
var chances = []struct {
	in100 int
	do    func(*worker, context.Context)
}{
	{35, (*worker).reserve},
	{5, (*worker).reserveList},
	{10, (*worker).reserveTwice},
	{5, (*worker).reserveAndDie},
	{10, (*worker).again},
	{5, (*worker).otherCount},
	{3, (*worker).unkeyed},
	{4, (*worker).untilExhausted},
	{12, (*worker).next},
	{3, (*worker).create},
	{3, (*worker).advance},
	{5, (*worker).info},
}

func (w *worker) step(ctx context.Context) {
	roll := w.rng.IntN(100)
	for _, c := range chances {
		if roll -= c.in100; roll < 0 {
			c.do(w, ctx)
			return
		}
	}
}

func (w *worker) sequence() string { return w.p.cfg.Sequences[w.rng.IntN(len(w.p.cfg.Sequences))] }

// count is 1, 10, 1,000 or all that is allowed.
func (w *worker) count() uint64 {
	counts := []uint64{1, 1, 10, 10, 1000, w.p.cfg.MaxCount}
	return min(counts[w.rng.IntN(len(counts))], w.p.cfg.MaxCount)
}

func (w *worker) keyed() ask {
	w.keys++
	return ask{
		action: history.Reserve, sequence: w.sequence(), count: w.count(), since: w.p.seen.Load(),
		// Process, worker and number are enough: no two runs of the workload share a process.
		key: fmt.Sprintf("%s-%d-%d-%016x", w.p.cfg.Process, w.n, w.keys, w.rng.Uint64()),
	}
}

func (w *worker) reserve(ctx context.Context) {
	a := w.keyed()
	w.keep(&a, w.settle(ctx, &a))
}

// reserveList asks for some reservations in one message, each under a key of its own, as clients do that merge what their
// callers want. Whoever asks for one of the keys again does so alone.
func (w *worker) reserveList(ctx context.Context) {
	list := ask{action: history.Reserve, since: w.p.seen.Load()}
	for range 2 + w.rng.IntN(12) {
		a := w.keyed()
		a.since = list.since
		if w.rng.IntN(8) == 0 {
			a = w.fromTight(a)
		}
		list.items = append(list.items, a)
	}
	w.keep(&list, w.settle(ctx, &list))
}

// keep remembers the parts of a that were acknowledged.
func (w *worker) keep(a *ask, ends []history.Record) {
	parts := a.parts()
	for i := range ends {
		if ends[i].Outcome == history.OK && parts[i].key != "" {
			old := oldKey{parts[i], w.p.acked.Add(1)}
			w.old = append(w.old, old)
			if w.rng.IntN(16) == 0 && len(w.ancient) < keepAncient {
				w.ancient = append(w.ancient, old)
			}
		}
	}
	if len(w.old) > keepOld {
		w.old = w.old[len(w.old)-keepOld/2:]
	}
}

// reserveTwice sends the same bytes to two nodes at once.
func (w *worker) reserveTwice(ctx context.Context) {
	a := w.keyed()
	one, two := w.pick(nil), (*conn)(nil)
	if one != nil {
		two = w.pick(one)
	}
	if two == nil {
		w.keep(&a, w.settle(ctx, &a))
		return
	}
	other := make(chan []history.Record, 1)
	go func() { other <- two.attempt(ctx, &a) }()
	first := one.attempt(ctx, &a)
	second := <-other
	if !definite(first...) {
		first = second
	}
	if !definite(first...) {
		first = w.settle(ctx, &a)
	}
	w.keep(&a, first)
}

// reserveAndDie is a client that is gone before it reads the answer; half the time another one asks for the key.
func (w *worker) reserveAndDie(ctx context.Context) {
	a := w.keyed()
	if w.rng.IntN(4) == 0 {
		a.key, a.since = "", 0
	}
	c := w.pick(nil)
	if c == nil {
		return
	}
	c.abandon(&a)
	if a.key != "" && w.rng.IntN(2) == 0 {
		w.keep(&a, w.settle(ctx, &a))
	}
}

// again asks for a key that was acknowledged: one that the window has forgotten, if there is one, or any.
func (w *worker) again(ctx context.Context) {
	if len(w.old) == 0 {
		return
	}
	old := w.old[w.rng.IntN(len(w.old))]
	if len(w.ancient) > 0 && w.rng.IntN(2) == 0 && w.p.acked.Load() > w.ancient[0].acked+w.p.cfg.KeyWindow {
		old, w.ancient = w.ancient[0], w.ancient[1:]
	}
	w.settle(ctx, &old.ask)
}

func (w *worker) otherCount(ctx context.Context) {
	if len(w.old) == 0 {
		return
	}
	a := w.old[len(w.old)-1].ask
	a.count = a.count%w.p.cfg.MaxCount + 1
	w.settle(ctx, &a)
}

// unkeyed asks once: a second attempt would be a second reservation.
func (w *worker) unkeyed(ctx context.Context) {
	w.once(ctx, &ask{action: history.Reserve, sequence: w.sequence(), count: w.count()})
}

func (w *worker) untilExhausted(ctx context.Context) {
	a := w.fromTight(w.keyed())
	w.keep(&a, w.settle(ctx, &a))
}

func (w *worker) fromTight(a ask) ask {
	a.sequence, a.count, a.partial = w.tight().sequence, min(a.count, 1000), w.rng.IntN(2) == 0
	return a
}

func (w *worker) next(ctx context.Context) {
	counts := []uint64{1, 1, 1, 5, 50}
	w.once(ctx, &ask{action: history.Next, sequence: w.sequence(), count: counts[w.rng.IntN(len(counts))]})
}

// create makes what is there already, now and then with other settings.
func (w *worker) create(ctx context.Context) {
	a := w.tight()
	if w.rng.IntN(3) == 0 {
		a.max++
	}
	w.settle(ctx, &a)
}

// advance aims around the highest id heard of, which is above most sequences' marks and below some.
func (w *worker) advance(ctx context.Context) {
	to := w.p.hwm.Load()
	if w.rng.IntN(2) == 0 {
		to += w.rng.Uint64N(1000)
	} else {
		to -= min(to, w.rng.Uint64N(2*w.p.cfg.MaxCount))
	}
	w.once(ctx, &ask{action: history.Advance, sequence: w.sequence(), to: to})
}

func (w *worker) info(ctx context.Context) {
	w.once(ctx, &ask{action: history.Info, sequence: w.sequence()})
}

func (w *worker) once(ctx context.Context, a *ask) {
	if c := w.pick(nil); c != nil {
		c.attempt(ctx, a)
	}
}

// pick is a node that is connected, other than one; nil if there is none.
func (w *worker) pick(other *conn) *conn {
	conns := w.p.conns
	from := w.rng.IntN(len(conns))
	for i := range conns {
		if c := conns[(from+i)%len(conns)]; c != other && c.nc.IsConnected() {
			return c
		}
	}
	return nil
}

// settle asks one node after the other until the answer is definite or ctx ends.
func (w *worker) settle(ctx context.Context, a *ask) (ends []history.Record) {
	var last *conn
	for pause := 25 * time.Millisecond; ctx.Err() == nil; pause = min(2*pause, time.Second) {
		c := w.pick(last)
		if c == nil {
			c = w.pick(nil)
		}
		if last = c; c != nil {
			if ends = c.attempt(ctx, a); definite(ends...) {
				return ends
			}
		}
		t := time.NewTimer(pause/2 + time.Duration(w.rng.Int64N(int64(pause/2))))
		select {
		case <-ctx.Done():
		case <-t.C:
		}
		t.Stop()
	}
	return ends
}
