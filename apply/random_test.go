package apply

import (
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/allocnode/allocnode/internal/wire"
)

var (
	seedFlag  = flag.Uint64("seed", 0, "the one seed of TestThreeReplicas; 0 is a few fixed ones")
	stepsFlag = flag.Int("steps", 3000, "steps of TestThreeReplicas for each seed")
)

// TestThreeReplicas drives three replicas, which crash, over one log, whose publishers fail, repeat themselves and come
// late, and compares what every replica makes of it with the oracle.
//
// Checked with each of these faults put in: a copy applied again, an advance not in its delta, a floor not restored, a floor
// one too low, a waiter found without its incarnation (hazard 4), positions that shift (hazard 13), records committed without
// their head (hazard 2), an answer given twice.
func TestThreeReplicas(t *testing.T) {
	seeds := []uint64{1, 2, 3, 4}
	if *seedFlag != 0 {
		seeds = []uint64{*seedFlag}
	}
	seen := map[string]int{}
	for _, seed := range seeds {
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			w := newWorld(t, seed)
			for range *stepsFlag {
				w.step()
			}
			w.finish()
			for what, n := range w.seen {
				seen[what] += n
			}
		})
	}
	t.Logf("seen: %v", seen)
	if *seedFlag != 0 || t.Failed() {
		return
	}
	for _, what := range []string{"crash", "range", "repeated", "copy", "skipped", "new range for an old key", "refused 1",
		"refused 2", "refused 3", "refused 4", "refused 6", "refused 7", "refused 8", "refused 9"} {
		if seen[what] == 0 {
			t.Errorf("no run saw %s", what)
		}
	}
}

const (
	worldKeys    = 6
	worldEntries = 9
)

// world is the cluster and its users.
type world struct {
	t        *testing.T
	rng      *rand.Rand
	log      [][]byte // by seq-1
	late     [][]byte // published, and not in the log yet
	results  []string // by seq, as the first replica to apply it found
	digests  []wire.Digest
	replicas []*replica
	calls    []*call
	attempts []*attempt
	owner    map[string]*call // of each range that a caller got
	acks     []ack
	seen     map[string]int
}

// replica is one node: its run, and a catalog that keeps what was committed.
type replica struct {
	name    string
	run     int
	counter uint64
	c       *checked
	disk    map[string][]byte
	head    Head
	pending []Delta // applied, not committed
	queue   []*attempt
	waiters map[waiterID]*attempt
}

// waiterID is a request id. The incarnation in it is what hazard 4 is about.
type waiterID struct {
	entry wire.EntryID
	pos   int
}

// call is what a user wants; attempt is one try of it at one node, which is answered once.
type call struct {
	op         wire.Op
	got        bool
	start, end uint64 // the first range that it got
}

type attempt struct {
	call     *call
	answered int
}

type ack struct {
	call       *call
	seq        uint64
	start, end uint64
	repeated   bool
}

func newWorld(t *testing.T, seed uint64) *world {
	w := &world{
		t: t, rng: rand.New(rand.NewPCG(seed, 7)), results: []string{""}, digests: []wire.Digest{{}},
		owner: map[string]*call{}, seen: map[string]int{},
	}
	genesis := &wire.Genesis{
		Epoch: 1, Nodes: []string{"n0", "n1", "n2"}, KeyWindow: worldKeys, EntryWindow: worldEntries, MaxSequences: 6,
		HaltOnExhaustion: seed%2 == 0,
	}
	for i := range 3 {
		r := &replica{name: fmt.Sprintf("n%d", i), disk: map[string][]byte{}}
		w.replicas = append(w.replicas, r)
		w.start(r)
	}
	w.log = append(w.log, genesisEntry(genesis))
	return w
}

// start is a node's start: from its catalog, with a new incarnation and a counter that begins anew.
func (w *world) start(r *replica) {
	r.run++
	r.counter = 0
	r.pending, r.queue, r.waiters = nil, nil, map[waiterID]*attempt{}
	r.c = checkedFrom(w.t, maps.Clone(r.disk), r.head)
}

// crash loses what was not committed, and with it every waiter: its caller does not know what became of the request.
func (w *world) crash(r *replica) {
	w.seen["crash"]++
	for _, a := range r.waiters {
		a.answered++
	}
	for _, a := range r.queue {
		a.answered++
	}
	w.start(r)
}

