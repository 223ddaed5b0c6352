package history

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"hash/crc32"
)

// entry is a log entry, as the layout in the product's docs has it. The decoder is written from that layout alone.
type entry struct {
	cluster     string // 32 hexadecimal digits
	level       byte
	node        string
	id          string // incarnation and counter
	cursor      uint64
	autoCreate  bool
	defaults    settings
	ops         []op
	incarnation string
}

type settings struct{ first, max, maxCount uint64 }

// op is an operation. n is what stands alone: a count, a floor, a level.
type op struct {
	kind     byte
	name     string
	n        uint64
	partial  bool
	key      string // with its scope; "" without one
	hash     string // of the key within its scope, as a recovered state has it
	since    uint64
	settings settings
	given    byte
	catalog  string
	verdict  byte
	genesis  genesis
	data     []byte // of a restore: a part of a recovered state
}

type genesis struct {
	epoch                               uint64
	nodes                               []string
	keyWindow, entryWindow, maxSequence uint64
	halt                                bool

	// Of an epoch above 1, which begins with what was recovered of the one before.
	first    uint64 // seq of the genesis; 1 in the first epoch
	keyFloor uint64
	floor    uint64   // the least hwm of sequences that the parts do not name
	parts    []string // hashes of the parts
}

// The operations.
const (
	opGenesis = iota + 1
	opReserve
	opCreate
	opAdvance
	opResume
	opBarrier
	opCheck
	opForget
	opActivate
	opRestore
)

// cut takes fields off the front of bytes; short is set when they ended too early.
type cut struct {
	rest  []byte
	short bool
}

func (c *cut) bytes(n uint64) []byte {
	if n > uint64(len(c.rest)) {
		c.rest, c.short = nil, true
		return make([]byte, min(n, 16))
	}
	taken := c.rest[:n]
	c.rest = c.rest[n:]
	return taken
}

func (c *cut) byte() byte { return c.bytes(1)[0] }

func (c *cut) num() uint64 {
	v, n := binary.Uvarint(c.rest)
	if n <= 0 {
		c.rest, c.short = nil, true
		return 0
	}
	c.rest = c.rest[n:]
	return v
}

func (c *cut) text() string { return string(c.bytes(c.num())) }

func (c *cut) settings() settings { return settings{c.num(), c.num(), c.num()} }

// decode reads one message of the log. ours is false for bytes without the magic. What is ours and not understood is an error.
func decode(data []byte) (e entry, ours bool, err error) {
	if len(data) < 2 || data[0] != 0xA1 || data[1] != 0x0C {
		return e, false, nil
	}
	if len(data) < 23 {
		return e, true, fmt.Errorf("an entry of %d bytes", len(data))
	}
	table := crc32.MakeTable(crc32.Castagnoli)
	sum := crc32.Update(crc32.Checksum(data[:3], table), table, data[7:])
	if sum != binary.BigEndian.Uint32(data[3:]) || data[2] != 1 {
		return e, true, fmt.Errorf("an entry of version %d with checksum %08x, computed %08x", data[2], data[3:7], sum)
	}
	c := &cut{rest: data[7:]}
	e.cluster = hex.EncodeToString(c.bytes(16))
	e.level = c.byte()
	e.node = c.text()
	e.incarnation = hex.EncodeToString(c.bytes(16))
	e.id = fmt.Sprint(e.incarnation, "-", c.num())
	e.cursor = c.num()
	c.bytes(16) // the proposer's digest: its own replicas compare it, the reference has another way to know
	e.autoCreate = c.byte() != 0
	e.defaults = c.settings()
	for len(c.rest) > 0 {
		o, known := decodeOp(c)
		if !known || c.short {
			return e, true, fmt.Errorf("operation %d, of kind %d, is unknown or cut short", len(e.ops), o.kind)
		}
		e.ops = append(e.ops, o)
	}
	if c.short {
		return e, true, fmt.Errorf("an entry that is cut short")
	}
	return e, true, nil
}

func decodeOp(c *cut) (o op, known bool) {
	o.kind = c.byte()
	switch o.kind {
	case opGenesis:
		o.genesis.epoch, o.genesis.first = c.num(), 1
		c.num() // created
		for range min(c.num(), 64) {
			o.genesis.nodes = append(o.genesis.nodes, c.text())
		}
		o.genesis.keyWindow, o.genesis.entryWindow, o.genesis.maxSequence = c.num(), c.num(), c.num()
		flags := c.byte()
		o.genesis.halt = flags&1 != 0
		if flags&2 != 0 {
			return o, c.recovery(&o.genesis)
		}
	case opReserve:
		flags := c.byte()
		o.name, o.n, o.partial = c.text(), c.num(), flags&1 != 0
		if flags&2 != 0 {
			key := c.text()
			o.key, o.hash = keyScope(o.name, key), keyHash(0, uint64(len(o.name)), o.name+key)
			if flags&4 != 0 {
				item := c.num()
				o.key, o.hash = fmt.Sprintf("item %d of list %s", item, key), keyHash(1, item, key)
			}
		}
		if flags&8 != 0 {
			o.since = c.num()
		}
	case opCreate:
		o.name, o.given, o.settings = c.text(), c.byte(), c.settings()
	case opAdvance:
		o.name, o.n = c.text(), c.num()
	case opResume, opForget:
		o.name = c.text()
	case opBarrier:
	case opCheck:
		o.name, o.catalog = c.text(), string(c.bytes(16))
		c.byte() // ask
		o.verdict = c.byte()
		c.text() // reason
	case opActivate:
		o.n = c.num()
	case opRestore:
		o.n, o.data = c.num(), []byte(c.text())
	default:
		return o, false
	}
	return o, true
}

// keyScope names a key within its sequence.
func keyScope(sequence, key string) string { return fmt.Sprintf("key %s of %s", key, sequence) }

// keyHash is a key in the window's records: a kind, a number, and text, hashed and cut to 128 bits.
func keyHash(kind byte, n uint64, text string) string {
	sum := sha256.Sum256(append(binary.AppendUvarint([]byte{kind}, n), text...))
	return string(sum[:16])
}
