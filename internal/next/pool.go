package next

import (
	"context"
	"sync"
	"time"

	"github.com/allocnode/allocnode"
)

// Config bounds a [Pool].
type Config struct {
	// Least and Most are ids in one refill, 1 and up, at most 2^48. Most also bounds one request, and both are also held to
	// the sequence's max_count.
	Least, Most uint64

	Horizon time.Duration // how long a batch should last at the observed rate
	Batches int           // how many sequences may have one; one of those idle for longest makes room
	Idle    time.Duration // a batch that nobody used for this long is dropped, a second or two later
	Waiting int           // requests that may wait, over all sequences
	Timeout time.Duration // for one refill
}

// DefaultConfig holds batches of 100 to 1,000,000 ids that last about ten seconds, for 10,000 sequences.
func DefaultConfig() Config {
	return Config{
		Least: 100, Most: allocnode.DefaultMaxCount, Horizon: 10 * time.Second,
		Batches: 10_000, Idle: 10 * time.Minute, Waiting: 1 << 16, Timeout: 4 * time.Second,
	}
}

// Request asks for ids. It belongs to the pool from [Pool.Take] until Done returns.
type Request struct {
	Sequence string // well-formed
	Count    uint64 // 1 to Config.Most, and the sequence's max_count
	Deadline time.Time

	// Done is called exactly once, from any goroutine, and must not block. The ranges hold Count ids in all, ascend, and are
	// valid during the call; err is an *allocnode.Error: bad_request, exhausted (Remaining is what the node still holds),
	// unavailable, or what the log or the node's guard refuses with.
	Done func(ranges []allocnode.Range, err error)

	next *Request // in a list
	got  []allocnode.Range
	one  [1]allocnode.Range // got most often
	err  *allocnode.Error
}

// gate says what happens to requests.
type gate uint8

const (
	gateHeld   gate = iota // wait: the node is checking the log
	gateOpen               // are served
	gateClosed             // are refused, with Pool.refusal
)

// Pool is the batches of one node. See the package's invariants.
type Pool struct {
	cfg    Config
	submit Submitter
	disk   disk // of a mutant, see there

	mu      sync.Mutex // guards all below, and every batch
	gate    gate
	refusal *allocnode.Error // why, while gateClosed
	fenced  bool             // gateClosed for good
	ticket  uint64           // of the last Hold; 0 is none
	drops   uint64           // how many times everything held was dropped
	batches map[string]*batch
	waiting int
	looked  time.Time // for idle batches
}

// New makes a pool whose gate is held.
func New(cfg Config, submit Submitter) *Pool {
	return &Pool{cfg: cfg, submit: submit, batches: make(map[string]*batch)}
}

// due collects what is to be called once the mutex is free.
type due struct {
	answers list
	refills []refill
}

func (d *due) answer(r *Request, err *allocnode.Error) {
	r.err = err
	d.answers.push(r)
}

func (p *Pool) run(d *due) {
	for d.answers.first != nil {
		if r := d.answers.pop(); r.err != nil { // popped before: Done may use r again
			r.Done(nil, r.err)
		} else {
			r.Done(r.got, nil)
		}
	}
	for _, f := range d.refills {
		p.refill(f)
	}
}

// Take answers r from the batch, or has it wait for a refill. It never blocks.
func (p *Pool) Take(r *Request) {
	var d due
	p.mu.Lock()
	p.takeLocked(r, &d)
	p.mu.Unlock()
	p.run(&d)
}

func (p *Pool) takeLocked(r *Request, d *due) {
	b := p.batches[r.Sequence]
	if p.gate == gateOpen && b != nil && b.waiting.first == nil && r.Count <= b.held && r.Count > 0 { // most often
		b.give(r)
		d.answer(r, nil)
		if b.held <= b.low && !b.refilling && !b.exhausted {
			p.serveLocked(b, time.Now(), d)
		}
		return
	}
	now := time.Now()
	most := p.cfg.Most
	if b != nil {
		most = b.most
	}
	switch {
	case p.gate == gateClosed:
		d.answer(r, p.refusal)
		return
	case r.Count == 0 || r.Count > most:
		d.answer(r, tooMany(r, most))
		return
	case p.waiting >= p.cfg.Waiting:
		d.answer(r, allocnode.Errorf(allocnode.CodeUnavailable, "%d requests wait already", p.waiting))
		return
	}
	if b == nil {
		if b = p.makeLocked(r.Sequence, now); b == nil {
			d.answer(r, allocnode.Errorf(allocnode.CodeUnavailable, "%d sequences have a batch already, none of them idle",
				len(p.batches)))
			return
		}
	}
	b.touched = true
	b.waiting.push(r)
	b.wanted += r.Count
	p.waiting++
	p.serveLocked(b, now, d)
}

// sample is how many batches are looked at for one that makes room. The map gives them in random order, and to look at all
// of them for each new sequence would keep everybody else waiting.
const sample = 32

// makeLocked makes a batch, in the place of an idle one where there are too many; nil where none is idle.
func (p *Pool) makeLocked(name string, now time.Time) *batch {
	if len(p.batches) >= p.cfg.Batches {
		var oldest *batch
		seen := 0
		for _, b := range p.batches {
			if b.waiting.first != nil || b.refilling {
				continue
			}
			if oldest == nil || b.idleLonger(oldest) {
				oldest = b
			}
			if seen++; seen == sample {
				break
			}
		}
		if oldest == nil {
			return nil
		}
		delete(p.batches, oldest.name)
	}
	b := &batch{name: name, size: p.cfg.Least, low: 1, most: p.cfg.Most, last: now}
	p.disk.resume(b)
	p.batches[name] = b
	return b
}

