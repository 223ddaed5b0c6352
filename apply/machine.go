package apply

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"

	"github.com/allocnode/allocnode/internal/mutant"
	"github.com/allocnode/allocnode/internal/wire"
)

// ErrNoGenesis says that the log's first entry is not a genesis: this is not a log of ours, or its beginning is gone.
var ErrNoGenesis = errors.New("apply: the log does not begin with a genesis")

// GapError says that entries are missing between the cursor and the entry that came. Nothing was applied: fetch Want.
type GapError struct{ Want, Got uint64 }

func (e *GapError) Error() string {
	return fmt.Sprintf("apply: seq %d came where %d is next", e.Got, e.Want)
}

// ReplayError says that the entry at Seq is not the one that was applied there: the log was rewritten. The node must fence.
type ReplayError struct {
	Seq       uint64
	Got, Want wire.Digest // hashes of the entry that came and of the one applied
}

func (e *ReplayError) Error() string {
	return fmt.Sprintf("apply: the entry at seq %d has hash %s, the one applied there had %s", e.Seq, e.Got, e.Want)
}

// Fence is a proof, in the log itself, that the log is not whole or not ours. Every replica that applies it stops issuing.
type Fence struct {
	Seq    uint64 // of the entry that holds the proof; 0 is no fence
	Reason string // for people; a function of the log
}

// Outcomes is what applying one entry gave. Entry and Ops are valid until the next Apply.
type Outcomes struct {
	Seq       uint64
	Replay    bool // at or below the cursor: nothing was done, and there is no delta
	Skipped   bool // not an entry of ours: counted, and nothing else
	Duplicate bool // a second copy of an entry, or one too old to tell: its operations were not applied
	Fence     bool // this entry raised the fence

	Data  []byte         // the bytes that were applied; nil when replayed
	Entry *wire.Entry    // nil when skipped or replayed
	Ops   []wire.Outcome // one for each of Entry.Ops; none for a duplicate, or for an entry that is itself a proof of loss
}

// Machine is the replicated state. It is not safe for concurrent use.
//
// Invariants, held between calls:
//
//  1. cursor rises by exactly one with each entry applied, and nothing changes without it.
//  2. A sequence's hwm never falls, and first-1 <= hwm <= max <= 2^63-1.
//  3. The ranges granted from one sequence, repeats aside, are adjacent and in order: each begins at the hwm before it plus one.
//  4. The state, the outcomes and the delta are functions of the entries from the first to the cursor.
//  5. The records of all deltas, laid over one another, are the state: Restore of them gives an equal machine.
type Machine struct {
	head    Head
	genesis *wire.Genesis // nil before entry 1
	level   uint64        // operations up to this level take effect
	fence   Fence         // the first one stands
	skipped uint64

	restored uint64 // parts of the recovered state that were taken; see recover.go

	sequences []sequence        // by id, which is the order of creation
	byName    map[string]uint32 // to id
	members   map[string]Member // registered nodes
	keys      keyWindow
	entries   entryWindow

	// Scratch, so that a steady stream of entries allocates only what it keeps.
	entry wire.Entry
	ops   []wire.Outcome
	dirty []uint32 // ids of the sequences that the entry at hand has changed
	sum   hash.Hash
	buf   []byte
}

// New is the machine that has applied nothing.
func New() *Machine {
	return &Machine{
		byName:  make(map[string]uint32),
		members: make(map[string]Member),
		sum:     sha256.New(),
	}
}

