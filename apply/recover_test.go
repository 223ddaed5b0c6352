package apply

import (
	"fmt"
	"strings"
	"testing"

	"github.com/allocnode/allocnode/internal/wire"
)

// toldBy is a machine that has applied the first entries of a log.
func toldBy(t *testing.T, log [][]byte) *Machine {
	t.Helper()
	m := New()
	for i, data := range log {
		if _, _, err := m.Apply(uint64(i+1), data); err != nil {
			t.Fatal(err)
		}
	}
	return m
}

// restoredLog is a checked machine that begins with r: its genesis, and each part.
func restoredLog(t *testing.T, r *Recovered) *checked {
	t.Helper()
	c := newChecked(t)
	first := r.Genesis.First()
	h := testHeader("n1", 1, first-1)
	if _, _, err := c.apply(first, seal(h, wire.Op{Kind: wire.KindGenesis, Genesis: r.Genesis})); err != nil {
		t.Fatal(err)
	}
	for i, p := range r.Parts {
		if !c.m.Restoring() {
			t.Fatalf("complete before part %d", i)
		}
		out := c.must(seal(testHeader("n1", uint64(i+2), c.m.Head().Cursor), wire.Op{Kind: wire.KindRestore, Index: uint64(i), Data: p}))
		if out.Ops[0].Reject != wire.Accepted {
			t.Fatalf("part %d: %v", i, out.Ops[0].Reject)
		}
		c.restart()
	}
	if c.m.Restoring() {
		t.Fatal("not complete after the last part")
	}
	return c
}

func hwmOf(m *Machine, name string) uint64 {
	info, _ := m.Info(name)
	return info.HWM
}

// recoveryLog is a log of five reservations, two of them keyed.
func recoveryLog() [][]byte {
	return [][]byte{
		genesisEntry(testGenesis()),
		seal(testHeader("n1", 2, 1), reserveOp("orders", 10, "k1", 0)),
		seal(testHeader("n1", 3, 2), reserveOp("orders", 20, "k2", 0), reserveOp("invoices", 5, "", 0)),
		seal(testHeader("n2", 1, 3), wire.Op{
			Kind: wire.KindCreate, Name: []byte("small"), Settings: wire.Settings{First: 5, Max: 99, MaxCount: 3}, Given: 7,
		}),
		seal(testHeader("n2", 2, 4), reserveOp("orders", 30, "k3", 0), reserveOp("small", 3, "", 0)),
	}
}

// The state that is recovered is the best catalog's, with its keys, and the log goes on above everything.
func TestRecoverGoesOn(t *testing.T) {
	log := recoveryLog()
	r, err := Recover([]Catalog{{"n1", toldBy(t, log[:3])}, {"n2", toldBy(t, log)}, {"n3", New()}}, Plan{Epoch: 2, Complete: true})
	if err != nil {
		t.Fatal(err)
	}
	c := restoredLog(t, r)
	if first := r.Genesis.First(); first != 2_000_000 || c.m.Head().Epoch != 2 || c.m.Oldest() != first {
		t.Errorf("first %d, head %+v, oldest entry %d", first, c.m.Head(), c.m.Oldest())
	}
	for name, want := range map[string]uint64{"orders": 60, "invoices": 5, "small": 7} {
		if got := hwmOf(c.m, name); got != want {
			t.Errorf("%s has hwm %d, want %d", name, got, want)
		}
	}
	cursor := c.m.Head().Cursor
	out := c.must(seal(testHeader("n3", 1, cursor),
		reserveOp("orders", 20, "k2", 2), reserveOp("orders", 1, "k9", 4), reserveOp("small", 1, "", 0), reserveOp("new", 1, "", 0)))
	for i, want := range []string{"[11, 31) again", "[61, 62)", "[8, 9)", "[1, 2)"} {
		o := out.Ops[i]
		got := fmt.Sprintf("[%d, %d)", o.Start, o.End)
		if o.Repeated {
			got += " again"
		}
		if got != want || o.Reject != wire.Accepted {
			t.Errorf("operation %d: %s, %v: want %s", i, got, o.Reject, want)
		}
	}
	c.restart()
	// A second recovery, from the first one's log.
	again, err := Recover([]Catalog{{"n1", c.m}, {"n2", toldBy(t, log)}}, Plan{Epoch: 3, Complete: true})
	if err != nil {
		t.Fatal(err)
	}
	if d := restoredLog(t, again); hwmOf(d.m, "orders") != 61 || d.m.genesis.First() != 4_000_000 {
		t.Errorf("the second recovery has %d, from %d on", hwmOf(d.m, "orders"), d.m.genesis.First())
	}
}

