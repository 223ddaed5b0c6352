package apply

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"maps"
	"slices"

	"github.com/allocnode/allocnode/internal/wire"
)

// A recovery begins a log of the next epoch with a state, made from what the nodes' catalogs remember of the one before
// (DESIGN 8, Recovering):
//
//	seq First      genesis: epoch, settings, the hash of each part
//	seq First+1    restore part 0      records of sequences, in the order of their ids, then of keys
//	   …           restore part n-1    from here on it is a log like any other
//
// Since the genesis holds the hashes, it fixes the whole state: whoever writes a part can only write the right one, so
// several nodes may write at once, and each may stop at any moment.
//
// Invariants:
//
//  1. Until the last part no other operation is accepted, so nothing is carved from half a state.
//  2. A part is taken once, in order, and whole.

// Restoring reports whether parts of the recovered state are still to come. Nobody may serve before it is false.
func (m *Machine) Restoring() bool {
	return m.genesis != nil && m.genesis.Recovery != nil && m.restored < uint64(len(m.genesis.Recovery.Parts))
}

// Restored is how many parts were taken.
func (m *Machine) Restored() uint64 { return m.restored }

func (m *Machine) restoredRecord() Record {
	return Record{Key: []byte{tagRestored}, Value: binary.AppendUvarint([]byte{recordVersion}, m.restored)}
}

// isNext reports whether op is the part that comes next.
func (m *Machine) isNext(op *wire.Op, e *wire.Entry) bool {
	return m.Restoring() && len(e.Ops) == 1 && op.Index == m.restored && HashEntry(op.Data) == m.genesis.Recovery.Parts[op.Index]
}

// checkPart refuses an entry with a part that the genesis wants and this build cannot read, before anything is changed.
func (m *Machine) checkPart(e *wire.Entry) error {
	if len(e.Ops) != 1 || e.Ops[0].Kind != wire.KindRestore || e.ClusterID != m.head.ClusterID || !m.isNext(&e.Ops[0], e) {
		return nil
	}
	if _, err := m.readPart(e.Ops[0].Data); err != nil {
		return fmt.Errorf("%w: part %d of the recovered state: %w", wire.ErrUnsupported, m.restored, err)
	}
	return nil
}

// restore takes the next part.
func (m *Machine) restore(op *wire.Op, records *[]Record) wire.Outcome {
	if !m.isNext(op, &m.entry) {
		return wire.Outcome{Reject: wire.RejectRestore}
	}
	p, err := m.readPart(op.Data)
	if err != nil {
		panic(fmt.Sprintf("apply: part %d was checked and is malformed: %v", op.Index, err))
	}
	for i := range p.sequences {
		s := p.sequences[i]
		m.byName[s.name] = s.id
		m.sequences = append(m.sequences, s)
	}
	for _, k := range p.keys {
		for i, key := range k.keys {
			m.keys.found[key] = k.values[i]
		}
		m.keys.records = append(m.keys.records, k.keyRecord)
		m.keys.floor = k.floor
	}
	m.restored++
	*records = append(append(*records, p.records...), m.restoredRecord())
	return wire.Outcome{Start: op.Index, End: m.restored}
}

// part is one part of a recovered state, read.
type part struct {
	records   []Record
	sequences []sequence
	keys      []restoredKeys
}

// readPart reads a part and holds it against what is there: the same tests as for a state that comes from a catalog.
func (m *Machine) readPart(data []byte) (part, error) {
	var p part
	d := wire.NewReader(data)
	r := NewRestorer()
	for n := d.Uvarint(); n > 0; n-- {
		rec := Record{Key: bytes.Clone(d.Bytes(wire.MaxPart)), Value: bytes.Clone(d.Bytes(wire.MaxPart))}
		if len(rec.Key) == 0 || rec.Key[0] != tagSequence && rec.Key[0] != tagKeys {
			return p, fmt.Errorf("record %q, or the end of the part, where %d more are to come", rec.Key, n-1)
		}
		if err := r.Add(rec); err != nil {
			return p, err
		}
		p.records = append(p.records, rec)
	}
	if err := d.Close(); err != nil {
		return p, err
	}
	p.sequences, p.keys = r.m.sequences, r.keys
	at := len(m.sequences)
	hwms := make(map[uint32]uint64, len(p.sequences))
	for i, s := range p.sequences {
		if _, known := m.byName[s.name]; known || s.id != uint32(at+i) {
			return p, fmt.Errorf("sequence %s has id %d where %d is next", s.name, s.id, at+i)
		}
		hwms[s.id] = s.hwm
	}
	last := uint64(0)
	if n := len(m.keys.records); n > 0 {
		last = m.keys.records[n-1].seq
	}
	for _, k := range p.keys {
		if k.seq <= last || k.seq >= m.genesis.Recovery.First || k.floor != m.genesis.Recovery.KeyFloor {
			return p, fmt.Errorf("keys of seq %d with floor %d: want above %d and %d", k.seq, k.floor, last, m.genesis.Recovery.KeyFloor)
		}
		last = k.seq
		for i, v := range k.values {
			hwm, here := hwms[v.sequence]
			if !here && v.sequence < uint32(at) {
				hwm = m.sequences[v.sequence].hwm
			}
			if _, twice := m.keys.found[k.keys[i]]; twice || v.start == 0 || v.start >= v.end || v.end-1 > hwm {
				return p, fmt.Errorf("key %x of seq %d: [%d, %d) was not granted, or stands in another record too", k.keys[i], k.seq, v.start, v.end)
			}
		}
	}
	return p, nil
}

