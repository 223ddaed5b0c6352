package history

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"slices"
)

// recovery reads what the genesis of a later epoch has more.
func (c *cut) recovery(g *genesis) (known bool) {
	g.first = c.num()
	c.num() // highest cursor that it was made from
	g.keyFloor, g.floor = c.num(), c.num()
	level := c.num()
	for n := c.num(); n > 0 && !c.short; n-- {
		g.parts = append(g.parts, string(c.bytes(16)))
	}
	return level == 1
}

// restoring is before the last part of a recovered state: nothing else counts until then.
func (f *reference) restoring() bool { return f.restored < uint64(len(f.genesis.parts)) }

// restore takes the next part, alone in its entry and of the hash that the genesis names.
func (f *reference) restore(e *entry, o *op) (outcome, error) {
	sum := sha256.Sum256(o.data)
	if !f.restoring() || len(e.ops) != 1 || o.n != f.restored || string(sum[:16]) != f.genesis.parts[o.n] {
		return outcome{refused: refRestore}, nil
	}
	if err := f.part(&cut{rest: o.data}); err != nil {
		return outcome{}, fmt.Errorf("part %d of the recovered state: %w", o.n, err)
	}
	f.restored++
	return outcome{start: o.n, end: f.restored}, nil
}

// part reads records: a sequence under 's' and its name, or the keys of one entry of before under 'k' and its seq.
func (f *reference) part(c *cut) error {
	if f.log.Floors == nil {
		f.log.Floors = map[string]uint64{}
	}
	for n := c.num(); n > 0 && !c.short; n-- {
		key := c.text()
		v := &cut{rest: []byte(c.text())}
		version := v.byte()
		switch {
		case c.short || key == "" || version != 1:
			return fmt.Errorf("record %q of version %d", key, version)
		case key[0] == 's':
			name := key[1:]
			if id := v.num(); id != uint64(len(f.names)) {
				return fmt.Errorf("sequence %s is number %d, %d is next", name, id, len(f.names))
			}
			s := &counter{settings: v.settings(), hwm: v.num()}
			s.halted = v.byte() != 0
			f.names, f.counters[name], f.log.Floors[name] = append(f.names, name), s, s.hwm
		case key[0] == 'k' && len(key) == 9:
			seq := binary.BigEndian.Uint64([]byte(key[1:]))
			v.num() // the window's floor, which the genesis has too
			for k := v.num(); k > 0 && !v.short; k-- {
				hash, id := string(v.bytes(16)), v.num()
				if id >= uint64(len(f.names)) {
					return fmt.Errorf("a key of sequence %d of %d", id, len(f.names))
				}
				got := kept{seq: seq, name: f.names[id], partial: v.byte() != 0, count: v.num()}
				got.got = Range{v.num(), v.num()}
				f.keys[hash] = got
				f.keyOrder = append(f.keyOrder, hash)
			}
		default:
			return fmt.Errorf("record %q", key)
		}
		if v.short || len(v.rest) > 0 {
			return fmt.Errorf("record %q is of another length", key)
		}
	}
	if c.short || len(c.rest) > 0 {
		return fmt.Errorf("it is of another length")
	}
	return nil
}

// Digest is the log's digest after seq, of this epoch or of one before; "" where the log is not known.
func (l *Log) Digest(seq uint64) string {
	first := max(l.First, 1)
	switch i := seq - first; {
	case seq < first && l.before != nil:
		return l.before.Digest(seq)
	case seq < first || i >= uint64(len(l.Digests)):
		return ""
	default:
		return l.Digests[i]
	}
}

// between reports whether seq lies after what is known of an epoch's log and before the next one: when a log is lost, nobody
// can say what stood there last.
func (l *Log) between(seq uint64) bool {
	return l.before != nil && seq < l.First && (seq > l.before.Last || l.before.between(seq))
}

// Join puts the log of a later epoch behind the one that was lost, as far as that was read, so that the checkers judge both as
// one. It returns as well what a recovery must not do: begin at a seq that had been used, leave a sequence out, or begin one
// below what was carved of it.
func Join(before, after *Log) (*Log, []Violation) {
	f := &found{rule: RuleRecovery}
	if after.Cluster != before.Cluster {
		f.add(nil, "the log of epoch %d is of cluster %s, that of %d of %s", after.Epoch, after.Cluster, before.Epoch, before.Cluster)
	}
	if after.Epoch <= before.Epoch {
		f.add(nil, "epoch %d follows %d", after.Epoch, before.Epoch)
	}
	if after.First <= before.Last {
		f.add(nil, "the log of epoch %d begins at seq %d, that of %d had come to %d", after.Epoch, after.First, before.Epoch, before.Last)
	}
	for _, name := range sorted(before.HWM) {
		if floor, ok := after.Floors[name]; !ok || floor < before.HWM[name] {
			f.add(nil, "epoch %d begins %s at %d, epoch %d had carved %d", after.Epoch, name, floor, before.Epoch, before.HWM[name])
		}
	}
	joined := *after
	joined.before = before
	joined.Results = slices.Concat(before.Results, after.Results)
	joined.Skipped += before.Skipped
	joined.Copies += before.Copies
	if joined.Fence == "" {
		joined.Fence = before.Fence
	}
	return &joined, f.all
}
