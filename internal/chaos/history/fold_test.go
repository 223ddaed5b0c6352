package history_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/allocnode/allocnode/apply"
	"github.com/allocnode/allocnode/internal/chaos/history"
	"github.com/allocnode/allocnode/internal/wire"
)

// logMaker makes logs that hold everything a log can hold, sensible or not.
type logMaker struct {
	rng      *rand.Rand
	messages []history.Message
	counter  uint64
	before   uint64 // seqs that the log does not have: it begins after them
}

var (
	cluster = wire.ID{1, 2, 3}
	foreign = wire.ID{9}
)

func (l *logMaker) one(n int) bool { return l.rng.IntN(n) == 0 }

func (l *logMaker) last() uint64 { return l.before + uint64(len(l.messages)) }

func (l *logMaker) append(data []byte) {
	l.messages = append(l.messages, history.Message{Seq: l.last() + 1, Data: data})
}

func (l *logMaker) seal(h wire.Header, ops ...wire.Op) []byte {
	entry := wire.AppendHeader(nil, &h)
	for i := range ops {
		entry = wire.AppendOp(entry, &ops[i])
	}
	wire.Seal(entry)
	return entry
}

func (l *logMaker) header() wire.Header {
	l.counter++
	behind := l.rng.Uint64N(3)
	if l.one(20) {
		behind = l.rng.Uint64N(12) // before the entry window, now and then
	}
	h := wire.Header{
		ClusterID: cluster, Level: wire.Level, Node: fmt.Appendf(nil, "n%d", l.rng.IntN(3)),
		ID:     wire.EntryID{Incarnation: wire.ID{7, byte(l.rng.IntN(3))}, Counter: l.counter},
		Cursor: l.last() - min(l.last(), behind), AutoCreate: !l.one(3),
		Defaults: wire.Settings{First: 1 + l.rng.Uint64N(20), Max: 300 + l.rng.Uint64N(100), MaxCount: 10 + l.rng.Uint64N(9)},
	}
	return h
}

func (l *logMaker) op() wire.Op {
	op := wire.Op{Kind: wire.KindReserve, Name: fmt.Appendf(nil, "s%d", l.rng.IntN(7)), Count: 1 + l.rng.Uint64N(15)}
	node := fmt.Appendf(nil, "n%d", l.rng.IntN(4))
	switch l.rng.IntN(24) {
	case 0, 1:
		op.Kind, op.Count = wire.KindAdvance, l.rng.Uint64N(450)
	case 2:
		op.Kind, op.Count = wire.KindResume, 0
	case 3:
		op.Kind, op.Count, op.Given = wire.KindCreate, 0, byte(l.rng.IntN(8))
		op.Settings = wire.Settings{First: 1 + l.rng.Uint64N(2), Max: 400 + l.rng.Uint64N(2), MaxCount: 12}
	case 4:
		op = wire.Op{Kind: wire.KindBarrier}
	case 5, 6:
		op = wire.Op{Kind: wire.KindCheck, Name: node, Check: &wire.Check{CatalogID: wire.ID{byte(l.rng.IntN(2))}, Ask: l.one(2), Reason: "why"}}
		if l.one(8) {
			op.Check.Verdict = wire.VerdictContradiction
		}
	case 7:
		op = wire.Op{Kind: wire.KindForget, Name: node}
	case 8:
		op = wire.Op{Kind: wire.KindActivate, Count: l.rng.Uint64N(2)}
	case 9:
		op = wire.Op{Kind: wire.KindGenesis, Genesis: genesis(l.rng)}
	case 10:
		op.Name = []byte("not..good")
	default:
		op.Partial = l.one(3)
		if l.one(4) {
			break
		}
		op.Key = fmt.Appendf(nil, "key%d", l.rng.IntN(25))
		if l.one(3) {
			op.ListKeyed, op.Index = true, l.rng.Uint64N(3)
		}
		if l.one(2) {
			op.Since = 1 + l.rng.Uint64N(l.last())
		}
	}
	return op
}

func genesis(rng *rand.Rand) *wire.Genesis {
	return &wire.Genesis{
		Epoch: 1, Created: 5, Nodes: []string{"n0", "n1", "n2"}, KeyWindow: 8, EntryWindow: 6, MaxSequences: 6,
		HaltOnExhaustion: rng.IntN(2) == 0,
	}
}

