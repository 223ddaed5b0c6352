package jetstream

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func writeConfig(t testing.TB, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "node.conf")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestParseConfig(t *testing.T) {
	t.Setenv("ALLOCNODE_TEST_NODES", `["n1", "n2"]`)
	path := writeConfig(t, `
server_name: n1
port: 4333
PREFIX: ids
ping_interval: 20   # a warning: should be a duration
jetstream { sync_interval: always, max_file_store: 1GB }
Alloc {
  LOCAL: 7
  Prefix: $PREFIX
  nodes: $ALLOCNODE_TEST_NODES
  one: single
  deadline: "4s"
  big: 9223372036854775807
  auto_create: off
  defaults { max: 10k, max_count: $LOCAL }
}
`)
	var warnings []error
	opts, alloc, err := ParseConfig(path, func(err error) { warnings = append(warnings, err) })
	if err != nil {
		t.Fatal(err)
	}
	if opts.ServerName != "n1" || opts.Port != 4333 || !opts.SyncAlways || opts.JetStreamMaxStore != 1<<30 {
		t.Errorf("server options: name %q, port %d, sync always %v, max store %d", opts.ServerName, opts.Port, opts.SyncAlways,
			opts.JetStreamMaxStore)
	}
	if len(warnings) != 1 || !strings.Contains(warnings[0].Error(), "ping_interval") {
		t.Errorf("warnings %v; want one about ping_interval", warnings)
	}

	prefix, cluster, create := "alloc", "unset", true
	var nodes, one []string
	var deadline time.Duration
	var big, maxID, maxCount uint64
	alloc.String("prefix", &prefix)
	alloc.String("cluster_id", &cluster)
	alloc.Strings("nodes", &nodes)
	alloc.Strings("one", &one)
	alloc.Duration("deadline", &deadline)
	alloc.Uint("big", &big)
	alloc.Bool("auto_create", &create)
	d := alloc.Block("defaults")
	d.Uint("max", &maxID)
	d.Uint("max_count", &maxCount)
	if err := alloc.Err(); err != nil {
		t.Fatal(err)
	}
	if prefix != "ids" || cluster != "unset" || create || deadline != 4*time.Second ||
		big != 1<<63-1 || maxID != 10000 || maxCount != 7 {
		t.Errorf("got prefix %q, cluster %q, create %v, deadline %v, big %d, max %d, max_count %d", prefix, cluster, create,
			deadline, big, maxID, maxCount)
	}
	if !slices.Equal(nodes, []string{"n1", "n2"}) || !slices.Equal(one, []string{"single"}) {
		t.Errorf("lists: %q and %q", nodes, one)
	}
	if !alloc.Has("PREFIX") || alloc.Has("none") || alloc.Position("prefix") != path+":9:3" {
		t.Errorf("Has or Position is wrong: %q", alloc.Position("prefix"))
	}
}

func TestParseConfigWithoutBlock(t *testing.T) {
	_, alloc, err := ParseConfig(writeConfig(t, "server_name: n1\n"))
	if err != nil || alloc != nil {
		t.Fatalf("got block %v, error %v; want neither", alloc, err)
	}
	// A decoder need not ask whether there is a block.
	n := uint64(3)
	alloc.Block("defaults").Uint("max", &n)
	alloc.Fault("x", "must not matter")
	if n != 3 || alloc.Has("x") || alloc.Position("x") != "" || alloc.Err() != nil {
		t.Errorf("a nil block did something: %d, %v", n, alloc.Err())
	}
}

