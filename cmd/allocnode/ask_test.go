package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/allocnode/allocnode"
	"github.com/allocnode/allocnode/client"
	"github.com/allocnode/allocnode/internal/node"
)

// startNode runs a node that is alone until the test ends.
func startNode(t *testing.T, change func(*node.Config)) (url string) {
	t.Helper()
	cfg := node.DefaultConfig()
	cfg.DataDir, cfg.Host, cfg.Port, cfg.Version = t.TempDir(), "127.0.0.1", -1, version
	cfg.Logger = slog.New(slog.DiscardHandler)
	if change != nil {
		change(&cfg)
	}
	n, err := node.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- n.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	select {
	case <-n.Ready():
	case <-time.After(30 * time.Second):
		t.Fatalf("the node does not get ready: %+v", n.Status())
	}
	return n.ClientURL()
}

// command runs a command line and returns what it printed.
func command(args ...string) (string, error) {
	root := newRoot()
	var out bytes.Buffer
	root.SetOut(&out)
	root.SetErr(&out)
	root.SetArgs(args)
	err := root.ExecuteContext(context.Background())
	return out.String(), err
}

// A session with a node, in order: what each command prints for people, as a pattern, and the refusal that it ends with.
func TestCommands(t *testing.T) {
	url := startNode(t, func(c *node.Config) { c.Genesis.HaltOnExhaustion = true })
	for _, tc := range []struct {
		args string
		want string // pattern of the whole output
		err  string // pattern of the error; empty: none
	}{
		{"list", `SEQUENCE +HIGH-WATER MARK .*\n`, ""},
		{"reserve orders 1000", `orders: 1 to 1000, 1000 ids\n`, ""},
		{"reserve orders", `orders: 1001 to 1001, 1 ids\n`, ""},
		{"reserve orders --count 9 --key k1", `orders: 1002 to 1010, 9 ids\n`, ""},
		{"reserve orders --count 9 --key k1", `orders: 1002 to 1010, 9 ids\n`, ""},
		{"reserve orders 8 --key k1", ``, `conflict: .*`},
		{"reserve orders 1000001", ``, `bad_request: count 1000001 is above max_count 1000000`},
		{"next walkers", `walkers: 1\n`, ""},
		{"next walkers --count 5", `walkers: 2 to 6\n`, ""},
		{"next walkers --count 1000001", ``, `bad_request: count 1000001 is above max_count 1000000`},
		{"next walkers --count 0", ``, `--count "0": want a whole number from 1 to .*`},
		{"next wal!kers", ``, `bad_request: .*`},
		{"create small --first 10 --max 19 --max-count 7", `small: first 10, max 19, max_count 7\n`, ""},
		{"create small", `small: first 10, max 19, max_count 7\n`, ""},
		{"create small --max 20", ``, `conflict: `},
		{"reserve small 8", ``, `above max_count 7`},
		{"reserve small 7", `small: 10 to 16, 7 ids\n`, ""},
		{"info small", `small: high-water mark 16, 3 ids remain, first 10, max 19, max_count 7\n`, ""},
		{"reserve small 5", ``, `exhausted: .*3 remain: --partial takes what is left`},
		{"info small", `.*HALTED.*\n`, ""},
		{"reserve small 1", ``, `exhausted: small was halted.*`},
		{"resume small", `small: open\n`, ""},
		{"reserve small 5 --partial", `small: 17 to 19, 3 ids\n`, ""},
		{"advance orders 5000", `orders: high-water mark 5000, was 1010\n`, ""},
		{"advance orders 17", `orders: the high-water mark is 5000 already\n`, ""},
		{"info orders --consistent", `orders: high-water mark 5000, \d+ ids remain, .*\n`, ""},
		{"info none", ``, `not_found: .*`},
		{"create big --max 9223372036854775807 --first 9007199254740993",
			`big: first 9007199254740993, max 9223372036854775807, .*\n`, ""},
		{"reserve big", `big: 9007199254740993 to 9007199254740993, 1 ids\n`, ""},
		{"list --consistent", `SEQUENCE .*\norders +5000 .*open\nwalkers .*open\nsmall +19 +0 .*exhausted\nbig .*\n`, ""},
		{"status", `NODE .*\nalone +alone +serving +\d+ +0 +[0-9a-f]{8} +4 .* yes\n`, ""},
		{"status --node alone --check", `NODE .*\nalone .* yes\n`, ""},
		{"status --node stranger", `NODE .*\n`, `node stranger does not answer`},
		{"forget stranger", ``, `not_found: .*`},
		{"resume none", ``, `not_found: .*`},
	} {
		out, err := command(append(strings.Fields(tc.args), "--server", url)...)
		if !regexp.MustCompile("^" + tc.want + "$").MatchString(out) {
			t.Errorf("%s printed %q, want %s", tc.args, out, tc.want)
		}
		switch {
		case tc.err == "" && err != nil, tc.err != "" && err == nil:
			t.Errorf("%s: error %v, want %q", tc.args, err, tc.err)
		case err != nil && (!regexp.MustCompile(tc.err).MatchString(err.Error()) || strings.Contains(err.Error(), "\n")):
			t.Errorf("%s: error %q, want one line with %s", tc.args, err, tc.err)
		}
	}
}