func (l *logMaker) step() {
	switch l.rng.IntN(20) {
	case 0:
		l.append([]byte("garbage"))
	case 1, 2: // a copy, near or far
		l.append(l.messages[l.rng.IntN(len(l.messages))].Data)
	case 3:
		if l.one(10) {
			h := l.header()
			h.ClusterID = foreign
			l.append(l.seal(h, l.op()))
		}
	case 4:
		if l.one(10) {
			h := l.header()
			h.Cursor = l.last() + 1 + l.rng.Uint64N(3)
			l.append(l.seal(h, l.op()))
		}
	default:
		var ops []wire.Op
		for range 1 + l.rng.IntN(4) {
			ops = append(ops, l.op())
		}
		l.append(l.seal(l.header(), ops...))
	}
}

// agree holds the reference's result on a log against the state machine's.
func agree(t *testing.T, l *logMaker, seen map[wire.Reject]int) (*history.Log, *apply.Machine) {
	t.Helper()
	log, err := history.Fold(l.messages)
	if err != nil {
		t.Fatal(err)
	}
	m := apply.New()
	results := 0
	for _, message := range l.messages {
		out, _, err := m.Apply(message.Seq, message.Data)
		if err != nil {
			t.Fatal(err)
		}
		if got, want := log.Digest(message.Seq), m.Head().Digest.String(); got != want {
			t.Fatalf("seq %d: the reference has digest %s, apply %s, outcomes %+v", message.Seq, got, want, out.Ops)
		}
		for i, o := range out.Ops {
			seen[o.Reject]++
			if kind := out.Entry.Ops[i].Kind; kind != wire.KindReserve && kind != wire.KindAdvance && kind != wire.KindCreate {
				continue
			}
			r := log.Results[results]
			results++
			if r.Seq != message.Seq || r.Range != (history.Range{o.Start, o.End}) || r.Repeated != o.Repeated ||
				r.Refused != byte(o.Reject) || r.Sequence != string(out.Entry.Ops[i].Name) || r.Node != string(out.Entry.Node) {
				t.Fatalf("the reference has %+v, apply %+v at seq %d", r, o, message.Seq)
			}
		}
	}
	if results != len(log.Results) || log.Cluster != cluster.String() || log.Last != l.last() || log.First != l.before+1 {
		t.Fatalf("%d results of %d, cluster %s, seqs %d to %d", results, len(log.Results), log.Cluster, log.First, log.Last)
	}
	if len(log.HWM) != m.Len() {
		t.Fatalf("%d sequences, apply has %d", len(log.HWM), m.Len())
	}
	for name, hwm := range log.HWM {
		if info, ok := m.Info(name); !ok || info.HWM != hwm {
			t.Fatalf("hwm %d of %s, apply has %d", hwm, name, info.HWM)
		}
	}
	if _, fenced := m.Fence(); fenced != (log.Fence != "") || log.Skipped != int(m.Skipped()) {
		t.Fatalf("fence %q, skipped %d; apply %v, %d", log.Fence, log.Skipped, fenced, m.Skipped())
	}
	return log, m
}

// TestFoldAgreesWithApply holds the reference and the state machine against each other, on logs with everything in them: the
// same digest after every seq, the same hwms. A fault in one of them is not in the other, which shares no code with it.
// Checked: with a floor one too low, an entry older than the window applied, a repeat not marked as one, or a halt left out, in
// the reference,
// it failed.
func TestFoldAgreesWithApply(t *testing.T) {
	seen := map[wire.Reject]int{}
	copies, skipped, fences := 0, 0, 0
	for seed := range uint64(12) {
		l := &logMaker{rng: rand.New(rand.NewPCG(seed, 4))}
		h := l.header()
		h.Cursor = 0
		l.append(l.seal(h, wire.Op{Kind: wire.KindGenesis, Genesis: genesis(l.rng)}))
		for range 1500 {
			l.step()
		}
		log, _ := agree(t, l, seen)
		copies, skipped = copies+log.Copies, skipped+log.Skipped
		if log.Fence != "" {
			fences++
		}
	}
	for reject := range wire.RejectName + 1 {
		if seen[reject] == 0 {
			t.Errorf("no log had rejection %d", reject)
		}
	}
	if copies == 0 || skipped == 0 || fences == 0 {
		t.Errorf("%d copies, %d skipped, %d fences: all must occur", copies, skipped, fences)
	}
}

