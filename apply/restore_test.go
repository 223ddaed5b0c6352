package apply

import (
	"bytes"
	"encoding/binary"
	"maps"
	"strings"
	"testing"

	"github.com/allocnode/allocnode/internal/wire"
)

// history is a log that uses every kind of record, with the state after each of its entries.
func history(t *testing.T) (heads []Head, states []map[string][]byte, deltas []Delta, c *checked) {
	t.Helper()
	c = newChecked(t)
	heads, states, deltas = []Head{{}}, []map[string][]byte{{}}, []Delta{{}}
	check := &wire.Check{CatalogID: testID("disk")}
	for _, data := range [][]byte{
		genesisEntry(testGenesis()),
		seal(testHeader("n1", 2, 1), reserveOp("orders", 10, "k1", 0), reserveOp("invoices", 1, "", 0)),
		seal(testHeader("n2", 1, 1), wire.Op{Kind: wire.KindAdvance, Name: []byte("invoices"), Count: 500}),
		[]byte("garbage"),
		seal(testHeader("n1", 3, 2), wire.Op{Kind: wire.KindCheck, Name: []byte("n1"), Check: check}),
		seal(testHeader("n1", 4, 2), reserveOp("orders", 20, "k2", 0), reserveOp("orders", 5, "k3", 0)),
		seal(testHeader("n2", 2, 4), reserveOp("orders", 1, "k4", 1)),
		seal(testHeader("n2", 3, 4), reserveOp("orders", 1, "k5", 1)),
		seal(testHeader("n3", 1, 100), reserveOp("orders", 1, "", 0)), // fences
		seal(testHeader("n3", 2, 4), reserveOp("orders", 1, "", 0)),
		seal(testHeader("n3", 3, 4), wire.Op{Kind: wire.KindForget, Name: []byte("n1")}, reserveOp("orders", 1, "k6", 4)),
	} {
		_, delta, err := c.apply(c.m.Head().Cursor+1, data)
		if err != nil {
			t.Fatal(err)
		}
		heads, states, deltas = append(heads, delta.Head), append(states, maps.Clone(c.records)), append(deltas, delta)
	}
	return heads, states, deltas, c
}

// Hazards 1, 2 and 11: a state is the state of its head. Neither an older head over newer records (a replay would carve
// twice) nor a newer head over older records (the replay would miss a carve) is taken.
// Checked: without the comparison of e.seq in Restorer.restoreEntries every pair is accepted.
func TestHeadAndRecordsBelongTogether(t *testing.T) {
	heads, states, _, _ := history(t)
	for i := range heads {
		for j := range states {
			_, err := tryRestore(states[j], heads[i])
			if (err == nil) != (i == j) {
				t.Errorf("head of seq %d with the records of seq %d: error %v", i, j, err)
			}
		}
	}
}

// Hazard 3: a delta that was lost in the middle, with the next ones kept, is noticed while its entry is within the entry
// window; before that the catalog's hash over all records is what tells.
// Checked: without the comparison of the number of entry records in restoreEntries this fails.
func TestLostDeltaIsNoticed(t *testing.T) {
	heads, _, deltas, _ := history(t)
	last := len(deltas) - 1
	for lost := last - int(testGenesis().EntryWindow) + 1; lost <= last; lost++ {
		records := map[string][]byte{}
		for i, delta := range deltas {
			for _, r := range delta.Records {
				switch {
				case i == lost:
				case r.Value == nil:
					delete(records, string(r.Key))
				default:
					records[string(r.Key)] = r.Value
				}
			}
		}
		if _, err := tryRestore(records, heads[last]); err == nil {
			t.Errorf("the delta of seq %d was lost, the state of seq %d was restored", lost, last)
		}
	}
}

// Hazard 2: the record of a sequence that went back below what a key was granted. Where no key tells, the catalog's hash
// over all records does.
// Checked: without the comparison with hwm in restoreKeys this fails.
func TestOlderSequenceRecordIsNoticed(t *testing.T) {
	heads, states, _, _ := history(t)
	records := maps.Clone(states[8])
	records["sorders"] = states[7]["sorders"]
	if m, err := tryRestore(records, heads[8]); err == nil {
		info, _ := m.Info("orders")
		t.Errorf("restored orders with hwm %d below a range that was granted", info.HWM)
	}
}

// Hazard 11: two states are not one. A restorer does not merge: neither the larger hwm nor the larger cursor wins.
func TestStatesAreNotMerged(t *testing.T) {
	heads, states, _, _ := history(t)
	for i := 1; i < len(states); i++ {
		r := NewRestorer()
		for _, state := range []map[string][]byte{states[i-1], states[i]} {
			for k, v := range state {
				if err := r.Add(Record{Key: []byte(k), Value: v}); err != nil {
					t.Fatal(err)
				}
			}
		}
		if _, err := r.Machine(heads[i]); i > 1 && err == nil {
			t.Errorf("the states of seq %d and %d were restored as one", i-1, i)
		}
	}
}