func (w *world) one(n int) bool { return w.rng.IntN(n) == 0 }

func (w *world) step() {
	r := w.replicas[w.rng.IntN(len(w.replicas))]
	switch n := w.rng.IntN(100); {
	case n < 20:
		w.call(r)
	case n < 35:
		w.propose(r)
	case n < 40:
		if len(w.late) > 0 {
			i := w.rng.IntN(len(w.late))
			w.append(w.late[i])
			w.late = slices.Delete(w.late, i, i+1)
		}
	case n < 42:
		w.append([]byte(fmt.Sprintf("garbage %d", w.rng.Uint64())))
	case n < 78:
		w.deliver(r)
	case n < 90:
		w.commit(r)
	case n < 93:
		w.giveUp(r)
	case n < 98:
		w.retry(r)
	default:
		w.crash(r)
	}
}

// call makes a request and frozen parameters for it.
func (w *world) call(r *replica) {
	op := wire.Op{Kind: wire.KindReserve, Name: []byte(fmt.Sprintf("s%d", w.rng.IntN(7))), Count: 1 + w.rng.Uint64N(25)}
	switch w.rng.IntN(20) {
	case 0:
		op.Kind, op.Count = wire.KindAdvance, w.rng.Uint64N(700)
	case 1:
		op.Kind, op.Count = wire.KindResume, 0
	case 2:
		op.Kind, op.Count = wire.KindCreate, 0
		op.Settings = wire.Settings{First: 1 + w.rng.Uint64N(9), Max: 800 + w.rng.Uint64N(3), MaxCount: 20}
		op.Given = wire.GivenMax
	case 3:
		op = wire.Op{Kind: wire.KindBarrier}
	default:
		op.Partial = w.one(4)
		if w.one(3) {
			break
		}
		op.Key = []byte(fmt.Sprintf("key %d", len(w.calls)))
		if w.one(3) {
			op.ListKeyed, op.Index = true, w.rng.Uint64N(3)
		}
		if !w.one(4) {
			op.Since = w.replicas[w.rng.IntN(3)].c.m.Head().Cursor
		}
	}
	c := &call{op: op}
	w.calls = append(w.calls, c)
	w.try(r, c)
}

func (w *world) try(r *replica, c *call) {
	a := &attempt{call: c}
	w.attempts = append(w.attempts, a)
	r.queue = append(r.queue, a)
}

// retry asks again, anywhere, under the same key: also for what was answered, as a caller would who lost the answer.
func (w *world) retry(r *replica) {
	recent := w.calls[max(0, len(w.calls)-40):]
	if len(recent) == 0 {
		return
	}
	if c := recent[w.rng.IntN(len(recent))]; len(c.op.Key) > 0 {
		w.try(r, c)
	}
}

// giveUp detaches one caller.
func (w *world) giveUp(r *replica) {
	for _, id := range slices.SortedFunc(maps.Keys(r.waiters), func(a, b waiterID) int {
		return int(int64(a.entry.Counter)-int64(b.entry.Counter))*100 + a.pos - b.pos
	}) {
		r.waiters[id].answered++
		delete(r.waiters, id)
		return
	}
}

// propose makes an entry of what waits. It may be lost, come late, or come more than once. Every node is configured
// differently, on purpose.
func (w *world) propose(r *replica) {
	n := min(len(r.queue), 1+w.rng.IntN(4))
	if n == 0 || r.c.m.Head().Cursor == 0 {
		return
	}
	r.counter++
	h := testHeader(r.name, r.counter, r.c.m.Head().Cursor)
	h.ID.Incarnation = testID(fmt.Sprintf("%s/%d", r.name, r.run))
	h.AutoCreate = r.name != "n2"
	h.Defaults = wire.Settings{First: 1, Max: 600, MaxCount: 24}
	if r.name == "n1" {
		h.Defaults = wire.Settings{First: 50, Max: 900, MaxCount: 18}
	}
	var ops []wire.Op
	for i, a := range r.queue[:n] {
		ops = append(ops, a.call.op)
		r.waiters[waiterID{h.ID, i}] = a
	}
	r.queue = r.queue[n:]
	entry := seal(h, ops...)
	switch w.rng.IntN(10) {
	case 0: // lost, and published again, or not
		if w.one(2) {
			w.late = append(w.late, entry)
		}
	case 1:
		w.late = append(w.late, entry)
	case 2: // published again for want of an acknowledgement
		w.append(entry)
		w.late = append(w.late, entry)
	case 3:
		w.append(entry)
		w.append(entry)
	default:
		w.append(entry)
	}
}

