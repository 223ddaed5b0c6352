package apply

import "github.com/allocnode/allocnode/internal/wire"

// Record is one item of durable state. Key and value are opaque to whoever stores them; a nil value deletes the key.
type Record struct {
	Key   []byte
	Value []byte
}

// Head says what a state is the state of. It is stored together with the records, in one transaction, never alone.
type Head struct {
	ClusterID wire.ID     // zero before the genesis was applied
	Epoch     uint64      // 0 before the genesis was applied, then 1 and up
	Cursor    uint64      // seq of the last entry folded in; 0 before the first
	Digest    wire.Digest // running digest at Cursor
}

// Delta is what one applied entry changes: the new head, and the records to put or delete. Of several records with one
// key the last counts. Deltas are committed in order; a run of them may be committed as one.
type Delta struct {
	Head    Head
	Records []Record
}
