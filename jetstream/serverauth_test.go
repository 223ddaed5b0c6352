package jetstream

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	natsjs "github.com/nats-io/nats.go/jetstream"
)

// Checked by taking AllowedConnectionTypes out of addUsers, the stolen keys then log in; and by giving the log user no
// account, it then finds no JetStream.
func TestClientsCannotReachLog(t *testing.T) {
	cfg, _ := testConfig(t, "")
	s := startServer(t, cfg)
	nc := logConn(t, s)
	createStream(t, nc, 1)

	anonymous := client(t, s)
	js, err := natsjs.New(anonymous)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := js.Stream(within(t, 30*time.Second), "LOG"); !errors.Is(err, natsjs.ErrJetStreamNotEnabledForAccount) {
		t.Errorf("anonymous client asks for the log's stream: %v; want JetStream not enabled for its account", err)
	}
	heard, err := anonymous.SubscribeSync(">")
	if err != nil {
		t.Fatal(err)
	}
	if err := anonymous.Flush(); err != nil {
		t.Fatal(err)
	}
	if err := nc.Publish("log.n1", []byte("secret")); err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	if err := anonymous.Publish("end", nil); err != nil {
		t.Fatal(err)
	}
	m, err := heard.NextMsg(5 * time.Second)
	if err == nil && m.Subject == "$JS.EVENT.ADVISORY.API" { // tells its own account of its own request above, and may be late
		m, err = heard.NextMsg(5 * time.Second)
	}
	if err != nil || m.Subject != "end" {
		t.Errorf("anonymous client hears %v, %v; want only its own message", m, err)
	}

	for name, id := range map[string]identity{"log": s.logUser, "service": s.svcUser} {
		// Even somebody who has stolen the key gets in by no socket.
		_, err := nats.Connect(s.ClientURL(), nats.Nkey(id.public, id.sign))
		if !errors.Is(err, nats.ErrAuthorization) {
			t.Errorf("TCP login as the %s user: %v; want an authorization error", name, err)
		}
	}
	if _, err := nats.Connect(s.ClientURL(), nats.UserInfo(s.logUser.public, "")); !errors.Is(err, nats.ErrAuthorization) {
		t.Errorf("TCP login with the log user's name: %v; want an authorization error", err)
	}
}

func TestOperatorAuthentication(t *testing.T) {
	const accounts = `accounts {
  APP { jetstream: enabled, users: [{user: app, password: s3cret}] }
  SYS { users: [{user: sys, password: sys}] }
}
system_account: SYS
`
	for _, tc := range []struct {
		name, text, account string
		good                []nats.Option
		bad                 [][]nats.Option
	}{
		{name: "user and password", text: "authorization { user: u, password: p }",
			good: []nats.Option{nats.UserInfo("u", "p")}, bad: [][]nats.Option{{}, {nats.UserInfo("u", "x")}}},
		{name: "token", text: "authorization { token: t0ken }",
			good: []nats.Option{nats.Token("t0ken")}, bad: [][]nats.Option{{}, {nats.Token("x")}}},
		{name: "users", text: "authorization { users: [{user: u, password: p}] }",
			good: []nats.Option{nats.UserInfo("u", "p")}, bad: [][]nats.Option{{}, {nats.UserInfo("allocnode-anonymous", "")}}},
		{name: "accounts", text: accounts, account: "APP",
			good: []nats.Option{nats.UserInfo("app", "s3cret")}, bad: [][]nats.Option{{}, {nats.UserInfo("app", "x")}}},
		{name: "no_auth_user", text: accounts + "no_auth_user: app", account: "APP",
			good: nil, bad: [][]nats.Option{{nats.UserInfo("app", "x")}}},
		// nats-server lets others into the global account here, unless there is an authorization block. Checked by
		// taking onlySystemAccount out of openToAll (the first fails), and by ignoring the block (the second fails).
		{name: "system account only", text: "accounts { SYS { users: [{user: sys, password: sys}] } }\nsystem_account: SYS",
			good: nil, bad: [][]nats.Option{{nats.UserInfo("sys", "x")}}},
		{name: "system account and authorization", text: "accounts { SYS { users: [{user: sys, password: sys}] } }\n" +
			"system_account: SYS\nauthorization { timeout: 2 }", bad: [][]nats.Option{{}}},
		{name: "proxy protocol", text: "proxy_protocol: true\nmax_connections: 1", good: nil},
		{name: "callout", text: `authorization {
  users: [{user: auth, password: auth}]
  auth_callout { issuer: ABJHLOVMPA4CI6R5KLNGOB4GSLNIY7IOUPAJC4YFNDLQVIOBYQGUWVLA, auth_users: [auth] }
}`, good: []nats.Option{nats.UserInfo("auth", "auth")}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			cfg, _ := testConfig(t, tc.text)
			cfg.ServiceAccount = tc.account
			s := startServer(t, cfg)
			createStream(t, logConn(t, s), 1)
			if !strings.Contains(tc.name, "and authorization") {
				answers(t, s, client(t, s, tc.good...))
			}
			for i, bad := range tc.bad {
				if nc, err := nats.Connect(s.ClientURL(), bad...); err == nil {
					nc.Close()
					t.Errorf("bad login %d succeeded", i)
				}
			}
		})
	}
}

// writeCertificate writes a certificate for 127.0.0.1 and the user u@example.com, its own authority, and its key.
func writeCertificate(t testing.TB) (cert, key string) {
	t.Helper()
	priv, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, EmailAddresses: []string{"u@example.com"},
		IsCA: true, BasicConstraintsValid: true,
		KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, priv.Public(), priv)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(priv)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	write := func(name, kind string, data []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: data}), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	return write("cert.pem", "CERTIFICATE", der), write("key.pem", "PRIVATE KEY", keyDER)
}

// Checked by taking the line that clears TLSMap out of openToAll: the second case fails.
func TestTLSForClients(t *testing.T) {
	cert, key := writeCertificate(t)
	trust, own := nats.RootCAs(cert), nats.ClientCert(cert, key)
	for _, tc := range []struct {
		name, tls, rest string
		opts            []nats.Option
	}{
		{"required", "", "", []nats.Option{trust}},
		{"verify_and_map without users", "verify_and_map: true", "", []nats.Option{trust, own}},
		{"verify_and_map", "verify_and_map: true", "authorization { users: [{user: u@example.com}] }", []nats.Option{trust, own}},
		{"handshake_first", "handshake_first: true", "", []nats.Option{trust, nats.TLSHandshakeFirst()}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			cfg, _ := testConfig(t, fmt.Sprintf(
				"tls { cert_file: %q, key_file: %q, ca_file: %q, %s }\n%s", cert, key, cert, tc.tls, tc.rest))
			s := startServer(t, cfg)
			createStream(t, logConn(t, s), 1)
			answers(t, s, client(t, s, tc.opts...))
		})
	}
}
