package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
)

// MaxNodeLen bounds a node's name, in bytes.
const MaxNodeLen = 64

// Kind is what an operation does.
type Kind uint8

// The operations of level 1.
const (
	KindGenesis  Kind = 1 // begins a log: entry 1, and nothing else, holds it
	KindReserve  Kind = 2 // carves a range
	KindCreate   Kind = 3 // makes a sequence, or checks its settings
	KindAdvance  Kind = 4 // raises a high-water mark
	KindResume   Kind = 5 // lifts the halt of a sequence
	KindBarrier  Kind = 6 // changes nothing: who sees it applied has seen all before it
	KindCheck    Kind = 7 // what a node found when it compared its catalog with the log
	KindForget   Kind = 8 // releases a node's name from its catalog id
	KindActivate Kind = 9 // makes a level's operations take effect

	// KindRestore carries one part of a recovered state: behind the genesis of a recovery, alone in its entry.
	KindRestore Kind = 10
)

// Bounds of a genesis.
const (
	MaxWindow    = 1 << 24 // either window, in keys or entries
	MaxSequences = 1 << 31 // sequences of one cluster
)

// Settings are what a sequence is made with. They never change afterwards.
type Settings struct {
	First    uint64 // first id issued, 1 and up
	Max      uint64 // last id that may be issued, at most 2^63-1
	MaxCount uint64 // how many ids one reservation may ask for, 1 and up
}

// Genesis is what every replica must know alike, fixed when the log is made.
type Genesis struct {
	Epoch   uint64   // 1, and one more after each recovery
	Created int64    // when the stream was made, as its leader says, in Unix nanoseconds
	Nodes   []string // names of the nodes whose majority is asked, 1 to 64, each once; in the order of the configuration

	KeyWindow    uint64 // how many keyed reservations are remembered
	EntryWindow  uint64 // how many entries are remembered by id and hash
	MaxSequences uint64 // how many sequences there may be

	HaltOnExhaustion bool // a sequence that could not fit a request refuses all until resumed

	Recovery *Recovery // of a log that a recovery began
}

// Verdict is what a check found.
type Verdict uint8

// The verdicts.
const (
	VerdictConsistent    Verdict = 0
	VerdictContradiction Verdict = 1 // the log is not the one that the node applied; Check.Reason says how
)

// Check is one node's word on its catalog and the log.
type Check struct {
	CatalogID ID
	Ask       bool // other nodes shall check too, after this entry
	Verdict   Verdict
	Reason    string // for people, at most MaxReasonLen bytes
}

// MaxReasonLen bounds a check's reason, in bytes.
const MaxReasonLen = 512

// Op is one operation. Which fields count depends on Kind; the others are zero.
type Op struct {
	Kind Kind
	Name []byte // sequence, or node for check and forget; aliases the entry

	Count   uint64 // reserve: ids asked for. advance: the floor. activate: the level
	Partial bool   // reserve: take what is left when Count does not fit

	// Reserve: a request that names a key gets the same range again. ListKeyed says that Key names a list, of which this
	// is item Index. Since is the last seq that the sender had seen before its first attempt; 0 is none.
	Key       []byte
	ListKeyed bool
	Index     uint64
	Since     uint64

	// Create: Settings, where Given says which of them the caller asked for; the others are defaults for a new sequence
	// and match anything in an old one.
	Settings Settings
	Given    uint8

	Check   *Check
	Genesis *Genesis

	// Restore: Index, from 0 on, and Data, the part; aliases the entry.
	Data []byte
}

// Bits of Op.Given.
const (
	GivenFirst = 1 << iota
	GivenMax
	GivenMaxCount
	givenAll = GivenFirst | GivenMax | GivenMaxCount
)

// Bits of a reserve's flags byte.
const (
	flagPartial = 1 << iota
	flagKey
	flagList
	flagSince
	flagsAll = flagPartial | flagKey | flagList | flagSince
)

// Bits of a genesis's flags byte.
const (
	flagHalt = 1 << iota
	flagRecovery
)