// serveLocked answers those who wait, in their order, as far as the batch goes, and asks for the next one in time.
func (p *Pool) serveLocked(b *batch, now time.Time, d *due) {
	if p.gate != gateOpen {
		return
	}
	for r := b.waiting.first; r != nil; r = b.waiting.first {
		err := b.refusal(r, now)
		if err == nil && r.Count > b.held {
			break
		}
		if err == nil {
			b.give(r)
		}
		p.leaveLocked(b, b.waiting.pop(), d, err)
	}
	if !b.refilling && !b.exhausted && !now.Before(b.again) && b.held <= max(b.low, b.wanted) {
		b.refilling = true
		d.refills = append(d.refills, refill{b, b.nextSize(p.cfg, now), p.drops})
	}
}

// leaveLocked answers a request that has just left b's line.
func (p *Pool) leaveLocked(b *batch, r *Request, d *due, err *allocnode.Error) {
	b.wanted -= r.Count
	p.waiting--
	d.answer(r, err)
}

// Advanced drops what is held of a sequence at or below to. The node calls it for each advance that it applies, with the
// id that the operation names, in log order and before the entry's outcomes are told.
func (p *Pool) Advanced(sequence string, to uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if b := p.batches[sequence]; b != nil { // without one, whatever will be asked for lies above
		b.advance(to)
	}
}

// Hold has requests wait, until an Open with the same ticket, a Refuse, or their deadlines. Tickets, 1 and up, ascend with
// each check that begins. One that is not above the last comes late: a later check has held the gate already.
func (p *Pool) Hold(ticket uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.fenced && ticket > p.ticket {
		p.gate, p.refusal, p.ticket = gateHeld, nil, ticket
	}
}

// Open lets requests be answered. It does nothing and returns false when another Hold, a Refuse or a Fence came after the
// Hold with that ticket: whatever was found safe then may no longer be.
func (p *Pool) Open(ticket uint64) bool {
	var d due
	p.mu.Lock()
	open := p.gate == gateHeld && ticket != 0 && ticket == p.ticket
	if open {
		p.gate = gateOpen
		now := time.Now()
		for _, b := range p.batches {
			if b.waiting.first != nil {
				p.serveLocked(b, now, &d)
			}
		}
	}
	p.mu.Unlock()
	p.run(&d)
	return open
}

// Refuse answers every request with err from now on, until Hold, and drops all that is held.
func (p *Pool) Refuse(err *allocnode.Error) { p.close(err, false) }

// Fence is Refuse for good: no Hold or Open changes it.
func (p *Pool) Fence(err *allocnode.Error) { p.close(err, true) }

func (p *Pool) close(err *allocnode.Error, fence bool) {
	var d due
	p.mu.Lock()
	if !p.fenced {
		p.gate, p.refusal, p.fenced = gateClosed, err, fence
	}
	p.drops++
	for name, b := range p.batches {
		for b.waiting.first != nil {
			p.leaveLocked(b, b.waiting.pop(), &d, p.refusal)
		}
		b.ranges, b.held = nil, 0
		if !b.refilling {
			delete(p.batches, name)
		}
	}
	p.mu.Unlock()
	p.run(&d)
}

// tick is how often deadlines and retries are looked at while anybody waits; idle batches are every second.
const tick = 50 * time.Millisecond

// Run gives up requests whose deadline has come, and drops idle batches, until ctx ends; then it refuses what is left, and
// what comes, for good.
func (p *Pool) Run(ctx context.Context) error {
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			p.Fence(allocnode.Errorf(allocnode.CodeUnavailable, "the node is stopping"))
			return nil
		case <-ticker.C:
			p.sweep(time.Now())
		}
	}
}

func (p *Pool) sweep(now time.Time) {
	var d due
	p.mu.Lock()
	idle := now.Sub(p.looked) >= time.Second
	if idle {
		p.looked = now
	}
	if idle || p.waiting > 0 {
		for name, b := range p.batches {
			if b.waiting.first != nil {
				p.expireLocked(b, now, &d)
				p.serveLocked(b, now, &d)
			}
			if !idle {
				continue
			}
			if b.touched {
				b.touched, b.last = false, now
			}
			if b.waiting.first == nil && !b.refilling && now.Sub(b.last) > p.cfg.Idle {
				delete(p.batches, name)
			}
		}
	}
	p.mu.Unlock()
	p.run(&d)
}

func (p *Pool) expireLocked(b *batch, now time.Time, d *due) {
	waiting := b.waiting
	b.waiting = list{}
	var late *allocnode.Error
	for waiting.first != nil {
		r := waiting.pop()
		switch {
		case now.Before(r.Deadline):
			b.waiting.push(r)
			continue
		case late == nil && p.gate == gateHeld:
			late = allocnode.Errorf(allocnode.CodeUnavailable, "the node is checking the log")
		case late == nil:
			late = allocnode.Errorf(allocnode.CodeUnavailable, "the log gave no new batch within the deadline")
		}
		p.leaveLocked(b, r, d, late)
	}
}

// Held is how many sequences have a batch, how many ids those hold, and how many requests wait.
func (p *Pool) Held() (batches int, ids uint64, waiting int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, b := range p.batches {
		ids += b.held
	}
	return len(p.batches), ids, p.waiting
}
