package kv

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math/bits"

	"github.com/allocnode/allocnode/apply"
	"github.com/allocnode/allocnode/internal/wire"
)

// Format is the number of the catalog's layout. Another number in the identity record refuses the directory.
const Format = 1

const (
	kindIdentity = 'I'
	kindHead     = 'H'
	kindWitness  = 'W'

	headVersion = 1
	headSize    = 1 + 1 + 16 + 8 + 8 + 16 + 16 + 4

	modeAlone     = 1
	modeClustered = 2
	modeExternal  = 3

	maxName = 255 // bytes of a node name
)

var (
	keyIdentity  = []byte{0x01}
	keyHead      = []byte{0x02}
	keyWitness   = []byte{0x03}
	recordPrefix = []byte{0x10}
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// errDamaged is a record of ours that does not parse.
var errDamaged = errors.New("damaged record")

// sum is a number modulo 2^128: the state hash.
type sum struct{ hi, lo uint64 }

func (s sum) add(o sum) sum {
	lo, carry := bits.Add64(s.lo, o.lo, 0)
	hi, _ := bits.Add64(s.hi, o.hi, carry)
	return sum{hi, lo}
}

func (s sum) sub(o sum) sum {
	lo, borrow := bits.Sub64(s.lo, o.lo, 0)
	hi, _ := bits.Sub64(s.hi, o.hi, borrow)
	return sum{hi, lo}
}

// hasher hashes records; it keeps its buffer between calls.
type hasher struct{ buf []byte }

func (h *hasher) record(key, value []byte) sum {
	h.buf = binary.AppendUvarint(h.buf[:0], uint64(len(key)))
	h.buf = append(h.buf, key...)
	h.buf = append(h.buf, value...)
	d := sha256.Sum256(h.buf)
	return sum{binary.BigEndian.Uint64(d[:8]), binary.BigEndian.Uint64(d[8:16])}
}

func appendCRC(b []byte, from int) []byte {
	return binary.BigEndian.AppendUint32(b, crc32.Checksum(b[from:], castagnoli))
}

func crcHolds(b []byte) bool {
	n := len(b) - 4
	return n >= 0 && crc32.Checksum(b[:n], castagnoli) == binary.BigEndian.Uint32(b[n:])
}

// appendHead appends the record of h; kind is kindHead or kindWitness.
func appendHead(b []byte, kind byte, h apply.Head, s sum) []byte {
	from := len(b)
	b = append(b, kind, headVersion)
	b = append(b, h.ClusterID[:]...)
	b = binary.BigEndian.AppendUint64(b, h.Epoch)
	b = binary.BigEndian.AppendUint64(b, h.Cursor)
	b = append(b, h.Digest[:]...)
	b = binary.BigEndian.AppendUint64(b, s.hi)
	b = binary.BigEndian.AppendUint64(b, s.lo)
	return appendCRC(b, from)
}

// parseHead is the inverse of appendHead; it takes exactly one record.
func parseHead(b []byte, kind byte) (apply.Head, sum, error) {
	switch {
	case len(b) != headSize:
		return apply.Head{}, sum{}, fmt.Errorf("%w: head of %d bytes, want %d", errDamaged, len(b), headSize)
	case !crcHolds(b):
		return apply.Head{}, sum{}, fmt.Errorf("%w: head checksum", errDamaged)
	case b[0] != kind || b[1] != headVersion:
		return apply.Head{}, sum{}, fmt.Errorf("%w: head of kind %q version %d, want %q version %d", errDamaged, b[0], b[1], kind,
			headVersion)
	}
	h := apply.Head{
		ClusterID: wire.ID(b[2:18]),
		Epoch:     binary.BigEndian.Uint64(b[18:]),
		Cursor:    binary.BigEndian.Uint64(b[26:]),
		Digest:    wire.Digest(b[34:50]),
	}
	return h, sum{binary.BigEndian.Uint64(b[50:]), binary.BigEndian.Uint64(b[58:])}, nil
}

// Identity says whose catalog a directory is.
type Identity struct {
	Node      string // node name, 1 to 255 bytes
	Clustered bool   // with an embedded server in a cluster
	External  bool   // without a server: the log is in an existing NATS system. With neither, a node that stands alone
}

// mode is the byte that the identity record holds.
func (i Identity) mode() byte {
	switch {
	case i.External:
		return modeExternal
	case i.Clustered:
		return modeClustered
	}
	return modeAlone
}

// card is what the identity record holds.
type card struct {
	Identity
	id wire.ID
}

func appendCard(b []byte, c card) []byte {
	from := len(b)
	b = append(b, kindIdentity, Format, c.mode())
	b = append(b, c.id[:]...)
	b = append(b, byte(len(c.Node)))
	b = append(b, c.Node...)
	return appendCRC(b, from)
}

// cutCard parses an identity record at the start of b and returns what follows it.
func cutCard(b []byte) (card, []byte, error) {
	const fixed = 1 + 1 + 1 + 16 + 1
	if len(b) < 2 || b[0] != kindIdentity {
		return card{}, nil, fmt.Errorf("%w: no identity", errDamaged)
	}
	if b[1] != Format {
		// Before the checksum: where that stands is the other format's affair.
		return card{}, nil, fmt.Errorf("%w %d, this build reads %d: start the version that wrote it", ErrUnknownFormat, b[1], Format)
	}
	if len(b) < fixed || len(b) < fixed+int(b[fixed-1])+4 {
		return card{}, nil, fmt.Errorf("%w: identity of %d bytes", errDamaged, len(b))
	}
	end := fixed + int(b[fixed-1])
	if !crcHolds(b[:end+4]) {
		return card{}, nil, fmt.Errorf("%w: identity checksum", errDamaged)
	}
	if b[2] < modeAlone || b[2] > modeExternal {
		return card{}, nil, fmt.Errorf("%w: identity of mode %d", errDamaged, b[2])
	}
	who := Identity{Node: string(b[fixed:end]), Clustered: b[2] == modeClustered, External: b[2] == modeExternal}
	return card{Identity: who, id: wire.ID(b[3:19])}, b[end+4:], nil
}

// newer reports whether a stands above b as a witness: a later epoch, or the same and a higher cursor.
func newer(a, b apply.Head) bool {
	if a.Epoch != b.Epoch {
		return a.Epoch > b.Epoch
	}
	return a.Cursor > b.Cursor
}