// AppendOp appends op to dst. Layouts, with uvarint for every number and a length before every string:
//
//	genesis   1 | epoch | created | n | n names | key window | entry window | max sequences | flags(1)
//	            flags: halt, recovery; with that one | first | base | key floor | floor | level | n | n part hashes(16)
//	reserve   2 | flags(1) | name | count | [key] | [index] | [since]      flags: partial, key, list, since
//	create    3 | name | given(1) | first | max | max count
//	advance   4 | name | floor
//	resume    5 | name
//	barrier   6
//	check     7 | node | catalog id(16) | ask(1) | verdict(1) | reason
//	forget    8 | node
//	activate  9 | level
//	restore  10 | index | part
func AppendOp(dst []byte, op *Op) []byte {
	dst = append(dst, byte(op.Kind))
	switch op.Kind {
	case KindGenesis:
		g := op.Genesis
		dst = binary.AppendUvarint(dst, g.Epoch)
		dst = binary.AppendUvarint(dst, uint64(g.Created))
		dst = binary.AppendUvarint(dst, uint64(len(g.Nodes)))
		for _, n := range g.Nodes {
			dst = appendString(dst, n)
		}
		dst = binary.AppendUvarint(dst, g.KeyWindow)
		dst = binary.AppendUvarint(dst, g.EntryWindow)
		dst = binary.AppendUvarint(dst, g.MaxSequences)
		flags := byte(0)
		if g.HaltOnExhaustion {
			flags |= flagHalt
		}
		if g.Recovery == nil {
			return append(dst, flags)
		}
		dst = g.Recovery.append(append(dst, flags|flagRecovery))
	case KindReserve:
		dst = append(dst, reserveFlags(op))
		dst = appendBytes(dst, op.Name)
		dst = binary.AppendUvarint(dst, op.Count)
		if len(op.Key) > 0 {
			dst = appendBytes(dst, op.Key)
		}
		if op.ListKeyed {
			dst = binary.AppendUvarint(dst, op.Index)
		}
		if op.Since > 0 {
			dst = binary.AppendUvarint(dst, op.Since)
		}
	case KindCreate:
		dst = appendBytes(dst, op.Name)
		dst = append(dst, op.Given)
		dst = appendSettings(dst, op.Settings)
	case KindAdvance:
		dst = appendBytes(dst, op.Name)
		dst = binary.AppendUvarint(dst, op.Count)
	case KindResume, KindForget:
		dst = appendBytes(dst, op.Name)
	case KindCheck:
		c := op.Check
		dst = appendBytes(dst, op.Name)
		dst = append(dst, c.CatalogID[:]...)
		dst = appendBool(dst, c.Ask)
		dst = append(dst, byte(c.Verdict))
		dst = appendString(dst, c.Reason)
	case KindActivate:
		dst = binary.AppendUvarint(dst, op.Count)
	case KindRestore:
		dst = binary.AppendUvarint(dst, op.Index)
		dst = appendBytes(dst, op.Data)
	}
	return dst
}

func reserveFlags(op *Op) (flags byte) {
	if op.Partial {
		flags |= flagPartial
	}
	if len(op.Key) > 0 {
		flags |= flagKey
	}
	if op.ListKeyed {
		flags |= flagList
	}
	if op.Since > 0 {
		flags |= flagSince
	}
	return flags
}

var errOp = errors.New("unknown or malformed operation")

