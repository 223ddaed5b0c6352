// Package load keeps a number of callers busy for a time and says how fast they were answered.
//
// It owns the measuring: phases (warm-up, the counted window, a grace for what is still under way), latencies, and the
// check that no id came twice. What a call does is the caller's: a [Load] is functions.
//
// Latency is the time of each call, from the end of the caller's one before (so that nothing that holds a caller up is
// left out) to its answer. Samples are appended to a slice of each caller and go into an HDR histogram afterwards. Calls that
// are under way when the window ends are awaited for the grace and their latency counts, their number does not; what is
// cut off then enters with the time it had taken so far. The window is longer than asked for, up to [Patience], until [Fewest]
// calls have been answered. Where a call takes nanoseconds ([Load.Chunk] above 1), one of Chunk
// is timed, by itself.
//
// Goroutines: one for each caller, all of them awaited by [Run]; it returns an error if one does not end.
package load

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// ID is an id of up to 128 bits; the zero ID is none.
type ID struct{ Hi, Lo uint64 }

// Draw gets len(ids) ids, one after the other. A call that hands out no id leaves them zero.
type Draw func(ctx context.Context, ids []ID) error

// Send begins a call whose answer wait brings. It may block where its system holds senders back.
type Send func(ctx context.Context) (wait func(ctx context.Context) (ID, error), err error)

// Load is what to do. Either Draws or Sends is set.
type Load struct {
	Draws []Draw // one for each caller
	Sends []Send // one for each sender, who keeps Window calls under way
	// Window is how many calls a sender keeps under way: 1 or more.
	Window int
	// Chunk is how many ids a Draw is asked for at once: 0 and 1 mean one.
	Chunk int
	// Counter names what the ids are unique in; the same name in several loads of one system is one counter. Empty: no ids.
	Counter string
	// Close ends what the load opened, after the last call; nil: nothing.
	Close func()
}

// Options bound a run.
type Options struct {
	Warm, Duration time.Duration
	Grace          time.Duration // for calls under way at the end; they are then cancelled
	Keep           int           // ids kept for the check, of all callers together
}

// Figures of one run.
type Figures struct {
	Rate           float64 // calls answered within the window, per second
	P50, P99, P999 time.Duration
	Calls          int // answered within the window
	Cut            int // still unanswered after the grace
}

const (
	warming = iota
	counting
	stopping
)

// A window goes on until Fewest calls have been answered, by Patience at most.
const (
	Fewest   = 20
	Patience = 10 * time.Second
)

// endAfter is how long cancelled callers have to return.
const endAfter = 10 * time.Second

type caller struct {
	calls, cut int
	took       []time.Duration
	ids        []ID
	keep       int
	_          [64]byte // a cache line of its own
}

type run struct {
	phase    atomic.Int32
	answered atomic.Int32 // within the window; it stops at Fewest
	origin   time.Time
	load     *Load
	failOnce sync.Once
	failure  error
	cancel   context.CancelFunc
}

// Run does l for the warm-up and the duration, and returns its figures and the ids that were kept.
func Run(ctx context.Context, l *Load, o Options) (Figures, []ID, error) {
	ctx, cancel := context.WithTimeout(ctx, o.Warm+o.Duration+Patience+o.Grace+endAfter)
	defer cancel()
	r := &run{origin: time.Now(), load: l, cancel: cancel}
	callers := make([]caller, max(len(l.Draws), len(l.Sends)))
	var running sync.WaitGroup
	for i := range callers {
		me := &callers[i]
		if l.Counter != "" {
			me.keep = o.Keep/len(callers) + 1
		}
		running.Go(func() {
			switch {
			case len(l.Sends) > 0:
				r.send(ctx, me, l.Sends[i])
			case l.Chunk > 1:
				r.chunks(ctx, me, l.Draws[i])
			default:
				r.draw(ctx, me, l.Draws[i])
			}
		})
	}
	ended := make(chan struct{})
	go func() { running.Wait(); close(ended) }()
	pause(ctx, o.Warm)
	start := time.Now()
	r.phase.Store(counting)
	pause(ctx, o.Duration)
	for r.answered.Load() < Fewest && time.Since(start) < o.Duration+Patience && ctx.Err() == nil {
		pause(ctx, 10*time.Millisecond)
	}
	interrupted := context.Cause(ctx)
	r.phase.Store(stopping)
	window := time.Since(start)
	select {
	case <-ended:
	case <-time.After(o.Grace):
		cancel()
		select {
		case <-ended:
		case <-time.After(endAfter):
			return Figures{}, nil, fmt.Errorf("callers did not end %v after they were cancelled", endAfter)
		}
	}
	if r.failure != nil {
		return Figures{}, nil, r.failure
	}
	if interrupted != nil {
		return Figures{}, nil, interrupted
	}
	return sum(callers, window)
}

