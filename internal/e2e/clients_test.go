package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
)

// foreign is an example program of docs/clients, and how it is run: command with the program's path after it.
type foreign struct {
	name    string
	program string
	command []string
}

// npmPackage is what example.mjs needs.
const npmPackage = "@nats-io/transport-node@3.3.1"

var foreigners = []foreign{
	{"python", "example.py", []string{"python3"}},
	{"javascript", "example.mjs", []string{"node"}},
	{"java", "Example.java", []string{"java", "-XX:+UseSerialGC"}},
}

// install copies the program to where what it needs is, and returns its path.
func (f *foreign) install(t *testing.T, dir string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../../docs/clients", f.program))
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, f.program)
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	if strings.HasSuffix(f.program, ".mjs") {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		cmd := exec.CommandContext(ctx, "npm", "install", "--prefix", dir, "--no-audit", "--no-fund", "--no-package-lock",
			npmPackage)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("npm install: %v\n%s", err, out)
		}
	}
	return path
}

// run returns what the program printed.
func (f *foreign) run(t *testing.T, path string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	all := append(append(slices.Clone(f.command), path), args...)
	cmd := exec.CommandContext(ctx, all[0], all[1:]...)
	var out, errs buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		t.Fatalf("%q: %v\n%s%s", all, err, out.String(), tail(errs.String()))
	}
	return out.String()
}

// reserve has the program reserve: what was stored, if args has it, and once more. It wants each range to be the next of
// ranges, and returns the body that the program printed before the last.
func (f *foreign) reserve(
	t *testing.T, path, sequence string, ranges []string, servers string, args ...string,
) (body string) {
	t.Helper()
	out := f.run(t, path, append([]string{servers, sequence}, args...)...)
	var pattern strings.Builder
	for _, r := range ranges {
		fmt.Fprintf(&pattern, "%[1]s: sending ({.*})\n%[1]s: %[2]s\n", regexp.QuoteMeta(sequence), r)
	}
	got := regexp.MustCompile("^" + pattern.String() + "$").FindStringSubmatch(out)
	if got == nil {
		t.Fatalf("%q printed %q, want the ranges %q", args, out, ranges)
	}
	if len(args) > 1 && got[1] != args[1] {
		t.Errorf("was given %s, and sends %s", args[1], got[1])
	}
	return got[len(got)-1]
}

// storedBody is one that a program had stored before it crashed.
const storedBody = `{"count":10,"key":"key-2","ids":"string","since":3}`

// TestForeignClients runs the examples of docs/CLIENTS.md against a node, with ids that only 64 bits hold, and against one
// that is out of luck in every way that the rules there speak of.
func TestForeignClients(t *testing.T) {
	listen := fmt.Sprintf("127.0.0.1:%d", freePort(t))
	start(t, t.TempDir(), nil, "serve", "--data", t.TempDir(), "--listen", listen)
	nc := connect(t, "nats://"+listen)
	eventually(t, "it serves", func() error { return servingAll(statuses(t, nc, 1), 1) })
	dead := fmt.Sprintf("127.0.0.1:%d", freePort(t)) // of a node that is down
	for _, f := range foreigners {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel() // most of the time they wait for answers that do not come
			path := f.install(t, t.TempDir())
			sequence := "big." + f.name
			if a := ask(t, nc, "alloc.create."+sequence, `{"first":9007199254740993,"max":9223372036854775807}`); a.Error != nil {
				t.Fatalf("create: %+v", a)
			}
			const once, again = "9007199254740993 to 9007199254741002", "9007199254741003 to 9007199254741012"
			body := f.reserve(t, path, sequence, []string{once}, listen, "10")
			f.reserve(t, path, sequence, []string{once, again}, dead+","+listen, "10", body)
			last := "last." + f.name // the end of its last range is 2^63
			if a := ask(t, nc, "alloc.create."+last, `{"first":9223372036854775788,"max":9223372036854775807}`); a.Error != nil {
				t.Fatalf("create: %+v", a)
			}
			f.reserve(t, path, last, []string{"9223372036854775788 to 9223372036854775797"}, listen, "10")
			f.reserve(t, path, last, []string{"9223372036854775798 to 9223372036854775807"}, listen, "10")
			u := newUnlucky(t)
			f.reserve(t, path, "orders", []string{"1 to 10", "11 to 20"}, u.address, "10", storedBody)
			u.check(t)
		})
	}
}

// unlucky is a service that answers the first request in all the ways that are no range before it gives one.
type unlucky struct {
	address string
	mu      sync.Mutex // guards bodies
	bodies  []string
}