// What --check says of nodes that do not serve.
func TestNotReady(t *testing.T) {
	nodes := []client.NodeStatus{
		{Name: "n1", State: "serving", Ready: true}, {Name: "n2", State: "fenced", Reason: "why"}, {Name: "n3", State: "halted", Reason: "full"},
	}
	if err := notReady(nodes); err == nil || err.Error() != "node n2 is fenced: why; node n3 is halted: full" {
		t.Errorf("got %v", err)
	}
	if err := notReady(nodes[:1]); err != nil {
		t.Errorf("all ready: %v", err)
	}
}

// With --json each command prints the reply as it came, exact to the last digit, and a refusal as the node would say it.
func TestCommandsJSON(t *testing.T) {
	url := startNode(t, nil)
	const from = `"cluster":"[0-9a-f]{32}"}`
	for _, tc := range []struct {
		args string
		want string // pattern
		code allocnode.Code
	}{
		{"create big --first 9007199254740993 --max 9223372036854775807",
			`{"sequence":"big","first":9007199254740993,"max":9223372036854775807,"max_count":1000000,"seq":\d+,` + from, ""},
		{"reserve big 2",
			`{"sequence":"big","start":9007199254740993,"end":9007199254740995,"count":2,"seq":\d+,` + from, ""},
		{"create far --first 9007199254740993 --max 9223372036854775807", `{.*}`, ""},
		{"next far", `{"sequence":"far","id":9007199254740993,"cluster":"[0-9a-f]{32}"}`, ""},
		{"next far --count 3",
			`{"sequence":"far","count":3,"ranges":\[{"start":9007199254740994,"end":9007199254740997}\],` + from, ""},
		{"advance big 9007199254740999",
			`{"sequence":"big","old":9007199254740994,"hwm":9007199254740999,"seq":\d+,` + from, ""},
		{"info big", `{"sequence":"big",.*"hwm":9007199254740999,"remaining":\d+,"halted":false,"seq":\d+,"cluster":".*"}`, ""},
		{"list", `{"sequences":\[{"sequence":"big",.*}\],"total":2,"seq":\d+,"cluster":".*"}`, ""},
		{"resume big", `{"sequence":"big","seq":\d+,"cluster":".*"}`, ""},
		{"status", `\[{"name":"alone",.*"ready":true.*}\]`, ""},
		{"info none", `{"error":{"code":"not_found","message":".*"},"cluster":".*"}`, allocnode.CodeNotFound},
		{"forget alone", `{"node":"alone","seq":\d+,"cluster":".*"}`, ""},
	} {
		out, err := command(append(strings.Fields(tc.args), "--json", "--server", url)...)
		var e *allocnode.Error
		if errors.As(err, &e); (tc.code == "") != (err == nil) || e != nil && e.Code != tc.code {
			t.Errorf("%s: %v, want the code %q", tc.args, err, tc.code)
		}
		if !json.Valid([]byte(out)) || !regexp.MustCompile("^"+tc.want+"\n$").MatchString(out) {
			t.Errorf("%s printed %s want %s", tc.args, out, tc.want)
		}
	}
}

