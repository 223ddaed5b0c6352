package e2e

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/allocnode/allocnode/internal/node"
)

const configs = "../../configs"

// secrets is the environment that configs/secured.conf and configs/sidecar.conf read.
var secrets = map[string]string{
	"APP_PASSWORD": "app-secret", "OPERATOR_PASSWORD": "operator-secret", "SYS_PASSWORD": "sys-secret",
	"ALLOCNODE_USER": "allocnode", "ALLOCNODE_PASSWORD": "allocnode-secret", "INIT_PASSWORD": "init-secret",
}

func secretEnv() (env []string) {
	for k, v := range secrets {
		env = append(env, k+"="+v)
	}
	return env
}

// TestConfigsLoad loads every file under configs as it stands, so that none is left untested.
func TestConfigsLoad(t *testing.T) {
	for k, v := range secrets {
		t.Setenv(k, v)
	}
	files := 0
	err := filepath.WalkDir(configs, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		files++
		cfg := node.DefaultConfig()
		if err := cfg.LoadConfig(path, func(warning error) { t.Errorf("%s: warning: %v", path, warning) }); err != nil {
			t.Errorf("%v", err)
		} else if err := cfg.Validate(); err != nil {
			t.Errorf("%s: %v", path, err)
		}
		return nil
	})
	if err != nil || files < 7 {
		t.Fatalf("%d files: %v", files, err)
	}
}

// TestSingleConfDefaults holds the values that single.conf gives for the defaults against the defaults.
func TestSingleConfDefaults(t *testing.T) {
	want, got := node.DefaultConfig(), node.DefaultConfig()
	if err := got.LoadConfig(filepath.Join(configs, "single.conf"), func(error) {}); err != nil {
		t.Fatal(err)
	}
	if got.Prefix != want.Prefix || got.AutoCreate != want.AutoCreate || got.Timeout != want.Timeout ||
		got.Defaults != want.Defaults {
		t.Errorf("the file says %+v, the defaults are %+v", got, want)
	}
	g, w := got.Genesis, want.Genesis
	if g.KeyWindow != w.KeyWindow || g.EntryWindow != w.EntryWindow || g.MaxSequences != w.MaxSequences ||
		g.HaltOnExhaustion != w.HaltOnExhaustion {
		t.Errorf("the file says %+v, the defaults are %+v", g, w)
	}
}

var loopback = regexp.MustCompile(`127\.0\.0\.1:(\d+)`)