func (w *world) append(entry []byte) {
	w.log = append(w.log, entry)
	if len(w.log)%50 == 0 {
		w.compare()
	}
}

// deliver feeds one entry: as a rule the next, now and then an old one, or one after a gap.
func (w *world) deliver(r *replica) {
	cursor := r.c.m.Head().Cursor
	if cursor > 0 && w.one(8) {
		seq := 1 + w.rng.Uint64N(cursor)
		if out, _, err := r.c.apply(seq, w.log[seq-1]); err != nil || !out.Replay {
			w.t.Fatalf("seq %d again: %+v, error %v", seq, out, err)
		}
	}
	if ahead := cursor + 2 + w.rng.Uint64N(3); w.one(8) && ahead <= uint64(len(w.log)) {
		var gap *GapError
		if _, _, err := r.c.apply(ahead, w.log[ahead-1]); !errors.As(err, &gap) || gap.Want != cursor+1 {
			w.t.Fatalf("seq %d after %d: %v", ahead, cursor, err)
		}
	}
	for n := 1 + w.rng.IntN(3); n > 0 && cursor < uint64(len(w.log)); n-- {
		cursor++
		out, delta, err := r.c.apply(cursor, w.log[cursor-1])
		if err != nil {
			w.t.Fatal(err)
		}
		w.record(cursor, resultOf(out), r.c.m.Head().Digest)
		switch {
		case out.Duplicate:
			w.seen["copy"]++
		case out.Skipped:
			w.seen["skipped"]++
		}
		r.pending = append(r.pending, delta)
		if w.one(300) { // carved, not committed, not answered
			w.crash(r)
			return
		}
		if w.one(300) { // committed, not answered
			w.commitRun(r, len(r.pending))
			w.crash(r)
			return
		}
		w.answer(r, out)
		if w.one(300) { // answered, not committed: the log has it
			w.crash(r)
			return
		}
	}
}

// record holds every replica, and every run of it, to the first that applied seq.
func (w *world) record(seq uint64, result string, digest wire.Digest) {
	if seq < uint64(len(w.results)) {
		if result != w.results[seq] || digest != w.digests[seq] {
			w.t.Fatalf("seq %d: %q with digest %s, before it was %q with %s", seq, result, digest, w.results[seq], w.digests[seq])
		}
		return
	}
	w.results, w.digests = append(w.results, result), append(w.digests, digest)
}

func (w *world) answer(r *replica, out Outcomes) {
	for i, o := range out.Ops {
		id := waiterID{out.Entry.ID, i}
		a, waits := r.waiters[id]
		if !waits {
			continue
		}
		delete(r.waiters, id)
		a.answered++
		op := &out.Entry.Ops[i]
		if op.Kind != a.call.op.Kind || string(op.Name) != string(a.call.op.Name) || string(op.Key) != string(a.call.op.Key) {
			w.t.Fatalf("seq %d: the caller of %+v got the answer to %+v", out.Seq, a.call.op, op)
		}
		if op.Kind == wire.KindReserve && o.Reject == wire.Accepted {
			w.ack(ack{a.call, out.Seq, o.Start, o.End, o.Repeated})
		}
		if o.Reject != wire.Accepted {
			w.seen[fmt.Sprintf("refused %d", o.Reject)]++
		}
	}
}