// Nonsense is an error that says what was wanted, and is not sent: there is nobody to send it to.
func TestNonsense(t *testing.T) {
	for args, want := range map[string]string{
		"reserve":                             "SEQUENCE is missing",
		"reserve a..b":                        "empty token",
		"reserve orders.>":                    "not a letter",
		"reserve orders 0":                    `count "0": want a whole number from 1 to`,
		"reserve orders 1e6":                  `count "1e6": want`,
		"reserve orders 9223372036854775808":  "want a whole number",
		"reserve orders 5 6":                  `"6" is one argument too many`,
		"reserve orders 5 --count 6":          "given twice",
		"reserve orders --key=":               "--key of 0 bytes",
		"reserve orders --nope":               "unknown flag: --nope",
		"reserve orders -- -5":                "want a whole number",
		"create":                              "SEQUENCE is missing",
		"create orders --first 0":             `--first "0": want`,
		"create orders --max ten":             `--max "ten": want`,
		"advance orders":                      "TO is missing",
		"advance orders x":                    `TO "x": want a whole number from 0`,
		"advance .orders 5":                   "empty token",
		"info":                                "SEQUENCE is missing",
		"info a_b c":                          "too many",
		"list all":                            "too many",
		"status n1":                           "too many",
		"forget n.1":                          "NODE",
		"resume *":                            "not a letter",
		"info orders --timeout 0s":            "--timeout 0s: want more than 0",
		"info orders --timeout soon":          "invalid argument",
		"info orders --prefix a..b":           "--prefix",
		"info orders --context x --server y":  "leave --server",
		"info orders --creds x --user y":      "leave one out",
		"info orders --password y":            "--user NAME is missing",
		"info orders --creds nowhere/x.creds": "nowhere/x.creds",
		"info orders --context nowhere":       "nowhere",
	} {
		out, err := command(strings.Fields(args)...)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") || out != "" {
			t.Errorf("%s: %v, want %q; printed %q", args, err, want, out)
		}
	}
}

// Nobody there, or nobody serving: an error that says what to look at, within the time-out.
func TestNobody(t *testing.T) {
	if _, err := command("status", "--server", "nats://127.0.0.1:1"); err == nil ||
		!strings.Contains(err.Error(), "is a node up there?") {
		t.Errorf("no server: %v", err)
	}
	srv, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: -1, NoSigs: true, NoLog: true})
	if err != nil {
		t.Fatal(err)
	}
	srv.Start()
	defer srv.WaitForShutdown()
	defer srv.Shutdown()
	if !srv.ReadyForConnections(10 * time.Second) {
		t.Fatal("the server does not start")
	}
	for _, args := range []string{"status", "reserve orders", "info orders"} {
		_, err := command(append(strings.Fields(args), "--timeout", "300ms", "--server", srv.ClientURL())...)
		if !errors.Is(err, allocnode.ErrUnavailable) || !strings.Contains(err.Error(), "no node serves on this prefix") {
			t.Errorf("%s: %v", args, err)
		}
		if args != "status" && !strings.Contains(err.Error(), "--timeout 300ms") {
			t.Errorf("%s: %v does not name the time-out", args, err)
		}
	}
}

// A user who may not ask is told so at once, not that nobody answers. Checked: without the error handler it takes the 25 s;
// without forbiddenError in ask the outcome is called unknown, and a key is named to ask again with.
func TestNotPermitted(t *testing.T) {
	conf := filepath.Join(t.TempDir(), "a.conf")
	text := `listen: "127.0.0.1:-1"
accounts { APP { users: [
	{ user: reader, password: pw, permissions { publish: ["alloc.info.>", "alloc.status"], subscribe: "_INBOX.>" } }
] } }
alloc { account: APP }
`
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	url := startNode(t, func(c *node.Config) {
		dir := c.DataDir
		if err := c.LoadConfig(conf, func(err error) { t.Log(err) }); err != nil {
			t.Fatal(err)
		}
		c.DataDir = dir
	})
	t.Setenv("NATS_URL", url)
	t.Setenv("NATS_PASSWORD", "pw")
	begin := time.Now()
	_, err := command("reserve", "orders", "--user", "reader", "--timeout", "25s")
	if err == nil || !strings.Contains(err.Error(), "this user may not ask that") || time.Since(begin) > 20*time.Second ||
		errors.Is(err, allocnode.ErrUnknownOutcome) || strings.Contains(err.Error(), "--key") {
		t.Errorf("after %s: %v", time.Since(begin), err)
	}
	if out, err := command("status", "--user", "reader"); err != nil || !strings.Contains(out, "serving") {
		t.Errorf("what it may ask: %q, %v", out, err)
	}
	if _, err := command("status", "--user", "reader", "--password", "wrong"); err == nil ||
		!strings.Contains(strings.ToLower(err.Error()), "authorization") {
		t.Errorf("a wrong password: %v", err)
	}
}

// A context of the nats command line says where to connect, and as whom.
func TestNATSContext(t *testing.T) {
	url := startNode(t, nil)
	home := t.TempDir()
	t.Setenv("XDG_CONFIG_HOME", home)
	dir := filepath.Join(home, "nats", "context")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "here.json"), []byte(fmt.Sprintf(`{"url":%q}`, url)), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := command("reserve", "orders", "5", "--context", "here"); err != nil || out != "orders: 1 to 5, 5 ids\n" {
		t.Errorf("%q, %v", out, err)
	}
}

func TestCompletion(t *testing.T) {
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		if out, err := command("completion", shell); err != nil || !strings.Contains(out, "allocnode") {
			t.Errorf("%s: %v", shell, err)
		}
	}
}
