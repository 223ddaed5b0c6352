package apply

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"iter"
	"maps"
	"slices"

	"github.com/allocnode/allocnode"
	"github.com/allocnode/allocnode/internal/wire"
)

// The kinds of record, by the first byte of their key. Every value begins with recordVersion.
//
//	'g'            genesis operation, as in the log
//	'm'            level | skipped | fence seq | fence reason
//	'n' node       catalog id(16) | level(1)
//	's' sequence   id | first | max | max count | hwm | halted(1)
//	'k' seq(8)     floor | n | n times: key(16) sequence-id partial(1) count start end
//	'e' seq(8)     hash(16) | incarnation(16) | counter
//	'r'            parts of the recovered state that were taken; only where a recovery began the log
const (
	tagGenesis  = 'g'
	tagMeta     = 'm'
	tagMember   = 'n'
	tagSequence = 's'
	tagKeys     = 'k'
	tagEntry    = 'e'
	tagRestored = 'r'

	recordVersion = 1
)

func seqKey(tag byte, seq uint64) []byte {
	return binary.BigEndian.AppendUint64(append(make([]byte, 0, 9), tag), seq)
}

func memberKey(node string) []byte { return append([]byte{tagMember}, node...) }

func (m *Machine) appendGenesis() []Record {
	op := wire.Op{Kind: wire.KindGenesis, Genesis: m.genesis}
	return m.appendMeta([]Record{{Key: []byte{tagGenesis}, Value: wire.AppendOp([]byte{recordVersion}, &op)}})
}

func (m *Machine) appendMeta(dst []Record) []Record {
	v := []byte{recordVersion}
	v = binary.AppendUvarint(v, m.level)
	v = binary.AppendUvarint(v, m.skipped)
	v = binary.AppendUvarint(v, m.fence.Seq)
	v = binary.AppendUvarint(v, uint64(len(m.fence.Reason)))
	v = append(v, m.fence.Reason...)
	return append(dst, Record{Key: []byte{tagMeta}, Value: v})
}

func (b Member) record(node string) Record {
	v := append([]byte{recordVersion}, b.CatalogID[:]...)
	return Record{Key: memberKey(node), Value: append(v, b.Level)}
}

func (s *sequence) record() Record {
	v := make([]byte, 0, 32)
	v = append(v, recordVersion)
	v = binary.AppendUvarint(v, uint64(s.id))
	v = binary.AppendUvarint(v, s.settings.First)
	v = binary.AppendUvarint(v, s.settings.Max)
	v = binary.AppendUvarint(v, s.settings.MaxCount)
	v = binary.AppendUvarint(v, s.hwm)
	v = append(v, boolByte(s.halted))
	key := append(make([]byte, 0, 1+len(s.name)), tagSequence)
	return Record{Key: append(key, s.name...), Value: v}
}

func (w *keyWindow) record(r *keyRecord) Record {
	v := make([]byte, 0, 16+40*len(r.keys))
	v = append(v, recordVersion)
	v = binary.AppendUvarint(v, r.floor)
	v = binary.AppendUvarint(v, uint64(len(r.keys)))
	for _, k := range r.keys {
		kept := w.found[k]
		v = append(v, k[:]...)
		v = binary.AppendUvarint(v, uint64(kept.sequence))
		v = append(v, boolByte(kept.partial))
		v = binary.AppendUvarint(v, kept.count)
		v = binary.AppendUvarint(v, kept.start)
		v = binary.AppendUvarint(v, kept.end)
	}
	return Record{Key: seqKey(tagKeys, r.seq), Value: v}
}

func (e keptEntry) record(seq uint64) Record {
	v := make([]byte, 0, 40)
	v = append(v, recordVersion)
	v = append(v, e.hash[:]...)
	v = append(v, e.id.Incarnation[:]...)
	return Record{Key: seqKey(tagEntry, seq), Value: binary.AppendUvarint(v, e.id.Counter)}
}

func boolByte(b bool) byte {
	if b {
		return 1
	}
	return 0
}

