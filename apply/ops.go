package apply

import (
	"fmt"
	"slices"

	"github.com/allocnode/allocnode"
	"github.com/allocnode/allocnode/internal/wire"
)

// sequence is one named counter.
type sequence struct {
	id       uint32
	name     string
	settings wire.Settings
	hwm      uint64 // largest id ever carved; first-1 before the first
	halted   bool
	dirty    bool // already among Machine.dirty
}

func (s *sequence) remaining() uint64 { return s.settings.Max - s.hwm }

// Member is a node that has registered its catalog in the log.
type Member struct {
	CatalogID wire.ID
	Level     uint8 // newest level of operations that its build knows
}

// applyOp applies one operation. A rejection leaves the state as it was, with one exception that is asked for in the
// genesis: an exhaustion halts its sequence.
func (m *Machine) applyOp(seq uint64, op *wire.Op, out *Outcomes, records *[]Record) wire.Outcome {
	if m.Restoring() && op.Kind != wire.KindRestore {
		return wire.Outcome{Reject: wire.RejectRestoring}
	}
	switch op.Kind {
	case wire.KindReserve:
		return m.reserve(op)
	case wire.KindCreate:
		return m.create(op)
	case wire.KindAdvance:
		return m.advance(op)
	case wire.KindResume:
		return m.resume(op)
	case wire.KindBarrier:
		return wire.Outcome{}
	case wire.KindCheck:
		return m.check(seq, op, out, records)
	case wire.KindForget:
		return m.forget(op, records)
	case wire.KindActivate:
		return m.activate(op, records)
	case wire.KindGenesis:
		return wire.Outcome{Reject: wire.RejectGenesis}
	case wire.KindRestore:
		return m.restore(op, records)
	}
	panic(fmt.Sprintf("apply: decoded operation of kind %d", op.Kind))
}

// reserve carves [hwm+1, hwm+1+count), or finds the range that the key was given before.
func (m *Machine) reserve(op *wire.Op) wire.Outcome {
	var key windowKey
	if len(op.Key) > 0 {
		key = keyOf(op)
		id, known := m.byName[string(op.Name)]
		if kept, ok := m.keys.find(key); ok {
			if !known || kept.sequence != id || kept.count != op.Count || kept.partial != op.Partial {
				return wire.Outcome{Reject: wire.RejectKeyReused}
			}
			return wire.Outcome{Repeated: true, Start: kept.start, End: kept.end}
		}
		// The first attempt, if there was one, stands above since. Where the window does not reach back that far,
		// "absent" proves nothing.
		if op.Since > 0 && op.Since < m.keys.floor {
			return wire.Outcome{Reject: wire.RejectKeyExpired}
		}
	}
	s, reject := m.sequenceOrNew(op.Name)
	if reject.Reject != wire.Accepted {
		return reject
	}
	switch {
	case s.halted:
		return wire.Outcome{Reject: wire.RejectHalted, Remaining: s.remaining()}
	case op.Count > s.settings.MaxCount:
		return wire.Outcome{Reject: wire.RejectCount, Remaining: s.settings.MaxCount}
	}
	n := op.Count
	if remaining := s.remaining(); n > remaining {
		if !op.Partial || remaining == 0 {
			if m.genesis.HaltOnExhaustion && s.known() {
				s.halted = true
				m.touch(s)
			}
			return wire.Outcome{Reject: wire.RejectExhausted, Remaining: remaining}
		}
		n = remaining
	}
	s = m.keep(s)
	start := s.hwm + 1
	s.hwm += n // n <= max-hwm and max <= 2^63-1: no overflow
	m.touch(s)
	if len(op.Key) > 0 {
		m.keys.add(key, keyed{
			sequence: s.id, count: op.Count, partial: op.Partial, start: start, end: start + n,
		})
	}
	return wire.Outcome{Start: start, End: start + n}
}

func (m *Machine) create(op *wire.Op) wire.Outcome {
	if id, ok := m.byName[string(op.Name)]; ok {
		have := m.sequences[id].settings
		if op.Given&wire.GivenFirst != 0 && op.Settings.First != have.First ||
			op.Given&wire.GivenMax != 0 && op.Settings.Max != have.Max ||
			op.Given&wire.GivenMaxCount != 0 && op.Settings.MaxCount != have.MaxCount {
			return wire.Outcome{Reject: wire.RejectSettings}
		}
		return wire.Outcome{}
	}
	s, reject := m.newSequence(op.Name, op.Settings)
	if reject.Reject == wire.Accepted {
		m.touch(m.keep(s))
	}
	return reject
}

// advance raises the hwm to at least op.Count. Only ever upwards: an import or a floor must not hand out again what was
// issued.
func (m *Machine) advance(op *wire.Op) wire.Outcome {
	s, reject := m.sequenceOrNew(op.Name)
	if reject.Reject != wire.Accepted {
		return reject
	}
	switch {
	case s.halted:
		return wire.Outcome{Reject: wire.RejectHalted, Remaining: s.remaining()}
	case op.Count > s.settings.Max:
		return wire.Outcome{Reject: wire.RejectBeyondMax, Remaining: s.settings.Max}
	}
	isNew := !s.known()
	s = m.keep(s)
	old := s.hwm
	s.hwm = max(s.hwm, op.Count)
	if isNew || s.hwm != old {
		m.touch(s)
	}
	return wire.Outcome{Start: old, End: s.hwm}
}

func (m *Machine) resume(op *wire.Op) wire.Outcome {
	id, ok := m.byName[string(op.Name)]
	if !ok {
		return wire.Outcome{Reject: wire.RejectUnknown}
	}
	if s := &m.sequences[id]; s.halted {
		s.halted = false
		m.touch(s)
	}
	return wire.Outcome{}
}