// Apply folds the entry at seq into the state.
//
// A seq at or below the cursor changes nothing: it is a [*ReplayError] when its bytes are known to differ from those applied.
// A seq beyond the next is a [*GapError]. Bytes of ours that fail their checksum are [wire.ErrCorrupt]; an entry, or an
// operation, that this build does not know is [wire.ErrUnsupported]; a first entry that is no genesis is [ErrNoGenesis].
// After any error the state is as before, and the same seq may be applied again.
func (m *Machine) Apply(seq uint64, data []byte) (Outcomes, Delta, error) {
	entryHash := m.hash(data)
	if seq <= m.head.Cursor {
		if kept, ok := m.entries.at(seq); ok && kept.hash != entryHash {
			return Outcomes{}, Delta{}, &ReplayError{Seq: seq, Got: entryHash, Want: kept.hash}
		}
		return Outcomes{Seq: seq, Replay: true}, Delta{}, nil
	}
	if m.genesis != nil && seq != m.head.Cursor+1 && !mutant.Gap {
		return Outcomes{}, Delta{}, &GapError{Want: m.head.Cursor + 1, Got: seq}
	}

	out := Outcomes{Seq: seq, Data: data}
	err := wire.DecodeEntry(data, &m.entry)
	switch {
	case m.genesis == nil && seq != 1 && (err != nil || !m.beginsAt(seq)):
		return Outcomes{}, Delta{}, &GapError{Want: 1, Got: seq}
	case m.genesis == nil:
		if errors.Is(err, wire.ErrForeign) { // m.entry is unspecified now: it may still hold what was refused before
			err = ErrNoGenesis
		}
		if err == nil {
			err = m.begin(seq)
		}
		if err != nil {
			return Outcomes{}, Delta{}, fmt.Errorf("entry at seq %d: %w", seq, err)
		}
		m.ops = append(m.ops[:0], wire.Outcome{})
		out.Entry, out.Ops = &m.entry, m.ops
		return out, m.finish(seq, entryHash, &out, m.appendGenesis()), nil
	case errors.Is(err, wire.ErrForeign):
		m.skipped++
		out.Skipped = true
		return out, m.finish(seq, entryHash, &out, m.appendMeta(nil)), nil
	case err != nil:
		return Outcomes{}, Delta{}, fmt.Errorf("entry at seq %d: %w", seq, err)
	}
	if err := errors.Join(m.checkActivation(&m.entry), m.checkPart(&m.entry)); err != nil {
		return Outcomes{}, Delta{}, fmt.Errorf("entry at seq %d: %w", seq, err)
	}

	out.Entry = &m.entry
	records := m.applyEntry(seq, &out)
	return out, m.finish(seq, entryHash, &out, records), nil
}

// beginsAt reports whether the decoded entry is a genesis that names seq as the log's first.
func (m *Machine) beginsAt(seq uint64) bool {
	e := &m.entry
	return len(e.Ops) == 1 && e.Ops[0].Kind == wire.KindGenesis && e.Ops[0].Genesis.First() == seq
}

// begin takes the genesis, alone in the first entry. That is the entry at seq 1, but in the log of a recovery.
func (m *Machine) begin(seq uint64) error {
	e := &m.entry
	if !m.beginsAt(seq) || e.Cursor != seq-1 || e.ClusterID.IsZero() {
		return ErrNoGenesis
	}
	if r := e.Ops[0].Genesis.Recovery; r != nil && r.Level > wire.Level {
		return fmt.Errorf("%w: the recovered state is of level %d, this build knows %d", wire.ErrUnsupported, r.Level, wire.Level)
	}
	m.genesis = e.Ops[0].Genesis
	m.level = 1
	m.head.ClusterID = e.ClusterID
	m.head.Epoch = m.genesis.Epoch
	m.keys.init(m.genesis.KeyWindow)
	m.entries.init(m.genesis.EntryWindow)
	if r := m.genesis.Recovery; r != nil {
		m.level, m.keys.floor = r.Level, r.KeyFloor
	}
	return nil
}

