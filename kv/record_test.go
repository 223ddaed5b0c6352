package kv

import (
	"bytes"
	"encoding/hex"
	"errors"
	"strings"
	"testing"

	"github.com/allocnode/allocnode/apply"
	"github.com/allocnode/allocnode/internal/wire"
)

func filled(from byte) (b [16]byte) {
	for i := range b {
		b[i] = from + byte(i)
	}
	return b
}

// The bytes on disk. A change here is a new format number.
func TestGolden(t *testing.T) {
	head := apply.Head{ClusterID: wire.ID(filled(0x10)), Epoch: 2, Cursor: 0x0102030405060708, Digest: wire.Digest(filled(0x20))}
	c := card{Identity: Identity{Node: "node-1", Clustered: true}, id: wire.ID(filled(0x30))}
	external := card{Identity: Identity{Node: "node-1", External: true}, id: c.id}
	if back, rest, err := cutCard(appendCard(nil, external)); err != nil || back != external || len(rest) != 0 {
		t.Errorf("an external node's identity came back as %+v, %d bytes, %v", back, len(rest), err)
	}
	for _, tc := range []struct {
		name string
		got  []byte
		want string
	}{
		{"head", appendHead(nil, kindHead, head, sum{0xa0a1a2a3a4a5a6a7, 0xb0b1b2b3b4b5b6b7}),
			"4801 101112131415161718191a1b1c1d1e1f 0000000000000002 0102030405060708 202122232425262728292a2b2c2d2e2f" +
				"a0a1a2a3a4a5a6a7b0b1b2b3b4b5b6b7 631c00fa"},
		{"witness", appendHead(nil, kindWitness, head, sum{}),
			"5701 101112131415161718191a1b1c1d1e1f 0000000000000002 0102030405060708 202122232425262728292a2b2c2d2e2f" +
				"00000000000000000000000000000000 edbf74b9"},
		{"identity", appendCard(nil, c), "490102 303132333435363738393a3b3c3d3e3f 06 6e6f64652d31 80828663"},
		{"identity, external", appendCard(nil, external), "490103 303132333435363738393a3b3c3d3e3f 06 6e6f64652d31 3acd44ed"},
	} {
		if want := strings.ReplaceAll(tc.want, " ", ""); hex.EncodeToString(tc.got) != want {
			t.Errorf("%s: %x, want %s", tc.name, tc.got, want)
		}
	}
	var h hasher
	if got, want := h.record([]byte("key"), []byte("value")), (sum{0xe53784ece33d0b3e, 0xf2904b0cbaa7d822}); got != want {
		t.Errorf("record hash %#x, want %#x", got, want)
	}
}

func TestParseRefusesEveryFlip(t *testing.T) {
	head := appendHead(nil, kindHead, headAt(7), sum{1, 2})
	if _, _, err := parseHead(head, kindWitness); !errors.Is(err, errDamaged) {
		t.Errorf("a head taken for a witness: %v", err)
	}
	for bit := range len(head) * 8 {
		b := bytes.Clone(head)
		b[bit/8] ^= 1 << (bit % 8)
		if h, _, err := parseHead(b, kindHead); err == nil {
			t.Fatalf("bit %d flipped: parsed as %+v", bit, h)
		}
	}
	id := appendCard(nil, card{Identity: nodeA, id: wire.ID(filled(1))})
	for bit := range len(id) * 8 {
		b := bytes.Clone(id)
		b[bit/8] ^= 1 << (bit % 8)
		if c, _, err := cutCard(b); err == nil {
			t.Fatalf("bit %d flipped: parsed as %+v", bit, c)
		}
	}
	for n := range len(id) {
		if _, _, err := cutCard(id[:n]); !errors.Is(err, errDamaged) {
			t.Fatalf("identity cut at %d: %v", n, err)
		}
	}
	if _, _, err := parseHead(append(head, 0), kindHead); !errors.Is(err, errDamaged) {
		t.Errorf("trailing byte: %v", err)
	}
}

func FuzzParse(f *testing.F) {
	f.Add(appendCard(nil, card{Identity: nodeA, id: wire.ID(filled(1))}))
	f.Add(appendHead(nil, kindHead, headAt(7), sum{1, 2}))
	f.Fuzz(func(t *testing.T, b []byte) {
		if c, rest, err := cutCard(b); err == nil && !bytes.Equal(append(appendCard(nil, c), rest...), b) {
			t.Errorf("identity %x parsed as %+v, which is written otherwise", b, c)
		}
		if h, s, err := parseHead(b, kindHead); err == nil && !bytes.Equal(appendHead(nil, kindHead, h, s), b) {
			t.Errorf("head %x parsed as %+v, which is written otherwise", b, h)
		}
	})
}

func TestSum(t *testing.T) {
	a, b := sum{1, ^uint64(0)}, sum{^uint64(0), 2}
	if got := a.add(b); got != (sum{1, 1}) { // carries between lanes, wraps at 2^128
		t.Errorf("add: %#x", got)
	}
	if got := a.add(b).sub(b); got != a {
		t.Errorf("sub: %#x, want %#x", got, a)
	}
	var h hasher
	if h.record([]byte("ab"), []byte("c")) == h.record([]byte("a"), []byte("bc")) {
		t.Error("the border between key and value does not count")
	}
}