// check registers the proposer under its catalog id, and takes its word when it found the log to be another one.
func (m *Machine) check(seq uint64, op *wire.Op, out *Outcomes, records *[]Record) wire.Outcome {
	node, c := string(op.Name), op.Check
	if !slices.Contains(m.genesis.Nodes, node) || node != string(out.Entry.Node) {
		return wire.Outcome{Reject: wire.RejectNotNamed}
	}
	now := Member{CatalogID: c.CatalogID, Level: out.Entry.Level}
	before, registered := m.members[node]
	if registered && before.CatalogID != now.CatalogID {
		return wire.Outcome{Reject: wire.RejectCatalog}
	}
	if before != now {
		m.members[node] = now
		*records = append(*records, now.record(node))
	}
	if c.Verdict == wire.VerdictContradiction && m.raise(seq, fmt.Sprintf("%s found another log than it had applied: %s", node, c.Reason)) {
		out.Fence = true
	}
	return wire.Outcome{}
}

func (m *Machine) forget(op *wire.Op, records *[]Record) wire.Outcome {
	node := string(op.Name)
	if !slices.Contains(m.genesis.Nodes, node) {
		return wire.Outcome{Reject: wire.RejectNotNamed}
	}
	if _, ok := m.members[node]; ok {
		delete(m.members, node)
		*records = append(*records, Record{Key: memberKey(node)})
	}
	return wire.Outcome{}
}

// activate makes the operations of a level take effect, once every named node has reported that it knows them. It stands
// alone in its entry, so that what it finds is what [Machine.checkActivation] found.
func (m *Machine) activate(op *wire.Op, records *[]Record) wire.Outcome {
	if !m.mayActivate(op, &m.entry) {
		return wire.Outcome{Reject: wire.RejectLevel}
	}
	m.level = op.Count
	*records = m.appendMeta(*records)
	return wire.Outcome{End: m.level}
}

func (m *Machine) mayActivate(op *wire.Op, e *wire.Entry) bool {
	if len(e.Ops) != 1 || op.Count <= m.level {
		return false
	}
	for _, node := range m.genesis.Nodes {
		if member, ok := m.members[node]; !ok || uint64(member.Level) < op.Count {
			return false
		}
	}
	return true
}

// checkActivation refuses an entry that would activate a level this build does not know, before anything is changed: to
// go on would be to apply later operations otherwise than the other replicas do.
func (m *Machine) checkActivation(e *wire.Entry) error {
	for i := range e.Ops {
		op := &e.Ops[i]
		if op.Kind == wire.KindActivate && op.Count > wire.Level && e.ClusterID == m.head.ClusterID && m.mayActivate(op, e) {
			return fmt.Errorf("%w: level %d was activated, this build knows %d", wire.ErrUnsupported, op.Count, wire.Level)
		}
	}
	return nil
}

// unkept is the id of a sequence that an operation has looked at but not yet accepted.
const unkept = ^uint32(0)

func (s *sequence) known() bool { return s.id != unkept }

// sequenceOrNew finds a sequence, or makes the one that first use would make. The new one is not part of the state until
// it is given to keep.
func (m *Machine) sequenceOrNew(name []byte) (*sequence, wire.Outcome) {
	if id, ok := m.byName[string(name)]; ok {
		return &m.sequences[id], wire.Outcome{}
	}
	if !m.entry.AutoCreate {
		return nil, wire.Outcome{Reject: wire.RejectUnknown}
	}
	return m.newSequence(name, m.entry.Defaults)
}

func (m *Machine) newSequence(name []byte, settings wire.Settings) (*sequence, wire.Outcome) {
	if uint64(len(m.sequences)) >= m.genesis.MaxSequences {
		return nil, wire.Outcome{Reject: wire.RejectSequences, Remaining: uint64(len(m.sequences))}
	}
	if allocnode.CheckName(string(name)) != nil {
		return nil, wire.Outcome{Reject: wire.RejectName}
	}
	s := &sequence{id: unkept, name: string(name), settings: settings, hwm: settings.First - 1}
	if r := m.genesis.Recovery; r != nil { // it may be one that the recovery had lost
		s.hwm = min(max(s.hwm, r.Floor), settings.Max)
	}
	return s, wire.Outcome{}
}

// keep makes a new sequence part of the state, and returns where it stands there.
func (m *Machine) keep(s *sequence) *sequence {
	if s.known() {
		return s
	}
	s.id = uint32(len(m.sequences))
	m.sequences = append(m.sequences, *s)
	m.byName[s.name] = s.id
	return &m.sequences[s.id]
}

// touch has the sequence's record written with the entry at hand.
func (m *Machine) touch(s *sequence) {
	if !s.dirty {
		s.dirty = true
		m.dirty = append(m.dirty, s.id)
	}
}

// Member returns what a node registered.
func (m *Machine) Member(node string) (Member, bool) {
	member, ok := m.members[node]
	return member, ok
}

// Info returns one sequence.
func (m *Machine) Info(name string) (wire.SequenceInfo, bool) {
	id, ok := m.byName[name]
	if !ok {
		return wire.SequenceInfo{}, false
	}
	return m.sequences[id].info(), true
}

// Len is how many sequences there are.
func (m *Machine) Len() int { return len(m.sequences) }

// List appends up to limit sequences to dst, in the order of their creation, beginning after the first `after` of them.
func (m *Machine) List(dst []wire.SequenceInfo, after uint64, limit int) []wire.SequenceInfo {
	for i := after; i < uint64(len(m.sequences)) && limit > 0; i++ {
		dst = append(dst, m.sequences[i].info())
		limit--
	}
	return dst
}

func (s *sequence) info() wire.SequenceInfo {
	return wire.SequenceInfo{Name: s.name, Settings: s.settings, HWM: s.hwm, Halted: s.halted}
}
