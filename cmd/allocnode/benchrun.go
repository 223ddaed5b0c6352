package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/term"

	"github.com/allocnode/allocnode"
)

// draw makes one request and returns the ids that it got.
type draw func(ctx context.Context) ([]allocnode.Range, error)

// trial is a bench under way.
type trial struct {
	draws    []draw // one for each client
	batch    uint64 // ids that each request wants
	count    uint64 // requests in all
	duration time.Duration
	timeout  time.Duration // of one request

	begun  atomic.Uint64 // requests; beyond count once all are
	done   atomic.Uint64 // requests that got ids
	ids    idSet
	failed failure
}

// failure keeps the first error.
type failure struct {
	once sync.Once
	err  error
}

func (f *failure) set(err error) { f.once.Do(func() { f.err = err }) }

// measured is what came of a trial.
type measured struct {
	requests    uint64 // that got ids
	ids         uint64 // different ones
	twice       uint64 // ids that came again, each time counted
	example     []allocnode.Range
	took        time.Duration
	latencies   latencies
	interrupted bool
}

func (m *measured) rate(n uint64) float64 { return float64(n) / max(m.took.Seconds(), 1e-9) }

// do makes requests until count, duration, the end of ctx or an error. Each client asks again when it has its answer. What
// is under way when the duration ends is waited for; when ctx ends, it is not.
func (r *trial) do(ctx context.Context, watch func(done uint64, took time.Duration)) (*measured, error) {
	begin := time.Now()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	each := make([]latencies, len(r.draws))
	var clients sync.WaitGroup
	for i, d := range r.draws {
		clients.Go(func() {
			for ctx.Err() == nil && r.begun.Add(1) <= r.count {
				sent := time.Now()
				if sent.Sub(begin) >= r.duration {
					return
				}
				err := r.once(ctx, d)
				switch {
				case err == nil:
					each[i].add(time.Since(sent))
					r.done.Add(1)
				case ctx.Err() == nil:
					r.failed.set(err)
					stop() // one error is an answer: the others would only wait for theirs
				}
			}
		})
	}
	ended := make(chan struct{})
	go func() { clients.Wait(); close(ended) }()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for over := false; !over; {
		select {
		case <-tick.C:
		case <-ended:
			over = true
		}
		watch(r.done.Load(), time.Since(begin))
	}
	m := &measured{requests: r.done.Load(), took: time.Since(begin), interrupted: ctx.Err() != nil && r.failed.err == nil}
	for i := range each {
		m.latencies.merge(&each[i])
	}
	m.ids, m.twice, m.example = r.ids.result()
	return m, r.failed.err
}

// once makes one request and keeps what it got.
func (r *trial) once(ctx context.Context, d draw) error {
	ctx, cancel := context.WithTimeoutCause(ctx, r.timeout,
		fmt.Errorf("%w after --timeout %s", context.DeadlineExceeded, r.timeout))
	defer cancel()
	ranges, err := d(ctx)
	if err != nil {
		return err
	}
	var n uint64
	for _, g := range ranges {
		n += g.Count()
	}
	r.ids.add(ranges...)
	if n != r.batch {
		return fmt.Errorf("%d ids were asked for, and %d came", r.batch, n)
	}
	return nil
}

// verdict is an error when an id came twice.
func (m *measured) verdict() error {
	if m.twice == 0 {
		return nil
	}
	return fmt.Errorf("%d ids came twice, among them %s: do not go on using this cluster, and keep its data directories",
		m.twice, spell(m.example))
}

// bar draws how far a bench has come: over itself on a terminal, not at all elsewhere.
type bar struct {
	out      io.Writer  // nil: nowhere
	columns  func() int // of the terminal, now; nil: usualColumns
	count    uint64
	duration time.Duration
	width    int // of what stands on the line
}

const (
	usualColumns = 60 // of a terminal that does not tell
	mostCells    = 30
	leastCells   = 5 // fewer show nothing
)

// columnsOf is the width of the terminal file, as it is now.
func columnsOf(file *os.File) int {
	columns, _, err := term.GetSize(int(file.Fd()))
	if err != nil || columns <= 0 {
		return usualColumns
	}
	return columns
}

// room is how much fits on the line. The last column stays free: some terminals go on to the next line at it.
func (b *bar) room() int {
	if b.columns == nil {
		return usualColumns - 1
	}
	return max(b.columns()-1, 0)
}

func (b *bar) draw(done uint64, took time.Duration) {
	if b.out == nil {
		return
	}
	room := b.room()
	// Whichever comes first ends it.
	share := min(max(float64(done)/float64(b.count), took.Seconds()/b.duration.Seconds()), 1)
	line := fmt.Sprintf("%3.0f%%  %d requests, %.0f/s", 100*share, done, float64(done)/max(took.Seconds(), 1e-9))
	if cells := min(mostCells, room-len(line)-len("[] ")); cells >= leastCells {
		full := int(share * float64(cells))
		line = fmt.Sprintf("[%s%s] %s", strings.Repeat("=", full), strings.Repeat(" ", cells-full), line)
	}
	line = line[:min(len(line), room)]
	fmt.Fprintf(b.out, "\r%-*s", min(b.width, room), line)
	b.width = len(line)
}

func (b *bar) clear() {
	if b.out != nil && b.width > 0 {
		fmt.Fprintf(b.out, "\r%*s\r", min(b.width, b.room()), "")
	}
}

// errNothing is a bench that got no answer before it was interrupted.
var errNothing = errors.New("interrupted before the first answer")