func TestParseConfigInclude(t *testing.T) {
	path := writeConfig(t, "include 'more.conf'\n")
	more := filepath.Join(filepath.Dir(path), "more.conf")
	if err := os.WriteFile(more, []byte("port: 4333\nalloc {\n nonsense: 1\n}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	opts, alloc, err := ParseConfig(path)
	if err != nil || opts.Port != 4333 {
		t.Fatalf("ParseConfig: %v", err)
	}
	wantError(t, alloc.Err(), more+":3:", `unknown key "nonsense" in alloc {}`)
}

// Checked: letting every error about "alloc" pass makes "alloc elsewhere" fail; taking durabilityFaults out makes the
// sync and jetstream cases fail.
func TestParseConfigFaults(t *testing.T) {
	for _, tc := range []struct {
		name, text string
		want       []string // FILE stands for the path; columns are nats-server's, which counts oddly
	}{
		{"misspelt server key", "port: 4222\nserver_nam: n1\n", []string{"FILE:2:", `unknown field "server_nam"`}},
		{"misspelt nested key", "cluster {\n  nam: x\n}\n", []string{"FILE:2:", `unknown field "nam"`}},
		{"misspelt beside a block", "alloc {}\nserver_nam: n1\n", []string{"FILE:2:", "server_nam"}},
		{"alloc elsewhere", "alloc {}\ncluster {\n alloc: 1\n}\n", []string{"FILE:3:", `unknown field "alloc"`}},
		{"wrong type", "port: many\n", []string{"FILE:1:"}},
		{"two faults", "a: 1\nb: 2\n", []string{"FILE:1:", "FILE:2:"}},
		{"syntax", "port: 1\nalloc { prefix\n", []string{"FILE"}},
		{"block is a number", "port: 1\nalloc: 5\n", []string{"FILE:2:", "must be a block"}},
		{"two blocks", "alloc {}\nALLOC {}\n", []string{"FILE:1:", "FILE:2:", "second alloc block"}},
		{"sync interval", "jetstream {\n sync_interval: 2m\n}\n", []string{"FILE:2:", "jetstream.sync_interval", "always"}},
		{"sync", "jetstream {\n sync: \"10s\"\n}\n", []string{"FILE:2:", "jetstream.sync", "always"}},
		{"jetstream off", "port: 1\njetstream: disabled\n", []string{"FILE:2:", "must be on"}},
		{"jetstream false", "port: 1\njetstream: false\n", []string{"FILE:2:", "must be on"}},
		{"jetstream not enabled", "jetstream {\n enabled: false\n}\n", []string{"FILE:2:", "jetstream.enabled"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			path := writeConfig(t, tc.text)
			_, _, err := ParseConfig(path)
			if err == nil {
				t.Fatal("no error")
			}
			for _, want := range tc.want {
				if want = strings.ReplaceAll(want, "FILE", path); !strings.Contains(err.Error(), want) {
					t.Errorf("error %q; want it to contain %q", err, want)
				}
			}
		})
	}
	_, _, err := ParseConfig(filepath.Join(t.TempDir(), "absent.conf"))
	wantError(t, err, "absent.conf", "no such file")
}

func TestParseConfigEmptyFile(t *testing.T) {
	var warnings []error
	opts, alloc, err := ParseConfig(writeConfig(t, ""), func(err error) { warnings = append(warnings, err) })
	if err != nil || opts == nil || alloc != nil || len(warnings) != 1 {
		t.Errorf("got %v, %v, %v, warnings %v; want defaults and one warning", opts, alloc, err, warnings)
	}
}

func TestBlockFaults(t *testing.T) {
	text := `alloc {
  prefix: true
  count: "many"
  low: -1
  nodes: [x, ["y"]]
  wait: "4 parsecs"
  sub { known: 1, unknown: 2 }
  flat: 3
  extra: 4
  Prefix: twice
  bound: 200
}`
	b, err := ParseBlock("x.conf", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	var s string
	var n uint64
	var list []string
	var d time.Duration
	b.String("prefix", &s)
	b.Uint("count", &n)
	b.Uint("low", &n)
	b.Strings("nodes", &list)
	b.Duration("wait", &d)
	b.Block("sub").Uint("known", &n)
	b.Block("sub") // asking twice gives the same block
	if b.Block("flat") != nil {
		t.Error("a number became a block")
	}
	b.Uint("bound", &n)
	b.Fault("bound", "must be at most %d, found %d", 100, n)
	err = b.Err()
	if err == nil {
		t.Fatal("no error")
	}
	got := strings.Split(err.Error(), "\n")
	want := []string{
		`x.conf:3:3: "count" in alloc {} must be a whole number, found the string "many"`,
		`x.conf:4:3: "low" in alloc {} must not be negative, found -1`,
		`x.conf:5:19: "nodes" in alloc {} must be a list of strings, found a list`,
		`x.conf:6:3: "wait" in alloc {} must be a duration such as "4s", found "4 parsecs"`,
		`x.conf:8:3: "flat" in alloc {} must be a block`,
		`x.conf:9:3: unknown key "extra" in alloc {}`,
		`x.conf:7:19: unknown key "unknown" in alloc.sub {}`,
		`x.conf:11:3: "bound" in alloc {} must be at most 100, found 200`,
		`x.conf:10:3: "prefix" in alloc {} was given already, at x.conf:2:3`,
	}
	for _, w := range want {
		if !slices.ContainsFunc(got, func(line string) bool { return strings.Contains(line, w) }) {
			t.Errorf("no line with %q in:\n%v", w, err)
		}
	}
	if len(got) != len(want) {
		t.Errorf("%d lines, want %d:\n%v", len(got), len(want), err)
	}
}

func TestBlockHintsAtQuotes(t *testing.T) {
	b, err := ParseBlock("x.conf", []byte("alloc {\n cluster_id: 12345\n}"))
	if err != nil {
		t.Fatal(err)
	}
	var s string
	b.String("cluster_id", &s)
	wantError(t, b.Err(), "x.conf:2:", "must be a string, found 12345: put it in quotes")
}

// The lexer and parser are nats-server's, so this is a watch over those too: nothing recovers from a panic of theirs.
func FuzzParseBlock(f *testing.F) {
	for _, seed := range []string{
		"", "]", "}", "{", "alloc", "alloc {}", "alloc: 5", "alloc { prefix: ids }", "ALLOC {}\nalloc {}",
		"alloc { nodes: [a, b], defaults { max: 10k } }", "alloc { a: [1, [2, {b: 3}]] }", "alloc { x: $NONE }",
		"X: 1\nalloc { x: $X }", "alloc { d: 2020-01-01T00:00:00Z }", "alloc { s: 'it', f: 1.5, n: -9223372036854775808 }",
		"alloc { n: 99999999999999999999 }", "# comment\nalloc = { b = yes; }", "alloc { block: (\nraw\n)\n }", "\xff\xfe",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		if strings.Contains(strings.ToLower(string(text)), "include") {
			return // reads files
		}
		b, err := ParseBlock("fuzz.conf", text)
		if err != nil && b != nil {
			t.Fatal("both a block and an error")
		}
		var s string
		var n uint64
		var ok bool
		var list []string
		var d time.Duration
		b.String("prefix", &s)
		b.Uint("n", &n)
		b.Bool("b", &ok)
		b.Strings("nodes", &list)
		b.Duration("d", &d)
		b.Block("defaults").Uint("max", &n)
		if n > 1<<63-1 || d < 0 {
			t.Fatalf("out of bounds: %d, %v", n, d)
		}
		if err := b.Err(); err != nil && !strings.HasPrefix(err.Error(), "fuzz.conf:") {
			t.Fatalf("an error without its place: %v", err)
		}
	})
}
