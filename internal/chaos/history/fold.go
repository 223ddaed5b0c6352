package history

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"regexp"
	"slices"
)

// Message is one message of the log, as it is stored.
type Message struct {
	Seq  uint64
	Data []byte
}

// Result is what one operation of the log gave, by the reference.
type Result struct {
	Seq      uint64
	Node     string // proposer
	Action   Action // Reserve, Create or Advance; others are not kept
	Sequence string
	Key      string // with its scope
	Count    uint64 // as asked; of an advance the floor
	Partial  bool
	Refused  byte  // why, as the product's wire.Reject numbers it; 0: it was not
	Repeated bool  // the range was carved before, under the same key
	Range    Range // of a reserve. Of an advance the hwm before and after it
}

// Log is what a whole log means, by the reference.
type Log struct {
	Cluster  string            // 32 hexadecimal digits
	Epoch    uint64            // 1, and one more after each recovery
	First    uint64            // seq at which it begins: 1 in the first epoch; 0 counts as 1
	Last     uint64            // seq
	HWM      map[string]uint64 // of every sequence
	Results  []Result          // in the order of the log
	Digests  []string          // after each seq, in 32 hexadecimal digits; Digests[0] is that of First
	Floors   map[string]uint64 // hwms that a recovered log begins with; nil in the first epoch
	KeyFloor uint64            // a key with a since below it may be refused as expired
	Skipped  int               // messages that are not entries
	Copies   int               // entries that were there before
	Fence    string            // what in the log proves that it is not whole; empty: nothing

	before *Log // of the epoch before, see [Join]
}

// rejections, as they enter the digest.
const (
	refExhausted  = 1
	refHalted     = 2
	refUnknown    = 3
	refSettings   = 4
	refKeyReused  = 5
	refKeyExpired = 6
	refCount      = 7
	refSequences  = 8
	refBeyondMax  = 9
	refNotNamed   = 10
	refCatalog    = 11
	refLevel      = 12
	refGenesis    = 13
	refName       = 14
	refRestoring  = 15
	refRestore    = 16
)

var goodName = regexp.MustCompile(`^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*$`)

type counter struct {
	settings
	hwm    uint64
	halted bool
}

type kept struct {
	seq     uint64
	name    string
	count   uint64
	partial bool
	got     Range
}

type member struct {
	catalog string
	level   byte
}

// outcome is what enters the digest for each operation.
type outcome struct {
	refused               byte
	repeated              bool
	start, end, remaining uint64
}

// reference is the state. Everything is a map or a list, and nothing is ever clever.
type reference struct {
	log       *Log
	genesis   genesis
	counters  map[string]*counter
	members   map[string]member
	keys      map[string]kept // by hash
	keyOrder  []string        // of keys, as they were added
	names     []string        // of the sequences of a recovered state, by their ids
	restored  uint64          // parts that were taken
	entries   map[string]uint64
	lastKeyed uint64 // entry that added the last key
}

// Fold reads a whole log, from its first seq to its end without a gap, and says what it means: 1 in the first epoch, what the
// genesis says in one that a recovery began. It shares no code with the product.
// What it cannot understand (a gap, a checksum, a level or operation of another build) is an error: there is no verdict then.
func Fold(messages []Message) (*Log, error) {
	f := &reference{
		log:      &Log{HWM: map[string]uint64{}},
		counters: map[string]*counter{}, members: map[string]member{}, keys: map[string]kept{}, entries: map[string]uint64{},
	}
	var digest [16]byte
	for i, m := range messages {
		if i > 0 && m.Seq != messages[i-1].Seq+1 {
			return nil, fmt.Errorf("fold log: seq %d stands where %d is next", m.Seq, messages[i-1].Seq+1)
		}
		flags, outcomes, err := f.entry(m)
		if err != nil {
			return nil, fmt.Errorf("fold log: seq %d: %w", m.Seq, err)
		}
		digest = next(digest, m, flags, outcomes)
		f.log.Digests = append(f.log.Digests, hex.EncodeToString(digest[:]))
	}
	if n := len(messages); n > 0 {
		f.log.Last = messages[n-1].Seq
	}
	if f.restoring() {
		return nil, fmt.Errorf("fold log: %d of %d parts of the recovered state", f.restored, len(f.genesis.parts))
	}
	for name, c := range f.counters {
		f.log.HWM[name] = c.hwm
	}
	return f.log, nil
}

