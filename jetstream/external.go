package jetstream

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
)

// External is an existing NATS system that holds the log and carries the service, in place of an embedded server. Its
// servers need JetStream in a cluster of three or more, each with sync_interval: always, which nobody can see from here.
type External struct {
	// URLs are servers of one system, such as nats://10.0.0.1:4222 or tls://…, without user or password. Any one that
	// answers is enough: it names the others.
	URLs []string

	// At most one way to log in: a credentials file, the file of an nkey seed, a token, or a user with password.
	Creds, NKey, Token, User, Password string

	// TLS with files of PEM; all empty is TLS as the URLs and the servers ask for it, with the system's authorities.
	CA, Cert, Key string

	// HandshakeFirst is nats-server's tls { handshake_first: true }.
	HandshakeFirst bool

	// DurabilityAcknowledged is the operator's word that every server has sync_interval: always.
	DurabilityAcknowledged bool
}

const (
	dialTimeout   = 2 * time.Second
	reconnectWait = 250 * time.Millisecond
	sayEvery      = 5 * time.Second // that it still waits for the first connection

	// A server that vanished without a word is noticed after pingInterval times pingsLost: nats.go's own defaults take
	// four minutes, in which a node would wait for a log that answers on other servers.
	pingInterval = 2 * time.Second
	pingsLost    = 2
)

// minServer is the first version that has the fixes for Raft groups that forgot their members (nats-server #8332, #8353).
var minServer = [3]int{2, 14, 4}

// Validate reports every fault of e, by the key under which the configuration has it.
func (e *External) Validate() error {
	var faults []error
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf("nats."+format, args...)) }
	if len(e.URLs) == 0 {
		fault("urls: none given: name the servers of the existing NATS, such as nats://10.0.0.1:4222")
	}
	for _, text := range e.URLs {
		// What stands before an '@' is a secret, or becomes one by a slip in what stands before it.
		shown := text[strings.LastIndexByte(text, '@')+1:]
		u, err := url.Parse(text)
		switch {
		case shown != text:
			fault("urls: the URL that ends in %q holds a user: it would be logged; use the keys user and password, or token", shown)
		case err != nil:
			fault("urls: not a URL such as nats://10.0.0.1:4222")
		case u.Scheme != "nats" && u.Scheme != "tls" && u.Scheme != "ws" && u.Scheme != "wss" || u.Host == "":
			fault("urls: %q: want nats://HOST:PORT or tls://HOST:PORT", text)
		}
	}
	ways := 0
	for _, given := range []bool{e.Creds != "", e.NKey != "", e.Token != "", e.User != "" || e.Password != ""} {
		if given {
			ways++
		}
	}
	if ways > 1 {
		fault("creds, nkey, token, user: give one of them, not %d", ways)
	}
	if e.User == "" && e.Password != "" {
		fault("password: given without a user")
	}
	if (e.Cert == "") != (e.Key == "") {
		fault("tls: cert and key belong together: one of them is missing")
	}
	if !e.DurabilityAcknowledged {
		fault("durability_acknowledged: not set. It is your word that every server of that NATS which may hold the log has " +
			"jetstream { sync_interval: always } and disks that do what fsync says. allocnode cannot see that from outside, and " +
			"without it a power loss takes back reservations that were acknowledged: their ids would be issued twice. " +
			"Set it to true once it is so")
	}
	return errors.Join(faults...)
}

// String names the servers, for messages.
func (e *External) String() string { return strings.Join(e.URLs, ", ") }

// Connect opens one connection, which the caller closes. inbox is the first part of its inboxes. It tries until a server
// answers or ctx ends, and says every few seconds that it waits; a wrong credential, what TLS does not trust, a server that
// is too old or takes no entry of full size is an error at once. Afterwards it reconnects for ever, whatever the servers
// answer meanwhile, and what is published while it is away is an error and not kept: an entry is not to reach the log
// minutes after its requester has gone.
func (e *External) Connect(
	ctx context.Context, name, inbox string, logger *slog.Logger, more ...nats.Option,
) (*nats.Conn, error) {
	opts, err := e.options(name, inbox, logger)
	if err != nil {
		return nil, fmt.Errorf("connect to the existing NATS: %w", err)
	}
	opts = append(opts, more...)
	said := time.Now()
	for {
		nc, err := e.dial(opts)
		if err == nil {
			if err = suits(nc); err == nil {
				return nc, nil
			}
			nc.Close()
			return nil, fmt.Errorf("the existing NATS at %s: %w", e, err)
		}
		if why := refusedForGood(err); why != "" {
			return nil, fmt.Errorf("connect to the existing NATS at %s: %w: %s", e, err, why)
		}
		if time.Since(said) > sayEvery {
			said = time.Now()
			logger.Warn("waiting for the existing NATS", "urls", e.String(), "error", err)
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("connect to the existing NATS at %s: %w: is it up, and reachable from here?", e, err)
		case <-time.After(reconnectWait):
		}
	}
}

// dial tries all servers, once. Of several, nats.go returns what the last one said, and nothing where that is down: one
// that refuses the credentials is asked by itself.
func (e *External) dial(opts []nats.Option) (*nats.Conn, error) {
	nc, err := nats.Connect(strings.Join(e.URLs, ","), opts...)
	if err == nil || len(e.URLs) == 1 || refusedForGood(err) != "" {
		return nc, err
	}
	for _, u := range e.URLs {
		one, oneErr := nats.Connect(u, opts...)
		if oneErr == nil {
			one.Close() // it has just come up: the next try gets all of them
		} else if refusedForGood(oneErr) != "" {
			return nil, oneErr
		}
	}
	return nil, err
}