func newUnlucky(t *testing.T) *unlucky {
	t.Helper()
	srv, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: -1, NoSigs: true, NoLog: true})
	if err != nil {
		t.Fatal(err)
	}
	srv.Start()
	t.Cleanup(func() { srv.Shutdown(); srv.WaitForShutdown() })
	if !srv.ReadyForConnections(patience) {
		t.Fatal("the server does not start")
	}
	u := &unlucky{address: srv.Addr().String()}
	nc := connect(t, srv.ClientURL())
	const cluster = `,"cluster":"5c0f6a1d2b7e43988fd6ad41c9a0e3b7"}`
	refusals := []string{ // what a node says when a retry may help; the first before it knows its cluster
		`{"error":{"code":"unavailable","message":"starting"}}`, `{"stream":"EVERYTHING","seq":1}`, `not JSON`,
		`{"error":{"code":"unknown_outcome","message":"no answer of the log"}` + cluster,
		`{"error":{"code":"fenced","message":"the log lost entries"}` + cluster, "", // lost
	}
	_, err = nc.Subscribe("alloc.reserve.orders", func(m *nats.Msg) {
		u.mu.Lock()
		u.bodies = append(u.bodies, string(m.Data))
		n := len(u.bodies)
		u.mu.Unlock()
		answer := fmt.Sprintf(`{"sequence":"orders","start":"%d","end":"%d","count":10,"seq":%d`+cluster, 10*(n-len(refusals))-9,
			10*(n-len(refusals))+1, n)
		if n <= len(refusals) {
			answer = refusals[n-1]
		}
		if answer == "" {
			return
		}
		if err := m.Respond([]byte(answer)); err != nil {
			t.Error(err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	return u
}

// check holds the requests to the rules: the same bytes at each try, then a new key, and since is what was seen.
func (u *unlucky) check(t *testing.T) {
	t.Helper()
	u.mu.Lock()
	defer u.mu.Unlock()
	last := len(u.bodies) - 1
	if last < 6 {
		t.Fatalf("%d requests: %q", len(u.bodies), u.bodies)
	}
	var first, second struct {
		Count uint64
		Key   string
		IDs   string
		Since uint64
	}
	for _, b := range u.bodies[:last] {
		if b != u.bodies[0] {
			t.Errorf("a retry sent %s, the first try %s", b, u.bodies[0])
		}
	}
	if err := json.Unmarshal([]byte(u.bodies[0]), &first); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal([]byte(u.bodies[last]), &second); err != nil {
		t.Fatal(err)
	}
	if u.bodies[0] != storedBody || second.Key == first.Key || len(second.Key) != 32 ||
		second.Since != uint64(last) ||
		first.IDs != "string" || first.Count != 10 {
		t.Errorf("sent %+v, then %+v", first, second)
	}
}

// TestForeignClientsRefuse is what must not be retried or believed: a final refusal, and an answer of another cluster.
// Checked, here and above, in example.py: without the comparison of clusters, with every code in AGAIN, with a key made anew
// for each try, and with answers that have neither start nor error taken for refusals, one of the tests fails.
func TestForeignClientsRefuse(t *testing.T) {
	ids := []string{strings.Repeat("a", 32), strings.Repeat("b", 32)}
	for _, f := range foreigners {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel() // most of the time they wait for answers that do not come
			u := newUnlucky(t)
			nc := connect(t, "nats://"+u.address)
			var mu sync.Mutex
			n := 0
			_, err := nc.Subscribe("alloc.reserve.>", func(m *nats.Msg) {
				mu.Lock()
				defer mu.Unlock()
				if strings.HasSuffix(m.Subject, ".full") {
					_ = m.Respond([]byte(`{"error":{"code":"exhausted","message":"0 remain"},"cluster":"` + ids[0] + `"}`))
				} else if strings.HasSuffix(m.Subject, ".two") {
					_ = m.Respond(fmt.Appendf(nil, `{"sequence":"two","start":"1","end":"2","count":1,"seq":9,"cluster":"%s"}`,
						ids[min(n, 1)]))
				}
				n++
			})
			if err != nil {
				t.Fatal(err)
			}
			if err := nc.Flush(); err != nil {
				t.Fatal(err)
			}
			path := f.install(t, t.TempDir())
			for sequence, want := range map[string]string{"two": "another cluster answers", "full": "exhausted"} {
				mu.Lock()
				n = 0
				mu.Unlock()
				ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
				args := append(slices.Clone(f.command), path, u.address, sequence, "1", `{"count":1,"key":"k","ids":"string"}`)
				out, err := exec.CommandContext(ctx, args[0], args[1:]...).CombinedOutput()
				cancel()
				if err == nil || ctx.Err() == context.DeadlineExceeded || !strings.Contains(string(out), want) {
					t.Errorf("%s: %v: %s; want %s", sequence, err, out, want)
				}
			}
		})
	}
}

// TestForeignClientsKeyExpired has a program come back after the cluster has forgotten its key: what it had stored makes the
// cluster say so, where the key alone, with since 0, is carved anew. Checked: with programs that start with since 0 in
// place of asking for a seq, the old body brings new ids, in each language.
func TestForeignClientsKeyExpired(t *testing.T) {
	dir, listen := t.TempDir(), fmt.Sprintf("127.0.0.1:%d", freePort(t))
	text := "server_name: n1\nlisten: '" + listen + "'\njetstream { store_dir: 'data' }\nalloc { genesis { key_window: 1 } }\n"
	if err := os.WriteFile(filepath.Join(dir, "a.conf"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	start(t, dir, nil, "serve", "--config", "a.conf")
	nc := connect(t, "nats://"+listen)
	eventually(t, "it serves", func() error { return servingAll(statuses(t, nc, 1), 1) })
	for _, f := range foreigners { // one after the other: each would make the others' keys forgotten
		t.Run(f.name, func(t *testing.T) {
			path := f.install(t, t.TempDir())
			body := f.reserve(t, path, f.name, []string{"1 to 10"}, listen, "10")
			f.reserve(t, path, f.name, []string{"11 to 20"}, listen, "10") // the one that is remembered
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			args := append(slices.Clone(f.command), path, listen, f.name, "10", body)
			out, err := exec.CommandContext(ctx, args[0], args[1:]...).CombinedOutput()
			if err == nil || !strings.Contains(string(out), "key_expired") {
				t.Errorf("%v: %s; want key_expired", err, out)
			}
			var key struct{ Key string }
			if err := json.Unmarshal([]byte(body), &key); err != nil {
				t.Fatal(err)
			}
			a := ask(t, nc, "alloc.reserve."+f.name, fmt.Sprintf(`{"count":10,"key":%q}`, key.Key))
			if a.Error != nil || a.Start != 21 {
				t.Errorf("with the key alone: %+v, want a new range, the first since", a)
			}
		})
	}
}
