package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/spf13/cobra"
	"github.com/synadia-io/orbit.go/natscontext"

	"github.com/allocnode/allocnode"
	"github.com/allocnode/allocnode/client"
	"github.com/allocnode/allocnode/internal/wire"
)

// connFlags are the flags of every command that asks a cluster.
type connFlags struct {
	server   string
	creds    string
	user     string
	password string
	context  string
	inbox    string
	prefix   string
	timeout  time.Duration
	json     bool
}

func (f *connFlags) add(cmd *cobra.Command) {
	fs := cmd.Flags()
	fs.StringVarP(&f.server, "server", "s", "",
		"`URL`s of the servers, joined by commas (default $NATS_URL, or "+nats.DefaultURL+")")
	fs.StringVar(&f.creds, "creds", "", "`FILE` with the user's credentials (default $NATS_CREDS)")
	fs.StringVar(&f.user, "user", "", "`NAME` of the user (default $NATS_USER)")
	fs.StringVar(&f.password, "password", "",
		"`PASSWORD` of the user (default $NATS_PASSWORD, which other users of the machine cannot see)")
	fs.StringVar(&f.context, "context", "", "`NAME` of a context of the nats command line, instead of the flags above")
	fs.StringVar(&f.inbox, "inbox-prefix", "",
		"`SUBJECT` below which this user may listen for answers (default _INBOX, or the context's)")
	fs.StringVar(&f.prefix, "prefix", "alloc", "`SUBJECT` that the cluster's subjects begin with")
	fs.DurationVar(&f.timeout, "timeout", 5*time.Second, "how long to wait for the answer in all, connecting included")
	fs.BoolVar(&f.json, "json", false, "print the reply as JSON")
}

func (f *connFlags) check() error {
	switch {
	case f.timeout <= 0:
		return fmt.Errorf("--timeout %s: want more than 0, such as 5s", f.timeout)
	case allocnode.CheckName(f.prefix) != nil:
		return fmt.Errorf("--prefix %q: want subject tokens of letters, digits, '_' and '-' joined by dots", f.prefix)
	case strings.ContainsAny(f.inbox, "*> \t\r\n") || slices.Contains(strings.Split(f.inbox, "."), "") && f.inbox != "":
		return fmt.Errorf("--inbox-prefix %q: want subject tokens without wildcards, such as _INBOX.app", f.inbox)
	case f.context != "" && f.server+f.creds+f.user+f.password != "":
		return errors.New("--context says which servers and which user: leave --server, --creds, --user and --password out")
	case f.creds != "" && f.user != "":
		return errors.New("--creds and --user are two ways to say who asks: leave one out")
	case f.user == "" && f.password != "":
		return errors.New("--password: --user NAME is missing")
	}
	return nil
}

// connect connects as the flags say, and where they are silent, as the environment of the nats command line does. It ends
// with ctx. fail is called, at any time until the connection is closed, when the server forbids what was asked.
func (f *connFlags) connect(ctx context.Context, fail func(error)) (*nats.Conn, error) {
	ctx, stop := context.WithTimeoutCause(ctx, f.timeout, f.overdue())
	defer stop()
	opts := []nats.Option{
		nats.Name("allocnode command line"), nats.Timeout(f.timeout),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
			// The server says nothing to the request itself: without this it would look as if no node answered.
			if errors.Is(err, nats.ErrPermissionViolation) {
				fail(&forbiddenError{err})
			}
		}),
	}
	if f.inbox != "" {
		opts = append(opts, nats.CustomInboxPrefix(f.inbox))
	}
	dial := func() (*nats.Conn, error) {
		nc, _, err := natscontext.Connect(f.context, opts...)
		return nc, err
	}
	where := "with the context " + f.context
	if f.context == "" {
		servers, opts, err := f.login(opts)
		if err != nil {
			return nil, err
		}
		dial = func() (*nats.Conn, error) { return nats.Connect(servers, opts...) }
		where = "to " + withoutSecrets(servers)
	}
	nc, err := during(ctx, dial)
	if err != nil {
		if malformed := (*url.Error)(nil); errors.As(err, &malformed) {
			malformed.URL = withoutSecrets(malformed.URL)
		}
		return nil, fmt.Errorf("connect %s: %w", where, f.hinted(err))
	}
	if err := f.mayListen(ctx, nc); err != nil {
		nc.Close()
		return nil, err
	}
	return nc, nil
}

// overdue is the error of a command that has used up its time.
func (f *connFlags) overdue() error {
	return fmt.Errorf("%w after --timeout %s", context.DeadlineExceeded, f.timeout)
}

// withoutSecrets is what may be shown of URLs joined by commas: messages end in logs and in reports. A name that stands alone
// before the host is a token.
func withoutSecrets(urls string) string {
	all := strings.Split(urls, ",")
	for i, u := range all {
		at := strings.LastIndexByte(u, '@')
		if at < 0 {
			continue
		}
		begin := 0
		if n := strings.Index(u, "://"); n >= 0 && n < at {
			begin = n + len("://")
		}
		name, _, named := strings.Cut(u[begin:at], ":")
		if named {
			name += ":"
		} else {
			name = ""
		}
		all[i] = u[:begin] + name + "xxxxx" + u[at:]
	}
	return strings.Join(all, ",")
}