// TestFoldRefuses shows the reference logs about which there is no verdict.
func TestFoldRefuses(t *testing.T) {
	l := &logMaker{rng: rand.New(rand.NewPCG(1, 1))}
	h := l.header()
	h.Cursor = 0
	first := l.seal(h, wire.Op{Kind: wire.KindGenesis, Genesis: genesis(l.rng)})
	barrier := l.seal(l.header(), wire.Op{Kind: wire.KindBarrier})
	flipped := append([]byte(nil), barrier...)
	flipped[len(flipped)-1] ^= 1
	unknown := append([]byte(nil), barrier...)
	unknown[len(unknown)-1] = 200
	wire.Seal(unknown)
	for _, tt := range []struct {
		name     string
		messages []history.Message
		want     string
	}{
		{"gap", []history.Message{{Seq: 1, Data: first}, {Seq: 3, Data: barrier}}, "seq 3 stands where 2 is next"},
		{"no beginning", []history.Message{{Seq: 2, Data: first}}, "seq 2 stands where 1 is next"},
		{"no beginning, and no genesis", []history.Message{{Seq: 2, Data: barrier}}, "no genesis"},
		{"no genesis", []history.Message{{Seq: 1, Data: barrier}}, "no genesis"},
		{"flipped bit", []history.Message{{Seq: 1, Data: first}, {Seq: 2, Data: flipped}}, "checksum"},
		{"cut", []history.Message{{Seq: 1, Data: first}, {Seq: 2, Data: barrier[:20]}}, "20 bytes"},
		{"unknown operation", []history.Message{{Seq: 1, Data: first}, {Seq: 2, Data: unknown}}, "of kind 200"},
	} {
		if _, err := history.Fold(tt.messages); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: error %v, want %q in it", tt.name, err, tt.want)
		}
	}
}

func TestLogFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log.jsonl")
	l := &logMaker{rng: rand.New(rand.NewPCG(2, 2))}
	h := l.header()
	h.Cursor = 0
	l.append(l.seal(h, wire.Op{Kind: wire.KindGenesis, Genesis: genesis(l.rng)}))
	for range 50 {
		l.step()
	}
	if err := history.WriteLog(path, l.messages); err != nil {
		t.Fatal(err)
	}
	if got, err := history.ReadLog(path); err != nil || !reflect.DeepEqual(got, l.messages) {
		t.Errorf("%d messages, error %v, want the %d written", len(got), err, len(l.messages))
	}
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, whole[:len(whole)-20], 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := history.ReadLog(path); err == nil {
		t.Errorf("a file that is cut short gave %d messages", len(got))
	}
}

// BenchmarkFoldMillion folds a million keyed reservations, 80 in an entry.
func BenchmarkFoldMillion(b *testing.B) {
	l := &logMaker{rng: rand.New(rand.NewPCG(3, 3))}
	h := l.header()
	h.Cursor, h.AutoCreate = 0, true
	g := genesis(l.rng)
	g.KeyWindow, g.EntryWindow = 131_072, 16_384
	l.append(l.seal(h, wire.Op{Kind: wire.KindGenesis, Genesis: g}))
	const each, entries = 80, 12_500
	h.Defaults = wire.Settings{First: 1, Max: 1 << 53, MaxCount: 1000}
	for range entries {
		var ops []wire.Op
		for i := range each {
			l.counter++
			ops = append(ops, wire.Op{
				Kind: wire.KindReserve, Name: fmt.Appendf(nil, "s%d", i%6), Count: 10, Since: 1, Key: fmt.Appendf(nil, "%032x", l.counter),
			})
		}
		h.ID.Counter, h.Cursor = l.counter, l.last()
		l.append(l.seal(h, ops...))
	}
	for b.Loop() {
		log, err := history.Fold(l.messages)
		if err != nil || len(log.Results) != each*entries {
			b.Fatalf("error %v", err)
		}
	}
}
