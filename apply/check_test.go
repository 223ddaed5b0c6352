package apply

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"strings"
	"testing"

	"github.com/allocnode/allocnode/internal/wire"
)

// checked is a machine whose invariants are verified with every entry.
type checked struct {
	t       testing.TB
	m       *Machine
	twin    *Machine          // applies the same entries; its maps have other seeds
	records map[string][]byte // the records of all deltas, laid over one another
	marks   map[string]uint64 // hwm of each sequence, followed by the outcomes alone
	state   string            // of m after the last entry
}

func newChecked(t testing.TB) *checked {
	return &checked{t: t, m: New(), twin: New(), records: map[string][]byte{}, marks: map[string]uint64{}}
}

// checkedFrom is a machine restored from a catalog. The records become its own.
func checkedFrom(t testing.TB, records map[string][]byte, head Head) *checked {
	t.Helper()
	c := &checked{t: t, m: restoreMap(t, records, head), twin: restoreMap(t, records, head), records: records, marks: map[string]uint64{}}
	for _, s := range c.m.List(nil, 0, c.m.Len()) {
		c.marks[s.Name] = s.HWM
	}
	return c
}

// restart replaces the machine by what a catalog would make of the deltas so far.
func (c *checked) restart() {
	c.t.Helper()
	c.m = restoreMap(c.t, c.records, c.m.Head())
}

// apply is Machine.Apply, then check.
func (c *checked) apply(seq uint64, data []byte) (Outcomes, Delta, error) {
	c.t.Helper()
	before := c.state
	if before == "" {
		before = stateOf(c.m)
	}
	head, hadFence := c.m.Head(), c.m.fence
	restored := restoreMap(c.t, c.records, head)

	out, delta, err := c.m.Apply(seq, data)
	want := describe(out, delta, err)
	for who, other := range map[string]*Machine{"a twin": c.twin, "a restored machine": restored} {
		if got := describe(other.Apply(seq, data)); got != want { // invariants 4 and 5: behaviour
			c.t.Fatalf("seq %d: %s gave\n%s\nwant\n%s", seq, who, got, want)
		}
	}
	if err != nil || out.Replay {
		if after := stateOf(c.m); after != before {
			c.t.Fatalf("seq %d, error %v: the state changed from\n%s\nto\n%s", seq, err, before, after)
		}
		if len(delta.Records) > 0 || delta.Head != (Head{}) {
			c.t.Fatalf("seq %d, error %v: a delta came with it", seq, err)
		}
		return out, delta, err
	}
	if out.Fence == (hadFence == c.m.fence) {
		c.t.Fatalf("seq %d: outcome says fence %v, the fence went from %+v to %+v", seq, out.Fence, hadFence, c.m.fence)
	}
	for _, r := range delta.Records {
		if r.Value == nil {
			delete(c.records, string(r.Key))
		} else {
			c.records[string(r.Key)] = r.Value
		}
	}
	c.check(head, out, delta)
	return out, delta, nil
}