// Hazard 11: of two histories each sequence has the higher mark, sequences of either are there, and no cursor of either is.
// Checked: with the hwms of the best catalog alone the state was not even whole: it had granted keys above its hwm.
func TestRecoverTwoHistories(t *testing.T) {
	log := recoveryLog()
	other := append(log[:2:2],
		seal(testHeader("n3", 1, 2), reserveOp("orders", 5, "k2", 0), reserveOp("invoices", 50, "k7", 0)),
		seal(testHeader("n3", 2, 3), reserveOp("only", 4, "k8", 0)),
	)
	a, b := toldBy(t, log), toldBy(t, other)
	r, err := Recover([]Catalog{{"b", b}, {"a", a}}, Plan{Epoch: 2, Complete: true})
	if err != nil {
		t.Fatal(err)
	}
	c := restoredLog(t, r)
	for name, want := range map[string]uint64{"orders": 60, "invoices": 50, "small": 7, "only": 4} {
		if got := hwmOf(c.m, name); got != want {
			t.Errorf("%s has hwm %d, want %d", name, got, want)
		}
	}
	for _, m := range []*Machine{a, b} {
		if name, here, there, above := m.Above(c.m); above {
			t.Errorf("%s: %d above %d", name, here, there)
		}
	}
	if name, _, _, above := b.Above(a); !above || name != "invoices" {
		t.Errorf("b is above a in %q, %v", name, above)
	}
	out := c.must(seal(testHeader("n1", 99, c.m.Head().Cursor), reserveOp("orders", 20, "k2", 0), reserveOp("only", 4, "k8", 0)))
	if o := out.Ops[0]; !o.Repeated || o.Start != 11 { // that of the higher cursor
		t.Errorf("k2: %+v", o)
	}
	if o := out.Ops[1]; !o.Repeated || o.Start != 1 {
		t.Errorf("k8: %+v", o)
	}
	notes := strings.Join(r.Notes, "\n")
	if !strings.Contains(notes, "1 keys are of two histories") || !strings.Contains(notes, "invoices has hwm 50") {
		t.Errorf("notes:\n%s", notes)
	}
}

// Without every catalog each sequence is raised, known or not, and a key that is absent is refused.
// Checked: without the floor in newSequence, and without KeyFloor, this fails.
func TestRecoverRaises(t *testing.T) {
	r, err := Recover([]Catalog{{"n1", toldBy(t, recoveryLog())}}, Plan{Epoch: 7, RaiseBy: 100})
	if err != nil {
		t.Fatal(err)
	}
	c := restoredLog(t, r)
	cursor := c.m.Head().Cursor
	tiny := testHeader("n2", 2, cursor)
	tiny.Defaults.Max = 50
	out := c.must(seal(testHeader("n2", 1, cursor), reserveOp("orders", 1, "", 0), reserveOp("new", 1, "", 0), reserveOp("small", 1, "", 0),
		reserveOp("orders", 1, "gone", cursor-10), reserveOp("orders", 10, "k1", 1)))
	if o := out.Ops[0]; o.Start != 161 {
		t.Errorf("orders goes on at %d", o.Start)
	}
	if o := out.Ops[1]; o.Start != 101 {
		t.Errorf("a sequence that nobody remembers begins at %d", o.Start)
	}
	if o := out.Ops[2]; o.Reject != wire.RejectExhausted { // max 99
		t.Errorf("small: %+v", o)
	}
	if o := out.Ops[3]; o.Reject != wire.RejectKeyExpired {
		t.Errorf("a key that may have been used: %+v", o)
	}
	if o := out.Ops[4]; !o.Repeated || o.Start != 1 {
		t.Errorf("k1: %+v", o)
	}
	if o := c.must(seal(tiny, reserveOp("tiny", 1, "", 0))).Ops[0]; o.Reject != wire.RejectExhausted {
		t.Errorf("a new sequence whose max lies below the floor: %+v", o)
	}
	// The floors outlast a next recovery.
	again, err := Recover([]Catalog{{"n1", c.m}}, Plan{Epoch: 8, Complete: true})
	if err != nil || again.Genesis.Recovery.Floor != 100 {
		t.Errorf("floor %+v, %v", again.Genesis.Recovery, err)
	}
	// Also where an old catalog turns up that knows a little of what the floor was for: the one that is gone may have known more.
	// Checked: with that catalog's hwm "late" went on at 6, below what had been issued of it.
	old := toldBy(t, append(recoveryLog(), seal(testHeader("n2", 3, 5), reserveOp("late", 5, "", 0))))
	again, err = Recover([]Catalog{{"n1", c.m}, {"n2", old}}, Plan{Epoch: 8, Complete: true})
	if err != nil {
		t.Fatal(err)
	}
	if got := hwmOf(restoredLog(t, again).m, "late"); got != 100 {
		t.Errorf("late goes on above %d, want above the floor, 100", got)
	}
}

