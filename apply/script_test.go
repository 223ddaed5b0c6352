package apply

import (
	"bytes"
	"cmp"
	"encoding/hex"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/allocnode/allocnode/internal/wire"
)

var rewrite = flag.Bool("rewrite", false, "write what the scripts under testdata print as what they are expected to print")

// TestScripts runs testdata/*.txt. A script is a list of steps:
//
//	# a comment
//	command argument key=value
//	  operation          of an entry, one a line
//	----
//	what it is expected to print, up to an empty line
//
// The commands are those of script.run below. Every step is followed by all checks of checked.
func TestScripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scripts: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) { runScript(t, file) })
	}
}

func runScript(t *testing.T, file string) {
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	s := &script{c: newChecked(t), counter: map[wire.ID]uint64{}, log: [][]byte{nil}, ops: [][]string{nil}}
	var got bytes.Buffer
	lines := strings.Split(strings.TrimRight(string(text), "\n"), "\n")
	for i := 0; i < len(lines); {
		if line := lines[i]; line == "" || strings.HasPrefix(line, "#") {
			got.WriteString(line + "\n")
			i++
			continue
		}
		first := i
		for i < len(lines) && lines[i] != "----" {
			got.WriteString(lines[i] + "\n")
			i++
		}
		if i == len(lines) {
			t.Fatalf("%s:%d: step without ----", file, first+1)
		}
		output := s.run(t, fmt.Sprintf("%s:%d", file, first+1), lines[first:i])
		got.WriteString("----\n" + output)
		for i++; i < len(lines) && lines[i] != ""; i++ {
		}
	}
	if *rewrite {
		if err := os.WriteFile(file, got.Bytes(), 0o666); err != nil {
			t.Fatal(err)
		}
		return
	}
	want := strings.Split(strings.TrimRight(string(text), "\n"), "\n")
	for i, line := range strings.Split(strings.TrimRight(got.String(), "\n"), "\n") {
		if i >= len(want) || line != want[i] {
			t.Fatalf("%s:%d: got %q", file, i+1, line)
		}
	}
}

type script struct {
	c       *checked
	counter map[wire.ID]uint64 // of each incarnation
	log     [][]byte           // by seq
	ops     [][]string         // the operations of each, as the script has them
	where   string
}

// args are the words of a line: key=value, or a bare word, whose value is itself.
type args map[string]string

func parseArgs(words []string) args {
	a := args{}
	for _, w := range words {
		k, v, ok := strings.Cut(w, "=")
		if !ok {
			v = k
		}
		a[k] = v
	}
	return a
}

func (s *script) number(a args, key string, otherwise uint64) uint64 {
	text, ok := a[key]
	if !ok {
		return otherwise
	}
	if text == "max" {
		return 1<<63 - 1
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		s.c.t.Fatalf("%s: %s: %v", s.where, key, err)
	}
	return n
}

