package history

import (
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
	since    uint64
	settings settings
	given    byte
	catalog  string
	verdict  byte
	genesis  genesis
}

type genesis struct {
	nodes                               []string
	keyWindow, entryWindow, maxSequence uint64
	halt                                bool
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
		c.num() // epoch
		c.num() // created
		for range min(c.num(), 64) {
			o.genesis.nodes = append(o.genesis.nodes, c.text())
		}
		o.genesis.keyWindow, o.genesis.entryWindow, o.genesis.maxSequence = c.num(), c.num(), c.num()
		o.genesis.halt = c.byte() != 0
	case opReserve:
		flags := c.byte()
		o.name, o.n, o.partial = c.text(), c.num(), flags&1 != 0
		if flags&2 != 0 {
			key := c.text()
			o.key = keyScope(o.name, key)
			if flags&4 != 0 {
				o.key = fmt.Sprintf("item %d of list %s", c.num(), key)
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
	default:
		return o, false
	}
	return o, true
}

// keyScope names a key within its sequence.
func keyScope(sequence, key string) string { return fmt.Sprintf("key %s of %s", key, sequence) }
