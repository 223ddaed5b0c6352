package apply

import (
	"fmt"
	"slices"

	"github.com/allocnode/allocnode/internal/wire"
)

// grant is a range that the oracle gave away, for the first time.
type grant struct {
	seq        uint64
	name       string
	scope      string // of the key; "" without one
	count      uint64
	partial    bool
	start, end uint64
}

// oracle says what a log means, in the plainest way: from its beginning each time, with lists searched from end to end.
// It shares nothing with the machine but the decoder. It returns what each entry gave, by seq, and all grants in order.
func oracle(log [][]byte) (results []string, grants []grant, hwm map[string]uint64) {
	type seqState struct {
		settings wire.Settings
		halted   bool
	}
	var genesis wire.Genesis
	var ids []wire.EntryID
	sequences := map[string]*seqState{}
	hwm = map[string]uint64{}
	results = []string{""}
	for i, data := range log {
		seq := uint64(i + 1)
		var e wire.Entry
		if wire.DecodeEntry(data, &e) != nil {
			ids, results = append(ids, wire.EntryID{}), append(results, "skipped")
			continue
		}
		// Every copy is known, however old: one that the window no longer holds is too old by its proposer's cursor.
		copied := slices.Contains(ids, e.ID) || seq > 1 && e.Cursor+1+genesis.EntryWindow < seq
		ids = append(ids, e.ID)
		if copied {
			results = append(results, "copy")
			continue
		}
		window := windowOf(grants, genesis.KeyWindow)
		result := ""
		for _, op := range e.Ops {
			name, scope := string(op.Name), ""
			if len(op.Key) > 0 {
				scope = fmt.Sprintf("key %s of %s", op.Key, op.Name)
			}
			if op.ListKeyed {
				scope = fmt.Sprintf("item %d of list %s", op.Index, op.Key)
			}
			s := sequences[name]
			reject := func(r wire.Reject) { result += fmt.Sprintf("refused %d; ", r) }
			var known *grant
			for g := window; g < len(grants); g++ {
				if scope != "" && grants[g].scope == scope {
					known = &grants[g]
				}
			}
			settings := e.Defaults
			if op.Kind == wire.KindCreate {
				settings = op.Settings
			}
			if s != nil {
				settings = s.settings
			}
			mark := hwm[name]
			if s == nil {
				mark = settings.First - 1
			}
			floor := uint64(0) // seq of the last keyed grant outside the window
			for g := range window {
				if grants[g].scope != "" {
					floor = grants[g].seq
				}
			}
			n := op.Count
			if op.Partial && n > settings.Max-mark {
				n = settings.Max - mark
			}
			makes := func() {
				if s == nil {
					s = &seqState{settings: settings}
					sequences[name] = s
				}
			}
			switch {
			case op.Kind == wire.KindGenesis:
				genesis = *op.Genesis
				result += "ok; "
			case op.Kind == wire.KindBarrier:
				result += "ok; "
			case op.Kind == wire.KindReserve && known != nil:
				if known.name != name || known.count != op.Count || known.partial != op.Partial {
					reject(wire.RejectKeyReused)
				} else {
					result += fmt.Sprintf("[%d, %d) again; ", known.start, known.end)
				}
			case op.Kind == wire.KindReserve && scope != "" && op.Since > 0 && op.Since < floor:
				reject(wire.RejectKeyExpired)
			case op.Kind == wire.KindResume && s == nil:
				reject(wire.RejectUnknown)
			case op.Kind == wire.KindResume:
				s.halted = false
				result += "ok; "
			case s == nil && op.Kind != wire.KindCreate && !e.AutoCreate:
				reject(wire.RejectUnknown)
			case s == nil && uint64(len(sequences)) == genesis.MaxSequences:
				reject(wire.RejectSequences)
			case op.Kind == wire.KindCreate && s != nil && op.Given&wire.GivenMax != 0 && s.settings.Max != op.Settings.Max:
				reject(wire.RejectSettings)
			case op.Kind == wire.KindCreate:
				makes()
				hwm[name] = mark
				result += "ok; "
			case s != nil && s.halted:
				reject(wire.RejectHalted)
			case op.Kind == wire.KindAdvance && op.Count > settings.Max:
				reject(wire.RejectBeyondMax)
			case op.Kind == wire.KindAdvance:
				makes()
				hwm[name] = max(mark, op.Count)
				result += fmt.Sprintf("%d to %d; ", mark, hwm[name])
			case op.Count > settings.MaxCount:
				reject(wire.RejectCount)
			case n == 0 || n > settings.Max-mark:
				if s != nil {
					s.halted = genesis.HaltOnExhaustion
				}
				reject(wire.RejectExhausted)
			default:
				makes()
				hwm[name] = mark + n
				grants = append(grants, grant{seq, name, scope, op.Count, op.Partial, mark + 1, mark + 1 + n})
				result += fmt.Sprintf("[%d, %d); ", mark+1, mark+1+n)
			}
		}
		results = append(results, result)
	}
	return results, grants, hwm
}

// windowOf is where the key window begins among grants: it is whole entries, as few of the latest as hold size keys.
func windowOf(grants []grant, size uint64) int {
	keys, entry := uint64(0), uint64(0)
	for g := len(grants) - 1; g >= 0; g-- {
		if grants[g].scope == "" {
			continue
		}
		if keys >= size && grants[g].seq != entry {
			return g + 1
		}
		keys++
		entry = grants[g].seq
	}
	return 0
}

// resultOf writes what the machine made of an entry as the oracle does.
func resultOf(out Outcomes) (s string) {
	switch {
	case out.Skipped:
		return "skipped"
	case out.Duplicate:
		return "copy"
	}
	for i, o := range out.Ops {
		switch kind := out.Entry.Ops[i].Kind; {
		case o.Reject != wire.Accepted:
			s += fmt.Sprintf("refused %d; ", o.Reject)
		case kind == wire.KindReserve && o.Repeated:
			s += fmt.Sprintf("[%d, %d) again; ", o.Start, o.End)
		case kind == wire.KindReserve:
			s += fmt.Sprintf("[%d, %d); ", o.Start, o.End)
		case kind == wire.KindAdvance:
			s += fmt.Sprintf("%d to %d; ", o.Start, o.End)
		default:
			s += "ok; "
		}
	}
	return s
}
