package apply

import (
	"bytes"
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/allocnode/allocnode/internal/wire"
)

// Hazard 1: nothing but the log moves a hwm. Apply is the only method of Machine that changes anything.
// Checked: with a method Bind that raised a hwm this fails.
func TestOnlyApplyChangesAMachine(t *testing.T) {
	readers := []string{
		"Above", "EntryHash", "Fence", "Genesis", "Head", "Info", "Len", "Level", "List", "Member", "Oldest", "Records", "Restored", "Restoring",
		"Skipped",
	}
	var got []string
	for method := range reflect.TypeFor[*Machine]().Methods() {
		if method.Name != "Apply" {
			got = append(got, method.Name)
		}
	}
	if !slices.Equal(got, readers) {
		t.Errorf("methods beside Apply: %v, want %v: a new one must not change the state", got, readers)
	}
	_, _, _, c := history(t)
	before := stateOf(c.m)
	c.m.Above(New())
	c.m.EntryHash(3)
	c.m.Fence()
	c.m.Genesis()
	info, _ := c.m.Info("orders")
	info.HWM++
	list := c.m.List(nil, 0, 10)
	list[0].HWM++
	c.m.Member("n1")
	if after := stateOf(c.m); after != before {
		t.Errorf("reading changed\n%s\nto\n%s", before, after)
	}
}

// Hazard 1: where a side channel did lift one replica's hwm, the digests differ from the next carve on.
// Checked: without the outcomes in finish's digest this fails, and so it does without the flags.
func TestDigestShowsADifferenceInState(t *testing.T) {
	for name, tamper := range map[string]func(m *Machine){
		"hwm":    func(m *Machine) { m.sequences[0].hwm += 5 },
		"halted": func(m *Machine) { m.sequences[0].halted = true },
		"key":    func(m *Machine) { clear(m.keys.found) },
		"max":    func(m *Machine) { m.sequences[0].settings.Max = 10 },
		"copy":   func(m *Machine) { clear(m.entries.last) },
		"fence":  func(m *Machine) { m.fence = Fence{Seq: 1} },
	} {
		a, b := begun(t), begun(t)
		for _, c := range []*checked{a, b} {
			c.must(seal(testHeader("n1", 2, 1), reserveOp("orders", 10, "k1", 0)))
		}
		if a.m.Head() != b.m.Head() {
			t.Fatal("equal logs, different digests")
		}
		tamper(b.m)
		for seq, data := range [][]byte{
			seal(testHeader("n1", 2, 1), reserveOp("orders", 10, "k1", 0)),
			seal(testHeader("n1", 3, 2), reserveOp("orders", 10, "k1", 0), reserveOp("orders", 10, "", 0)),
			seal(testHeader("n1", 4, 99), reserveOp("orders", 10, "", 0)),
		} {
			for _, m := range []*Machine{a.m, b.m} {
				if _, _, err := m.Apply(uint64(3+seq), data); err != nil {
					t.Fatal(err)
				}
			}
		}
		if a.m.Head() == b.m.Head() {
			t.Errorf("%s: the states differ, the digests do not", name)
		}
	}
}

// Hazard 2: the advance goes into the delta of its entry, beside the head that has its cursor.
// Checked: with touch taken out of advance this fails.
func TestAdvanceIsInItsDelta(t *testing.T) {
	c := begun(t)
	for _, to := range []uint64{500, 400, 600} {
		cursor := c.m.Head().Cursor
		advance := wire.Op{Kind: wire.KindAdvance, Name: []byte("orders"), Count: to}
		_, delta, err := c.apply(cursor+1, seal(testHeader("n1", cursor+1, cursor), advance))
		if err != nil {
			t.Fatal(err)
		}
		written := slices.ContainsFunc(delta.Records, func(r Record) bool { return string(r.Key) == "sorders" })
		if written != (to != 400) || delta.Head.Cursor != cursor+1 {
			t.Errorf("advance to %d: record written %v, head %+v", to, written, delta.Head)
		}
	}
}