// op reads one operation into op, which must be zero. A malformed one sets r's error.
func (r *Reader) op(op *Op) {
	op.Kind = Kind(r.Byte())
	switch op.Kind {
	case KindGenesis:
		op.Genesis = r.genesis()
	case KindReserve:
		flags := r.Byte()
		op.Name = r.Bytes(maxName)
		op.Count = r.Uvarint()
		op.Partial = flags&flagPartial != 0
		if flags&flagKey != 0 {
			op.Key = r.Bytes(maxKey)
		}
		if op.ListKeyed = flags&flagList != 0; op.ListKeyed {
			op.Index = r.Uvarint()
		}
		if flags&flagSince != 0 {
			op.Since = r.Uvarint()
		}
		if flags&^flagsAll != 0 || op.Count == 0 || (flags&flagKey != 0) != (len(op.Key) > 0) ||
			(op.ListKeyed && len(op.Key) == 0) || (flags&flagSince != 0) != (op.Since > 0) {
			r.fail(errOp)
		}
	case KindCreate:
		op.Name = r.Bytes(maxName)
		op.Given = r.Byte()
		op.Settings = r.settings()
		if op.Given&^givenAll != 0 {
			r.fail(errOp)
		}
	case KindAdvance:
		op.Name = r.Bytes(maxName)
		op.Count = r.Uvarint()
	case KindResume:
		op.Name = r.Bytes(maxName)
	case KindForget:
		op.Name = r.Bytes(MaxNodeLen)
	case KindBarrier:
	case KindCheck:
		op.Name = r.Bytes(MaxNodeLen)
		c := &Check{}
		r.Fixed(c.CatalogID[:])
		c.Ask = r.Bool()
		c.Verdict = Verdict(r.Byte())
		c.Reason = string(r.Bytes(MaxReasonLen))
		op.Check = c
		if c.Verdict > VerdictContradiction {
			r.fail(errOp)
		}
	case KindActivate:
		op.Count = r.Uvarint()
	case KindRestore:
		op.Index = r.Uvarint()
		op.Data = r.Bytes(MaxPart)
	default:
		r.fail(errOp)
	}
}

func (r *Reader) genesis() *Genesis {
	g := &Genesis{Epoch: r.Uvarint(), Created: int64(r.Uvarint())}
	n := r.Uvarint()
	if n == 0 || n > maxNodes {
		r.fail(errOp)
		return g
	}
	for range n {
		name := string(r.Bytes(MaxNodeLen))
		if name == "" || slices.Contains(g.Nodes, name) { // a name that counts twice would make a majority of too few
			r.fail(errOp)
		}
		g.Nodes = append(g.Nodes, name)
	}
	g.KeyWindow = r.Uvarint()
	g.EntryWindow = r.Uvarint()
	g.MaxSequences = r.Uvarint()
	flags := r.Byte()
	g.HaltOnExhaustion = flags&flagHalt != 0
	if flags&flagRecovery != 0 {
		g.Recovery = r.recovery()
	}
	if flags&^(flagHalt|flagRecovery) != 0 {
		r.fail(errBool)
	}
	if g.Epoch == 0 || g.KeyWindow == 0 || g.KeyWindow > MaxWindow || g.EntryWindow == 0 || g.EntryWindow > MaxWindow ||
		g.MaxSequences > MaxSequences {
		r.fail(errOp)
	}
	return g
}

func appendSettings(dst []byte, s Settings) []byte {
	dst = binary.AppendUvarint(dst, s.First)
	dst = binary.AppendUvarint(dst, s.Max)
	return binary.AppendUvarint(dst, s.MaxCount)
}

// settings reads settings and holds them to their bounds, so that a carve from them cannot overflow.
func (r *Reader) settings() Settings {
	s := Settings{First: r.Uvarint(), Max: r.Uvarint(), MaxCount: r.Uvarint()}
	if r.err == nil {
		r.fail(s.Check())
	}
	return s
}

// CheckOps returns nil when ops is n whole operations that every replica of this build will understand. One that it would
// not must never reach the log: every node would halt at it.
func CheckOps(ops []byte, n int) error {
	r := NewReader(ops)
	for range n {
		var op Op
		r.op(&op)
	}
	if err := r.Close(); err != nil {
		return fmt.Errorf("%d operations in %d bytes: %w", n, len(ops), err)
	}
	return nil
}

// Genesis reads a genesis operation, as [AppendOp] wrote it.
func (r *Reader) Genesis() *Genesis {
	var op Op
	r.op(&op)
	if op.Kind != KindGenesis {
		r.fail(errOp)
	}
	return op.Genesis
}