// Catalog is one node's state, as a recovery takes it.
type Catalog struct {
	Name  string // of the node, for messages
	State *Machine
}

// Plan says how a recovery is made.
type Plan struct {
	Epoch uint64 // of the new log: above every catalog's

	// Complete says that nothing was issued beyond what the catalogs remember. Otherwise RaiseBy bounds, for each sequence,
	// how many ids may have been.
	Complete bool
	RaiseBy  uint64
}

// Recovered is the state that a log of the next epoch begins with.
type Recovered struct {
	Genesis *wire.Genesis // Created is 0: the stream is not there yet
	Parts   [][]byte      // data of the restore operations
	Notes   []string      // for people: what the merge met
}

// Gaps between seqs that anybody has seen and the first of the new log. With an incomplete set of catalogs nobody knows how
// far the log had got.
const (
	seqRound     = 1_000_000
	seqUncertain = 1_000_000_000_000
)

// Recover merges catalogs into one state: that of the highest cursor, whole, and then what the others remember beyond it:
// the highest hwm of each sequence, sequences and keys that it lacks. They all are of one cluster.
//
// A hwm never comes alone with another catalog's cursor (hazard 11): the new log has a cursor of its own, and no entry of the
// old one is ever applied to the merged state.
func Recover(catalogs []Catalog, p Plan) (*Recovered, error) {
	catalogs = slices.DeleteFunc(slices.Clone(catalogs), func(c Catalog) bool { return c.State.genesis == nil })
	if len(catalogs) == 0 {
		return nil, fmt.Errorf("no catalog holds a state: there is nothing to recover from")
	}
	slices.SortStableFunc(catalogs, func(a, b Catalog) int {
		x, y := a.State.head, b.State.head
		return cmp.Or(cmp.Compare(y.Epoch, x.Epoch), cmp.Compare(y.Cursor, x.Cursor), cmp.Compare(a.Name, b.Name))
	})
	best := catalogs[0].State
	var out Recovered
	note := func(format string, args ...any) { out.Notes = append(out.Notes, fmt.Sprintf(format, args...)) }
	top := uint64(0)
	sequences := slices.Clone(best.sequences)
	byName := maps.Clone(best.byName)
	for _, c := range catalogs {
		s := c.State
		if s.head.ClusterID != best.head.ClusterID {
			return nil, fmt.Errorf("%s is of cluster %s, %s of cluster %s", c.Name, s.head.ClusterID, catalogs[0].Name, best.head.ClusterID)
		}
		if s.head.Epoch >= p.Epoch {
			return nil, fmt.Errorf("%s is of epoch %d: the new one must be above", c.Name, s.head.Epoch)
		}
		if s.Restoring() {
			note("%s holds %d of %d parts of an earlier recovery", c.Name, s.restored, len(s.genesis.Recovery.Parts))
		}
		top = max(top, s.head.Cursor)
		for _, q := range s.sequences {
			id, ok := byName[q.name]
			if !ok {
				note("%s: sequence %s is known to it and not to %s", c.Name, q.name, catalogs[0].Name)
				q.id = uint32(len(sequences))
				if r := best.genesis.Recovery; r != nil { // c may know less of it than whoever the floor was for
					q.hwm = min(max(q.hwm, r.Floor), q.settings.Max)
				}
				byName[q.name] = q.id
				sequences = append(sequences, q)
				continue
			}
			have := &sequences[id]
			if q.hwm > have.hwm {
				note("%s: %s has hwm %d, above %d", c.Name, q.name, q.hwm, have.hwm)
			}
			have.settings.Max = max(have.settings.Max, q.hwm) // of two histories with two settings the floor counts
			have.hwm = max(have.hwm, q.hwm)
			have.halted = have.halted || q.halted
		}
	}
	rec := &wire.Recovery{Base: top, KeyFloor: best.keys.floor, Level: best.level}
	rec.First = (top/seqRound + 2) * seqRound
	if !p.Complete {
		rec.First += seqUncertain
		rec.KeyFloor, rec.Floor = rec.First-1, p.RaiseBy
		if best.genesis.Recovery != nil {
			rec.Floor += min(best.genesis.Recovery.Floor, 1<<63-1-min(p.RaiseBy, 1<<63-1))
		}
	} else if best.genesis.Recovery != nil {
		rec.Floor = best.genesis.Recovery.Floor
	}
	for i := range sequences {
		q := &sequences[i]
		q.id, q.dirty = uint32(i), false
		if !p.Complete {
			if q.settings.Max-q.hwm < p.RaiseBy {
				note("sequence %s is exhausted: %d above %d passes its max %d", q.name, p.RaiseBy, q.hwm, q.settings.Max)
			}
			q.hwm += min(p.RaiseBy, q.settings.Max-q.hwm)
		}
	}
	keys, lost := mergeKeys(catalogs, byName, best.keys.floor)
	if lost > 0 {
		note("%d keys are of two histories: what %s remembers of them counts", lost, catalogs[0].Name)
	}
	g := *best.genesis
	g.Epoch, g.Created, g.Recovery = p.Epoch, 0, rec
	g.MaxSequences = max(g.MaxSequences, uint64(len(sequences)))
	out.Genesis = &g
	out.pack(sequences, keys)
	if len(rec.Parts) > wire.MaxParts {
		return nil, fmt.Errorf("the state needs %d parts, a genesis has room for %d", len(rec.Parts), wire.MaxParts)
	}
	return &out, nil
}

