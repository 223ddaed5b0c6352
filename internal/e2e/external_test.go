package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
)

// existing is a NATS system of three servers, which is there before allocnode and knows nothing of it.
type existing struct {
	t       *testing.T
	files   []string
	servers []*server.Server
}

// startExisting runs three servers, with clients at the given ports, and with more in each one's configuration.
func startExisting(t *testing.T, ports []int, more string) *existing {
	t.Helper()
	e := &existing{t: t}
	var routes []string
	for range ports {
		routes = append(routes, fmt.Sprintf("127.0.0.1:%d", freePort(t)))
	}
	dir := t.TempDir()
	for i, port := range ports {
		name := fmt.Sprintf("s%d", i+1)
		text := fmt.Sprintf(`server_name: %s
listen: "127.0.0.1:%d"
cluster { name: existing, listen: %q, routes: ["nats://%s"] }
jetstream { store_dir: %q, sync_interval: always }
`, name, port, routes[i], strings.Join(routes, `", "nats://`), filepath.Join(dir, name))
		if i == 0 {
			text = more + "\n" + text
		} else {
			text = leafPort.ReplaceAllString(more, "") + "\n" + text
		}
		e.files = append(e.files, filepath.Join(dir, name+".conf"))
		if err := os.WriteFile(e.files[i], []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	e.start()
	t.Cleanup(e.stop)
	return e
}

var leafPort = regexp.MustCompile(`(?m)^leafnodes .*$`) // one server listens for leaf nodes

func (e *existing) start() {
	e.t.Helper()
	e.servers = nil
	for _, file := range e.files {
		o := &server.Options{}
		if err := o.ProcessConfigFile(file); err != nil {
			e.t.Fatal(err)
		}
		o.NoSigs, o.NoLog = true, true
		s, err := server.NewServer(o)
		if err != nil {
			e.t.Fatal(err)
		}
		e.servers = append(e.servers, s)
		go s.Start()
	}
	eventually(e.t, "the existing NATS is up", func() error {
		for _, s := range e.servers {
			if !s.ReadyForConnections(time.Second) {
				return fmt.Errorf("%s is not ready", s.Name())
			}
		}
		for _, s := range e.servers {
			if s.JetStreamIsLeader() {
				return nil
			}
		}
		return fmt.Errorf("JetStream has no leader")
	})
}

func (e *existing) stop() {
	for _, s := range e.servers {
		s.Shutdown()
	}
	for _, s := range e.servers {
		s.WaitForShutdown()
	}
}

// documentedAccounts is the block of accounts in docs/OPERATIONS.md: what is documented is what is tried.
func documentedAccounts(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../../docs/OPERATIONS.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := regexp.MustCompile("(?ms)^```\n(accounts \\{$.*?)^```$").FindAllStringSubmatch(string(text), -1)
	if len(blocks) != 1 {
		t.Fatalf("docs/OPERATIONS.md has %d blocks of accounts, want one", len(blocks))
	}
	return blocks[0][1]
}

// TestSidecarConf is configs/sidecar.conf on a system whose users have the permissions of docs/OPERATIONS.md, and no more.
// How it was checked: without "$JS.API.DIRECT.GET.ALLOC_LOG" or the like for allocnode no node serves; with publish: ">"
// for app, the test reports each publication that the server did not forbid.
func TestSidecarConf(t *testing.T) {
	for k, v := range secrets {
		t.Setenv(k, v)
	}
	dir := t.TempDir()
	files, ports := copyConfigs(t, dir, asIs, "sidecar.conf")
	e := startExisting(t, []int{ports["4222"], ports["4223"], ports["4224"]}, documentedAccounts(t))
	initEnv := []string{"ALLOCNODE_USER=allocinit", "ALLOCNODE_PASSWORD=" + secrets["INIT_PASSWORD"]}

	early := start(t, dir, initEnv, "init", "--config", files[0])
	if code := early.exit(t); code != 1 || !strings.Contains(early.stderr.String(), "no answer from n1, n2, n3") {
		t.Errorf("init before the nodes run: exit status %d, %s", code, early.stderr)
	}
	nodes := []*process{start(t, dir, nil, "serve", "--config", files[0])}
	for _, name := range []string{"n2", "n3"} {
		nodes = append(nodes, start(t, dir, nil, "serve", "--config", files[0], "--name", name, "--data", name))
	}
	s := &secured{t: t, url: fmt.Sprintf("nats://127.0.0.1:%d", ports["4222"]), opts: []nats.Option{nats.MaxReconnects(-1),
		nats.ReconnectWait(100 * time.Millisecond)}}
	app, err := s.login("app", secrets["APP_PASSWORD"])
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "they wait for init", func() error {
		all := statuses(t, app, 3)
		for name, s := range all {
			if !strings.Contains(s.Reason, "allocnode init") {
				return fmt.Errorf("%s is %s: %q", name, s.State, s.Reason)
			}
		}
		return wantNumber(len(all), 3)
	})
	made := start(t, dir, initEnv, "init", "--config", files[0])
	if code := made.exit(t); code != 0 || !strings.Contains(made.stdout.String(), "created the log of cluster ") {
		t.Fatalf("init: exit status %d, %s", code, made.stdout)
	}
	eventually(t, "all serve", func() error { return servingAll(statuses(t, app, 3), 3) })
	again := start(t, dir, initEnv, "init", "--config", files[0])
	if code := again.exit(t); code != 1 || !strings.Contains(again.stderr.String(), "the log exists already") {
		t.Errorf("a second init: exit status %d, %s", code, again.stderr)
	}

	if a := ask(t, app, "alloc.reserve.orders", `{"count":1000,"key":"k1"}`); a.Error != nil || a.Start != 1 || a.End != 1001 {
		t.Errorf("reserve: %+v", a)
	}
	if a := ask(t, app, "alloc.next.orders", ""); a.Error != nil {
		t.Errorf("next: %+v", a.Error)
	}
	for _, subject := range []string{
		"alloc.log.n1", "alloc.node.hello", "alloc.node.cluster", "alloc.inbox.n1.x", "alloc.feed.x", "alloc.advance.orders",
		"$JS.API.STREAM.DELETE.ALLOC_LOG", "$JS.API.STREAM.PURGE.ALLOC_LOG",
	} {
		s.forbidden(app, subject, func() error { return app.Publish(subject, nil) })
	}

	e.stop()
	e.start()
	eventually(t, "they serve again", func() error {
		m, err := app.Request("alloc.reserve.orders", []byte(`{"count":1000,"key":"k1"}`), 5*time.Second)
		switch {
		case err != nil:
			return err
		case !strings.Contains(string(m.Data), `"start":1,`):
			return fmt.Errorf("got %s", m.Data)
		}
		return servingAll(statuses(t, app, 3), 3)
	})
	for _, p := range nodes {
		p.signal(stopSignal)
		if code := p.exit(t); code != 0 {
			t.Errorf("exit status %d", code)
		}
		if out := p.stderr.String(); strings.Contains(out, "ermissions") {
			t.Errorf("a documented permission is missing: %s", tail(out))
		}
	}
}

func wantNumber(got, want int) error {
	if got != want {
		return fmt.Errorf("%d, want %d", got, want)
	}
	return nil
}

// TestLeafnodeConf is configs/leafnode.conf: clients of the system that it joins are served, and its own while that is away.
func TestLeafnodeConf(t *testing.T) {
	dir := t.TempDir()
	files, ports := copyConfigs(t, dir, asIs, "leafnode.conf")
	clients := []int{freePort(t), freePort(t), freePort(t)}
	e := startExisting(t, clients, fmt.Sprintf(`leafnodes { listen: "127.0.0.1:%d" }`, ports["7422"]))
	p := start(t, dir, nil, "serve", "--config", files[0])
	there := connect(t, fmt.Sprintf("nats://127.0.0.1:%d", clients[1])) // not the server that the leaf node connects to
	here := connect(t, fmt.Sprintf("nats://127.0.0.1:%d", ports["4333"]))
	for _, nc := range []*nats.Conn{there, here} {
		eventually(t, "it serves", func() error { return servingAll(statuses(t, nc, 1), 1) })
	}
	if a := ask(t, there, "alloc.reserve.orders", "1000"); a.Error != nil || a.Start != 1 {
		t.Errorf("from there: %+v", a)
	}
	if a := ask(t, here, "alloc.reserve.orders", "1000"); a.Error != nil || a.Start != 1001 {
		t.Errorf("from here: %+v", a)
	}
	e.stop()
	if a := ask(t, here, "alloc.reserve.orders", "1000"); a.Error != nil || a.Start != 2001 {
		t.Errorf("while the other system is away: %+v", a)
	}
	e.start()
	eventually(t, "it is joined again", func() error { return servingAll(statuses(t, there, 1), 1) })
	if a := ask(t, there, "alloc.reserve.orders", "1000"); a.Error != nil || a.Start != 3001 {
		t.Errorf("from there again: %+v", a)
	}
	p.signal(stopSignal)
	if code := p.exit(t); code != 0 {
		t.Errorf("exit status %d", code)
	}
}
