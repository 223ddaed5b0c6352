package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// natsCLI is the nats command, which `make tools` puts into .tools.
func natsCLI(t testing.TB) string {
	t.Helper()
	path, err := filepath.Abs("../../.tools/nats")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("%v: make tools fetches it", err)
	}
	return path
}

// cli runs the nats command as a person does who has configured nothing.
type cli struct {
	t    testing.TB
	path string
	url  string
	home string
}

func newCLI(t testing.TB, url string) *cli {
	return &cli{t: t, path: natsCLI(t), url: url, home: t.TempDir()}
}

// env is the environment of a command, with the server that it talks to.
func (c *cli) env() []string {
	var env []string
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, "NATS_") && !strings.HasPrefix(kv, "XDG_") && !strings.HasPrefix(kv, "PATH=") {
			env = append(env, kv)
		}
	}
	path := []string{filepath.Dir(c.path), filepath.Dir(binary), os.Getenv("PATH")}
	return append(env, "HOME="+c.home, "NATS_URL="+c.url, "NO_COLOR=1", "PATH="+strings.Join(path, string(filepath.ListSeparator)))
}

// try returns what the command printed, and its exit status.
func (c *cli) try(args ...string) (stdout, stderr string, status int) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, c.path, args...)
	var out, errs buffer
	cmd.Env, cmd.Dir, cmd.Stdout, cmd.Stderr = c.env(), c.home, &out, &errs
	var exit *exec.ExitError
	if err := cmd.Run(); err != nil && !errors.As(err, &exit) {
		c.t.Fatalf("nats %q: %v", args, err)
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

// run is try for a command that must succeed.
func (c *cli) run(args ...string) string {
	c.t.Helper()
	stdout, stderr, status := c.try(args...)
	if status != 0 {
		c.t.Fatalf("nats %q: exit status %d\n%s%s", args, status, stdout, stderr)
	}
	return stdout
}

// raw makes a request whose answer alone is printed.
func (c *cli) raw(subject, body string) (a answer) {
	c.t.Helper()
	out := c.run("request", "--raw", subject, body)
	if err := json.Unmarshal([]byte(out), &a); err != nil {
		c.t.Fatalf("nats request %s %q: %q: %v", subject, body, out, err)
	}
	return a
}

// instance is the id of one instance of a micro service.
var instance = regexp.MustCompile(`\b[A-Za-z0-9]{22}\b`)

// TestNatsCLI is the product from the command line of any NATS user.
func TestNatsCLI(t *testing.T) {
	c := startCluster(t)
	nats := newCLI(t, c.urls[1])

	t.Run("request", func(t *testing.T) {
		nats.t = t
		for i, body := range []string{"1000", `{"count":1000}`, `{"count":1000,"key":"k1"}`, `{"count":1000,"key":"k1"}`} {
			a := nats.raw("alloc.reserve.orders", body)
			if want := uint64(1 + 1000*min(i, 2)); a.Error != nil || a.Sequence != "orders" || a.Start != want || a.End != want+1000 ||
				a.Count != 1000 || a.Seq == 0 || len(a.Cluster) != 32 {
				t.Errorf("%s: got %+v, want a range from %d", body, a, want)
			}
		}
		if a := nats.raw("alloc.reserve.orders", ""); a.Start != 3001 || a.End != 3002 {
			t.Errorf("an empty body: %+v", a)
		}
		if a := nats.raw("alloc.info.orders", `{"consistent":true}`); a.HWM != 3001 {
			t.Errorf("info: %+v", a)
		}
	})
	t.Run("pub --reply", func(t *testing.T) {
		nats.t = t
		sub, err := connect(t, c.urls[0]).SubscribeSync("ranges.for.me")
		if err != nil {
			t.Fatal(err)
		}
		var a answer
		// The node that answers may not know of the subscription yet. With a key, asking again is harmless.
		eventually(t, "an answer on the reply subject", func() error {
			nats.run("pub", "--reply", "ranges.for.me", "alloc.reserve.pubs", `{"count":1000,"key":"p1"}`)
			m, err := sub.NextMsg(time.Second)
			if err != nil {
				return err
			}
			return json.Unmarshal(m.Data, &a)
		})
		if a.Error != nil || a.Start != 1 || a.End != 1001 || a.Sequence != "pubs" {
			t.Errorf("got %+v", a)
		}
	})
	t.Run("micro", func(t *testing.T) {
		nats.t = t
		eventually(t, "all answer info, and one takes reservations", func() error {
			takers, ls := 0, nats.run("micro", "ls")
			ids := instance.FindAllString(ls, -1)
			if !strings.Contains(ls, "allocnode") || len(ids) != 3 { // one whose role changes has two for a moment
				return fmt.Errorf("micro ls does not show three nodes:\n%s", ls)
			}
			for _, id := range ids {
				out, _, status := nats.try("micro", "info", "allocnode", id)
				if status != 0 {
					return fmt.Errorf("the instance %s has ended", id)
				}
				for _, want := range []string{"allocnode", "alloc.info.>", "alloc.next.>", "node", "cluster"} {
					if !strings.Contains(out, want) {
						return fmt.Errorf("%w: micro info does not show %q:\n%s", errStop, want, out)
					}
				}
				if strings.Contains(out, "alloc.reserve.>") {
					takers++
				}
			}
			if takers != 1 {
				return fmt.Errorf("%d nodes take reservations", takers)
			}
			return nil
		})
		out := nats.run("micro", "stats", "allocnode")
		for _, want := range []string{"reserve", "advance", "list"} {
			if !strings.Contains(out, want) {
				t.Errorf("micro stats does not show %q:\n%s", want, out)
			}
		}
	})
	t.Run("errors", func(t *testing.T) {
		nats.t = t
		nats.raw("alloc.create.tiny", `{"max":10}`)
		for _, tc := range []struct {
			subject, body string
			code          string
			status        int
		}{
			{"alloc.reserve.orders", "0", "bad_request", 400},
			{"alloc.reserve.orders", `{"count":-5}`, "bad_request", 400},
			{"alloc.reserve.orders", "many", "bad_request", 400},
			{"alloc.reserve.orders", "1000001", "bad_request", 400},
			{"alloc.reserve.orders", `{"cuont":1}`, "bad_request", 400},
			{"alloc.reserve.or!ders", "1", "bad_request", 400},
			{"alloc.info.nothing", "", "not_found", 404},
			{"alloc.create.tiny", `{"max":11}`, "conflict", 409},
			{"alloc.reserve.tiny", "11", "exhausted", 410},
			{"alloc.reserve.orders", `{"count":7,"key":"k1"}`, "conflict", 409},
		} {
			stdout, stderr, _ := nats.try("request", tc.subject, tc.body)
			out := stdout + stderr // nats logs headers to stderr
			code := regexp.MustCompile(fmt.Sprintf(`(?m) Nats-Service-Error-Code: %d$`, tc.status))
			if !code.MatchString(out) || !regexp.MustCompile(`(?m) Nats-Service-Error: \S`).MatchString(out) ||
				!strings.Contains(out, `{"error":{"code":"`+tc.code+`","message":"`) {
				t.Errorf("%s %q: want %s %d in headers and body:\n%s", tc.subject, tc.body, tc.code, tc.status, out)
			}
		}
		if a := nats.raw("alloc.reserve.orders", ""); a.Start != 3002 {
			t.Errorf("after what was refused: %+v, want start 3002", a)
		}
	})
}
