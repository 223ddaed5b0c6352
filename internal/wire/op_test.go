package wire_test

import (
	"bytes"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/allocnode/allocnode/internal/wire"
)

func sampleGenesis() *wire.Genesis {
	return &wire.Genesis{
		Epoch: 2, Created: 1_790_000_000_000_000_000, Nodes: []string{"n1", "n2", "n3"},
		KeyWindow: 131072, EntryWindow: 4096, MaxSequences: 1_000_000, HaltOnExhaustion: true,
	}
}

func sampleRecovery() *wire.Recovery {
	return &wire.Recovery{
		First: 2_000_000, Base: 17, KeyFloor: 9, Floor: 5000, Level: 1, Parts: []wire.Digest{{1, 15: 2}, {3}},
	}
}

// A recovery is named by all that it fixes, and by nothing else.
// Checked: with the cluster's id left out of the hash, and with Created left in, this fails.
func TestRecoveryID(t *testing.T) {
	cluster := wire.ID{1}
	g := sampleGenesis()
	if id := g.RecoveryID(cluster); !id.IsZero() || g.First() != 1 {
		t.Errorf("a genesis that is no recovery's has the id %s, and begins at %d", id, g.First())
	}
	g.Recovery = sampleRecovery()
	want := g.RecoveryID(cluster)
	if want.IsZero() || g.First() != 2_000_000 || g.RecoveryID(wire.ID{2}) == want {
		t.Errorf("id %s, of another cluster %s, first %d", want, g.RecoveryID(wire.ID{2}), g.First())
	}
	later := *g
	later.Created++
	if got := later.RecoveryID(cluster); got != want {
		t.Errorf("made later: %s, want %s", got, want)
	}
	for name, change := range map[string]func(*wire.Genesis, *wire.Recovery){
		"epoch": func(g *wire.Genesis, _ *wire.Recovery) { g.Epoch++ },
		"nodes": func(g *wire.Genesis, _ *wire.Recovery) { g.Nodes = g.Nodes[:2] },
		"first": func(_ *wire.Genesis, r *wire.Recovery) { r.First++ },
		"floor": func(_ *wire.Genesis, r *wire.Recovery) { r.Floor++ },
		"parts": func(_ *wire.Genesis, r *wire.Recovery) { r.Parts[1] = wire.Digest{4} },
	} {
		other, r := *sampleGenesis(), sampleRecovery()
		other.Recovery = r
		change(&other, r)
		if other.RecoveryID(cluster) == want {
			t.Errorf("with another %s it has the same id", name)
		}
	}
}

// sampleOps is an entry for each operation, in each of its forms.
func sampleOps(one func(name string, ops ...wire.Op) sample) []sample {
	reserve := func(change func(op *wire.Op)) wire.Op {
		op := wire.Op{Kind: wire.KindReserve, Name: []byte("orders.eu"), Count: 1000}
		change(&op)
		return op
	}
	key := []byte("a-key")
	before := *sampleGenesis()
	before.Created = -1 // before 1970
	recovery := *sampleGenesis()
	recovery.Recovery = sampleRecovery()
	return []sample{
		one("genesis", wire.Op{Kind: wire.KindGenesis, Genesis: sampleGenesis()}),
		one("genesis-before-1970", wire.Op{Kind: wire.KindGenesis, Genesis: &before}),
		one("reserve",
			reserve(func(*wire.Op) {}),
			reserve(func(op *wire.Op) { op.Partial = true }),
			reserve(func(op *wire.Op) { op.Key = key }),
			reserve(func(op *wire.Op) { op.Key, op.Since = key, 17 }),
			reserve(func(op *wire.Op) { op.Key, op.ListKeyed = key, true }),
			reserve(func(op *wire.Op) { op.Key, op.ListKeyed, op.Index, op.Since, op.Partial = key, true, 3, 17, true }),
			reserve(func(op *wire.Op) { op.Since = 17 }),
		),
		one("create",
			wire.Op{Kind: wire.KindCreate, Name: []byte("a"), Settings: wire.Settings{First: 1, Max: 1<<63 - 1, MaxCount: 5}},
			wire.Op{
				Kind: wire.KindCreate, Name: []byte("b"), Settings: wire.Settings{First: 7, Max: 7, MaxCount: 1},
				Given: wire.GivenFirst | wire.GivenMax | wire.GivenMaxCount,
			},
		),
		one("advance", wire.Op{Kind: wire.KindAdvance, Name: []byte("orders"), Count: 500}),
		one("resume", wire.Op{Kind: wire.KindResume, Name: []byte("orders")}),
		one("barrier", wire.Op{Kind: wire.KindBarrier}, wire.Op{Kind: wire.KindBarrier}),
		one("check",
			wire.Op{Kind: wire.KindCheck, Name: []byte("n1"), Check: &wire.Check{CatalogID: wire.ID{1, 15: 2}, Ask: true}},
			wire.Op{
				Kind: wire.KindCheck, Name: []byte("n2"),
				Check: &wire.Check{CatalogID: wire.ID{3}, Verdict: wire.VerdictContradiction, Reason: "seq 17 differs"},
			},
		),
		one("forget", wire.Op{Kind: wire.KindForget, Name: []byte("n1")}),
		one("activate", wire.Op{Kind: wire.KindActivate, Count: 2}),
		one("recovery", wire.Op{Kind: wire.KindGenesis, Genesis: &recovery}),
		one("restore", wire.Op{Kind: wire.KindRestore, Index: 3, Data: []byte("a part")}),
	}
}

