package wire

import (
	"fmt"

	"github.com/allocnode/allocnode"
)

// Reject is why the state machine refused an operation; 0 is that it did not. The numbers enter the digest: they are
// never reused, and a new one needs a new level.
type Reject uint8

// The rejections.
const (
	Accepted         Reject = 0
	RejectExhausted  Reject = 1  // Count does not fit below max
	RejectHalted     Reject = 2  // the sequence was halted by an exhaustion
	RejectUnknown    Reject = 3  // no such sequence, and the proposer does not create on first use
	RejectSettings   Reject = 4  // the sequence has other settings
	RejectKeyReused  Reject = 5  // the key is known with other parameters
	RejectKeyExpired Reject = 6  // the window no longer reaches back to since
	RejectCount      Reject = 7  // Count is above the sequence's max_count
	RejectSequences  Reject = 8  // there may be no more sequences
	RejectBeyondMax  Reject = 9  // an advance above max
	RejectNotNamed   Reject = 10 // a check from, or a forget of, a node that the genesis does not name
	RejectCatalog    Reject = 11 // the node's name is registered with another catalog
	RejectLevel      Reject = 12 // a level that not every node knows, or that is active already
	RejectGenesis    Reject = 13 // a genesis that is not the first entry
	RejectName       Reject = 14 // a malformed sequence name
	RejectRestoring  Reject = 15 // the recovered state is not complete yet
	RejectRestore    Reject = 16 // a part of a recovered state that is not the next one
)

// Outcome is what applying one operation gave. It is the same on every replica.
type Outcome struct {
	Reject   Reject
	Repeated bool // reserve: the range was carved earlier, under the same key

	// Start and End are the range of a reserve. For an advance they are the old and the new high-water mark. For an
	// accepted activate End is the level.
	Start, End uint64

	// Remaining is how many ids the sequence has left, for RejectExhausted and RejectHalted; for RejectCount and
	// RejectBeyondMax it is the bound that was passed.
	Remaining uint64
}

// Err is the outcome of op as an error for its requester: nil when it was accepted.
func (o *Outcome) Err(op *Op) error {
	name := op.Name
	switch o.Reject {
	case Accepted:
		return nil
	case RejectExhausted:
		err := allocnode.Errorf(allocnode.CodeExhausted, "%d ids asked of %s, %d remain", op.Count, name, o.Remaining)
		err.Remaining = o.Remaining
		return err
	case RejectHalted:
		err := allocnode.Errorf(allocnode.CodeExhausted,
			"%s was halted by an exhaustion, %d ids remain: it refuses everything until it is resumed", name, o.Remaining)
		err.Remaining = o.Remaining
		return err
	case RejectUnknown:
		return allocnode.Errorf(allocnode.CodeNotFound, "there is no sequence %s: create it first", name)
	case RejectSettings:
		return allocnode.Errorf(allocnode.CodeConflict, "the sequence %s exists with other settings", name)
	case RejectKeyReused:
		return allocnode.Errorf(allocnode.CodeConflict, "the key was used for another sequence, count or partial")
	case RejectKeyExpired:
		return allocnode.Errorf(allocnode.CodeKeyExpired,
			"the key window no longer reaches back to seq %d: whether this key was used is not known", op.Since)
	case RejectCount:
		return allocnode.Errorf(allocnode.CodeBadRequest, "count %d is above max_count %d of %s", op.Count, o.Remaining, name)
	case RejectSequences:
		return allocnode.Errorf(allocnode.CodeTooLarge, "the cluster holds %d sequences, its limit", o.Remaining)
	case RejectBeyondMax:
		return allocnode.Errorf(allocnode.CodeBadRequest, "advance to %d is above max %d of %s", op.Count, o.Remaining, name)
	case RejectNotNamed:
		return allocnode.Errorf(allocnode.CodeNotFound, "no node %s is named by this cluster", name)
	case RejectCatalog:
		return allocnode.Errorf(allocnode.CodeConflict,
			"the node name %s is registered with another catalog: run 'allocnode forget %s' if that one is gone for good", name, name)
	case RejectLevel:
		return allocnode.Errorf(allocnode.CodeConflict, "level %d is active already, or not known to every node", op.Count)
	case RejectGenesis:
		return allocnode.Errorf(allocnode.CodeConflict, "the log has its genesis already")
	case RejectRestoring:
		return allocnode.Errorf(allocnode.CodeUnavailable, "the recovery is not complete in the log yet")
	case RejectRestore:
		return allocnode.Errorf(allocnode.CodeConflict, "part %d is not the next part of a recovery", op.Index)
	case RejectName:
		return allocnode.Errorf(allocnode.CodeBadRequest, "malformed sequence name %q", name)
	}
	panic(fmt.Sprintf("wire: outcome with rejection %d", o.Reject))
}
