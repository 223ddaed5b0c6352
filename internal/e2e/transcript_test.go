package e2e

import (
	"context"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
)

// transcriptMark stands on the line before each ```console block of the README that must be what really happens.
const transcriptMark = "<!-- transcript: tested by internal/e2e -->"

// step is one command of a transcript, and what it prints.
type step struct{ command, output string }

// transcripts reads the marked blocks of a Markdown text: lines that begin with "$ " are commands, continued by a
// backslash at the end; what follows is output.
func transcripts(text string) (blocks [][]step) {
	parts := strings.Split(text, transcriptMark+"\n```console\n")
	for _, part := range parts[1:] {
		body, _, closed := strings.Cut(part, "\n```")
		if !closed {
			continue
		}
		var steps []step
		continued := false
		for _, line := range strings.Split(body, "\n") {
			command, isCommand := strings.CutPrefix(line, "$ ")
			switch {
			case continued:
				steps[len(steps)-1].command += "\n" + line
			case isCommand:
				steps = append(steps, step{command: command})
			case len(steps) > 0:
				steps[len(steps)-1].output += line + "\n"
			}
			continued = (isCommand || continued) && strings.HasSuffix(line, `\`)
		}
		blocks = append(blocks, steps)
	}
	return blocks
}

// varying is what differs from run to run, and what it is compared as.
var varying = []struct {
	pattern *regexp.Regexp
	as      string
}{
	{regexp.MustCompile(`\b[0-9a-f]{32}\b`), "<id>"},                                    // cluster, catalog, incarnation
	{regexp.MustCompile(`\b[0-9a-f]{64}\b`), "<digest>"},                                // of the state
	{regexp.MustCompile(`\b[A-Za-z0-9]{22}\b`), "<id>"},                                 // instances of micro services
	{regexp.MustCompile(`\b\d\d:\d\d:\d\d(\.\d+)?\b`), "<time>"},                        // of the log
	{regexp.MustCompile(`\b\d{4}-\d\d-\d\d[ T]<time>(Z|[+-]\d\d:?\d\d)?`), "<time>"},    //
	{regexp.MustCompile(`\b(\d+(\.\d+)?(ns|µs|us|ms|s|m|h))+\b`), "<duration>"},         // round trips
	{regexp.MustCompile(`"seq":\d+`), `"seq":<n>`},                                      // checks are entries too
	{regexp.MustCompile(`(nats://|tls://)?\b(127\.0\.0\.1|localhost):\d+\b`), "<addr>"}, // of the nodes
	{regexp.MustCompile(`[ \t]+`), " "},                                                 // columns
	{regexp.MustCompile(`(?m) $`), ""},
}

// chatter is a line of the nats command's own log: that it sends, how long it took, the headers of the answer.
var chatter = regexp.MustCompile(`(?m)^\d\d:\d\d:\d\d .*\n?`)

// comparable is a transcript's output without what differs from run to run.
func comparable(output string) string {
	for _, v := range varying {
		output = v.pattern.ReplaceAllString(output, v.as)
	}
	return strings.TrimSpace(output)
}

// TestREADMETranscript runs the commands of the README's marked blocks, each block against a fresh cluster, and compares
// what they print. Commands find `nats` and `allocnode` on their PATH, and the cluster's first node in NATS_URL; where
// they name the default address, the cluster's stands for it.
func TestREADMETranscript(t *testing.T) {
	text, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatalf("%v: it must hold a block after a line %s", err, transcriptMark)
	}
	blocks := transcripts(string(text))
	if len(blocks) == 0 {
		t.Fatalf("README.md has no ```console block after a line %s", transcriptMark)
	}
	for _, steps := range blocks {
		commands := 0
		c := startCluster(t)
		shell := newCLI(t, c.urls[0])
		for _, s := range steps {
			commands++
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			cmd := exec.CommandContext(ctx, "sh", "-c", strings.NewReplacer(
				"nats://127.0.0.1:4222", c.urls[0], "nats://localhost:4222", c.urls[0]).Replace(s.command))
			cmd.Env, cmd.Dir = shell.env(), shell.home
			out, err := cmd.CombinedOutput() // a command that must fail shows so by what it prints
			cancel()
			got, want := string(out), s.output
			if !chatter.MatchString(want) {
				got = chatter.ReplaceAllString(got, "") // a transcript may leave all of it out
			}
			if got, want := comparable(got), comparable(want); got != want {
				t.Errorf("$ %s\n%v\nprints, what varies aside:\n%s\n\nREADME.md says:\n%s\n\nin full:\n%s",
					s.command, err, got, want, out)
			}
		}
		if commands == 0 {
			t.Error("a marked block of README.md has no command")
		}
	}
}

// TestTranscripts holds the reader of the blocks, and what is left out of comparison, against an example.
func TestTranscripts(t *testing.T) {
	text := "# x\n```console\n$ not marked\n```\n" + transcriptMark + "\n```console\n$ nats request \\\n    a b\n" +
		"12:00:01 Received with rtt 1.25ms\n{\"start\":1,\"seq\":17,\"cluster\":\"00112233445566778899aabbccddeeff\"}\n" +
		"$ true\n```\nmore\n"
	blocks := transcripts(text)
	if len(blocks) != 1 || len(blocks[0]) != 2 || blocks[0][0].command != "nats request \\\n    a b" ||
		blocks[0][1] != (step{command: "true"}) {
		t.Fatalf("got %q", blocks)
	}
	got := comparable(blocks[0][0].output)
	if want := "<time> Received with rtt <duration>\n{\"start\":1,\"seq\":<n>,\"cluster\":\"<id>\"}"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if comparable(`{"start":1}`) == comparable(`{"start":2}`) {
		t.Error("ids are left out of the comparison")
	}
}