// check holds the machine to the invariants at Machine, and to those of its windows.
func (c *checked) check(before Head, out Outcomes, delta Delta) {
	c.t.Helper()
	m := c.m
	begins := before == Head{} && m.head.Cursor == m.genesis.First()
	if m.head.Cursor != before.Cursor+1 && !begins || out.Seq != m.head.Cursor || delta.Head != m.head { // 1
		c.t.Fatalf("cursor %d after %d, outcome of %d, delta %+v", m.head.Cursor, before.Cursor, out.Seq, delta.Head)
	}
	if m.head.Digest == before.Digest {
		c.t.Fatalf("seq %d: the digest did not move", out.Seq)
	}
	for i, o := range out.Ops { // 3
		c.checkGrant(&out.Entry.Ops[i], o)
	}
	if m.Len() != len(m.byName) {
		c.t.Fatalf("%d sequences, %d names", m.Len(), len(m.byName))
	}
	for _, s := range m.List(nil, 0, m.Len()) { // 2
		mark, known := c.marks[s.Name]
		if !known { // made without an id carved, or restored with all that were
			mark = s.Settings.First - 1
			if len(out.Entry.Ops) > 0 && out.Entry.Ops[0].Kind == wire.KindRestore {
				mark = s.HWM
			}
			c.marks[s.Name] = mark
		}
		if s.HWM != mark {
			c.t.Fatalf("seq %d: hwm of %s is %d, the outcomes add up to %d", out.Seq, s.Name, s.HWM, mark)
		}
		if s.HWM < s.Settings.First-1 || s.HWM > s.Settings.Max || s.Settings.Max > 1<<63-1 {
			c.t.Fatalf("seq %d: hwm %d of %s outside [%d, %d]", out.Seq, s.HWM, s.Name, s.Settings.First-1, s.Settings.Max)
		}
	}
	c.state = stateOf(m)
	if got := stateOf(restoreMap(c.t, c.records, m.head)); got != c.state { // 5
		c.t.Fatalf("seq %d: the deltas' records give\n%s\nthe machine holds\n%s", out.Seq, got, c.state)
	}
	if got := stateOf(c.twin); got != c.state { // 4
		c.t.Fatalf("seq %d: a twin holds\n%s\nthe machine holds\n%s", out.Seq, got, c.state)
	}
	c.checkWindows()
}

func (c *checked) checkGrant(op *wire.Op, o wire.Outcome) {
	c.t.Helper()
	if o.Reject != wire.Accepted || o.Repeated {
		return
	}
	name := string(op.Name)
	mark, known := c.marks[name]
	switch op.Kind {
	case wire.KindReserve:
		if known && o.Start != mark+1 || o.Start == 0 || o.End <= o.Start || o.End-o.Start > op.Count {
			c.t.Fatalf("%d ids of %s: granted [%d, %d) after hwm %d", op.Count, name, o.Start, o.End, mark)
		}
		if !op.Partial && o.End-o.Start != op.Count {
			c.t.Fatalf("%d ids of %s: granted [%d, %d)", op.Count, name, o.Start, o.End)
		}
		c.marks[name] = o.End - 1
	case wire.KindAdvance:
		if known && o.Start != mark || o.End < o.Start || o.End < op.Count {
			c.t.Fatalf("advance %s to %d: from %d to %d, after hwm %d", name, op.Count, o.Start, o.End, mark)
		}
		c.marks[name] = o.End
	}
}

func (c *checked) checkWindows() {
	c.t.Helper()
	w, kept := &c.m.keys, 0
	recovered := c.m.genesis.Recovery != nil // its floor may lie above keys that are known, and its window begins as it was
	for _, r := range w.records {
		kept += len(r.keys)
		if r.seq <= w.floor && !recovered || len(r.keys) == 0 {
			c.t.Fatalf("key record of seq %d with %d keys, floor %d", r.seq, len(r.keys), w.floor)
		}
		for _, k := range r.keys {
			if _, ok := w.found[k]; !ok {
				c.t.Fatalf("key %x of seq %d is not to be found", k, r.seq)
			}
		}
	}
	if kept != len(w.found) || len(w.current) != 0 {
		c.t.Fatalf("%d keys in records, %d found, %d in flight", kept, len(w.found), len(w.current))
	}
	if !recovered && len(w.records) > 0 && uint64(kept-len(w.records[0].keys)) >= w.size || !recovered && w.floor > 0 && uint64(kept) < w.size {
		c.t.Fatalf("window of %d holds %d keys, %d of them in its oldest record", w.size, kept, len(w.records[0].keys))
	}
	e := &c.m.entries
	if e.next != c.m.head.Cursor+1 || e.next-e.first != min(c.m.head.Cursor-c.m.genesis.First()+1, uint64(len(e.ring))) {
		c.t.Fatalf("entry window [%d, %d) of %d at cursor %d", e.first, e.next, len(e.ring), c.m.head.Cursor)
	}
	last := map[wire.EntryID]uint64{}
	for seq := e.first; seq < e.next; seq++ {
		if kept, ok := e.at(seq); ok && kept.id != (wire.EntryID{}) {
			last[kept.id] = seq
		}
	}
	if fmt.Sprint(last) != fmt.Sprint(e.last) {
		c.t.Fatalf("ids by seq: %v, want %v", e.last, last)
	}
}