// copyConfigs copies files with their fixed ports replaced by free ones, alike in all of them. It returns the copies, and
// what became of each port.
func copyConfigs(t *testing.T, dir string, edit func(string) string, files ...string) (copies []string, ports map[string]int) {
	t.Helper()
	ports = make(map[string]int)
	for _, f := range files {
		text, err := os.ReadFile(filepath.Join(configs, f))
		if err != nil {
			t.Fatal(err)
		}
		out := loopback.ReplaceAllStringFunc(edit(string(text)), func(s string) string {
			_, port, _ := strings.Cut(s, ":")
			if ports[port] == 0 {
				ports[port] = freePort(t)
			}
			return "127.0.0.1:" + strconv.Itoa(ports[port])
		})
		copies = append(copies, filepath.Join(dir, filepath.Base(f)))
		if err := os.WriteFile(copies[len(copies)-1], []byte(out), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return copies, ports
}

func asIs(text string) string { return text }

func TestSingleConf(t *testing.T) {
	dir := t.TempDir()
	files, ports := copyConfigs(t, dir, asIs, "single.conf")
	p := start(t, dir, nil, "serve", "--config", files[0])
	nc := connect(t, fmt.Sprintf("nats://127.0.0.1:%d", ports["4222"]))
	eventually(t, "it serves", func() error { return servingAll(statuses(t, nc, 1), 1) })
	if a := ask(t, nc, "alloc.reserve.orders", "1000"); a.Error != nil || a.Start != 1 || a.End != 1001 {
		t.Errorf("got %+v", a)
	}
	if _, err := os.Stat(filepath.Join(dir, "allocnode-data", "single", "catalog")); err != nil {
		t.Error(err)
	}
	p.signal(stopSignal)
	if code := p.exit(t); code != 0 {
		t.Errorf("exit status %d", code)
	}
}

// TestClusterConf starts the three files, one of them a little later: until then there must be no log.
func TestClusterConf(t *testing.T) {
	dir := t.TempDir()
	files, ports := copyConfigs(t, dir, asIs, "cluster/n1.conf", "cluster/n2.conf", "cluster/n3.conf")
	c := &cluster{t: t, dir: dir, names: []string{"n1", "n2", "n3"}, nodes: make([]*process, 3)}
	for _, port := range []string{"4222", "4223", "4224"} {
		c.urls = append(c.urls, fmt.Sprintf("nats://127.0.0.1:%d", ports[port]))
	}
	for i := range 2 {
		c.nodes[i] = start(t, dir, nil, "serve", "--config", files[i])
	}
	nc := connect(t, c.urls...)
	eventually(t, "two wait for the third", func() error {
		all := statuses(t, nc, 2)
		for _, s := range all {
			if s.Ready {
				return fmt.Errorf("%w: %s serves", errStop, s.Name)
			}
			if strings.Contains(s.Reason, "waiting for n3") || strings.Contains(s.Reason, "waiting for the log") {
				return nil // JetStream's own group elects nobody either until it has seen all
			}
		}
		return fmt.Errorf("got %+v", all)
	})
	c.nodes[2] = start(t, dir, nil, "serve", "--config", files[2])
	c.awaitServing(nc)
	if a := ask(t, nc, "alloc.reserve.orders", "1000"); a.Error != nil || a.Start != 1 {
		t.Errorf("got %+v", a)
	}
	c.agree(nc)
}

// TestSecuredConf is what secured.conf promises: who may do what, and that no client answers in a node's name. How it was
// checked: with `subscribe: ">"` for app, the test reports each subscription that the server did not forbid.
func TestSecuredConf(t *testing.T) {
	for _, mode := range []string{"plain", "tls"} {
		t.Run(mode, func(t *testing.T) {
			dir, edit, scheme := t.TempDir(), asIs, "nats"
			var opts []nats.Option
			if mode == "tls" {
				opts = append(opts, nats.Secure(&tls.Config{RootCAs: writeCertificate(t, dir), MinVersion: tls.VersionTLS12}))
				edit, scheme = withTLS(t), "tls"
			}
			files, ports := copyConfigs(t, dir, edit, "secured.conf")
			p := start(t, dir, secretEnv(), "serve", "--config", files[0])
			s := &secured{t: t, url: fmt.Sprintf("%s://127.0.0.1:%d", scheme, ports["4222"]), opts: opts}
			var operator *nats.Conn
			eventually(t, "it lets the operator in", func() (err error) {
				if !p.running() {
					return fmt.Errorf("%w: it has ended", errStop)
				}
				operator, err = s.login("operator", secrets["OPERATOR_PASSWORD"])
				return err
			})
			eventually(t, "it serves", func() error { return servingAll(statuses(t, operator, 1), 1) })
			s.check(operator)
		})
	}
}

// secured is a node that runs with secured.conf.
type secured struct {
	t    *testing.T
	url  string
	opts []nats.Option
}

func (s *secured) login(user, password string) (*nats.Conn, error) {
	quiet := nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {})
	opts := append([]nats.Option{nats.CustomInboxPrefix("_INBOX." + user), quiet}, s.opts...)
	if user != "" {
		opts = append(opts, nats.UserInfo(user, password))
	}
	nc, err := nats.Connect(s.url, opts...)
	if err == nil {
		s.t.Cleanup(nc.Close)
	}
	return nc, err
}

func (s *secured) check(operator *nats.Conn) {
	t := s.t
	for _, bad := range [][2]string{{"nobody", ""}, {"app", "wrong"}, {"app", ""}, {"allocnode-anonymous", ""}} {
		if _, err := s.login(bad[0], bad[1]); !errors.Is(err, nats.ErrAuthorization) {
			t.Errorf("login as %q with password %q: %v", bad[0], bad[1], err)
		}
	}
	app, err := s.login("app", secrets["APP_PASSWORD"])
	if err != nil {
		t.Fatal(err)
	}

	// The operator sets up; the app uses.
	if a := ask(t, operator, "alloc.create.orders", `{"max":4294967295}`); a.Error != nil {
		t.Errorf("create: %+v", a.Error)
	}
	if a := ask(t, operator, "alloc.advance.orders", `{"to":500}`); a.Error != nil || a.HWM != 0 && a.HWM != 500 {
		t.Errorf("advance: %+v", a)
	}
	if a := ask(t, app, "alloc.reserve.orders", "10"); a.Error != nil || a.Start != 501 {
		t.Errorf("reserve: %+v", a)
	}
	if a := ask(t, app, "alloc.info.orders", ""); a.Error != nil || a.HWM != 510 {
		t.Errorf("info: %+v", a)
	}
	if a := ask(t, app, "alloc.list", ""); a.Error != nil {
		t.Errorf("list: %+v", a.Error)
	}
	if a := ask(t, app, "alloc.reserve", `{"requests":[{"sequence":"orders","count":2}]}`); a.Error != nil {
		t.Errorf("a list: %+v", a.Error)
	}

	// What the app may not send reaches nobody.
	for _, subject := range []string{
		"alloc.create.mine", "alloc.advance.orders", "alloc.forget.n1", "alloc.resume.orders",
		"alloc.log.n1", "alloc.node.hello", "$JS.API.STREAM.DELETE.ALLOC_LOG", "$JS.API.STREAM.NAMES", "_INBOX.operator.x", "$SRV.PING",
	} {
		s.forbidden(app, subject, func() error { return app.Publish(subject, []byte(`{"to":9000000}`)) })
	}
	for _, subject := range []string{"alloc.reserve.>", "alloc.>", ">", "_INBOX.>", "_INBOX.operator.>", "alloc.log.*"} {
		s.forbidden(app, subject, func() error {
			_, err := app.QueueSubscribeSync(subject, "any")
			return err
		})
	}
	s.forbidden(operator, "alloc.reserve.>", func() error {
		_, err := operator.SubscribeSync("alloc.reserve.>")
		return err
	})
	if a := ask(t, operator, "alloc.info.orders", `{"consistent":true}`); a.HWM != 512 {
		t.Errorf("the hwm is %d after what was forbidden, want 512", a.HWM)
	}

	// The answer in a node's name, tried.
	_, _ = app.Subscribe("alloc.reserve.>", func(m *nats.Msg) { _ = m.Respond([]byte(`{"start":1,"end":2,"forged":true}`)) })
	for range 20 {
		m, err := operator.Request("alloc.reserve.orders", nil, 5*time.Second)
		if err != nil || bytes.Contains(m.Data, []byte("forged")) {
			t.Fatalf("%v %s", err, m.Data)
		}
	}

	// The log is out of reach, whoever asks: for all of them, there is no such thing.
	sys, err := s.login("sys", secrets["SYS_PASSWORD"])
	if err != nil {
		t.Fatal(err)
	}
	for user, nc := range map[string]*nats.Conn{"operator": operator, "sys": sys} {
		m, err := nc.Request("$JS.API.STREAM.INFO.ALLOC_LOG", nil, time.Second)
		if err == nil && !bytes.Contains(m.Data, []byte(`"error"`)) {
			t.Errorf("%s sees the log: %s", user, m.Data)
		}
	}
}

// forbidden wants the server's word that nc may not do what try does.
func (s *secured) forbidden(nc *nats.Conn, subject string, try func() error) {
	s.t.Helper()
	denied := make(chan error, 1)
	nc.SetErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
		if strings.Contains(strings.ToLower(err.Error()), strings.ToLower(fmt.Sprintf("to %q", subject))) {
			select {
			case denied <- err:
			default:
			}
		}
	})
	if err := try(); err != nil {
		s.t.Fatalf("%s: %v", subject, err)
	}
	if err := nc.FlushTimeout(patience); err != nil {
		s.t.Fatal(err)
	}
	select {
	case err := <-denied:
		if !errors.Is(err, nats.ErrPermissionViolation) {
			s.t.Errorf("%s: %v", subject, err)
		}
	case <-time.After(5 * time.Second):
		s.t.Errorf("%s: the server does not forbid it", subject)
	}
}

var (
	tlsBlock = regexp.MustCompile(`(?ms)^# tls \{$.*?^# \}$`)
	comment  = regexp.MustCompile(`(?m)^# ?`)
)

// withTLS takes the tls block of secured.conf out of its comment.
func withTLS(t *testing.T) func(string) string {
	return func(text string) string {
		if len(tlsBlock.FindAllString(text, -1)) != 1 {
			t.Fatal("want one tls block in a comment")
		}
		return tlsBlock.ReplaceAllStringFunc(text, func(s string) string { return comment.ReplaceAllString(s, "") })
	}
}

// writeCertificate makes the files that the block names, and returns who signed them.
func writeCertificate(t *testing.T, dir string) *x509.CertPool {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "allocnode e2e"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, IsCA: true, BasicConstraintsValid: true,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for name, block := range map[string]*pem.Block{
		"server.pem": {Type: "CERTIFICATE", Bytes: der}, "server-key.pem": {Type: "PRIVATE KEY", Bytes: secret},
	} {
		if err := os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(cert)
	return pool
}
