package e2e

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
)

// refusals are what a person may get wrong, and what the one line must say: what is wrong, and how to mend it.
var refusals = []struct {
	name string
	conf string                                    // written to a.conf, if any
	args []string                                  // {dir} and {port} are filled in
	prep func(t *testing.T, dir string) (port int) // what is in the way
	want []string
	late bool // found when the node has begun to start, so that log lines may stand before
}{
	{name: "unknown command", args: []string{"sreve"}, want: []string{`unknown command "sreve"`}},
	{name: "unknown flag", args: []string{"serve", "--datadir", "x"}, want: []string{"unknown flag: --datadir"}},
	{name: "unknown flag of dev", args: []string{"dev", "--node", "3"}, want: []string{"unknown flag: --node"}},
	{name: "flag without value", args: []string{"serve", "--data"}, want: []string{"--data"}},
	{name: "an argument too many", args: []string{"serve", "a.conf"}, want: []string{`"a.conf"`}},
	{name: "listen without port", args: []string{"serve", "--listen", "localhost"},
		want: []string{`--listen "localhost"`, "HOST:PORT", "127.0.0.1:4222"}},
	{name: "listen with a bad port", args: []string{"serve", "--listen", ":70000"},
		want: []string{`--listen ":70000"`, "HOST:PORT"}},
	{name: "bad node name", args: []string{"serve", "--name", "n 1", "--data", "{dir}/d", "--listen", ":0"},
		want: []string{`name "n 1"`, "letters, digits"}},
	{name: "bad log level", args: []string{"serve", "--log-level", "loud"},
		want: []string{`--log-level "loud"`, "debug, info, warn or error"}},
	{name: "bad log format", args: []string{"dev", "--log-format", "xml"},
		want: []string{`--log-format "xml"`, "text or json"}},
	{name: "help on nothing", args: []string{"help", "bogus"}, want: []string{`no help on "bogus"`}},
	{name: "even number of nodes", args: []string{"dev", "--nodes", "2"}, want: []string{"--nodes 2", "odd number"}},
	{name: "bad try", args: []string{"dev", "--try", "orders"}, want: []string{`--try "orders"`, "SEQUENCE:COUNT"}},
	{name: "no such file", args: []string{"serve", "-c", "{dir}/none.conf"}, want: []string{"none.conf", "no such file"}},
	{name: "not a configuration", conf: "server_name: {", args: []string{"serve", "-c", "{dir}/a.conf"},
		want: []string{"a.conf", "line 1"}},
	{name: "unknown key of nats-server's part", conf: "server_name: n1\nlisten: '127.0.0.1:{port}'\nmax_conections: 10\n",
		args: []string{"serve", "-c", "{dir}/a.conf"}, want: []string{`a.conf:3:`, `"max_conections"`}},
	{name: "unknown key of the alloc block",
		conf: "server_name: n1\njetstream { store_dir: 'd' }\nalloc {\n  key_windw: 10\n}\n",
		args: []string{"serve", "-c", "{dir}/a.conf"}, want: []string{`a.conf:4:`, `"key_windw"`, "alloc"}},
	{name: "unknown key deeper in the alloc block", conf: "alloc {\n  genesis {\n    on_exhaust: halt\n  }\n}\n",
		args: []string{"serve", "-c", "{dir}/a.conf"}, want: []string{`a.conf:3:`, `"on_exhaust"`, "alloc.genesis"}},
	{name: "wrong type", conf: "alloc {\n  auto_create: 7\n}\n", args: []string{"serve", "-c", "{dir}/a.conf"},
		want: []string{`a.conf:2:`, "auto_create", "true or false"}},
	{name: "syncing that is not safe", conf: "jetstream {\n  store_dir: 'd'\n  sync_interval: '1m'\n}\n",
		args: []string{"serve", "-c", "{dir}/a.conf"}, want: []string{`a.conf:3:`, "sync_interval", "take the key out"}},
	{name: "a file without a data directory", conf: "server_name: n1\nlisten: '127.0.0.1:{port}'\n",
		args: []string{"serve", "-c", "{dir}/a.conf"}, want: []string{"data directory", "--data DIR"}},
	{name: "nodes without this node",
		conf: "server_name: n4\ncluster { name: c, listen: '127.0.0.1:{port}', routes: ['nats://127.0.0.1:{port}'] }\n" +
			"jetstream { store_dir: 'd' }\nalloc { nodes: [n1, n2, n3] }\n",
		args: []string{"serve", "-c", "{dir}/a.conf"}, want: []string{"nodes", `"n4"`, "n1, n2, n3"}},
	{name: "a cluster block without nodes",
		conf: "server_name: n1\ncluster { name: c, listen: '127.0.0.1:{port}', routes: ['nats://127.0.0.1:{port}'] }\n" +
			"jetstream { store_dir: 'd' }\n",
		args: []string{"serve", "-c", "{dir}/a.conf"}, want: []string{"cluster block", "alloc { nodes"}},
	{name: "nodes without a cluster block",
		conf: "server_name: n1\njetstream { store_dir: 'd' }\nalloc { nodes: [n1, n2, n3] }\n",
		args: []string{"serve", "-c", "{dir}/a.conf"}, want: []string{"nodes", "no cluster block"}},
	{name: "data directory is a file", args: []string{"serve", "--data", "{dir}/file", "--listen", "127.0.0.1:0"},
		prep: putFile, want: []string{"{dir}/file", "name a directory"}},
	{name: "data directory below a file", args: []string{"serve", "--data", "{dir}/file/d", "--listen", "127.0.0.1:0"},
		prep: putFile, want: []string{"{dir}/file/d", "not a directory"}},
	{name: "dev's data directory is a file", args: []string{"dev", "--data", "{dir}/file"}, prep: putFile,
		want: []string{"{dir}/file", "not a directory"}, late: true},
	{name: "port in use", args: []string{"serve", "--data", "{dir}/d", "--listen", "127.0.0.1:{port}"}, prep: takePort,
		want: []string{"127.0.0.1:{port}", "address already in use", "another process listens there"}, late: true},
	{name: "route port in use",
		conf: "server_name: n1\nlisten: '127.0.0.1:-1'\n" +
			"cluster { name: c, listen: '127.0.0.1:{port}', routes: ['nats://127.0.0.1:{port}'] }\n" +
			"jetstream { store_dir: 'd' }\nalloc { nodes: [n1, n2, n3] }\n",
		args: []string{"serve", "-c", "{dir}/a.conf"}, prep: takePort,
		want: []string{"127.0.0.1:{port}", "address already in use"}, late: true},
	{name: "dev's port in use", args: []string{"dev", "--listen", "127.0.0.1:{port}"}, prep: takePort,
		want: []string{"127.0.0.1:{port}", "address already in use"}, late: true},
}

