package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// userCommand runs a client command as a user of the system at url.
func userCommand(t *testing.T, url, user, args string) (stdout, stderr string, status int) {
	t.Helper()
	p := start(t, t.TempDir(), []string{
		"NATS_URL=" + url, "NATS_USER=" + user, "NATS_PASSWORD=" + secrets[strings.ToUpper(user)+"_PASSWORD"],
	}, strings.Fields(args)...)
	status = p.exit(t)
	return p.stdout.String(), p.stderr.String(), status
}

// TestDocumentedUsers is every client command as the users of docs/OPERATIONS.md, on a system of nats-servers of its own:
// what each may do it can do, with its inbox prefix; what it may not, and what it asks without the prefix, is refused at
// once, and nothing has happened. Checked: without "alloc.advance.>" for the operator its advance is refused; without
// mayListen in cmd/allocnode the advance with another's prefix is carried out; with "alloc.create.>" for app its create is.
func TestDocumentedUsers(t *testing.T) {
	for k, v := range secrets {
		t.Setenv(k, v)
	}
	dir := t.TempDir()
	files, ports := copyConfigs(t, dir, asIs, "sidecar.conf")
	startExisting(t, []int{ports["4222"], ports["4223"], ports["4224"]}, documentedAccounts(t))
	url := fmt.Sprintf("nats://127.0.0.1:%d", ports["4222"])
	for _, name := range []string{"n1", "n2", "n3"} {
		start(t, dir, nil, "serve", "--config", files[0], "--name", name, "--data", name)
	}
	eventually(t, "all wait for init", func() error {
		out, errs, _ := userCommand(t, url, "operator", "status --inbox-prefix _INBOX.operator")
		if strings.Count(out, "allocnode init") != 3 {
			return fmt.Errorf("%s%s", out, errs)
		}
		return nil
	})
	made := start(t, dir, []string{"ALLOCNODE_USER=allocinit", "ALLOCNODE_PASSWORD=" + secrets["INIT_PASSWORD"]},
		"init", "--config", files[0])
	if code := made.exit(t); code != 0 {
		t.Fatalf("init: exit status %d, %s", code, made.stderr)
	}
	eventually(t, "all serve", func() error {
		out, errs, _ := userCommand(t, url, "operator", "status --inbox-prefix _INBOX.operator")
		if strings.Count(out, " serving ") != 3 {
			return fmt.Errorf("%s%s", out, errs)
		}
		return nil
	})

	for _, tc := range []struct{ user, command, want string }{
		{"operator", "create orders --max 1000000", "orders: first 1, max 1000000"},
		{"operator", "reserve orders 10", "orders: 1 to 10, 10 ids"},
		{"operator", "advance orders 5000", "orders: high-water mark 5000, was 10"},
		{"operator", "info orders --consistent", "orders: high-water mark 5000"},
		{"operator", "next walkers", "walkers: 1\n"},
		{"operator", "list", "orders "},
		{"operator", "resume orders", "orders: open"},
		{"operator", "forget n3", "n3: its name is free"},
		{"operator", "bench reserve --count 20", "20 ids, none twice"},
		{"app", "reserve orders 10", "orders: 5001 to 5010, 10 ids"},
		{"app", "next walkers", "walkers: "},
		{"app", "info orders", "orders: high-water mark 5010"},
		{"app", "list", "orders "},
		{"app", "status", " serving "},
		{"app", "bench next --count 20", "20 ids, none twice"},
	} {
		out, errs, status := userCommand(t, url, tc.user, tc.command+" --inbox-prefix _INBOX."+tc.user)
		if status != 0 || !strings.Contains(out, tc.want) {
			t.Errorf("%s: %s: exit status %d: %s%s", tc.user, tc.command, status, out, errs)
		}
	}

	const patient = " --timeout 60s" // an answer that comes sooner did not wait for it
	for _, tc := range []struct{ user, command, want string }{
		{"app", "create more --inbox-prefix _INBOX.app", `Publish to "alloc.create.more"`},
		{"app", "advance orders 6000 --inbox-prefix _INBOX.app", `Publish to "alloc.advance.orders"`},
		{"app", "forget n3 --inbox-prefix _INBOX.app", `Publish to "alloc.forget.n3"`},
		{"app", "resume orders --inbox-prefix _INBOX.app", `Publish to "alloc.resume.orders"`},
		{"app", "reserve orders", "nothing was asked"},
		{"app", "bench reserve orders", "nothing was asked"},
		{"operator", "reserve orders", "nothing was asked"},
		{"operator", "advance orders 6000 --inbox-prefix _INBOX.app", "nothing was asked"},
	} {
		begin := time.Now()
		_, errs, status := userCommand(t, url, tc.user, tc.command+patient)
		if status != 1 || !strings.Contains(errs, tc.want) || strings.Contains(errs, "outcome unknown") ||
			strings.Count(errs, "\n") != 1 || time.Since(begin) > 40*time.Second {
			t.Errorf("%s: %s: exit status %d after %s: %s", tc.user, tc.command, status, time.Since(begin), errs)
		}
	}
	out, _, _ := userCommand(t, url, "operator", "reserve orders --inbox-prefix _INBOX.operator")
	if out != "orders: 5011 to 5011, 1 ids\n" {
		t.Errorf("after what was refused: %s", out)
	}

	// A context of the nats command line may hold the prefix.
	home := t.TempDir()
	contexts := filepath.Join(home, "nats", "context")
	if err := os.MkdirAll(contexts, 0o700); err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprintf(`{"url":%q,"user":"app","password":%q,"inbox_prefix":"_INBOX.app"}`, url, secrets["APP_PASSWORD"])
	if err := os.WriteFile(filepath.Join(contexts, "app.json"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	p := start(t, home, []string{"XDG_CONFIG_HOME=" + home}, "reserve", "orders", "--context", "app")
	if code := p.exit(t); code != 0 || p.stdout.String() != "orders: 5012 to 5012, 1 ids\n" {
		t.Errorf("with a context: exit status %d: %s%s", code, p.stdout, p.stderr)
	}

	s := &secured{t: t, url: url}
	operator, err := s.login("operator", secrets["OPERATOR_PASSWORD"])
	if err != nil {
		t.Fatal(err)
	}
	for _, subject := range []string{
		"alloc.log.n1", "alloc.node.hello", "alloc.node.cluster", "alloc.inbox.n1.x", "alloc.feed.x", "_INBOX.app.x",
		"$JS.API.STREAM.DELETE.ALLOC_LOG", "$JS.API.STREAM.PURGE.ALLOC_LOG", "$JS.API.STREAM.INFO.ALLOC_LOG",
	} {
		s.forbidden(operator, subject, func() error { return operator.Publish(subject, nil) })
	}
}