// Hazard 3: a delta is computed once and may be committed much later, so it must not change as the machine goes on, nor
// may anything rest on the bytes of the entry, which belong to the caller.
// Checked: with finish keeping its records in m.buf, or newSequence aliasing its name, this fails.
func TestDeltasAndStateAliasNothing(t *testing.T) {
	c := begun(t)
	plain := newChecked(t)
	plain.must(genesisEntry(testGenesis()))
	type kept struct{ was, is string }
	var all []*kept
	var deltas []Delta
	buf := make([]byte, 0, 4096)
	for i := range uint64(20) {
		cursor := c.m.Head().Cursor
		entry := seal(testHeader("n1", i+2, cursor),
			reserveOp(strings.Repeat("a", int(i)+1), 2, "k1", 0), reserveOp("orders", 1, strings.Repeat("k", int(i)+1), 0),
			wire.Op{Kind: wire.KindCheck, Name: []byte("n1"), Check: &wire.Check{CatalogID: testID("disk")}})
		plain.must(entry)
		buf = append(buf[:0], entry...)
		_, delta, err := c.m.Apply(cursor+1, buf)
		if err != nil {
			t.Fatal(err)
		}
		clear(buf)
		all = append(all, &kept{was: describe(Outcomes{}, delta, nil)})
		deltas = append(deltas, delta)
	}
	for i := range all {
		if all[i].is = describe(Outcomes{}, deltas[i], nil); all[i].is != all[i].was {
			t.Errorf("delta %d was\n%s\nis\n%s", i, all[i].was, all[i].is)
		}
	}
	if got, want := stateOf(c.m), stateOf(plain.m); got != want {
		t.Errorf("after the entries' bytes were used again the state is\n%s\nwant\n%s", got, want)
	}
}

// Hazard 4: a counter alone is not an id. The first entry of a node's next run is not a copy of the first of its last.
// Checked: with the incarnation zeroed in entryWindow.has and insert this fails.
func TestEntryIDHasTheIncarnation(t *testing.T) {
	c := begun(t)
	h := testHeader("n1", 2, 1)
	c.must(seal(h, reserveOp("orders", 10, "", 0)))
	h.ID.Incarnation = testID("n1, after a restart")
	h.Cursor = 2
	out := c.must(seal(h, reserveOp("orders", 10, "", 0)))
	if out.Duplicate || out.Ops[0].Start != 11 {
		t.Errorf("the new run's entry gave %+v", out)
	}
	if out := c.must(seal(h, reserveOp("orders", 10, "", 0))); !out.Duplicate || len(out.Ops) != 0 {
		t.Errorf("its copy gave %+v", out)
	}
}

// Hazard 6: exhaustion is a result. The second of three is refused, the others go on, and so does the log.
// Checked: with an error, or with a return from applyEntry's loop, at a rejection this fails.
func TestExhaustionDoesNotStopTheLog(t *testing.T) {
	c := begun(t)
	h := testHeader("n1", 2, 1)
	h.Defaults.Max = 20
	out := c.must(seal(h, reserveOp("a", 15, "", 0), reserveOp("a", 6, "", 0), reserveOp("a", 5, "", 0)))
	want := []wire.Outcome{{Start: 1, End: 16}, {Reject: wire.RejectExhausted, Remaining: 5}, {Start: 16, End: 21}}
	if !slices.Equal(out.Ops, want) {
		t.Errorf("got %+v, want %+v", out.Ops, want)
	}
	for i := range uint64(5) {
		out := c.must(seal(testHeader("n1", 3+i, 2+i), reserveOp("a", 1, "", 0)))
		if out.Ops[0].Reject != wire.RejectExhausted || out.Ops[0].Remaining != 0 {
			t.Errorf("got %+v", out.Ops)
		}
	}
}