// Until the last part nothing else is accepted, and a part only as the genesis says.
// Checked: without the test of Restoring in applyOp the reservation carved; without the hash in isNext the forged part was taken.
func TestRecoverPartByPart(t *testing.T) {
	m := toldBy(t, recoveryLog())
	for i := range 9000 { // parts end at 4,000 records
		m.sequences = append(m.sequences, sequence{
			id: uint32(len(m.sequences)), name: fmt.Sprintf("s%d", i), hwm: uint64(i % 1000),
			settings: wire.Settings{First: 1, Max: 1000, MaxCount: 10},
		})
		m.byName[m.sequences[len(m.sequences)-1].name] = uint32(len(m.sequences) - 1)
	}
	r, err := Recover([]Catalog{{"n1", m}}, Plan{Epoch: 2, Complete: true})
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Parts) < 3 {
		t.Fatalf("%d parts", len(r.Parts))
	}
	n := New()
	counter := uint64(0)
	seq := r.Genesis.First()
	step := func(ops ...wire.Op) []wire.Outcome {
		t.Helper()
		counter++
		h := testHeader("n1", counter, seq-1)
		out, _, err := n.Apply(seq, seal(h, ops...))
		if err != nil {
			t.Fatal(err)
		}
		seq++
		return out.Ops
	}
	part := func(i int, data []byte) wire.Op { return wire.Op{Kind: wire.KindRestore, Index: uint64(i), Data: data} }
	if _, _, err := n.Apply(seq+1, seal(testHeader("n1", 1, seq), wire.Op{Kind: wire.KindGenesis, Genesis: r.Genesis})); err == nil {
		t.Error("a genesis was taken at another seq than it names")
	}
	step(wire.Op{Kind: wire.KindGenesis, Genesis: r.Genesis})
	if o := step(reserveOp("orders", 1, "", 0))[0]; o.Reject != wire.RejectRestoring {
		t.Errorf("a reservation before the first part: %+v", o)
	}
	forged := append([]byte(nil), r.Parts[0]...)
	forged[len(forged)-2] ^= 1
	for name, ops := range map[string][]wire.Op{
		"the second part":  {part(1, r.Parts[1])},
		"a forged part":    {part(0, forged)},
		"two in one entry": {part(0, r.Parts[0]), part(1, r.Parts[1])},
	} {
		if o := step(ops...)[0]; o.Reject != wire.RejectRestore {
			t.Errorf("%s: %+v", name, o)
		}
	}
	if n.Len() != 0 {
		t.Fatalf("%d sequences came of what was refused", n.Len())
	}
	for i, p := range r.Parts {
		if o := step(part(i, p))[0]; o.Reject != wire.Accepted {
			t.Fatalf("part %d: %+v", i, o)
		}
		if o := step(part(i, p))[0]; o.Reject != wire.RejectRestore {
			t.Errorf("part %d a second time: %+v", i, o)
		}
		last := i == len(r.Parts)-1
		if o := step(reserveOp("orders", 1, "", 0))[0]; (o.Reject == wire.Accepted) != last {
			t.Errorf("a reservation after part %d of %d: %+v", i, len(r.Parts), o)
		}
	}
	if got := hwmOf(n, "orders"); got != 61 || n.Len() != m.Len() {
		t.Errorf("orders has %d, %d of %d sequences", got, n.Len(), m.Len())
	}
	// A log whose first entry names another seq is none, and an ordinary log does not begin later.
	if _, _, err := New().Apply(5, genesisEntry(testGenesis())); err == nil {
		t.Error("an ordinary genesis was taken at seq 5")
	}
}
