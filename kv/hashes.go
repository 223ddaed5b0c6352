package kv

import (
	"errors"

	"github.com/dgraph-io/badger/v4"

	"github.com/allocnode/allocnode/apply"
)

// hashes remembers what the sum counts for each stored record, so that a commit need not read what it overwrites: where 100,000
// sequences are reserved from in turn, the reads were two fifths of a node's CPU time. It costs some 100 bytes for each record.
//
// It is right for what badger shows as long as commits succeed. After one that failed badger shows the old records or those of
// the failed attempt, so all is forgotten: from then on a record that is not known is looked for in badger, new ones too.
type hashes struct {
	known map[string]sum // by key
	whole bool           // what is not in known is not stored
}

// forget leaves what has to be read.
func (h *hashes) forget() { *h = hashes{known: make(map[string]sum)} }

// empty is what a state without records has.
func (h *hashes) empty() { *h = hashes{known: make(map[string]sum), whole: true} }

// of is the hash of the record under key, which badger has under dbKey; false where there is none.
func (h *hashes) of(txn *badger.Txn, hash *hasher, key string, dbKey []byte) (s sum, found bool, err error) {
	s, found = h.known[key]
	if found || h.whole {
		return s, found, nil
	}
	item, err := txn.Get(dbKey)
	if errors.Is(err, badger.ErrKeyNotFound) {
		return sum{}, false, nil
	}
	if err == nil {
		err = item.Value(func(value []byte) error {
			s = hash.record(dbKey[len(recordPrefix):], value)
			return nil
		})
	}
	return s, err == nil, err
}

// committed takes note of a run that is stored; each are the hashes of its records.
func (h *hashes) committed(r run, each []sum) {
	for i, key := range r.keys {
		if r.records[i].Value == nil {
			delete(h.known, key)
		} else {
			h.known[key] = each[i]
		}
	}
}

// load takes a record that the state begins with, whose hash is s.
func (h *hashes) load(r apply.Record, s sum) { h.known[string(r.Key)] = s }
