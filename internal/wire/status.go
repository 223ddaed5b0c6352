package wire

// SequenceInfo is the state of one sequence on one node, at the node's cursor.
type SequenceInfo struct {
	Name string
	Settings
	HWM    uint64 // largest id ever carved; First-1 before the first carve
	Halted bool   // an exhaustion halted it: it refuses everything until it is resumed
}

// Remaining is how many ids can still be carved.
func (i *SequenceInfo) Remaining() uint64 {
	if i.HWM >= i.Max {
		return 0
	}
	return i.Max - i.HWM
}

// What a node does, as [Status.State] says it.
const (
	StateStarting = "starting" // its log or its catalog is not open yet
	StateChecking = "checking" // compares its catalog with the log and with the other nodes
	StateServing  = "serving"  // answers requests
	StateFenced   = "fenced"   // cannot prove that it is safe: issues nothing
	StateHalted   = "halted"   // something outside the log failed, such as its disk: applies nothing further
	StateStopping = "stopping" // lets what was received be answered, then ends
)

// What a node is in the log's raft group, as [Status.Role] says it.
const (
	RoleLeader   = "leader"
	RoleFollower = "follower"
	RoleAlone    = "alone"    // no cluster: a log of one replica
	RoleExternal = "external" // in none: the log is in an existing NATS system
	RoleUnknown  = "unknown"
)

// Status is what a node says of itself on the status subject. It is the view of that node alone, made without the log.
// An id that the node does not know yet is absent.
type Status struct {
	Name        string `json:"name"`
	Role        string `json:"role"`
	Cluster     ID     `json:"cluster,omitzero"`
	Epoch       uint64 `json:"epoch"`
	Incarnation ID     `json:"incarnation,omitzero"`
	Catalog     ID     `json:"catalog,omitzero"`
	Version     string `json:"version"`
	Level       uint8  `json:"level"` // newest level of operations that takes effect

	Cursor uint64 `json:"cursor"` // seq of the last entry applied
	Last   uint64 `json:"last"`   // last seq of the log, as far as the node knows
	Lag    uint64 `json:"lag"`    // Last less Cursor, in entries
	Digest string `json:"digest"` // [Digest.String] at Cursor

	Ready  bool   `json:"ready"` // answers requests now
	State  string `json:"state"`
	Reason string `json:"reason,omitempty"` // why it is not ready

	Sequences uint64            `json:"sequences"` // how many sequences there are
	Counters  map[string]uint64 `json:"counters,omitempty"`
}
