package kv

import (
	"errors"
	"fmt"

	"github.com/dgraph-io/badger/v4"

	"github.com/allocnode/allocnode/apply"
)

// Load reads the whole state, calls fn for every record in the order of keys, and returns the head. The slices are fn's to
// keep. It must be called once before the first Commit.
//
// What fn was given counts only when Load returns a nil error: that the state is whole is known at its end. On
// [ErrStateDropped] the caller throws away what it was given and rebuilds from the log: the state has been set aside, Head is
// zero, identity and witness stay, and Commit goes on from cursor 1. An error of fn's is returned as it is, and nothing is
// dropped. Any other error means that the catalog cannot be used.
func (c *Catalog) Load(fn func(apply.Record) error) (apply.Head, error) {
	if c.dropped != nil {
		reason := c.dropped
		c.dropped, c.loaded = nil, true
		return apply.Head{}, fmt.Errorf("%w: %v", ErrStateDropped, reason)
	}
	if c.db == nil {
		return apply.Head{}, errNotOpen
	}
	head, fnErr, damage := c.scan(fn)
	if fnErr != nil {
		return apply.Head{}, fnErr
	}
	if damage != nil {
		if err := c.SetAside(damage); err != nil {
			return apply.Head{}, err
		}
		return apply.Head{}, fmt.Errorf("%w: %v", ErrStateDropped, damage)
	}
	if w := c.Witness(); newer(w, head) {
		c.logger.Warn("kv: the state is behind its witness: the end was lost, the log has it", "epoch", head.Epoch,
			"cursor", head.Cursor, "witness_epoch", w.Epoch, "witness_cursor", w.Cursor)
	}
	c.mu.Lock()
	c.head = head
	c.mu.Unlock()
	c.loaded = true
	return head, nil
}

var errNotOpen = errors.New("kv: the catalog is closed, or failed for good: restart the node")

// scan reads head and records. fnErr is fn's; damage is anything that does not add up.
func (c *Catalog) scan(fn func(apply.Record) error) (head apply.Head, fnErr, damage error) {
	inFn := false
	c.hashes.forget()
	defer func() {
		if !inFn { // the caller's own panic is no damage of ours
			recoveredFrom(recover(), "read state", &damage)
		}
	}()
	damage = c.db.View(func(txn *badger.Txn) error {
		var want, got sum
		b, err := get(txn, keyHead)
		if err == nil {
			head, want, err = parseHead(b, kindHead)
		}
		if err != nil && !errors.Is(err, badger.ErrKeyNotFound) {
			return err
		}
		it := txn.NewIterator(badger.IteratorOptions{Prefix: recordPrefix})
		defer it.Close()
		n := 0
		// A block that cannot be read ends this loop early, and silently: the sum finds it.
		for it.Rewind(); it.Valid(); it.Next() {
			item := it.Item()
			buf := make([]byte, 0, len(item.Key())+int(item.ValueSize()))
			buf = append(buf, item.Key()...)
			cut := len(buf)
			if err := item.Value(func(v []byte) error { buf = append(buf, v...); return nil }); err != nil {
				return err
			}
			r := apply.Record{Key: buf[len(recordPrefix):cut:cut], Value: buf[cut:]}
			h := c.hash.record(r.Key, r.Value)
			got = got.add(h)
			c.hashes.load(r, h)
			n++
			inFn = true
			fnErr = fn(r)
			inFn = false
			if fnErr != nil {
				return nil
			}
		}
		if got != want {
			return fmt.Errorf("state hash of %d records at cursor %d is %016x%016x, recorded %016x%016x", n, head.Cursor, got.hi,
				got.lo, want.hi, want.lo)
		}
		c.hashes.whole = true
		return nil
	})
	return head, fnErr, damage
}