// stateOf is everything that a machine stores, as text.
func stateOf(m *Machine) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%+v\n", m.Head())
	for r := range m.Records() {
		fmt.Fprintf(&b, "%q = %x\n", r.Key, r.Value)
	}
	return b.String()
}

// describe is everything that Apply returned, as text.
func describe(out Outcomes, delta Delta, err error) string {
	var b strings.Builder
	fmt.Fprintf(&b, "seq=%d replay=%v skipped=%v duplicate=%v fence=%v error=%v\n",
		out.Seq, out.Replay, out.Skipped, out.Duplicate, out.Fence, err)
	for _, o := range out.Ops {
		fmt.Fprintf(&b, "%+v\n", o)
	}
	fmt.Fprintf(&b, "%+v\n", delta.Head)
	for _, r := range delta.Records {
		fmt.Fprintf(&b, "%q = %x deleted=%v\n", r.Key, r.Value, r.Value == nil)
	}
	return b.String()
}

// restoreMap adds the records in the order of a map, so that a dependence on their order shows.
func restoreMap(t testing.TB, records map[string][]byte, head Head) *Machine {
	t.Helper()
	m, err := tryRestore(records, head)
	if err != nil {
		t.Fatalf("restore: %v", err)
	}
	return m
}

func tryRestore(records map[string][]byte, head Head) (*Machine, error) {
	r := NewRestorer()
	for k, v := range records {
		key, value := []byte(k), bytes.Clone(v)
		if err := r.Add(Record{Key: key, Value: value}); err != nil {
			return nil, err
		}
		clear(key) // the restorer keeps nothing of the record's bytes
		clear(value)
	}
	return r.Machine(head)
}

func testID(s string) (id wire.ID) {
	sum := sha256.Sum256([]byte(s))
	copy(id[:], sum[:])
	return id
}

// seal makes an entry.
func seal(h wire.Header, ops ...wire.Op) []byte {
	b := wire.AppendHeader(nil, &h)
	for i := range ops {
		b = wire.AppendOp(b, &ops[i])
	}
	wire.Seal(b)
	return b
}

func testHeader(node string, counter, cursor uint64) wire.Header {
	return wire.Header{
		ClusterID: testID("cluster"), Level: wire.Level, Node: []byte(node),
		ID:     wire.EntryID{Incarnation: testID(node), Counter: counter},
		Cursor: cursor, AutoCreate: true, Defaults: wire.Settings{First: 1, Max: 1000, MaxCount: 100},
	}
}

func testGenesis() *wire.Genesis {
	return &wire.Genesis{Epoch: 1, Created: 1, Nodes: []string{"n1", "n2", "n3"}, KeyWindow: 4, EntryWindow: 8, MaxSequences: 100}
}

func genesisEntry(g *wire.Genesis) []byte {
	return seal(testHeader("n1", 1, 0), wire.Op{Kind: wire.KindGenesis, Genesis: g})
}

func reserveOp(name string, count uint64, key string, since uint64) wire.Op {
	return wire.Op{Kind: wire.KindReserve, Name: []byte(name), Count: count, Key: []byte(key), Since: since}
}

// begun is a checked machine with its genesis applied.
func begun(t testing.TB) *checked {
	t.Helper()
	c := newChecked(t)
	c.must(genesisEntry(testGenesis()))
	return c
}

// must applies data at the next seq.
func (c *checked) must(data []byte) Outcomes {
	c.t.Helper()
	out, _, err := c.apply(c.m.Head().Cursor+1, data)
	if err != nil {
		c.t.Fatal(err)
	}
	return out
}
