package main

import (
	"bytes"
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
)

// listen accepts connections and says nothing. onAccept is called for each.
func listen(t *testing.T, onAccept func()) (address string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			defer c.Close()
			onAccept()
		}
	}()
	t.Cleanup(func() { l.Close(); <-done })
	return l.Addr().String()
}

// startServer runs a nats-server with the configuration conf, and nothing of allocnode's.
func startServer(t *testing.T, conf string) (url string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "a.conf")
	if err := os.WriteFile(file, []byte("listen: '127.0.0.1:-1'\n"+conf), 0o600); err != nil {
		t.Fatal(err)
	}
	opts, err := server.ProcessConfigFile(file)
	if err != nil {
		t.Fatal(err)
	}
	opts.NoSigs, opts.NoLog = true, true
	srv, err := server.NewServer(opts)
	if err != nil {
		t.Fatal(err)
	}
	srv.Start()
	t.Cleanup(func() { srv.Shutdown(); srv.WaitForShutdown() })
	if !srv.ReadyForConnections(10 * time.Second) {
		t.Fatal("the server does not start")
	}
	return srv.ClientURL()
}

func connectTo(t *testing.T, url, user string) *nats.Conn {
	t.Helper()
	nc, err := nats.Connect(url, nats.UserInfo(user, "pw"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return nc
}

// A Ctrl-C while a command connects ends it, not its time-out. Checked: with nats.Connect called directly it takes all of
// the 60 s.
func TestInterruptedWhileConnecting(t *testing.T) {
	for _, args := range []string{"next orders", "bench reserve --clients 5000 --timeout 60s"} {
		ctx, interrupt := context.WithCancelCause(context.Background())
		defer interrupt(nil)
		why := errors.New("as main does at a Ctrl-C")
		url := listen(t, func() { interrupt(why) })
		root := newRoot()
		root.SetOut(&bytes.Buffer{})
		root.SetArgs(append(strings.Fields(args), "--timeout", "60s", "--server", url))
		begin := time.Now()
		if err := root.ExecuteContext(ctx); !errors.Is(err, why) || time.Since(begin) > 30*time.Second {
			t.Errorf("%s: after %s: %v", args, time.Since(begin), err)
		}
	}
}

// A password or a token in a URL is in no message. Checked: with the URL as it is each of them was.
func TestConnectTellsNoSecret(t *testing.T) {
	for server, shown := range map[string]string{
		"nats://app:s3cret@127.0.0.1:1":                             "nats://app:xxxxx@127.0.0.1:1",
		"nats://s3cret@127.0.0.1:1":                                 "nats://xxxxx@127.0.0.1:1",
		"app:s3cret@127.0.0.1:1":                                    "app:xxxxx@127.0.0.1:1",
		"nats://app:s3@cret@127.0.0.1:1":                            "nats://app:xxxxx@127.0.0.1:1",
		"nats://app:s3cret@127.0.0.1:1,nats://b:s3cret@127.0.0.1:1": "nats://app:xxxxx@127.0.0.1:1,nats://b:xxxxx@127.0.0.1:1",
		"nats://app:s3cret@127.0.0.1:port":                          "nats://app:xxxxx@127.0.0.1:port",
		"nats://127.0.0.1:1":                                        "nats://127.0.0.1:1",
	} {
		_, err := command("next", "orders", "--server", server)
		if err == nil || !strings.Contains(err.Error(), "connect to "+shown+": ") || strings.Contains(err.Error(), "cret") {
			t.Errorf("%s: %v", server, err)
		}
	}
}

// What connecting ends with tells what to look at, and nothing that does not apply.
func TestConnectHints(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("XDG_CONFIG_HOME", dir)
	contexts := filepath.Join(dir, "nats", "context")
	if err := os.MkdirAll(contexts, 0o700); err != nil {
		t.Fatal(err)
	}
	secret := startServer(t, "authorization { user: app, password: right }")
	silent := listen(t, func() {})
	for file, text := range map[string]string{
		filepath.Join(dir, "no.creds"):            "no credentials\n",
		filepath.Join(contexts, "refused.json"):   `{"url":"nats://127.0.0.1:1"}`,
		filepath.Join(contexts, "forbidden.json"): `{"url":"` + secret + `","user":"app","password":"wrong"}`,
	} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	const up, form, who = "is a node up there?", "nats://HOST:PORT", "the server does not know this user"
	for _, tc := range []struct{ args, want string }{
		{"--server nats://127.0.0.1:1", up},
		{"--server nats://127.0.0.1:99999", form},
		{"--server nats://a:b:c", form},
		{"--server ://x", form},
		{"--server nats://no-such-host.invalid", "is the host's name right?"},
		{"--server " + silent + " --timeout 300ms", "nobody answers there as a NATS server does"},
		{"--server " + secret, who},
		{"--server " + secret + " --user app --password wrong", who},
		{"--creds " + filepath.Join(dir, "none.creds"), "no such file or directory: --creds or $NATS_CREDS"},
		{"--creds " + filepath.Join(dir, "no.creds"), "holds none"},
		{"--context none", "nats context ls"},
		{"--context refused", "nats context edit refused names another"},
		{"--context forbidden", who + " or its password: nats context edit forbidden"},
		{"--inbox-prefix _INBOX.>", "without wildcards"},
		{"--inbox-prefix a..b", "without wildcards"},
	} {
		_, err := command(append(strings.Fields("list "+tc.args), "--json")...)
		if err == nil || !strings.Contains(err.Error(), tc.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v, want %q", tc.args, err, tc.want)
			continue
		}
		for _, hint := range []string{up, form, who} {
			if hint != tc.want && !strings.HasPrefix(tc.want, hint) && tc.want != "nats context edit refused names another" &&
				strings.Contains(err.Error(), hint) {
				t.Errorf("%s: %v: the hint %q is not true", tc.args, err, hint)
			}
		}
	}
}

// A user who may listen for answers elsewhere only is told so before anything is asked: a request would be carried out,
// and its answer lost. Checked: without mayListen the message arrives at the service.
func TestInboxPrefix(t *testing.T) {
	url := startServer(t, `authorization { users: [
	{ user: all, password: pw }
	{ user: app, password: pw, permissions { publish: "alloc.>", subscribe: "_INBOX.app.>" } }
] }`)
	nc := connectTo(t, url, "all")
	sub, err := nc.SubscribeSync("alloc.>")
	if err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	args := []string{"reserve", "orders", "--server", url, "--user", "app", "--password", "pw"}
	begin := time.Now()
	_, err = command(append(args, "--timeout", "60s")...)
	if err == nil || !strings.Contains(err.Error(), "nothing was asked") || !strings.Contains(err.Error(), "--inbox-prefix") ||
		strings.Contains(err.Error(), "unknown") || time.Since(begin) > 30*time.Second {
		t.Errorf("after %s: %v", time.Since(begin), err)
	}
	// What a later one publishes comes first unless the earlier one had.
	if _, err := command(append(args, "--key", "later", "--inbox-prefix", "_INBOX.app", "--timeout", "300ms")...); err == nil {
		t.Error("nobody answers, and it succeeded")
	}
	m, err := sub.NextMsg(10 * time.Second)
	if err != nil || !strings.HasPrefix(m.Reply, "_INBOX.app.") || !strings.Contains(string(m.Data), "later") {
		t.Errorf("%v: came %+v", err, m)
	}
}

// Help on what does not exist is an error.
func TestHelpTopics(t *testing.T) {
	for _, args := range []string{"help bogus", "help bench bogus", "help reserve now"} {
		if out, err := command(strings.Fields(args)...); err == nil || !strings.Contains(err.Error(), "no help on") || out != "" {
			t.Errorf("%s: %q, %v", args, out, err)
		}
	}
	for args, want := range map[string]string{
		"help": "Available Commands", "help bench reserve": "--clients", "help help": "Show the help of a command",
	} {
		if out, err := command(strings.Fields(args)...); err != nil || !strings.Contains(out, want) {
			t.Errorf("%s: %q, %v", args, out, err)
		}
	}
}