// ack checks a range that a caller has got: nobody else has an id of it, and a key that was promised kept its range.
func (w *world) ack(k ack) {
	c := k.call
	w.seen["range"]++
	if k.repeated {
		w.seen["repeated"]++
	}
	for id := k.start; id < k.end; id++ {
		name := fmt.Sprintf("%s %d", c.op.Name, id)
		if other, taken := w.owner[name]; taken && other != c {
			w.t.Fatalf("seq %d: %s was issued twice, to %+v and to %+v", k.seq, name, other.op, c.op)
		}
		w.owner[name] = c
	}
	if c.got && (c.start != k.start || c.end != k.end) {
		if c.op.Since > 0 {
			w.t.Fatalf("seq %d: key %q has [%d, %d), it had [%d, %d)", k.seq, c.op.Key, k.start, k.end, c.start, c.end)
		}
		w.seen["new range for an old key"]++
	}
	if !c.got {
		c.got, c.start, c.end = true, k.start, k.end
	}
	w.acks = append(w.acks, k)
}

func (w *world) commit(r *replica) {
	if len(r.pending) > 0 {
		w.commitRun(r, 1+w.rng.IntN(len(r.pending)))
	}
}

// commitRun is one transaction: the records of n deltas, and the head of the last.
func (w *world) commitRun(r *replica, n int) {
	for _, delta := range r.pending[:n] {
		for _, rec := range delta.Records {
			if rec.Value == nil {
				delete(r.disk, string(rec.Key))
			} else {
				r.disk[string(rec.Key)] = rec.Value
			}
		}
		r.head = delta.Head
	}
	r.pending = r.pending[n:]
}

// compare holds all that was applied so far to the oracle.
func (w *world) compare() []grant {
	results, grants, _ := oracle(w.log[:len(w.results)-1])
	for seq := 1; seq < len(w.results); seq++ {
		if w.results[seq] != results[seq] {
			w.t.Fatalf("seq %d: the replicas found %q, the oracle %q", seq, w.results[seq], results[seq])
		}
	}
	return grants
}

// finish brings everyone to the end of the log, shuts down, and looks at the whole.
func (w *world) finish() {
	for _, r := range w.replicas {
		for r.c.m.Head().Cursor < uint64(len(w.log)) {
			w.deliver(r)
		}
		w.commitRun(r, len(r.pending))
		w.crash(r)
	}
	grants := w.compare()
	_, _, hwm := oracle(w.log)
	for _, r := range w.replicas {
		if r.c.m.Head() != w.replicas[0].c.m.Head() || r.c.m.Head().Cursor != uint64(len(w.log)) {
			w.t.Errorf("%s ends at %+v", r.name, r.c.m.Head())
		}
		for _, s := range r.c.m.List(nil, 0, r.c.m.Len()) {
			if s.HWM != hwm[s.Name] {
				w.t.Errorf("%s: hwm of %s is %d, the oracle has %d", r.name, s.Name, s.HWM, hwm[s.Name])
			}
		}
	}
	for _, a := range w.attempts {
		if a.answered != 1 {
			w.t.Errorf("%d answers to an attempt of %+v", a.answered, a.call.op)
		}
	}
	end := map[string]uint64{}
	for _, g := range grants {
		if g.start <= end[g.name] {
			w.t.Errorf("seq %d: [%d, %d) of %s after %d was issued", g.seq, g.start, g.end, g.name, end[g.name])
		}
		end[g.name] = g.end - 1
	}
	for _, k := range w.acks {
		w.checkAck(grants, k)
	}
}

// checkAck finds the grant behind an answer. A key without since may have a second range only when the first had left
// the window that is promised.
func (w *world) checkAck(grants []grant, k ack) {
	w.t.Helper()
	i := slices.IndexFunc(grants, func(g grant) bool { return g.name == string(k.call.op.Name) && g.start == k.start })
	if i < 0 || grants[i].end != k.end || grants[i].seq > k.seq || (grants[i].seq != k.seq && !k.repeated) {
		w.t.Errorf("seq %d: [%d, %d) of %s was answered, and never granted", k.seq, k.start, k.end, k.call.op.Name)
		return
	}
	if k.start == k.call.start {
		return
	}
	first := slices.IndexFunc(grants, func(g grant) bool { return g.name == string(k.call.op.Name) && g.start == k.call.start })
	keys := 0
	for _, g := range grants {
		if g.scope != "" && g.seq > grants[first].seq && g.seq < grants[i].seq {
			keys++
		}
	}
	if keys < worldKeys {
		w.t.Errorf("seq %d: key %q got a second range after %d other keys", k.seq, k.call.op.Key, keys)
	}
}
