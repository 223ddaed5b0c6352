package jetstream

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nkeys"
)

func TestExternalValidate(t *testing.T) {
	good := External{URLs: []string{"nats://a:4222", "tls://b"}, DurabilityAcknowledged: true}
	if err := good.Validate(); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		set  func(*External)
		want string
	}{
		"no URLs":             {func(e *External) { e.URLs = nil }, "nats.urls: none given"},
		"no scheme":           {func(e *External) { e.URLs = []string{"a:4222"} }, "want nats://HOST:PORT"},
		"no host":             {func(e *External) { e.URLs = []string{"nats://"} }, "want nats://HOST:PORT"},
		"http":                {func(e *External) { e.URLs = []string{"http://a"} }, "want nats://HOST:PORT"},
		"password in the URL": {func(e *External) { e.URLs = []string{"nats://u:hush@a"} }, "holds a user"},
		"not a URL":           {func(e *External) { e.URLs = []string{"nats://u:hush@a:x"} }, "not a URL"},
		"two ways to log in":  {func(e *External) { e.Creds, e.Token = "f", "t" }, "give one of them, not 2"},
		"password, no user":   {func(e *External) { e.Password = "hush" }, "without a user"},
		"cert, no key":        {func(e *External) { e.Cert = "c" }, "belong together"},
		"no acknowledgement":  {func(e *External) { e.DurabilityAcknowledged = false }, "sync_interval: always"},
	} {
		e := good
		tc.set(&e)
		err := e.Validate()
		if err == nil || !strings.Contains(err.Error(), tc.want) || strings.Contains(err.Error(), "hush") {
			t.Errorf("%s: %v: want %q and no secret", name, err, tc.want)
		}
	}
}

func TestOlderThan(t *testing.T) {
	for version, want := range map[string]bool{
		"2.14.4": false, "2.15.0": false, "2.15.0-RC.1": false, "3.0.0": false, "2.14.10": false,
		"2.14.3": true, "2.9.99": true, "1.20.0": true, "": true, "2": true, "two.15.0": true,
	} {
		if got := olderThan(version, [3]int{2, 14, 4}); got != want {
			t.Errorf("%q: got %t", version, got)
		}
	}
}

// TestExternalLogin tries each way to log in, and each file that is not what it should be.
func TestExternalLogin(t *testing.T) {
	dir := t.TempDir()
	user, err := nkeys.CreateUser()
	logTestOK(t, err)
	public, err := user.PublicKey()
	logTestOK(t, err)
	seed, err := user.Seed()
	logTestOK(t, err)
	write := func(name string, text []byte) string {
		path := filepath.Join(dir, name)
		logTestOK(t, os.WriteFile(path, text, 0o600))
		return path
	}
	nk, junk := write("node.nk", seed), write("junk.pem", []byte("junk"))
	byNKey := logTestStart(t, &server.Options{Nkeys: []*server.NkeyUser{{Nkey: public}}})
	byToken := logTestStart(t, &server.Options{Authorization: "t0ken"})
	byUser := logTestStart(t, &server.Options{Username: "u", Password: "p"})
	for name, tc := range map[string]struct {
		s    *server.Server
		e    External
		want string // of the error; empty: it connects
	}{
		"nkey":          {byNKey, External{NKey: nk}, ""},
		"token":         {byToken, External{Token: "t0ken"}, ""},
		"user":          {byUser, External{User: "u", Password: "p"}, ""},
		"nobody":        {byUser, External{}, "refuses the credentials"},
		"another token": {byToken, External{Token: "x"}, "refuses the credentials"},
		"no nkey file":  {byNKey, External{NKey: filepath.Join(dir, "none")}, "nkey: seed file"},
		"no seed":       {byNKey, External{NKey: junk}, "nkey: seed file"},
		"no creds file": {byUser, External{Creds: filepath.Join(dir, "none")}, "creds: "},
		"no CA file":    {byUser, External{CA: filepath.Join(dir, "none")}, "tls.ca: "},
		"no CA":         {byUser, External{CA: junk}, "holds no certificate"},
		"no cert":       {byUser, External{Cert: junk, Key: junk}, "tls.cert and tls.key"},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		tc.e.URLs = []string{tc.s.ClientURL()}
		nc, err := tc.e.Connect(ctx, name, "inbox.n1", slog.New(slog.DiscardHandler))
		cancel()
		switch {
		case err == nil:
			nc.Close()
			if tc.want != "" {
				t.Errorf("%s: connected", name)
			}
		case tc.want == "" || !strings.Contains(err.Error(), tc.want):
			t.Errorf("%s: %v: want %q", name, err, tc.want)
		}
	}
}