// applyEntry applies a decoded entry that is next in the log, and returns the records that it changed.
func (m *Machine) applyEntry(seq uint64, out *Outcomes) (records []Record) {
	e := out.Entry
	switch {
	case e.ClusterID != m.head.ClusterID:
		out.Fence = m.raise(seq, fmt.Sprintf("the entry at seq %d is of cluster %s, this is %s", seq, e.ClusterID, m.head.ClusterID))
	case e.Cursor >= seq:
		out.Fence = m.raise(seq, fmt.Sprintf("the log lost entries: %s had applied seq %d when it proposed the entry that now stands at %d",
			e.Node, e.Cursor, seq))
	case m.entries.has(e.ID) && !mutant.NoDedupe, e.Cursor+1 < m.entries.first:
		// Its first copy, if there was one, stands above its proposer's cursor. Where the window no longer reaches back
		// that far, "absent" proves nothing: such an entry is taken for a copy. Its proposer gave it up long ago.
		out.Duplicate = true
	default:
		m.ops, m.dirty = m.ops[:0], m.dirty[:0]
		for i := range e.Ops {
			m.ops = append(m.ops, m.applyOp(seq, &e.Ops[i], out, &records))
		}
		out.Ops = m.ops
		for _, id := range m.dirty {
			records = append(records, m.sequences[id].record())
			m.sequences[id].dirty = false
		}
		records = m.keys.push(seq, records)
	}
	if out.Fence {
		records = m.appendMeta(records)
	}
	return records
}

// raise keeps the first fence, and reports whether this was it.
func (m *Machine) raise(seq uint64, reason string) bool {
	if m.fence.Seq != 0 {
		return false
	}
	m.fence = Fence{Seq: seq, Reason: reason}
	return true
}

// finish moves cursor, digest and entry window past seq, and closes the delta.
//
// The digest is SHA-256(digest before | seq | hash of the entry | what became of it), cut to 128 bits. Outcomes are part
// of it: over the entries alone, replicas that carve differently would look alike.
func (m *Machine) finish(seq uint64, entryHash wire.Digest, out *Outcomes, records []Record) Delta {
	b := append(m.buf[:0], m.head.Digest[:]...)
	b = binary.BigEndian.AppendUint64(b, seq)
	b = append(b, entryHash[:]...)
	b = append(b, outcomeFlags(out))
	for i := range out.Ops {
		o := &out.Ops[i]
		repeated := byte(0)
		if o.Repeated {
			repeated = 1
		}
		b = append(b, byte(o.Reject), repeated)
		b = binary.AppendUvarint(b, o.Start)
		b = binary.AppendUvarint(b, o.End)
		b = binary.AppendUvarint(b, o.Remaining)
	}
	m.buf = b
	m.head.Digest = m.hash(b)
	m.head.Cursor = seq

	kept := keptEntry{hash: entryHash}
	if out.Entry != nil {
		kept.id = out.Entry.ID
	}
	return Delta{Head: m.head, Records: m.entries.push(seq, kept, records)}
}

func outcomeFlags(out *Outcomes) (flags byte) {
	if out.Skipped {
		flags |= 1
	}
	if out.Duplicate {
		flags |= 2
	}
	if out.Fence {
		flags |= 4
	}
	return flags
}

func (m *Machine) hash(data []byte) (d wire.Digest) {
	var full [sha256.Size]byte
	m.sum.Reset()
	m.sum.Write(data)
	copy(d[:], m.sum.Sum(full[:0]))
	return d
}

// EntryHash returns the hash of the entry applied at seq, while it is within the entry window.
func (m *Machine) EntryHash(seq uint64) (wire.Digest, bool) {
	kept, ok := m.entries.at(seq)
	return kept.hash, ok
}

// Oldest is the seq of the oldest entry that EntryHash still knows; 0 before the first.
func (m *Machine) Oldest() uint64 { return m.entries.first }

// HashEntry is the hash of an entry's bytes that [Machine.EntryHash] returns.
func HashEntry(data []byte) (d wire.Digest) {
	full := sha256.Sum256(data)
	copy(d[:], full[:])
	return d
}

// Head is what the state is the state of.
func (m *Machine) Head() Head { return m.head }

// Genesis is entry 1, or nil before it. It must not be changed.
func (m *Machine) Genesis() *wire.Genesis { return m.genesis }

// Level is the newest level of operations that takes effect.
func (m *Machine) Level() uint64 { return m.level }

// Fence is the proof against the log, if the log held one.
func (m *Machine) Fence() (Fence, bool) { return m.fence, m.fence.Seq != 0 }

// Skipped counts the messages in the log that were not entries of ours.
func (m *Machine) Skipped() uint64 { return m.skipped }