// pause returns early when ctx ends.
func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

func sum(callers []caller, window time.Duration) (f Figures, ids []ID, err error) {
	h := hdrhistogram.New(1, int64(10*time.Minute), 3)
	for i := range callers {
		c := &callers[i]
		f.Calls += c.calls
		f.Cut += c.cut
		ids = append(ids, c.ids...)
		for _, d := range c.took {
			if err := h.RecordValue(max(1, int64(d))); err != nil {
				return f, nil, err
			}
		}
	}
	if f.Calls == 0 {
		return f, nil, fmt.Errorf("no call was answered in %v", window.Round(time.Millisecond))
	}
	f.Rate = float64(f.Calls) / window.Seconds()
	f.P50 = time.Duration(h.ValueAtQuantile(50))
	f.P99 = time.Duration(h.ValueAtQuantile(99))
	f.P999 = time.Duration(h.ValueAtQuantile(99.9))
	return f, ids, nil
}

// fail notes the first error and stops everybody. What fails because the run is over is cut off and no error.
func (r *run) fail(ctx context.Context, me *caller, took time.Duration, err error) {
	if r.phase.Load() == stopping && ctx.Err() != nil {
		me.cut++
		me.took = append(me.took, took)
		return
	}
	r.failOnce.Do(func() {
		r.failure = err
		if errors.Is(err, context.DeadlineExceeded) {
			r.failure = fmt.Errorf("no answer by the deadline: %w", err)
		}
	})
	r.cancel()
}

// note books a call that took from began to ended, times since the origin.
func (r *run) note(me *caller, began, ended time.Duration, id ID) {
	switch r.phase.Load() {
	case counting:
		me.calls++
		if r.answered.Load() < Fewest {
			r.answered.Add(1)
		}
		fallthrough
	case stopping:
		me.took = append(me.took, ended-began)
	}
	if len(me.ids) < me.keep {
		me.ids = append(me.ids, id)
	}
}

func (r *run) draw(ctx context.Context, me *caller, draw Draw) {
	ids := make([]ID, 1)
	began := time.Since(r.origin)
	for r.phase.Load() != stopping {
		err := draw(ctx, ids)
		ended := time.Since(r.origin)
		if err != nil {
			r.fail(ctx, me, ended-began, err)
			return
		}
		r.note(me, began, ended, ids[0])
		began = ended
	}
}

func (r *run) chunks(ctx context.Context, me *caller, draw Draw) {
	ids := make([]ID, r.load.Chunk)
	for r.phase.Load() != stopping {
		began := time.Since(r.origin)
		err := draw(ctx, ids[:1])
		ended := time.Since(r.origin)
		if err == nil {
			err = draw(ctx, ids[1:])
		}
		if err != nil {
			r.fail(ctx, me, ended-began, err)
			return
		}
		r.note(me, began, ended, ids[0])
		if r.phase.Load() == counting {
			me.calls += len(ids) - 1
		}
		if room := me.keep - len(me.ids); room > 0 {
			me.ids = append(me.ids, ids[1:min(len(ids), room+1)]...)
		}
	}
}

// send keeps the window full: it begins a call, and once the window is full waits for the oldest.
func (r *run) send(ctx context.Context, me *caller, send Send) {
	type call struct {
		began time.Duration
		wait  func(context.Context) (ID, error)
	}
	window := make([]call, r.load.Window)
	take := func(c call) bool {
		id, err := c.wait(ctx)
		ended := time.Since(r.origin)
		if err != nil {
			r.fail(ctx, me, ended-c.began, err)
			return false
		}
		r.note(me, c.began, ended, id)
		return true
	}
	n := 0
	for ; r.phase.Load() != stopping; n++ {
		slot := &window[n%len(window)]
		if slot.wait != nil && !take(*slot) {
			return
		}
		began := time.Since(r.origin)
		wait, err := send(ctx)
		if err != nil {
			r.fail(ctx, me, time.Since(r.origin)-began, err)
			return
		}
		*slot = call{began, wait}
	}
	for i := range window {
		if slot := window[(n+i)%len(window)]; slot.wait != nil && !take(slot) {
			return
		}
	}
}