// Records is the whole state, record by record: a snapshot, together with [Machine.Head]. The machine must not be changed
// meanwhile.
func (m *Machine) Records() iter.Seq[Record] {
	return func(yield func(Record) bool) {
		if m.genesis == nil {
			return
		}
		for _, r := range m.appendGenesis() {
			if !yield(r) {
				return
			}
		}
		if m.restored > 0 && !yield(m.restoredRecord()) {
			return
		}
		for _, node := range slices.Sorted(maps.Keys(m.members)) {
			if !yield(m.members[node].record(node)) {
				return
			}
		}
		for i := range m.sequences {
			if !yield(m.sequences[i].record()) {
				return
			}
		}
		for i := range m.keys.records {
			if !yield(m.keys.record(&m.keys.records[i])) {
				return
			}
		}
		for seq := m.entries.first; seq < m.entries.next; seq++ {
			if !yield(m.entries.slot(seq).record(seq)) {
				return
			}
		}
	}
}

// Restorer builds a machine from records, in any order, and the head they belong to.
type Restorer struct {
	m       *Machine
	keys    []restoredKeys
	entries []restoredEntry
}

type restoredKeys struct {
	keyRecord
	values []keyed
}

type restoredEntry struct {
	seq  uint64
	kept keptEntry
}

// NewRestorer returns one that has no record yet.
func NewRestorer() *Restorer { return &Restorer{m: New()} }

// Add takes one record. It keeps nothing of r's bytes. An unknown or malformed record is an error: the state is of
// another version, or damaged.
func (r *Restorer) Add(rec Record) error {
	if err := r.add(rec); err != nil {
		return fmt.Errorf("state record %q: %w", rec.Key, err)
	}
	return nil
}

func (r *Restorer) add(rec Record) error {
	if len(rec.Key) == 0 {
		return fmt.Errorf("empty key")
	}
	name := rec.Key[1:]
	if tag := rec.Key[0]; (tag == tagGenesis || tag == tagMeta || tag == tagRestored) && len(name) > 0 {
		return fmt.Errorf("key of %d bytes", len(rec.Key))
	}
	d := wire.NewReader(rec.Value)
	if v := d.Byte(); v != recordVersion {
		return fmt.Errorf("version %d, this build knows %d", v, recordVersion)
	}
	m := r.m
	switch tag := rec.Key[0]; tag {
	case tagGenesis:
		m.genesis = d.Genesis()
	case tagMeta:
		m.level = d.Uvarint()
		m.skipped = d.Uvarint()
		m.fence.Seq = d.Uvarint()
		m.fence.Reason = string(d.Bytes(1024))
	case tagRestored:
		m.restored = d.Uvarint()
	case tagMember:
		var b Member
		d.Fixed(b.CatalogID[:])
		b.Level = d.Byte()
		m.members[string(name)] = b
	case tagSequence:
		s := sequence{id: readID(d), name: string(name)}
		s.settings = wire.Settings{First: d.Uvarint(), Max: d.Uvarint(), MaxCount: d.Uvarint()}
		s.hwm = d.Uvarint()
		s.halted = d.Bool()
		if err := cmp.Or(s.settings.Check(), allocnode.CheckName(s.name)); err != nil {
			return err
		}
		if s.hwm < s.settings.First-1 || s.hwm > s.settings.Max {
			return fmt.Errorf("hwm %d outside [%d, %d]", s.hwm, s.settings.First-1, s.settings.Max)
		}
		m.sequences = append(m.sequences, s)
	case tagKeys, tagEntry:
		if len(name) != 8 {
			return fmt.Errorf("key of %d bytes", len(rec.Key))
		}
		seq := binary.BigEndian.Uint64(name)
		if tag == tagKeys {
			r.addKeys(seq, d)
			break
		}
		e := restoredEntry{seq: seq}
		d.Fixed(e.kept.hash[:])
		d.Fixed(e.kept.id.Incarnation[:])
		e.kept.id.Counter = d.Uvarint()
		r.entries = append(r.entries, e)
	default:
		return fmt.Errorf("unknown kind")
	}
	return d.Close()
}

// readID takes a sequence's id; one out of range is unkept, which no sequence has.
func readID(d *wire.Reader) uint32 { return uint32(min(d.Uvarint(), uint64(unkept))) }

func (r *Restorer) addKeys(seq uint64, d *wire.Reader) {
	rec := restoredKeys{keyRecord: keyRecord{seq: seq, floor: d.Uvarint()}}
	for n := min(d.Uvarint(), wire.MaxEntryOps); n > 0; n-- {
		var k windowKey
		d.Fixed(k[:])
		v := keyed{sequence: readID(d), partial: d.Bool(), count: d.Uvarint(), start: d.Uvarint(), end: d.Uvarint()}
		rec.keys = append(rec.keys, k)
		rec.values = append(rec.values, v)
	}
	r.keys = append(r.keys, rec)
}