// equalOps takes an absent and an empty slice for the same.
func equalOps(a, b wire.Op) bool {
	if !bytes.Equal(a.Name, b.Name) || !bytes.Equal(a.Key, b.Key) || !bytes.Equal(a.Data, b.Data) {
		return false
	}
	a.Name, a.Key, a.Data, b.Name, b.Key, b.Data = nil, nil, nil, nil, nil, nil
	return reflect.DeepEqual(a, b)
}

// Every kind has its sample: one without golden bytes would be a format that nothing holds.
func TestEveryKindHasASample(t *testing.T) {
	seen := map[wire.Kind]bool{}
	for _, s := range samples() {
		for _, op := range s.Ops {
			seen[op.Kind] = true
		}
	}
	for k := range wire.Kind(255) {
		data := encode(&wire.Entry{Header: sampleHeader(), Ops: []wire.Op{{Kind: k, Genesis: sampleGenesis(), Check: &wire.Check{},
			Name: []byte("s"), Count: 1, Settings: wire.Settings{First: 1, Max: 1, MaxCount: 1}}}})
		var e wire.Entry
		if known := wire.DecodeEntry(data, &e) == nil; known != seen[k] {
			t.Errorf("kind %d: decodes %v, has a sample %v", k, known, seen[k])
		}
	}
}