func (s *script) run(t *testing.T, where string, lines []string) string {
	t.Helper()
	s.where = where
	words := strings.Fields(lines[0])
	next := s.c.m.Head().Cursor + 1
	arg := func(i int) string {
		if i >= len(words) {
			t.Fatalf("%s: %s needs %d arguments", where, words[0], i)
		}
		return words[i]
	}
	switch words[0] {
	case "genesis": // nodes= keys= entries= sequences= halt; the entry that begins the log
		return s.apply(next, s.entry(append([]string{"n1"}, words[1:]...), lines[:1]), []string{"genesis"})
	case "entry": // NODE run= id= cursor= cluster= level= no-auto-create first= max= max_count= version= flip=BYTE
		return s.apply(next, s.entry(words[1:], lines[1:]), lines[1:])
	case "copy": // SEQ: the same bytes once more, as a publish that was repeated
		seq := s.number(args{"seq": arg(1)}, "seq", 0)
		return s.apply(next, s.log[seq], s.ops[seq])
	case "garbage": // TEXT: a message that is not an entry of ours
		return s.apply(next, []byte(strings.Join(words[1:], " ")), nil)
	case "replay": // SEQ [TEXT]: an old seq again, with the bytes that stood there or with others
		seq := s.number(args{"seq": arg(1)}, "seq", 0)
		data := s.log[seq]
		if len(words) > 2 {
			data = []byte(words[2])
		}
		return s.apply(seq, data, nil)
	case "gap": // N: an entry N too far ahead
		return s.apply(next+s.number(args{"n": arg(1)}, "n", 0), s.entry([]string{"n1"}, nil), nil)
	case "restart": // go on with the machine that the deltas' records give
		s.c.restart()
		return fmt.Sprintf("at seq %d\n", s.c.m.Head().Cursor)
	case "replica": // a machine that applies the whole log from the beginning
		m := New()
		for seq := 1; seq < len(s.log); seq++ {
			if _, _, err := m.Apply(uint64(seq), s.log[seq]); err != nil {
				t.Fatalf("%s: %v", where, err)
			}
		}
		if m.Head() != s.c.m.Head() {
			t.Fatalf("%s: %+v, want %+v", where, m.Head(), s.c.m.Head())
		}
		return fmt.Sprintf("equal digest at seq %d\n", m.Head().Cursor)
	case "sequences":
		var b strings.Builder
		for _, i := range s.c.m.List(nil, 0, s.c.m.Len()) {
			fmt.Fprintf(&b, "%s first=%d max=%d max_count=%d hwm=%d remaining=%d halted=%v\n",
				i.Name, i.Settings.First, i.Settings.Max, i.Settings.MaxCount, i.HWM, i.Remaining(), i.Halted)
		}
		return cmp.Or(b.String(), "none\n")
	case "keys":
		w := &s.c.m.keys
		var b strings.Builder
		fmt.Fprintf(&b, "floor %d\n", w.floor)
		for _, r := range w.records {
			fmt.Fprintf(&b, "seq %d: %d keys\n", r.seq, len(r.keys))
		}
		return b.String()
	case "state":
		m := s.c.m
		fence, _ := m.Fence()
		var b strings.Builder
		fmt.Fprintf(&b, "cursor=%d epoch=%d level=%d skipped=%d fence=%d\n", m.Head().Cursor, m.Head().Epoch, m.Level(), m.Skipped(), fence.Seq)
		for _, node := range slices.Sorted(maps.Keys(m.members)) {
			member, _ := m.Member(node)
			fmt.Fprintf(&b, "%s: catalog %s, level %d\n", node, member.CatalogID.String()[:8], member.Level)
		}
		return b.String()
	}
	t.Fatalf("%s: unknown command %q", where, words[0])
	return ""
}

// entry makes an entry. The proposer's cursor is the machine's, unless the script says otherwise.
func (s *script) entry(words, ops []string) []byte {
	node, a := words[0], parseArgs(words[1:])
	h := testHeader(node, 0, s.number(a, "cursor", s.c.m.Head().Cursor))
	h.ClusterID = testID(cmp.Or(a["cluster"], "cluster"))
	if a["cluster"] == "zero" {
		h.ClusterID = wire.ID{}
	}
	h.Level = uint8(s.number(a, "level", wire.Level))
	h.ID.Incarnation = testID(node + "/" + cmp.Or(a["run"], "1"))
	h.ID.Counter = s.number(a, "id", s.counter[h.ID.Incarnation]+1)
	s.counter[h.ID.Incarnation] = h.ID.Counter
	h.AutoCreate = a["no-auto-create"] == ""
	h.Defaults = wire.Settings{First: s.number(a, "first", 1), Max: s.number(a, "max", 1000), MaxCount: s.number(a, "max_count", 1000)}
	b := wire.AppendHeader(nil, &h)
	for _, line := range ops {
		op := s.op(strings.Fields(line))
		b = wire.AppendOp(b, &op)
	}
	b[2] = byte(s.number(a, "version", uint64(b[2])))
	wire.Seal(b)
	if at := s.number(a, "flip", 0); at > 0 {
		b[at] ^= 1
	}
	return b
}

