package kv

import (
	"errors"
	"fmt"
	"time"

	"github.com/dgraph-io/badger/v4"

	"github.com/allocnode/allocnode/apply"
	"github.com/allocnode/allocnode/internal/mutant"
	"github.com/allocnode/allocnode/internal/wire"
)

// The side file is written at least this often while commits go on.
const (
	sideEvery   = 10 * time.Second
	sideEntries = 4096
)

// Cost is what a delta counts against [MaxRunRecords] and [MaxRunBytes].
func Cost(d apply.Delta) (records, bytes int) {
	for _, r := range d.Records {
		bytes += len(r.Key) + len(r.Value) + recordOverhead
	}
	return len(d.Records), bytes
}

// Check returns [ErrTooLarge] for a delta that no commit can take: a key that is empty or above [MaxKey], a value above
// [MaxValue], or more than a run holds.
func Check(d apply.Delta) error {
	for _, r := range d.Records {
		if len(r.Key) == 0 || len(r.Key) > MaxKey || len(r.Value) > MaxValue {
			return fmt.Errorf("%w: record of %d bytes key and %d bytes value at cursor %d: want 1 to %d and at most %d",
				ErrTooLarge, len(r.Key), len(r.Value), d.Head.Cursor, MaxKey, MaxValue)
		}
	}
	if records, bytes := Cost(d); records > MaxRunRecords || bytes > MaxRunBytes {
		return fmt.Errorf("%w: delta of %d records and %d bytes at cursor %d: want at most %d and %d", ErrTooLarge, records, bytes,
			d.Head.Cursor, MaxRunRecords, MaxRunBytes)
	}
	return nil
}

// Commit stores a run of deltas and its last head in one synced transaction: all or nothing. Their cursors must continue the
// committed one without a gap ([ErrOutOfOrder]), must agree with the witness ([ErrContradiction]) and fit one transaction
// ([ErrTooLarge]). Other errors ([ErrNoSpace], those of the disk) may pass: commit the same deltas again. After such an error
// the run may yet turn out stored when the process has restarted, whole.
func (c *Catalog) Commit(deltas []apply.Delta) error {
	if len(deltas) == 0 {
		return nil
	}
	if !c.loaded {
		return errors.New("kv: commit before load")
	}
	if c.db == nil {
		return errNotOpen
	}
	run, err := c.merge(deltas)
	if err != nil {
		return err
	}
	last := deltas[len(deltas)-1].Head
	if err := c.checkSpace(uint64(run.bytes)); err != nil {
		return err
	}
	witness := c.Witness()
	if newer(last, witness) {
		witness = last
	}
	if c.sideDue(witness) {
		if err := c.saveSide(witness); err != nil {
			return err
		}
	}
	if err := c.write(run, last, witness); err != nil {
		c.hashes.forget()
		c.sideTime = time.Time{} // badger's disk is in doubt: the next commit writes the side file, which is synced on its own
		if errors.As(err, new(*brokenError)) {
			// Badger panicked, and what it holds in memory is not to be trusted: only a restart mends that.
			c.db = nil
		}
		return fmt.Errorf("kv: commit %d deltas up to cursor %d: %w", len(deltas), last.Cursor, err)
	}
	c.mu.Lock()
	c.head, c.witness = last, witness
	c.mu.Unlock()
	c.allocate() // the transaction may have begun a new log
	return nil
}

func (c *Catalog) sideDue(w apply.Head) bool {
	done := c.sideDone
	if w.ClusterID != done.ClusterID || w.Epoch != done.Epoch {
		return true
	}
	return w.Cursor > done.Cursor && (w.Cursor-done.Cursor >= sideEntries || time.Since(c.sideTime) >= sideEvery)
}

// run is what a transaction writes: of each key the last record.
type run struct {
	records []apply.Record
	keys    []string // the records' keys
	bytes   int
}