// Hazard 14: where the window does not reach back to since, "absent" proves nothing, and nothing is carved.
// Checked: without the comparison with the floor in reserve, and with a floor that is not restored, this fails.
func TestKeyedRetryIsNoGuess(t *testing.T) {
	c := begun(t)
	first := c.must(seal(testHeader("n1", 2, 1), reserveOp("orders", 10, "mine", 1))).Ops[0]
	for i := range uint64(4) { // four keys push the first one out
		c.must(seal(testHeader("n2", 1+i, 2+i), reserveOp("others", 1, strings.Repeat("k", int(i)+1), 0)))
		retry := c.must(seal(testHeader("n1", 3+i, 2+i), reserveOp("orders", 10, "mine", 1))).Ops[0]
		if i < 3 {
			if !retry.Repeated || retry.Start != first.Start || retry.End != first.End {
				t.Errorf("after %d other keys: %+v, want %+v", i+1, retry, first)
			}
			continue
		}
		c.restart()
		again := c.must(seal(testHeader("n1", 9, 2+i), reserveOp("orders", 10, "mine", 1))).Ops[0]
		for _, o := range []wire.Outcome{retry, again} {
			if o != (wire.Outcome{Reject: wire.RejectKeyExpired}) {
				t.Errorf("after %d other keys: %+v", i+1, o)
			}
		}
	}
	if info, _ := c.m.Info("orders"); info.HWM != 10 {
		t.Errorf("hwm %d", info.HWM)
	}
}

// An operation that could not be decoded is never half applied, and neither is any other error: the same seq may come
// again. What an error left in the decoder must not be taken for an entry.
// Checked: with begin called for foreign bytes the last step panicked.
func TestErrorsLeaveTheStateUntouched(t *testing.T) {
	c := newChecked(t)
	bad := testGenesis()
	bad.EntryWindow = 0
	if _, _, err := c.apply(1, genesisEntry(bad)); !errors.Is(err, wire.ErrUnsupported) {
		t.Fatalf("genesis without an entry window: %v", err)
	}
	if _, _, err := c.apply(1, []byte("garbage")); !errors.Is(err, ErrNoGenesis) {
		t.Fatalf("garbage at seq 1: %v", err)
	}
	good := genesisEntry(testGenesis())
	for i := range good { // cut anywhere
		if _, _, err := c.apply(1, good[:i]); err == nil {
			t.Fatalf("genesis cut at %d was applied", i)
		}
	}
	c.must(good)
	entry := seal(testHeader("n1", 2, 1), reserveOp("orders", 10, "k", 1), reserveOp("orders", 1, "", 0))
	for i := 2; i < len(entry); i++ {
		if _, _, err := c.apply(2, entry[:i]); !errors.Is(err, wire.ErrCorrupt) {
			t.Fatalf("entry cut at %d: %v", i, err)
		}
		flipped := bytes.Clone(entry)
		flipped[i] ^= 0x10
		if _, _, err := c.apply(2, flipped); !errors.Is(err, wire.ErrCorrupt) {
			t.Fatalf("entry with byte %d flipped: %v", i, err)
		}
	}
	var gap *GapError
	if _, _, err := c.apply(3, entry); !errors.As(err, &gap) || *gap != (GapError{Want: 2, Got: 3}) {
		t.Fatalf("gap: %v", err)
	}
	c.must(entry)
	var replay *ReplayError
	_, _, err := c.apply(2, good)
	if !errors.As(err, &replay) || *replay != (ReplayError{Seq: 2, Got: HashEntry(good), Want: HashEntry(entry)}) {
		t.Fatalf("replay: %v", err)
	}
	if hash, ok := c.m.EntryHash(2); !ok || hash != HashEntry(entry) {
		t.Fatalf("hash at seq 2: %s, %v", hash, ok)
	}
	for _, seq := range []uint64{0, 3, 1 << 63, 1<<64 - 1} {
		if _, ok := c.m.EntryHash(seq); ok {
			t.Fatalf("a hash at seq %d", seq)
		}
	}
}

func TestList(t *testing.T) {
	c := begun(t)
	c.must(seal(testHeader("n1", 2, 1), reserveOp("a", 1, "", 0), reserveOp("c", 1, "", 0), reserveOp("b", 1, "", 0)))
	names := func(after uint64, limit int) (s string) {
		for _, i := range c.m.List(nil, after, limit) {
			s += i.Name
		}
		return s
	}
	for _, c := range []struct {
		after uint64
		limit int
		want  string
	}{{0, 10, "acb"}, {1, 1, "c"}, {3, 10, ""}, {1 << 63, 10, ""}, {0, 0, ""}, {0, -1, ""}} {
		if got := names(c.after, c.limit); got != c.want {
			t.Errorf("after %d, at most %d: %q, want %q", c.after, c.limit, got, c.want)
		}
	}
	if _, ok := c.m.Info("d"); ok {
		t.Error("a sequence that nobody made")
	}
}