// mergeKeys returns the key windows laid over one another, oldest first. Of one key in two catalogs the first counts; twice
// is how many had another range there, or found no room.
func mergeKeys(catalogs []Catalog, byName map[string]uint32, floor uint64) (merged []restoredKeys, twice int) {
	found := make(map[windowKey]keyed)
	bySeq := make(map[uint64]*restoredKeys)
	for _, c := range catalogs {
		s := c.State
		for _, r := range s.keys.records {
			if r.seq <= floor && r.seq <= s.keys.floor {
				continue
			}
			for _, k := range r.keys {
				v := s.keys.found[k]
				v.sequence = byName[s.sequences[v.sequence].name]
				if have, ok := found[k]; ok {
					if have != v {
						twice++
					}
					continue
				}
				at := bySeq[r.seq]
				if at == nil {
					at = &restoredKeys{keyRecord: keyRecord{seq: r.seq}}
					bySeq[r.seq] = at
				}
				if len(at.keys) == wire.MaxEntryOps { // two full entries at one seq, in two histories
					twice++
					continue
				}
				found[k] = v
				at.keys = append(at.keys, k)
				at.values = append(at.values, v)
			}
		}
	}
	for _, seq := range slices.Sorted(maps.Keys(bySeq)) {
		merged = append(merged, *bySeq[seq])
	}
	return merged, twice
}

// partTarget and partRecords are when a part is full. One record may be longer than the target: the keys of one entry take
// up to 213 KB, which still is within [wire.MaxPart].
const (
	partTarget  = 128 << 10
	partRecords = 4000
)

// pack writes the state in parts, and their hashes into the genesis.
func (r *Recovered) pack(sequences []sequence, keys []restoredKeys) {
	rec := r.Genesis.Recovery
	var body []byte
	n := uint64(0)
	flush := func() {
		if n == 0 {
			return
		}
		data := append(binary.AppendUvarint(nil, n), body...)
		r.Parts = append(r.Parts, data)
		rec.Parts = append(rec.Parts, HashEntry(data))
		body, n = body[:0], 0
	}
	add := func(c Record) {
		if len(body)+len(c.Key)+len(c.Value) > partTarget || n == partRecords {
			flush()
		}
		body = binary.AppendUvarint(body, uint64(len(c.Key)))
		body = append(body, c.Key...)
		body = binary.AppendUvarint(body, uint64(len(c.Value)))
		body = append(body, c.Value...)
		n++
	}
	for i := range sequences {
		add(sequences[i].record())
	}
	for _, k := range keys {
		k.floor = rec.KeyFloor
		add(k.record())
	}
	flush()
}

// record is keyWindow.record for keys that are not in a window.
func (k *restoredKeys) record() Record {
	w := keyWindow{found: make(map[windowKey]keyed, len(k.keys))}
	for i, key := range k.keys {
		w.found[key] = k.values[i]
	}
	return w.record(&k.keyRecord)
}

// Above returns the first sequence, by name, whose hwm in m lies above what other has carved of it, with both marks. A
// sequence that other does not name has there the floor of its recovery.
func (m *Machine) Above(other *Machine) (name string, here, there uint64, found bool) {
	for _, n := range slices.Sorted(maps.Keys(m.byName)) {
		here := m.sequences[m.byName[n]].hwm
		there := m.sequences[m.byName[n]].settings.First - 1
		if other.genesis != nil && other.genesis.Recovery != nil {
			there = max(there, other.genesis.Recovery.Floor)
		}
		if id, ok := other.byName[n]; ok {
			there = other.sequences[id].hwm
		}
		if here > there {
			return n, here, there, true
		}
	}
	return "", 0, 0, false
}