// login says where to connect, and adds as whom to opts.
func (f *connFlags) login(opts []nats.Option) (servers string, _ []nats.Option, _ error) {
	or := func(flag, env string) string {
		if flag != "" || f.creds+f.user != "" && env != "NATS_PASSWORD" && env != "NATS_URL" {
			return flag
		}
		return os.Getenv(env)
	}
	creds, user := or(f.creds, "NATS_CREDS"), or(f.user, "NATS_USER")
	switch {
	case creds != "":
		if err := checkCreds(creds); err != nil {
			return "", nil, err
		}
		opts = append(opts, nats.UserCredentials(creds))
	case user != "":
		opts = append(opts, nats.UserInfo(user, or(f.password, "NATS_PASSWORD")))
	}
	if servers = or(f.server, "NATS_URL"); servers == "" {
		servers = nats.DefaultURL
	}
	return servers, opts, nil
}

// during is dial, or the end of ctx if that comes first: nats.go looks names up and shakes hands without a context. What
// comes of it afterwards is closed.
func during(ctx context.Context, dial func() (*nats.Conn, error)) (*nats.Conn, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	type dialled struct {
		nc  *nats.Conn
		err error
	}
	done := make(chan dialled)
	go func() {
		nc, err := dial()
		select {
		case done <- dialled{nc, err}:
		case <-ctx.Done():
			if nc != nil {
				nc.Close()
			}
		}
	}()
	select {
	case d := <-done:
		return d.nc, d.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// mayListen asks the server whether answers can come in. A request that is sent without that is carried out, and what it
// got is lost: the ids of a reservation would be a gap.
func (f *connFlags) mayListen(ctx context.Context, nc *nats.Conn) error {
	sub, err := nc.SubscribeSync(nc.NewInbox() + ".*.*") // as client does
	if err == nil {
		err = nc.FlushWithContext(ctx)
	}
	// The server refuses before it answers the flush. The error handler may have ended ctx for the same reason.
	if err := nc.LastError(); errors.Is(err, nats.ErrPermissionViolation) {
		return fmt.Errorf("%w: nothing was asked: this user may listen for answers elsewhere, "+
			"and --inbox-prefix SUBJECT says where, such as _INBOX.app", err)
	}
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case err != nil:
		return fmt.Errorf("listen for answers: %w", err)
	}
	return sub.Unsubscribe()
}

// forbiddenError is the server's word that the user may not do what was asked.
type forbiddenError struct{ err error }

func (e *forbiddenError) Error() string { return fmt.Sprintf("%v: this user may not ask that", e.err) }

func (e *forbiddenError) Unwrap() error { return e.err }

// ask connects, lets fn ask, and disconnects. What fn prints goes to out.
func (f *connFlags) ask(cmd *cobra.Command, fn func(ctx context.Context, c *client.Client, out io.Writer) error) error {
	if err := f.check(); err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(cmd.Context())
	defer cancel(nil)
	ctx, stop := context.WithTimeoutCause(ctx, f.timeout, f.overdue())
	defer stop()
	nc, err := f.connect(ctx, cancel)
	if err != nil {
		return err
	}
	defer nc.Close()
	c, err := client.New(nc, client.WithPrefix(f.prefix))
	if err != nil {
		return err
	}
	defer c.Close()
	err = fn(ctx, c, cmd.OutOrStdout())
	// The client cannot know what became of a request whose context ended. The server said it: it was not passed on.
	if forbidden := (*forbiddenError)(nil); err != nil && errors.As(context.Cause(ctx), &forbidden) {
		return forbidden
	}
	if err != nil && f.json {
		f.printError(cmd.OutOrStdout(), c, err)
	}
	return err
}

// printError prints what went wrong as a node would have said it.
func (f *connFlags) printError(out io.Writer, c *client.Client, err error) {
	var refusal *allocnode.Error
	switch {
	case errors.Is(err, allocnode.ErrUnknownOutcome):
		refusal = allocnode.Errorf(allocnode.CodeUnknownOutcome, "%v", err)
	case !errors.As(err, &refusal):
		return
	}
	fmt.Fprintf(out, "%s\n", wire.AppendErrorReply(nil, refusal, clusterOf(c)))
}

// clusterOf is the cluster that has answered, for replies in JSON.
func clusterOf(c *client.Client) wire.ID {
	id, err := wire.ParseID(c.Cluster())
	if err != nil {
		return wire.ID{} // none has
	}
	return id
}

// number reads a number of an argument or flag, from least up.
func number(what, text string, least uint64) (uint64, error) {
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil || n < least || n > math.MaxInt64 {
		return 0, fmt.Errorf("%s %q: want a whole number from %d to %d", what, text, least, allocnode.MaxID)
	}
	return n, nil
}

// exactly wants the named arguments, all of them.
func exactly(names ...string) cobra.PositionalArgs { return between(len(names), names...) }

// between wants the first least of the named arguments, and allows the others.
func between(least int, names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) < least {
			return fmt.Errorf("%s is missing: %s", names[len(args)], cmd.UseLine())
		}
		if len(args) > len(names) {
			return fmt.Errorf("%q is one argument too many: %s", args[len(names)], cmd.UseLine())
		}
		return nil
	}
}

// printArray prints JSON objects as one array.
func printArray(out io.Writer, elements []json.RawMessage) error {
	b, err := json.Marshal(elements)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, "%s\n", b)
	return err
}