func putFile(t *testing.T, dir string) int {
	if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	return 0
}

func takePort(t *testing.T, _ string) int {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l.Addr().(*net.TCPAddr).Port
}

func TestRefusals(t *testing.T) {
	for _, tc := range refusals {
		t.Run(tc.name, func(t *testing.T) {
			dir, port := t.TempDir(), 0
			if tc.prep != nil {
				port = tc.prep(t, dir)
			}
			if port == 0 {
				port = freePort(t)
			}
			fill := strings.NewReplacer("{dir}", dir, "{port}", fmt.Sprint(port)).Replace
			if tc.conf != "" {
				if err := os.WriteFile(filepath.Join(dir, "a.conf"), []byte(fill(tc.conf)), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			args := make([]string, len(tc.args))
			for i, a := range tc.args {
				args[i] = fill(a)
			}
			want := make([]string, len(tc.want))
			for i, w := range tc.want {
				want[i] = fill(w)
			}
			refused(t, start(t, dir, nil, args...), tc.late, want...)
		})
	}
}

// refused wants p to end with one line on stderr, which names each of want. Only where late may the log stand before it.
func refused(t *testing.T, p *process, late bool, want ...string) {
	t.Helper()
	if code := p.exit(t); code != 1 {
		t.Errorf("exit status %d, want 1", code)
	}
	lines := strings.Split(strings.TrimSuffix(p.stderr.String(), "\n"), "\n")
	var said []string
	for _, l := range lines {
		if strings.HasPrefix(l, "allocnode: ") {
			said = append(said, l)
		}
	}
	last := lines[len(lines)-1]
	if len(said) != 1 || said[0] != last || (len(lines) > 1 && !late) {
		t.Fatalf("want one line of allocnode's, the last, got %d:\n%s", len(said), p.stderr)
	}
	for _, w := range want {
		if !strings.Contains(last, w) {
			t.Errorf("the line does not say %q: %s", w, last)
		}
	}
	for _, bad := range []string{"goroutine", "Usage:", "panic"} {
		if strings.Contains(p.stdout.String()+p.stderr.String(), bad) {
			t.Errorf("%q in the output:\n%s%s", bad, p.stdout, p.stderr)
		}
	}
}

// serveAlone runs a node that is alone, and waits until it serves.
func serveAlone(t *testing.T, data, name string) (*process, *nats.Conn) {
	t.Helper()
	listen := fmt.Sprintf("127.0.0.1:%d", freePort(t))
	p := start(t, t.TempDir(), nil, "serve", "--data", data, "--name", name, "--listen", listen)
	nc := connect(t, "nats://"+listen)
	eventually(t, "a node alone serves", func() error {
		if !p.running() {
			return fmt.Errorf("%w: it has ended", errStop)
		}
		return servingAll(statuses(t, nc, 1), 1)
	})
	return p, nc
}

// TestDirectoryOfAnother holds a data directory against a second process, another node's name, and the other mode. How it
// was checked: without the lock of LockDir only badger's refuses the second process, and the line does not name it;
// without admit in kv the other name and the other mode start.
func TestDirectoryOfAnother(t *testing.T) {
	data := filepath.Join(t.TempDir(), "data")
	first, nc := serveAlone(t, data, "n1")
	if a := ask(t, nc, "alloc.reserve.orders", "10"); a.Error != nil || a.Start != 1 {
		t.Fatalf("got %+v", a)
	}
	again := []string{"serve", "--data", data, "--listen", "127.0.0.1:0", "--name"}
	refused(t, start(t, t.TempDir(), nil, append(again, "n1")...), true,
		data, fmt.Sprintf("in use by process %d", first.cmd.Process.Pid), "stop it")

	first.signal(stopSignal)
	if code := first.exit(t); code != 0 {
		t.Fatalf("exit status %d after a signal to stop", code)
	}
	refused(t, start(t, t.TempDir(), nil, append(again, "n2")...), true, "n1", "n2")

	conf := filepath.Join(t.TempDir(), "a.conf")
	text := fmt.Sprintf("server_name: n1\nlisten: '127.0.0.1:-1'\n"+
		"cluster { name: c, listen: '127.0.0.1:%d', routes: ['nats://127.0.0.1:%d'] }\n"+
		"jetstream { store_dir: %q }\nalloc { nodes: [n1, n2, n3] }\n", freePort(t), freePort(t), data)
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	refused(t, start(t, t.TempDir(), nil, "serve", "--config", conf), true, "alone", "cluster")

	// None of them has harmed it.
	_, nc = serveAlone(t, data, "n1")
	if a := ask(t, nc, "alloc.reserve.orders", "10"); a.Error != nil || a.Start != 11 {
		t.Fatalf("after the refusals: %+v", a)
	}
}