// refusedForGood is what no waiting betters about err, or empty.
func refusedForGood(err error) string {
	var cert *tls.CertificateVerificationError
	switch {
	case errors.Is(err, nats.ErrAuthorization), errors.Is(err, nats.ErrAuthExpired), errors.Is(err, nats.ErrAuthRevoked),
		errors.Is(err, nats.ErrAccountAuthExpired):
		return "it refuses the credentials of alloc { nats }"
	case errors.As(err, &cert):
		return "its certificate is not trusted, see alloc { nats { tls { ca } } }"
	case errors.Is(err, nats.ErrSecureConnWanted):
		return "alloc { nats } asks for TLS, which it does not offer"
	}
	return ""
}

func (e *External) options(name, inbox string, logger *slog.Logger) ([]nats.Option, error) {
	opts := []nats.Option{
		nats.Name(name), nats.CustomInboxPrefix(inbox), nats.Timeout(dialTimeout),
		nats.MaxReconnects(-1), nats.ReconnectWait(reconnectWait), nats.ReconnectBufSize(-1),
		// Without it a second refusal in a row, of a server that is being reconfigured, closes the connection for good.
		nats.IgnoreAuthErrorAbort(),
		nats.PingInterval(pingInterval), nats.MaxPingsOutstanding(pingsLost),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
			if err != nil {
				logger.Warn("the connection to NATS is lost", "connection", name, "error", err)
			}
		}),
		nats.ReconnectHandler(func(nc *nats.Conn) {
			logger.Info("the connection to NATS is back", "connection", name, "url", nc.ConnectedUrlRedacted())
		}),
		nats.ErrorHandler(func(_ *nats.Conn, sub *nats.Subscription, err error) {
			subject := ""
			if sub != nil {
				subject = sub.Subject
			}
			logger.Warn("NATS", "connection", name, "subject", subject, "error", err)
		}),
	}
	switch {
	case e.Creds != "":
		if _, err := os.ReadFile(e.Creds); err != nil {
			return nil, fmt.Errorf("creds: %w", err)
		}
		creds := nats.UserCredentials(e.Creds)
		var tried nats.Options
		if err := creds(&tried); err != nil {
			return nil, fmt.Errorf("creds: %w", err)
		}
		if _, err := tried.UserJWT(); err != nil { // else it would be found at each try to connect
			return nil, fmt.Errorf("creds: %s holds no user: %w", e.Creds, err)
		}
		if _, err := tried.SignatureCB([]byte("nonce")); err != nil {
			return nil, fmt.Errorf("creds: %s holds no seed: %w", e.Creds, err)
		}
		opts = append(opts, creds)
	case e.NKey != "":
		nkey, err := nats.NkeyOptionFromSeed(e.NKey)
		if err != nil {
			return nil, fmt.Errorf("nkey: seed file %s: %w", e.NKey, err)
		}
		opts = append(opts, nkey)
	case e.Token != "":
		opts = append(opts, nats.Token(e.Token))
	case e.User != "":
		opts = append(opts, nats.UserInfo(e.User, e.Password))
	}
	if e.CA != "" || e.Cert != "" || e.HandshakeFirst {
		cfg, err := e.tlsConfig()
		if err != nil {
			return nil, err
		}
		opts = append(opts, nats.Secure(cfg))
	}
	if e.HandshakeFirst {
		opts = append(opts, nats.TLSHandshakeFirst())
	}
	return opts, nil
}

func (e *External) tlsConfig() (*tls.Config, error) {
	cfg := &tls.Config{MinVersion: tls.VersionTLS12}
	if e.CA != "" {
		pem, err := os.ReadFile(e.CA)
		if err != nil {
			return nil, fmt.Errorf("tls.ca: %w", err)
		}
		cfg.RootCAs = x509.NewCertPool()
		if !cfg.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("tls.ca: %s holds no certificate in PEM", e.CA)
		}
	}
	if e.Cert != "" {
		pair, err := tls.LoadX509KeyPair(e.Cert, e.Key)
		if err != nil {
			return nil, fmt.Errorf("tls.cert and tls.key: %w", err)
		}
		cfg.Certificates = []tls.Certificate{pair}
	}
	return cfg, nil
}

// suits is why the server that nc is connected to cannot carry a log.
func suits(nc *nats.Conn) error {
	at, want := nc.ConnectedUrlRedacted(), minServer
	if v := nc.ConnectedServerVersion(); olderThan(v, want) {
		return fmt.Errorf("%s is nats-server %s: want %d.%d.%d or later", at, v, want[0], want[1], want[2])
	}
	if n := nc.MaxPayload(); n < maxMessage {
		return fmt.Errorf("%s has max_payload %d: want %d, nats-server's default, or more", at, n, maxMessage)
	}
	return nil
}

// olderThan compares the numbers of a version; what follows them ("-RC.1") does not count, and what is no version is old.
func olderThan(version string, than [3]int) bool {
	version, _, _ = strings.Cut(version, "-")
	parts := strings.Split(version, ".")
	for i, want := range than {
		if i >= len(parts) {
			return true
		}
		n, err := strconv.Atoi(parts[i])
		if err != nil || n < want {
			return true
		}
		if n > want {
			return false
		}
	}
	return false
}