// Machine returns the machine at head. The records must be those of one state, all of them.
func (r *Restorer) Machine(head Head) (*Machine, error) {
	m := r.m
	m.head = head
	if m.genesis == nil {
		if head != (Head{}) || len(m.sequences)+len(m.members)+len(r.keys)+len(r.entries) > 0 || m.restored > 0 {
			return nil, fmt.Errorf("state at seq %d has no genesis", head.Cursor)
		}
		return m, nil
	}
	if m.level == 0 || head.ClusterID.IsZero() || head.Epoch != m.genesis.Epoch || m.fence.Seq > head.Cursor {
		return nil, fmt.Errorf("state at seq %d: cluster %s, epoch %d, level %d, fence at %d, with a genesis of epoch %d",
			head.Cursor, head.ClusterID, head.Epoch, m.level, m.fence.Seq, m.genesis.Epoch)
	}
	if rec := m.genesis.Recovery; head.Cursor < m.genesis.First() || m.restored > 0 && (rec == nil || m.restored > uint64(len(rec.Parts))) {
		return nil, fmt.Errorf("state at seq %d of a log that begins at %d, with %d recovered parts", head.Cursor, m.genesis.First(), m.restored)
	}
	if err := cmp.Or(r.restoreSequences(), r.restoreKeys(head.Cursor), r.restoreEntries(head.Cursor)); err != nil {
		return nil, fmt.Errorf("state at seq %d: %w", head.Cursor, err)
	}
	return m, nil
}

func (r *Restorer) restoreSequences() error {
	m := r.m
	slices.SortFunc(m.sequences, func(a, b sequence) int { return cmp.Compare(a.id, b.id) })
	for i := range m.sequences {
		if s := &m.sequences[i]; s.id != uint32(i) {
			return fmt.Errorf("sequence %s has id %d where %d is next", s.name, s.id, i)
		}
		m.byName[m.sequences[i].name] = uint32(i)
	}
	return nil
}

func (r *Restorer) restoreKeys(cursor uint64) error {
	w := &r.m.keys
	w.init(r.m.genesis.KeyWindow)
	recovered := r.m.genesis.Recovery
	if recovered != nil {
		w.floor = recovered.KeyFloor
	}
	slices.SortFunc(r.keys, func(a, b restoredKeys) int { return cmp.Compare(a.seq, b.seq) })
	for _, rec := range r.keys {
		for i, k := range rec.keys {
			v := rec.values[i]
			// A sequence below what it has granted is an older record than that of the keys: it would grant it again.
			if uint64(v.sequence) >= uint64(len(r.m.sequences)) || v.start == 0 || v.start >= v.end ||
				v.end-1 > r.m.sequences[v.sequence].hwm {
				return fmt.Errorf("key record %d: [%d, %d) of sequence %d was not granted", rec.seq, v.start, v.end, v.sequence)
			}
			if _, twice := w.found[k]; twice {
				return fmt.Errorf("key record %d: key %x is in another record too", rec.seq, k)
			}
			w.found[k] = v
		}
		w.records = append(w.records, rec.keyRecord)
		w.floor = rec.floor
	}
	if n := len(w.records); n > 0 && (w.records[0].seq <= w.floor && recovered == nil || w.records[n-1].seq > cursor) {
		return fmt.Errorf("key records %d to %d with floor %d", w.records[0].seq, w.records[n-1].seq, w.floor)
	}
	return nil
}

func (r *Restorer) restoreEntries(cursor uint64) error {
	w := &r.m.entries
	w.init(r.m.genesis.EntryWindow)
	slices.SortFunc(r.entries, func(a, b restoredEntry) int { return cmp.Compare(a.seq, b.seq) })
	n := uint64(len(r.entries))
	if want := min(cursor-r.m.genesis.First()+1, uint64(len(w.ring))); n != want || n == 0 {
		return fmt.Errorf("%d entry records where there are %d", n, want)
	}
	for i, e := range r.entries {
		if want := cursor - n + 1 + uint64(i); e.seq != want {
			return fmt.Errorf("entry record %d where %d is next", e.seq, want)
		}
		w.insert(e.seq, e.kept)
	}
	return nil
}
