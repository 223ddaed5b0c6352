package model

import "math/bits"

// guard is a set of guards. A world has all of them but those that it names as off.
type guard uint16

const (
	// logOnly, hazard 1: nothing but an entry moves a hwm. Off: bind lifts one node's.
	logOnly guard = 1 << iota
	// advanceInDelta, hazard 2: what an advance changes is in its entry's delta. Off: it is written by itself, some time.
	advanceInDelta
	// atomicCommit, hazard 2: records and cursor change together. Off: the cursor is there first.
	atomicCommit
	// retryDelta, hazard 3: a delta that could not be stored is tried again, and none follows it before that. Off: the
	// node goes on with the next.
	retryDelta
	// incarnation, hazard 4: an entry's id is incarnation and counter. Off: the counter alone, which begins anew with
	// each run.
	incarnation

	// noGap: an entry beyond the next one is not applied. Off: it is.
	noGap
	// dedupe: a second copy of an entry changes nothing. Off: it carves again.
	dedupe
	// forgetBatch: a restarted node holds no batch. Off: it has its batch stored as it was reserved, and resumes it.
	forgetBatch
)

// op is what one entry asks for.
type op uint8

const (
	none    op = iota
	keyed      // a user's reservation of keyedIDs ids under the one key that there is
	plain      // a user's reservation of one id without a key: every attempt is another user's
	refill     // a node's reservation of batchIDs ids for its batch
	advance    // an import: the hwm is at least advanceTo
	kinds      // how many there are
)

const (
	keyedIDs  = 2
	batchIDs  = 2
	advanceTo = 3
)

// Bounds of the arrays. A world that needs more panics.
const (
	maxNodes   = 3
	maxLog     = 5
	maxOnWay   = 6
	maxCounter = 6
)

// entry is one message of the log; the zero entry is none. Two that are equal are copies of one.
type entry struct {
	op      op
	node    uint8 // proposer
	run     uint8 // the proposer's incarnation: how often it had restarted
	counter uint8 // 1 and up in each run
}

// ids is a set of ids: bit i is id i. Id 0 is never issued.
type ids uint16

func span(start, n uint8) ids {
	if start+n > 16 {
		panic("model: more ids than a set holds")
	}
	return (1<<n - 1) << start
}

func (s ids) lowest() ids { return s & -s }

// machine is the replicated state of the one sequence, as apply.Machine has it.
type machine struct {
	hwm  uint8
	key  uint8 // first id of the range that the key was given; 0 before it was
	seen uint8 // bit seq-1: the entry there is in the entry window, which in a model never overflows
}

// delta is what one entry changed; zero fields changed nothing. That the entry was seen is part of it, and not written here.
type delta struct{ hwm, key uint8 }

// node is one allocnode: what its process holds, and its disk.
type node struct {
	run     uint8
	counter uint8
	cursor  uint8
	next    uint8              // seq of the delta that is stored next
	flights [maxCounter + 1]op // waiters, by the counter of the entry that they wait for
	machine machine
	batch   ids           // reserved for the node, and not given away yet
	deltas  [maxLog]delta // by seq-1: from next to cursor, not stored yet
	disk    disk
}

// disk is what a restart finds. All that reaches it is synced.
type disk struct {
	cursor  uint8
	machine machine
	torn    bool  // the cursor is stored already, the records of its delta are not (atomicCommit off)
	late    uint8 // a hwm that an advance will have written (advanceInDelta off); lost in a crash
	batch   ids   // as last reserved (forgetBatch off)
}

// budget is what may still happen. It bounds the search, and nothing in the protocol looks at it.
type budget struct {
	ops     [kinds]uint8 // attempts that users and nodes may make
	crashes uint8
	copies  uint8 // entries that are appended once more
	giveUps uint8
	binds   uint8 // with logOnly off
	faults  uint8 // writes that fail, with retryDelta off
}

// state is one moment of the whole system. It is a map's key, and hashed at once where no field needs padding before it.
type state struct {
	log   [maxLog]entry   // committed: by seq-1. What is here is on a majority's disks and is never lost
	onWay [maxOnWay]entry // appended, and not in the log, perhaps never; in order, so that equal sets are equal states
	nodes [maxNodes]node
	left  budget

	// What the invariants compare with. The protocol does not look at it.
	at       [maxLog + 1]machine // the state that the first node to come to a cursor had there
	known    uint8               // bit cursor: at is set
	answered uint8               // first id of the range that the key was first answered with; 0 before
	toKey    ids                 // issued to those who know the key
	toOthers ids                 // issued to anybody else, each id to one of them
}

func (s *state) last() uint8 {
	n := uint8(0)
	for n < maxLog && s.log[n] != (entry{}) {
		n++
	}
	return n
}

// world is a bounded system in which some guards may be off.
type world struct {
	nodes  uint8
	log    uint8 // entries that the log may hold, at most maxLog
	budget budget
	off    guard
	whole  bool // states are taken as they come: see settle
}

func (w *world) on(g guard) bool { return w.off&g == 0 }

func (w *world) start() state {
	s := state{left: w.budget, known: 1}
	for i := range w.nodes {
		s.nodes[i].next = 1
	}
	return s
}

// same reports whether a and b have the same id.
func (w *world) same(a, b entry) bool {
	return a.node == b.node && a.counter == b.counter && (a.run == b.run || !w.on(incarnation))
}

// seen reports whether a machine with the entries of mask in its window knows the id of e.
func (w *world) seen(s *state, mask uint8, e entry) bool {
	for ; mask != 0; mask &= mask - 1 {
		if w.same(s.log[bits.TrailingZeros8(mask)], e) {
			return true
		}
	}
	return false
}
