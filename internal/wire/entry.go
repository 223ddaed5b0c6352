package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
)

// The envelope around every entry. All versions keep these 23 bytes and the rule of the checksum, so that a flipped bit in
// the version is told from a version of the future.
const (
	magic0, magic1 = 0xA1, 0x0C
	entryVersion   = 1
	crcOffset      = 3
	idOffset       = 7
	bodyOffset     = 23
)

// Bounds of one entry. The proposer keeps them; a decoder refuses what passes them.
const (
	MaxEntryBytes = 512 << 10 // all of it, in bytes
	MaxEntryOps   = 4096      // operations
)

// Level is the newest level of operations that this build knows. Operations of a level are inert until the log has
// activated it.
const Level = 1

// Why an entry was not decoded. The three call for different answers: skip, read again from another replica, halt.
var (
	ErrForeign     = errors.New("wire: not an allocnode entry")
	ErrCorrupt     = errors.New("wire: entry fails its checksum")
	ErrUnsupported = errors.New("wire: entry of an unknown format or operation")
)

var errNoID = errors.New("no entry id")

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// EntryID is the id under which an entry is appended, once or again: one run of one node, and a count within it. An entry
// without one is not decoded: a second copy of it could not be told.
type EntryID struct {
	Incarnation ID     // not zero
	Counter     uint64 // 1 and up
}

// String is the form that stands in Nats-Msg-Id.
func (id EntryID) String() string { return fmt.Sprintf("%s-%d", id.Incarnation, id.Counter) }

// Header is what an entry says of its proposer, and what its operations share.
type Header struct {
	ClusterID ID
	Level     uint8 // newest level that the proposer knows
	Node      []byte
	ID        EntryID

	// Cursor and Digest are the proposer's, when it made the entry. An entry at a seq at or below its proposer's cursor
	// proves that the log lost entries.
	Cursor uint64
	Digest Digest

	// AutoCreate and Defaults are the proposer's configuration: a sequence that an operation names and nobody made comes
	// into being with Defaults, when AutoCreate says so. They stand in the entry because a replica's own configuration
	// must never enter a carve.
	AutoCreate bool
	Defaults   Settings
}

// Entry is a decoded entry. Its byte slices alias the bytes it was decoded from.
type Entry struct {
	Header
	Ops []Op
}

// AppendHeader appends the envelope and h to dst: the beginning of an entry. Operations follow, each by [AppendOp], and
// then [Seal] closes it. dst must be empty; the entry takes all of it.
func AppendHeader(dst []byte, h *Header) []byte {
	dst = append(dst, magic0, magic1, entryVersion, 0, 0, 0, 0)
	dst = append(dst, h.ClusterID[:]...)
	dst = append(dst, h.Level)
	dst = appendBytes(dst, h.Node)
	dst = append(dst, h.ID.Incarnation[:]...)
	dst = binary.AppendUvarint(dst, h.ID.Counter)
	dst = binary.AppendUvarint(dst, h.Cursor)
	dst = append(dst, h.Digest[:]...)
	dst = appendBool(dst, h.AutoCreate)
	return appendSettings(dst, h.Defaults)
}

// Seal writes the checksum into a finished entry.
func Seal(entry []byte) { binary.BigEndian.PutUint32(entry[crcOffset:], checksum(entry)) }

func checksum(entry []byte) uint32 {
	crc := crc32.Update(0, castagnoli, entry[:crcOffset])
	return crc32.Update(crc, castagnoli, entry[idOffset:])
}

// DecodeEntry reads data into e, whose Ops slice is used again. It returns [ErrForeign] for bytes without our magic,
// [ErrCorrupt] for a wrong checksum, and [ErrUnsupported] for an entry that is whole but not understood; e is then
// unspecified.
func DecodeEntry(data []byte, e *Entry) error {
	if len(data) < 2 || data[0] != magic0 || data[1] != magic1 {
		return ErrForeign
	}
	if len(data) < bodyOffset {
		return fmt.Errorf("%w: %d bytes", ErrCorrupt, len(data))
	}
	if got, want := checksum(data), binary.BigEndian.Uint32(data[crcOffset:]); got != want {
		return fmt.Errorf("%w: computed %08x, stored %08x", ErrCorrupt, got, want)
	}
	if data[2] != entryVersion {
		return fmt.Errorf("%w: version %d, this build knows %d", ErrUnsupported, data[2], entryVersion)
	}
	if len(data) > MaxEntryBytes {
		return fmt.Errorf("%w: %d bytes, at most %d", ErrUnsupported, len(data), MaxEntryBytes)
	}
	copy(e.ClusterID[:], data[idOffset:])
	d := Reader{rest: data[bodyOffset:]}
	e.Level = d.Byte()
	e.Node = d.Bytes(MaxNodeLen)
	d.Fixed(e.ID.Incarnation[:])
	e.ID.Counter = d.Uvarint()
	if e.ID.Incarnation.IsZero() || e.ID.Counter == 0 {
		d.fail(errNoID)
	}
	e.Cursor = d.Uvarint()
	d.Fixed(e.Digest[:])
	e.AutoCreate = d.Bool()
	e.Defaults = d.settings()
	e.Ops = e.Ops[:0]
	for len(d.rest) > 0 && d.err == nil {
		if len(e.Ops) == MaxEntryOps {
			return fmt.Errorf("%w: more than %d operations", ErrUnsupported, MaxEntryOps)
		}
		e.Ops = append(e.Ops, Op{})
		d.op(&e.Ops[len(e.Ops)-1])
	}
	if d.err != nil {
		return fmt.Errorf("%w: operation %d: %w", ErrUnsupported, len(e.Ops), d.err)
	}
	return nil
}
