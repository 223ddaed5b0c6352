package history

// Kind says what a line of the history records.
type Kind string

// The kinds.
const (
	KindBegin   Kind = "begin"   // an attempt is about to be sent
	KindEnd     Kind = "end"     // an attempt's answer, or that none came in time; a late answer is a second one
	KindFault   Kind = "fault"   // a fault begins
	KindHealed  Kind = "healed"  // the fault with the same Process and ID is over
	KindStatus  Kind = "status"  // what a node said of itself
	KindSample  Kind = "sample"  // what a node's process used
	KindComment Kind = "comment" // Text: phases, for people
)

// Action is what an attempt asked for.
type Action string

// The actions.
const (
	Reserve Action = "reserve"
	Next    Action = "next"
	Create  Action = "create"
	Advance Action = "advance"
	Info    Action = "info" // behind a barrier
)

// Outcome is what is known of an attempt's effect.
type Outcome string

// The outcomes.
const (
	OK      Outcome = "ok"
	Failed  Outcome = "failed"  // refused: this attempt had no effect
	Unknown Outcome = "unknown" // a time-out, a lost connection, no responders, unknown_outcome, an answer that is none
)

// Range is the half-open [start, end) of ids, as it stands in JSON: [1,1001].
type Range [2]uint64

// Start is the first id.
func (r Range) Start() uint64 { return r[0] }

// End is the id after the last one.
func (r Range) End() uint64 { return r[1] }

// Record is one line of the history. Which fields count depends on Kind; the others are left out.
type Record struct {
	Kind    Kind   `json:"k"`           // first in the line, so that a torn line does not hide the one after it
	At      int64  `json:"t"`           // [Now], in nanoseconds; set by [Writer.Write] where it is 0
	Process string `json:"p,omitempty"` // who wrote it: unique in the run, another one after each restart

	// ID names an attempt, or a fault, within Process.
	ID uint64 `json:"id,omitempty"`

	// Of a begin. Attempts of one reservation share (Sequence, Key); without a key each stands alone.
	Action   Action `json:"a,omitempty"`
	Node     string `json:"n,omitempty"` // whose listener it was sent to; of a status or sample whose it is
	Sequence string `json:"s,omitempty"`
	Key      string `json:"key,omitempty"`
	Count    uint64 `json:"c,omitempty"` // ids asked for
	Partial  bool   `json:"partial,omitempty"`
	Since    uint64 `json:"since,omitempty"`
	To       uint64 `json:"to,omitempty"` // of an advance
	First    uint64 `json:"first,omitempty"`
	Max      uint64 `json:"max,omitempty"` // of a create: 0 is not given
	MaxCount uint64 `json:"maxcount,omitempty"`

	// Of an end.
	Outcome Outcome `json:"o,omitempty"`
	Ranges  []Range `json:"r,omitempty"`
	Seq     uint64  `json:"seq,omitempty"` // as answered
	Old     uint64  `json:"old,omitempty"` // of an advance: the hwm before
	HWM     uint64  `json:"hwm,omitempty"` // of an advance or info
	Cluster string  `json:"cluster,omitempty"`
	Code    string  `json:"code,omitempty"` // of a refusal
	Text    string  `json:"text,omitempty"` // for people

	// Of a fault, and of its healing.
	Fault  string `json:"fault,omitempty"`  // its kind: "kill", "partition"
	Target string `json:"target,omitempty"` // node or nodes
	Proof  string `json:"proof,omitempty"`  // how it is known that it took effect: "312 frames dropped"

	// Of a status.
	Incarnation string `json:"inc,omitempty"`
	State       string `json:"state,omitempty"`
	Cursor      uint64 `json:"cursor,omitempty"`
	Digest      string `json:"digest,omitempty"` // in 32 hexadecimal digits

	// Of a sample.
	Goroutines uint64 `json:"goroutines,omitempty"`
	FDs        uint64 `json:"fds,omitempty"` // open descriptors
	RSS        uint64 `json:"rss,omitempty"` // resident bytes
}