// A state that is damaged, or of another build, is an error and never a machine.
// Checked: before restoreKeys and the first condition in Restorer.Machine had their comparisons, eleven of these were taken.
func TestDamagedStateIsRefused(t *testing.T) {
	heads, states, _, _ := history(t)
	at := len(heads) - 1
	key := func(tag byte, seq uint64) string { return string(seqKey(tag, seq)) }
	cases := map[string]func(records map[string][]byte, head *Head){
		"no genesis":      func(r map[string][]byte, _ *Head) { delete(r, "g") },
		"no meta":         func(r map[string][]byte, _ *Head) { delete(r, "m") },
		"no sequence":     func(r map[string][]byte, _ *Head) { delete(r, "sorders") },
		"no oldest entry": func(r map[string][]byte, _ *Head) { delete(r, key('e', uint64(at-7))) },
		"no newest entry": func(r map[string][]byte, _ *Head) { delete(r, key('e', uint64(at))) },
		"no entry": func(r map[string][]byte, _ *Head) {
			maps.DeleteFunc(r, func(k string, _ []byte) bool { return k[0] == 'e' })
		},
		"an entry too many":     func(r map[string][]byte, _ *Head) { r[key('e', uint64(at-8))] = r[key('e', uint64(at))] },
		"keys above the cursor": func(r map[string][]byte, _ *Head) { r[key('k', 99)] = r[key('k', 8)]; delete(r, key('k', 8)) },
		"keys twice":            func(r map[string][]byte, _ *Head) { r[key('k', 9)] = r[key('k', 8)] },
		"keys at the floor":     func(r map[string][]byte, _ *Head) { r[key('k', 1)] = r[key('k', 11)]; delete(r, key('k', 11)) },
		"a fence above the cursor": func(r map[string][]byte, _ *Head) {
			r["m"] = (&Machine{level: 1, fence: Fence{Seq: 99}}).appendMeta(nil)[0].Value
		},
		"another epoch":          func(_ map[string][]byte, h *Head) { h.Epoch++ },
		"no cluster":             func(_ map[string][]byte, h *Head) { h.ClusterID = wire.ID{} },
		"no cursor":              func(_ map[string][]byte, h *Head) { h.Cursor = 0 },
		"unknown kind":           func(r map[string][]byte, _ *Head) { r["zebra"] = []byte{recordVersion} },
		"empty key":              func(r map[string][]byte, _ *Head) { r[""] = []byte{recordVersion} },
		"empty value":            func(r map[string][]byte, _ *Head) { r["sempty"] = nil },
		"a longer key of one":    func(r map[string][]byte, _ *Head) { r["gg"] = r["g"]; delete(r, "g") },
		"a longer key of meta":   func(r map[string][]byte, _ *Head) { r["mm"] = r["m"]; delete(r, "m") },
		"a shorter key of entry": func(r map[string][]byte, _ *Head) { r["e"] = r[key('e', uint64(at))] },
		"a name that is none":    func(r map[string][]byte, _ *Head) { r["sor ders"] = r["sorders"]; delete(r, "sorders") },
		"two sequences with id":  func(r map[string][]byte, _ *Head) { r["sorders2"] = r["sorders"] },
		"a hwm above max": func(r map[string][]byte, _ *Head) {
			r["sinvoices"] = (&sequence{id: 1, name: "invoices", settings: wire.Settings{First: 1, Max: 10, MaxCount: 1}, hwm: 11}).record().Value
		},
		"a hwm below first": func(r map[string][]byte, _ *Head) {
			r["sinvoices"] = (&sequence{id: 1, name: "invoices", settings: wire.Settings{First: 5, Max: 10, MaxCount: 1}, hwm: 3}).record().Value
		},
		"an id of 33 bits": func(r map[string][]byte, _ *Head) {
			v := binary.AppendUvarint([]byte{recordVersion}, 1<<32)
			r["sorders"] = append(v, r["sorders"][2:]...)
		},
		"keys of an unknown sequence": func(r map[string][]byte, _ *Head) { delete(r, "sorders"); delete(r, "sinvoices") },
	}
	for name, damage := range cases {
		records, head := map[string][]byte{}, heads[at]
		for k, v := range states[at] {
			records[k] = bytes.Clone(v)
		}
		damage(records, &head)
		if _, err := tryRestore(records, head); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	for k, v := range states[at] { // every record: another version, cut anywhere, and with a byte too many
		for n := range v {
			if err := NewRestorer().Add(Record{Key: []byte(k), Value: v[:n]}); err == nil {
				t.Errorf("record %q of %d bytes cut at %d: accepted", k, len(v), n)
			}
		}
		other := bytes.Clone(v)
		other[0]++
		if err := NewRestorer().Add(Record{Key: []byte(k), Value: other}); err == nil || !strings.Contains(err.Error(), "version") {
			t.Errorf("record %q of another version: error %v", k, err)
		}
		if err := NewRestorer().Add(Record{Key: []byte(k), Value: append(bytes.Clone(v), 0)}); err == nil {
			t.Errorf("record %q with a byte after its end: accepted", k)
		}
	}
	if m, err := NewRestorer().Machine(Head{}); err != nil || m.Head() != (Head{}) {
		t.Errorf("nothing restores to %v, error %v", m, err)
	}
}

// A snapshot is Records and Head: the state of any seq goes on exactly as the machine did.
func TestSnapshotGoesOn(t *testing.T) {
	heads, _, _, c := history(t)
	r := NewRestorer()
	for rec := range c.m.Records() {
		if err := r.Add(rec); err != nil {
			t.Fatal(err)
		}
	}
	m, err := r.Machine(heads[len(heads)-1])
	if err != nil {
		t.Fatal(err)
	}
	c.m = m
	c.must(seal(testHeader("n1", 9, 4), reserveOp("orders", 1, "k6", 1), reserveOp("orders", 1, "k1", 1)))
	for rec := range c.m.Records() { // a reader may stop anywhere
		if rec.Key[0] == tagKeys {
			break
		}
	}
}
