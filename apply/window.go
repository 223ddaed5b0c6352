package apply

import (
	"crypto/sha256"
	"encoding/binary"
	"slices"

	"github.com/allocnode/allocnode/internal/wire"
)

// windowKey is a reservation's key within its scope: a sequence, or a list and a position in it. It is a hash, cut to 128
// bits, so that the window holds no pointers and every key costs alike.
type windowKey [16]byte

// keyOf is the window key of a keyed reservation.
func keyOf(op *wire.Op) (k windowKey) {
	var scratch [2 + 2*(2+128) + binary.MaxVarintLen64]byte
	b := scratch[:0]
	if op.ListKeyed {
		b = append(b, 1)
		b = binary.AppendUvarint(b, op.Index)
	} else {
		b = append(b, 0)
		b = binary.AppendUvarint(b, uint64(len(op.Name)))
		b = append(b, op.Name...)
	}
	full := sha256.Sum256(append(b, op.Key...))
	copy(k[:], full[:])
	return k
}

// keyed is a reservation that can be asked for again.
type keyed struct {
	sequence   uint32
	partial    bool
	count      uint64 // as asked
	start, end uint64 // as granted
}

// keyWindow is the last keyed reservations, at least size of them, and more only by what completes an entry's record.
//
// Invariant: found holds exactly the keys of records and of current, and every keyed reservation granted at a seq above
// floor is there.
type keyWindow struct {
	size    uint64 // 1 and up
	floor   uint64 // seq of the last record evicted; 0 before the first. After a recovery it may be higher
	found   map[windowKey]keyed
	records []keyRecord // oldest first
	current []windowKey // of the entry at hand, in order
}

// keyRecord is the keyed reservations of one entry. The window is stored and evicted by whole records.
type keyRecord struct {
	seq   uint64
	floor uint64 // the window's floor once this record was in: replicas must agree on it after a restart too
	keys  []windowKey
}

func (w *keyWindow) init(size uint64) {
	w.size = size
	w.found = make(map[windowKey]keyed)
}

func (w *keyWindow) find(k windowKey) (keyed, bool) {
	v, ok := w.found[k]
	return v, ok
}

// add remembers a reservation of the entry at hand; push completes the entry.
func (w *keyWindow) add(k windowKey, v keyed) {
	w.found[k] = v
	w.current = append(w.current, k)
}

// push closes the record of the entry at seq, evicts the records that are no longer needed, and appends both changes to
// dst. A whole record goes only when size keys remain without it.
func (w *keyWindow) push(seq uint64, dst []Record) []Record {
	if len(w.current) == 0 {
		return dst
	}
	w.records = append(w.records, keyRecord{seq: seq, keys: slices.Clone(w.current)})
	w.current = w.current[:0]
	evicted := 0
	for uint64(len(w.found)-len(w.records[evicted].keys)) >= w.size {
		oldest := w.records[evicted]
		for _, k := range oldest.keys {
			delete(w.found, k)
		}
		dst = append(dst, Record{Key: seqKey(tagKeys, oldest.seq)})
		w.floor = max(w.floor, oldest.seq)
		w.records[evicted] = keyRecord{}
		evicted++
	}
	w.records = w.records[evicted:] // append moves to fresh memory when the front has been cut off often enough
	newest := &w.records[len(w.records)-1]
	newest.floor = w.floor
	return append(dst, w.record(newest))
}

// keptEntry is what is remembered of an applied entry.
type keptEntry struct {
	hash wire.Digest
	id   wire.EntryID // zero for what was not an entry of ours
}

// entryWindow is the last size entries: a second copy is known by its id, and a replayed seq by its hash.
//
// Invariant: ring holds the entries at the seqs [first, next), at most size of them, each at its seq modulo size, and last
// has the latest seq of each id among them.
type entryWindow struct {
	first, next uint64
	ring        []keptEntry
	last        map[wire.EntryID]uint64
}

func (w *entryWindow) init(size uint64) {
	w.ring = make([]keptEntry, size)
	w.last = make(map[wire.EntryID]uint64)
}

func (w *entryWindow) slot(seq uint64) *keptEntry { return &w.ring[seq%uint64(len(w.ring))] }

// at returns the entry at seq, if it is within the window.
func (w *entryWindow) at(seq uint64) (keptEntry, bool) {
	if seq < w.first || seq >= w.next {
		return keptEntry{}, false
	}
	return *w.slot(seq), true
}

func (w *entryWindow) has(id wire.EntryID) bool {
	_, ok := w.last[id]
	return ok
}

// push adds the entry at seq, which is next, and appends the change to dst: one record put, and one deleted once the
// window is full.
func (w *entryWindow) push(seq uint64, kept keptEntry, dst []Record) []Record {
	if w.next-w.first == uint64(len(w.ring)) {
		if id := w.slot(w.first).id; w.last[id] == w.first {
			delete(w.last, id)
		}
		dst = append(dst, Record{Key: seqKey(tagEntry, w.first)})
		w.first++
	}
	w.insert(seq, kept)
	return append(dst, kept.record(seq))
}

func (w *entryWindow) insert(seq uint64, kept keptEntry) {
	if w.first == w.next {
		w.first = seq
	}
	*w.slot(seq) = kept
	if kept.id != (wire.EntryID{}) {
		w.last[kept.id] = seq
	}
	w.next = seq + 1
}