// next is the digest after m: SHA-256 of digest before, seq, hash of the bytes, flags and outcomes, cut to 128 bits.
func next(digest [16]byte, m Message, flags byte, outcomes []outcome) (after [16]byte) {
	hash := sha256.Sum256(m.Data)
	b := binary.BigEndian.AppendUint64(digest[:], m.Seq)
	b = append(append(b, hash[:16]...), flags)
	for _, o := range outcomes {
		repeated := byte(0)
		if o.repeated {
			repeated = 1
		}
		b = append(b, o.refused, repeated)
		b = binary.AppendUvarint(b, o.start)
		b = binary.AppendUvarint(b, o.end)
		b = binary.AppendUvarint(b, o.remaining)
	}
	sum := sha256.Sum256(b)
	copy(after[:], sum[:])
	return after
}

func (f *reference) entry(m Message) (flags byte, outcomes []outcome, err error) {
	e, ours, err := decode(m.Data)
	switch {
	case err != nil:
		return 0, nil, err
	case f.log.First == 0:
		if !ours || len(e.ops) != 1 || e.ops[0].kind != opGenesis {
			return 0, nil, fmt.Errorf("no genesis")
		}
		if g := e.ops[0].genesis; m.Seq != g.first {
			return 0, nil, fmt.Errorf("seq %d stands where %d is next", m.Seq, g.first)
		}
		f.genesis, f.log.Cluster, f.entries[e.id] = e.ops[0].genesis, e.cluster, m.Seq
		f.log.First, f.log.Epoch, f.log.KeyFloor = m.Seq, f.genesis.epoch, f.genesis.keyFloor
		return 0, make([]outcome, 1), nil
	case !ours:
		f.log.Skipped++
		return 1, nil, nil
	}
	first := f.log.First // seq of the oldest entry that is remembered
	if m.Seq-first > f.genesis.entryWindow {
		first = m.Seq - f.genesis.entryWindow
	}
	before, seen := f.entries[e.id]
	f.entries[e.id] = m.Seq
	switch {
	case e.cluster != f.log.Cluster:
		return f.raise("an entry of cluster " + e.cluster), nil, nil
	case e.cursor >= m.Seq:
		return f.raise(fmt.Sprintf("%s had applied seq %d when it proposed seq %d", e.node, e.cursor, m.Seq)), nil, nil
	case seen && before >= first, e.cursor+1 < first:
		f.log.Copies++
		return 2, nil, nil
	}
	for i := range e.ops {
		o := &e.ops[i]
		got, err := f.op(m.Seq, &e, o, &flags)
		if err != nil {
			return 0, nil, err
		}
		outcomes = append(outcomes, got)
		f.keep(m.Seq, &e, o, got)
	}
	f.evict(m.Seq)
	return flags, outcomes, nil
}

// raise notes the first proof against the log; only that one counts as one.
func (f *reference) raise(why string) (flags byte) {
	if f.log.Fence != "" {
		return 0
	}
	f.log.Fence = why
	return 4
}

// keep notes the result for the checkers.
func (f *reference) keep(seq uint64, e *entry, o *op, got outcome) {
	r := Result{
		Seq: seq, Node: e.node, Sequence: o.name, Key: o.key, Count: o.n, Partial: o.partial, Refused: got.refused,
		Repeated: got.repeated, Range: Range{got.start, got.end},
	}
	switch o.kind {
	case opReserve:
		r.Action = Reserve
	case opCreate:
		r.Action = Create
	case opAdvance:
		r.Action = Advance
	default:
		return
	}
	f.log.Results = append(f.log.Results, r)
}

// evict forgets the oldest keys once the entry at seq has added some: those of one entry together, as long as the window
// stays full without them.
func (f *reference) evict(seq uint64) {
	for f.lastKeyed == seq {
		oldest, n := f.keys[f.keyOrder[0]].seq, 0
		for n < len(f.keyOrder) && f.keys[f.keyOrder[n]].seq == oldest {
			n++
		}
		if uint64(len(f.keys)-n) < f.genesis.keyWindow {
			return
		}
		for _, k := range f.keyOrder[:n] {
			delete(f.keys, k)
		}
		f.keyOrder, f.log.KeyFloor = f.keyOrder[n:], max(f.log.KeyFloor, oldest)
	}
}

