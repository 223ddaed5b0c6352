package wire_test

import (
	"errors"
	"testing"

	"github.com/allocnode/allocnode"
	"github.com/allocnode/allocnode/internal/wire"
)

func TestOutcomeErr(t *testing.T) {
	op := &wire.Op{Name: []byte("orders"), Count: 7, Since: 3, Index: 4}
	for _, c := range []struct {
		reject  wire.Reject
		code    allocnode.Code
		message string
	}{
		{wire.RejectExhausted, allocnode.CodeExhausted, "7 ids asked of orders, 5 remain"},
		{wire.RejectHalted, allocnode.CodeExhausted,
			"orders was halted by an exhaustion, 5 ids remain: it refuses everything until it is resumed"},
		{wire.RejectUnknown, allocnode.CodeNotFound, "there is no sequence orders: create it first"},
		{wire.RejectSettings, allocnode.CodeConflict, "the sequence orders exists with other settings"},
		{wire.RejectKeyReused, allocnode.CodeConflict, "the key was used for another sequence, count or partial"},
		{wire.RejectKeyExpired, allocnode.CodeKeyExpired,
			"the key window no longer reaches back to seq 3: whether this key was used is not known"},
		{wire.RejectCount, allocnode.CodeBadRequest, "count 7 is above max_count 5 of orders"},
		{wire.RejectSequences, allocnode.CodeTooLarge, "the cluster holds 5 sequences, its limit"},
		{wire.RejectBeyondMax, allocnode.CodeBadRequest, "advance to 7 is above max 5 of orders"},
		{wire.RejectNotNamed, allocnode.CodeNotFound, "no node orders is named by this cluster"},
		{wire.RejectCatalog, allocnode.CodeConflict,
			"the node name orders is registered with another catalog: run 'allocnode forget orders' if that one is gone for good"},
		{wire.RejectLevel, allocnode.CodeConflict, "level 7 is active already, or not known to every node"},
		{wire.RejectGenesis, allocnode.CodeConflict, "the log has its genesis already"},
		{wire.RejectName, allocnode.CodeBadRequest, `malformed sequence name "orders"`},
		{wire.RejectRestoring, allocnode.CodeUnavailable, "the recovery is not complete in the log yet"},
		{wire.RejectRestore, allocnode.CodeConflict, "part 4 is not the next part of a recovery"},
	} {
		var e *allocnode.Error
		o := wire.Outcome{Reject: c.reject, Remaining: 5}
		if err := o.Err(op); !errors.As(err, &e) || e.Code != c.code || e.Message != c.message {
			t.Errorf("rejection %d: %v, want %s: %s", c.reject, err, c.code, c.message)
			continue
		}
		remaining := uint64(0)
		if c.code == allocnode.CodeExhausted {
			remaining = 5
		}
		if e.Remaining != remaining {
			t.Errorf("rejection %d: %d remain, want %d", c.reject, e.Remaining, remaining)
		}
	}
	if err := (&wire.Outcome{Start: 1, End: 2}).Err(op); err != nil {
		t.Errorf("accepted: %v", err)
	}

	// The table above has them all: the next number is not a rejection, which is a broken invariant.
	defer func() {
		if recover() == nil {
			t.Error("rejection 17 has an error: add it to the table")
		}
	}()
	_ = (&wire.Outcome{Reject: wire.RejectRestore + 1}).Err(op)
}
