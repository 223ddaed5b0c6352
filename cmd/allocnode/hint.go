package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"
)

// checkCreds wants file to hold credentials: nats.go would say so only once a server asks for them, and then does not name
// the flag.
func checkCreds(file string) error {
	const mend = "--creds or $NATS_CREDS names the file that the account's operator made for this user"
	text, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("credentials: %w: %s", err, mend)
	}
	if _, err := nkeys.ParseDecoratedUserNKey(text); err != nil {
		return fmt.Errorf("credentials: %s holds none (%w): %s", file, err, mend)
	}
	return nil
}

// hinted adds to what went wrong while connecting how to mend it.
func (f *connFlags) hinted(err error) error {
	hint := f.hint(err)
	if hint == "" {
		return err
	}
	return fmt.Errorf("%w: %s", err, hint)
}

func (f *connFlags) hint(err error) string {
	server, user := "--server or $NATS_URL", "--creds, or --user with --password or $NATS_PASSWORD,"
	if f.context != "" {
		server, user = "nats context edit "+f.context, "nats context edit "+f.context
	}
	var lookup *net.DNSError
	var malformed *url.Error
	var address *net.AddrError
	var network net.Error
	switch {
	case strings.HasPrefix(err.Error(), "unknown context"): // natscontext has no error to compare with
		return "nats context ls lists them"
	case errors.Is(err, context.Canceled):
		return "" // a Ctrl-C
	case errors.Is(err, nats.ErrNoServers): // what nats.go makes of a refused connection
		return "nobody listens: is a node up there? " + server + " names another"
	case errors.Is(err, nats.ErrAuthorization), errors.Is(err, nats.ErrAuthExpired), errors.Is(err, nats.ErrAuthRevoked):
		return "the server does not know this user or its password: " + user + " says who asks"
	case errors.As(err, &malformed), errors.As(err, &address):
		return server + " wants nats://HOST:PORT, or several joined by commas"
	case errors.As(err, &lookup):
		return "is the host's name right? " + server + " names another"
	case errors.Is(err, nats.ErrSecureConnWanted), errors.Is(err, nats.ErrSecureConnRequired), isTLS(err):
		return "a context of the nats command line, and --context, name the certificates to trust and to show"
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, nats.ErrTimeout),
		errors.As(err, &network) && network.Timeout():
		return "nobody answers there as a NATS server does: " + server + " names another"
	}
	if f.context != "" {
		return "nats context edit " + f.context + " changes it"
	}
	return ""
}

// isTLS reports whether the handshake failed over a certificate or the protocol.
func isTLS(err error) bool {
	var authority x509.UnknownAuthorityError
	var host x509.HostnameError
	var invalid x509.CertificateInvalidError
	var verification *tls.CertificateVerificationError
	var record tls.RecordHeaderError
	return errors.As(err, &authority) || errors.As(err, &host) || errors.As(err, &invalid) || errors.As(err, &verification) ||
		errors.As(err, &record) || strings.Contains(err.Error(), "tls: ")
}