func (f *reference) op(seq uint64, e *entry, o *op, flags *byte) (outcome, error) {
	if f.restoring() && o.kind != opRestore {
		return outcome{refused: refRestoring}, nil
	}
	switch o.kind {
	case opReserve, opAdvance:
		return f.carve(seq, e, o), nil
	case opRestore:
		return f.restore(e, o)
	case opCreate:
		return f.create(o), nil
	case opResume:
		c, ok := f.counters[o.name]
		if !ok {
			return outcome{refused: refUnknown}, nil
		}
		c.halted = false
	case opCheck:
		was, known := f.members[o.name]
		switch {
		case !slices.Contains(f.genesis.nodes, o.name) || o.name != e.node:
			return outcome{refused: refNotNamed}, nil
		case known && was.catalog != o.catalog:
			return outcome{refused: refCatalog}, nil
		}
		f.members[o.name] = member{o.catalog, e.level}
		if o.verdict != 0 {
			*flags |= f.raise(o.name + " found another log than it had applied")
		}
	case opForget:
		if !slices.Contains(f.genesis.nodes, o.name) {
			return outcome{refused: refNotNamed}, nil
		}
		delete(f.members, o.name)
	case opActivate:
		for _, node := range f.genesis.nodes {
			if m, ok := f.members[node]; !ok || uint64(m.level) < o.n || o.n <= 1 || len(e.ops) != 1 {
				return outcome{refused: refLevel}, nil
			}
		}
		return outcome{}, fmt.Errorf("level %d is activated, the reference knows 1", o.n)
	case opGenesis:
		return outcome{refused: refGenesis}, nil
	}
	return outcome{}, nil
}

// fresh says whether a sequence of that name may come into being.
func (f *reference) fresh(name string) outcome {
	switch {
	case uint64(len(f.counters)) >= f.genesis.maxSequence:
		return outcome{refused: refSequences, remaining: uint64(len(f.counters))}
	case len(name) > 128 || !goodName.MatchString(name):
		return outcome{refused: refName}
	}
	return outcome{}
}

// counter is a new one. After a recovery it may be one that was lost: it begins above what may have been issued.
func (f *reference) counter(s settings) *counter {
	return &counter{settings: s, hwm: min(max(s.first-1, f.genesis.floor), s.max)}
}

func (f *reference) create(o *op) outcome {
	c, ok := f.counters[o.name]
	if !ok {
		got := f.fresh(o.name)
		if got.refused == 0 {
			f.counters[o.name] = f.counter(o.settings)
		}
		return got
	}
	if o.given&1 != 0 && o.settings.first != c.first || o.given&2 != 0 && o.settings.max != c.max ||
		o.given&4 != 0 && o.settings.maxCount != c.maxCount {
		return outcome{refused: refSettings}
	}
	return outcome{}
}

// carve is a reserve or an advance: what both do to a sequence that may not be there yet.
func (f *reference) carve(seq uint64, e *entry, o *op) outcome {
	if o.key != "" {
		if k, ok := f.keys[o.hash]; ok {
			if k.name != o.name || k.count != o.n || k.partial != o.partial {
				return outcome{refused: refKeyReused}
			}
			return outcome{repeated: true, start: k.got[0], end: k.got[1]}
		}
		if o.since > 0 && o.since < f.log.KeyFloor {
			return outcome{refused: refKeyExpired}
		}
	}
	c, known := f.counters[o.name]
	if !known {
		if !e.autoCreate {
			return outcome{refused: refUnknown}
		}
		if got := f.fresh(o.name); got.refused != 0 {
			return got
		}
		c = f.counter(e.defaults)
	}
	left := c.max - c.hwm
	got := outcome{start: c.hwm + 1}
	switch {
	case c.halted:
		return outcome{refused: refHalted, remaining: left}
	case o.kind == opAdvance && o.n > c.max:
		return outcome{refused: refBeyondMax, remaining: c.max}
	case o.kind == opAdvance:
		got.start, got.end = c.hwm, max(c.hwm, o.n)
		c.hwm = got.end
	case o.n > c.maxCount:
		return outcome{refused: refCount, remaining: c.maxCount}
	case o.n > left && (!o.partial || left == 0):
		c.halted = f.genesis.halt
		return outcome{refused: refExhausted, remaining: left}
	default:
		c.hwm += min(o.n, left)
		got.end = c.hwm + 1
	}
	f.counters[o.name] = c
	if o.key != "" {
		f.keys[o.hash] = kept{seq, o.name, o.n, o.partial, Range{got.start, got.end}}
		f.keyOrder = append(f.keyOrder, o.hash)
		f.lastKeyed = seq
	}
	return got
}