func (s *script) op(words []string) wire.Op {
	pos := func(i int) string {
		if i >= len(words) {
			s.c.t.Fatalf("%s: %v needs %d arguments", s.where, words, i)
		}
		return words[i]
	}
	at := func(i int) uint64 { return s.number(args{"n": pos(i)}, "n", 0) }
	a := parseArgs(words[1:])
	switch words[0] {
	case "genesis":
		return wire.Op{Kind: wire.KindGenesis, Genesis: &wire.Genesis{
			Epoch: s.number(a, "epoch", 1), Nodes: strings.Split(cmp.Or(a["nodes"], "n1,n2,n3"), ","),
			KeyWindow: s.number(a, "keys", 4), EntryWindow: s.number(a, "entries", 8),
			MaxSequences: s.number(a, "sequences", 100), HaltOnExhaustion: a["halt"] != "",
		}}
	case "reserve":
		op := wire.Op{Kind: wire.KindReserve, Name: []byte(pos(1)), Count: at(2), Partial: a["partial"] != ""}
		op.Since = s.number(a, "since", 0)
		op.Key = []byte(a["key"])
		if list := a["list"]; list != "" {
			op.Key, op.ListKeyed, op.Index = []byte(list), true, s.number(a, "item", 0)
		}
		return op
	case "create":
		op := wire.Op{Kind: wire.KindCreate, Name: []byte(pos(1))}
		op.Settings = wire.Settings{First: s.number(a, "first", 1), Max: s.number(a, "max", 1000), MaxCount: s.number(a, "max_count", 1000)}
		for key, bit := range map[string]uint8{"first": wire.GivenFirst, "max": wire.GivenMax, "max_count": wire.GivenMaxCount} {
			if a[key] != "" {
				op.Given |= bit
			}
		}
		return op
	case "advance":
		return wire.Op{Kind: wire.KindAdvance, Name: []byte(pos(1)), Count: at(2)}
	case "resume":
		return wire.Op{Kind: wire.KindResume, Name: []byte(pos(1))}
	case "barrier":
		return wire.Op{Kind: wire.KindBarrier}
	case "check":
		check := &wire.Check{CatalogID: testID(pos(2)), Ask: a["ask"] != "", Reason: a["contradiction"]}
		if check.Reason != "" {
			check.Verdict = wire.VerdictContradiction
		}
		return wire.Op{Kind: wire.KindCheck, Name: []byte(pos(1)), Check: check}
	case "forget":
		return wire.Op{Kind: wire.KindForget, Name: []byte(pos(1))}
	case "activate":
		return wire.Op{Kind: wire.KindActivate, Count: at(1)}
	case "unknown":
		return wire.Op{Kind: 200}
	}
	s.c.t.Fatalf("%s: unknown operation %q", s.where, words[0])
	return wire.Op{}
}

// apply prints what an entry gave. That an error leaves the state untouched is checked by checked.apply.
func (s *script) apply(seq uint64, data []byte, ops []string) string {
	s.c.t.Helper()
	out, _, err := s.c.apply(seq, data)
	if err != nil {
		return fmt.Sprintf("error: %s\n", shorten(err.Error()))
	}
	if !out.Replay {
		s.log, s.ops = append(s.log, data), append(s.ops, ops)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "seq %d", seq)
	switch {
	case out.Replay:
		b.WriteString(": replay, nothing done")
	case out.Skipped:
		b.WriteString(": skipped")
	case out.Duplicate:
		b.WriteString(": a copy, ignored")
	case len(out.Ops) < len(out.Entry.Ops):
		b.WriteString(": not applied")
	}
	if out.Fence {
		fence, _ := s.c.m.Fence()
		fmt.Fprintf(&b, ": FENCE: %s", shorten(fence.Reason))
	}
	b.WriteByte('\n')
	for i := range out.Ops {
		words := strings.Fields(ops[i])
		fmt.Fprintf(&b, "  %s: %s\n", strings.Join(words[:min(2, len(words))], " "), outcomeText(&out.Entry.Ops[i], out.Ops[i]))
	}
	return b.String()
}

func outcomeText(op *wire.Op, o wire.Outcome) string {
	if err := o.Err(op); err != nil {
		return err.Error()
	}
	switch {
	case op.Kind == wire.KindReserve && o.Repeated:
		return fmt.Sprintf("[%d, %d) again", o.Start, o.End)
	case op.Kind == wire.KindReserve:
		return fmt.Sprintf("[%d, %d)", o.Start, o.End)
	case op.Kind == wire.KindAdvance:
		return fmt.Sprintf("hwm %d, was %d", o.End, o.Start)
	case op.Kind == wire.KindActivate:
		return fmt.Sprintf("level %d", o.End)
	}
	return "ok"
}

// shorten cuts every hash and id in text to its first 8 digits.
func shorten(text string) string {
	words := strings.FieldsFunc(text, func(r rune) bool { return r == ' ' || r == ',' })
	for _, w := range words {
		if id, err := hex.DecodeString(w); err == nil && len(id) == 16 {
			text = strings.ReplaceAll(text, w, w[:8])
		}
	}
	return text
}