// merge checks the deltas against head and witness and merges their records.
func (c *Catalog) merge(deltas []apply.Delta) (run, error) {
	head, witness := c.Head(), c.Witness()
	if first := deltas[0].Head; head == (apply.Head{}) && first.Epoch > 1 {
		head.Cursor = first.Cursor - 1 // the log of a recovery does not begin at 1; apply knows where
	}
	var out run
	index := make(map[string]int)
	for i, d := range deltas {
		h := d.Head
		if h.Cursor != head.Cursor+1+uint64(i) {
			return run{}, fmt.Errorf("%w: delta %d of %d has cursor %d, committed is %d", ErrOutOfOrder, i+1, len(deltas), h.Cursor,
				head.Cursor)
		}
		if err := contradicts(h, witness); err != nil {
			return run{}, err
		}
		if err := Check(d); err != nil {
			return run{}, err
		}
		for _, r := range d.Records {
			if at, ok := index[string(r.Key)]; ok {
				out.records[at] = r
				continue
			}
			key := string(r.Key)
			index[key] = len(out.records)
			out.records, out.keys = append(out.records, r), append(out.keys, key)
		}
	}
	for _, r := range out.records {
		out.bytes += len(r.Key) + len(r.Value) + recordOverhead
	}
	if len(out.records) > MaxRunRecords || out.bytes > MaxRunBytes {
		return run{}, fmt.Errorf("%w: run of %d records and %d bytes: want at most %d and %d", ErrTooLarge, len(out.records),
			out.bytes, MaxRunRecords, MaxRunBytes)
	}
	return out, nil
}

// contradicts compares a head with the witness w. Before the genesis, and beside an empty witness, anything goes.
func contradicts(h, w apply.Head) error {
	if h.ClusterID.IsZero() || w.ClusterID.IsZero() {
		return nil
	}
	switch {
	case h.ClusterID != w.ClusterID:
		return fmt.Errorf("%w: cluster %s at cursor %d, witnessed %s", ErrContradiction, h.ClusterID, h.Cursor, w.ClusterID)
	case h.Epoch < w.Epoch:
		return fmt.Errorf("%w: epoch %d at cursor %d, witnessed %d", ErrContradiction, h.Epoch, h.Cursor, w.Epoch)
	case h.Epoch == w.Epoch && h.Cursor == w.Cursor && h.Digest != w.Digest && w.Digest != wire.Digest{}:
		return fmt.Errorf("%w: digest %s at cursor %d, witnessed %s", ErrContradiction, h.Digest, h.Cursor, w.Digest)
	}
	return nil
}

// write is the transaction. It takes the sum from the stored head, not from memory: after a failed sync badger shows the
// records of the failed attempt, and head and records must be those of one moment. For the same reason hashes forgets.
func (c *Catalog) write(r run, last, witness apply.Head) (err error) {
	defer recovered("badger", &err)
	if mutant.CursorFirst {
		if err := c.storeHeadAlone(last); err != nil {
			return err
		}
	}
	txn := c.db.NewTransaction(true)
	defer txn.Discard()

	stored, s, err := storedHead(txn)
	if err != nil {
		return err
	}
	if head := c.Head(); stored.Cursor < head.Cursor || stored.Cursor > last.Cursor {
		return fmt.Errorf("%w: stored cursor %d, committed %d, run up to %d", ErrOutOfOrder, stored.Cursor, head.Cursor, last.Cursor)
	}
	written := make([]sum, len(r.records))
	size := 0
	for _, key := range r.keys {
		size += len(recordPrefix) + len(key)
	}
	buf := make([]byte, 0, size) // badger keeps what it is given until the transaction has ended
	for i, rec := range r.records {
		from := len(buf)
		buf = append(append(buf, recordPrefix...), rec.Key...)
		key := buf[from:len(buf):len(buf)]
		old, found, err := c.hashes.of(txn, &c.hash, r.keys[i], key)
		if err != nil {
			return err
		}
		if found {
			s = s.sub(old)
		}
		switch {
		case rec.Value != nil:
			written[i] = c.hash.record(rec.Key, rec.Value)
			s = s.add(written[i])
			err = txn.Set(key, rec.Value)
		case found:
			err = txn.Delete(key)
		}
		if err != nil {
			return err
		}
	}
	if err := txn.Set(keyHead, appendHead(nil, kindHead, last, s)); err != nil {
		return err
	}
	if err := txn.Set(keyWitness, appendHead(nil, kindWitness, witness, sum{})); err != nil {
		return err
	}
	if err := c.commitTxn(txn); err != nil {
		return err
	}
	c.hashes.committed(r, written)
	return nil
}

// storedHead is the head in badger as txn sees it; zero where there is none yet.
func storedHead(txn *badger.Txn) (apply.Head, sum, error) {
	b, err := get(txn, keyHead)
	if errors.Is(err, badger.ErrKeyNotFound) {
		return apply.Head{}, sum{}, nil
	}
	if err != nil {
		return apply.Head{}, sum{}, err
	}
	return parseHead(b, kindHead)
}