// An operation out of its bounds is not understood.
// Checked: with the test of flags, of node names and of windows taken out, one by one, this fails.
func TestOpsOutOfBounds(t *testing.T) {
	long := func(n int) []byte { return bytes.Repeat([]byte("x"), n) }
	genesis := func(change func(g *wire.Genesis)) wire.Op {
		g := sampleGenesis()
		change(g)
		return wire.Op{Kind: wire.KindGenesis, Genesis: g}
	}
	recovery := func(change func(r *wire.Recovery)) wire.Op {
		return genesis(func(g *wire.Genesis) { g.Recovery = sampleRecovery(); change(g.Recovery) })
	}
	create := func(s wire.Settings, given uint8) wire.Op {
		return wire.Op{Kind: wire.KindCreate, Name: []byte("a"), Settings: s, Given: given}
	}
	check := func(c wire.Check) wire.Op { return wire.Op{Kind: wire.KindCheck, Name: []byte("n1"), Check: &c} }
	nodes := func(n int) (names []string) {
		for i := range n {
			names = append(names, fmt.Sprintf("n%d", i))
		}
		return names
	}
	for name, op := range map[string]wire.Op{
		"reserve nothing":         {Kind: wire.KindReserve, Name: []byte("a")},
		"reserve, long name":      {Kind: wire.KindReserve, Name: long(129), Count: 1},
		"reserve, long key":       {Kind: wire.KindReserve, Name: []byte("a"), Count: 1, Key: long(129)},
		"reserve, list, no key":   {Kind: wire.KindReserve, Name: []byte("a"), Count: 1, ListKeyed: true},
		"create, long name":       {Kind: wire.KindCreate, Name: long(129), Settings: wire.Settings{First: 1, Max: 1, MaxCount: 1}},
		"create, first 0":         create(wire.Settings{First: 0, Max: 1, MaxCount: 1}, 0),
		"create, first above max": create(wire.Settings{First: 2, Max: 1, MaxCount: 1}, 0),
		"create, max 2^63":        create(wire.Settings{First: 1, Max: 1 << 63, MaxCount: 1}, 0),
		"create, max count 0":     create(wire.Settings{First: 1, Max: 1}, 0),
		"create, given 8":         create(wire.Settings{First: 1, Max: 1, MaxCount: 1}, 8),
		"advance, long name":      {Kind: wire.KindAdvance, Name: long(129)},
		"resume, long name":       {Kind: wire.KindResume, Name: long(129)},
		"forget, long name":       {Kind: wire.KindForget, Name: long(65)},
		"check, long name":        {Kind: wire.KindCheck, Name: long(65), Check: &wire.Check{}},
		"check, verdict 2":        check(wire.Check{Verdict: 2}),
		"check, long reason":      check(wire.Check{Reason: string(long(513))}),
		"recovery, first 1":       recovery(func(r *wire.Recovery) { r.First, r.Base, r.KeyFloor = 1, 0, 0 }),
		"recovery, base at first": recovery(func(r *wire.Recovery) { r.Base = r.First }),
		"recovery, keys at first": recovery(func(r *wire.Recovery) { r.KeyFloor = r.First }),
		"recovery, level 0":       recovery(func(r *wire.Recovery) { r.Level = 0 }),
		"recovery, many parts":    recovery(func(r *wire.Recovery) { r.Parts = make([]wire.Digest, wire.MaxParts+1) }),
		"a long part":             {Kind: wire.KindRestore, Data: long(wire.MaxPart + 1)},
		"genesis, epoch 0":        genesis(func(g *wire.Genesis) { g.Epoch = 0 }),
		"genesis, no node":        genesis(func(g *wire.Genesis) { g.Nodes = nil }),
		"genesis, 65 nodes":       genesis(func(g *wire.Genesis) { g.Nodes = nodes(65) }),
		"genesis, a node twice":   genesis(func(g *wire.Genesis) { g.Nodes = []string{"n1", "n2", "n1"} }),
		"genesis, empty node":     genesis(func(g *wire.Genesis) { g.Nodes = []string{"n1", ""} }),
		"genesis, long node":      genesis(func(g *wire.Genesis) { g.Nodes = []string{string(long(65))} }),
		"genesis, no keys":        genesis(func(g *wire.Genesis) { g.KeyWindow = 0 }),
		"genesis, many keys":      genesis(func(g *wire.Genesis) { g.KeyWindow = wire.MaxWindow + 1 }),
		"genesis, no entries":     genesis(func(g *wire.Genesis) { g.EntryWindow = 0 }),
		"genesis, many entries":   genesis(func(g *wire.Genesis) { g.EntryWindow = wire.MaxWindow + 1 }),
		"genesis, many sequences": genesis(func(g *wire.Genesis) { g.MaxSequences = wire.MaxSequences + 1 }),
	} {
		var e wire.Entry
		err := wire.DecodeEntry(encode(&wire.Entry{Header: sampleHeader(), Ops: []wire.Op{op}}), &e)
		if !errors.Is(err, wire.ErrUnsupported) {
			t.Errorf("%s: %v", name, err)
		}
	}
	full := genesis(func(g *wire.Genesis) {
		g.Nodes, g.KeyWindow, g.EntryWindow, g.MaxSequences = nodes(64), wire.MaxWindow, wire.MaxWindow, wire.MaxSequences
	})
	var e wire.Entry
	if err := wire.DecodeEntry(encode(&wire.Entry{Header: sampleHeader(), Ops: []wire.Op{full}}), &e); err != nil {
		t.Errorf("genesis at its bounds: %v", err)
	}

	// What an encoder does not write: flags that this build does not know, and flags whose field is zero.
	for name, op := range map[string]string{
		"unknown flag": "\x02\x10\x01a\x01",
		"empty key":    "\x02\x02\x01a\x01\x00",
		"since 0":      "\x02\x08\x01a\x01\x00",
		"count cut":    "\x02\x00\x01a\x80",
		"count 2^64":   "\x02\x00\x01a\x80\x80\x80\x80\x80\x80\x80\x80\x80\x02",
		"name 2^63":    "\x02\x00\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01a",
		"many nodes":   "\x01\x01\x01\xff\xff\xff\xff\xff\x01",
		"ask 2":        "\x07\x02n1" + strings.Repeat("c", 16) + "\x02\x00\x00",
	} {
		h := sampleHeader()
		data := append(wire.AppendHeader(nil, &h), op...)
		wire.Seal(data)
		if err := wire.DecodeEntry(data, &e); !errors.Is(err, wire.ErrUnsupported) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A uvarint that is longer than it need be decodes to the same: see FuzzDecodeEntry.
func TestLongUvarint(t *testing.T) {
	h := sampleHeader()
	data := append(wire.AppendHeader(nil, &h), "\x04\x81\x00a\x85\x80\x00"...)
	wire.Seal(data)
	var e wire.Entry
	if err := wire.DecodeEntry(data, &e); err != nil || !equalOps(e.Ops[0], wire.Op{Kind: wire.KindAdvance, Name: []byte("a"), Count: 5}) {
		t.Errorf("%+v, error %v", e.Ops, err)
	}
}

// A decoder that is used again keeps nothing of the entry before.
func TestDecodeKeepsNothing(t *testing.T) {
	var e wire.Entry
	all := samples()
	for range 2 {
		for i := range all {
			if err := wire.DecodeEntry(encode(&all[i].Entry), &e); err != nil || !equalEntries(&e, &all[i].Entry) {
				t.Fatalf("%s: %+v, error %v", all[i].name, e, err)
			}
		}
		slices.Reverse(all)
	}
}

func TestReaderStopsAtTheFirstError(t *testing.T) {
	r := wire.NewReader([]byte{2, 5, 6, 7})
	if r.Bool() || r.Byte() != 0 || r.Uvarint() != 0 || len(r.Bytes(10)) != 0 {
		t.Error("a value after the first error")
	}
	fixed := [2]byte{8, 9}
	if r.Fixed(fixed[:]); fixed != [2]byte{8, 9} {
		t.Error("bytes after the first error")
	}
	if err := r.Close(); err == nil || !strings.Contains(err.Error(), "boolean") {
		t.Errorf("error %v, want the first", err)
	}
	if err := wire.NewReader([]byte{1}).Close(); err == nil {
		t.Error("a byte is left, and no error")
	}
	if err := wire.NewReader(nil).Close(); err != nil {
		t.Error(err)
	}
}
