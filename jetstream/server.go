package jetstream

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
)

const (
	defaultLogAccount = "ALLOC"

	// defaultMaxMemory bounds JetStream's streams in memory, in bytes. The log is a file; nats-server's own default is
	// three quarters of the machine's memory.
	defaultMaxMemory = 64 << 20

	// Clients get the notice, have the grace to move to another node, and are then closed over the rest of the duration.
	// nats-server's defaults of 10 s and 2 min are meant for large servers; a configuration file may still ask for those.
	lameDuckGrace    = 300 * time.Millisecond
	lameDuckDuration = 2 * time.Second

	// startPatience is how long nats-server may take to read its store before this is told, each time; and to come back from
	// its start after it was given up. A flipped bit in a block can make v2.15.3 look for messages up to a seq that is far
	// beyond the end (msgBlock.indexCacheBuf).
	startPatience = 10 * time.Second

	// readyPoll is how long one look at the listeners may take.
	readyPoll = 50 * time.Millisecond

	// minPayload is nats-server's default. A message of the log may need all of it.
	minPayload = 1 << 20

	// watchEvery is how often a running server is asked whether JetStream is still on. nats-server turns it off by
	// itself when the disk is full, and tells only its log.
	watchEvery = 500 * time.Millisecond
)

// ServerConfig says what an embedded server is to be. Its Options are copied, but the accounts that they point to are
// used up by the server: take fresh Options for each Server.
type ServerConfig struct {
	// Options is nats-server's part of the configuration, as [ParseConfig] returns it. Nil means a standalone server
	// that listens on 127.0.0.1:4222 without authentication.
	Options *server.Options

	// Name is the server's name, unique in the cluster, without white space. Empty: Options.ServerName. One of the two
	// is needed, and both must not differ.
	Name string

	// DataDir is where JetStream keeps its files, in a subdirectory "jetstream". Empty: Options.StoreDir. One of the
	// two is needed, and both must not differ.
	DataDir string

	// Host is the address that clients connect to. Empty: Options.Host, or nats-server's default, all addresses.
	Host string

	// Port is the TCP port for clients: -1 picks a free one, 0 leaves it to Options.Port, or 4222.
	Port int

	// LogAccount is the account that the log lives in, of letters, digits, '_' and '-'. Empty: "ALLOC". The operator
	// must not define it.
	LogAccount string

	// ServiceAccount is the clients' account that the service answers in; it must exist. Empty: the global account.
	ServiceAccount string

	// Logger hears what nats-server logs. Nil: slog.Default().
	Logger *slog.Logger
}

// Server is one embedded nats-server with JetStream, that syncs each write to disk before it acknowledges it. The order
// of calls is NewServer, Start, then any of the others from any goroutine, and Shutdown.
type Server struct {
	cfg       ServerConfig
	ns        *server.Server
	log       *slog.Logger
	logUser   identity
	svcUser   identity
	clustered bool

	start    func()        // of nats-server: returns when clients can connect, or after Fatalf
	patience time.Duration // with start; see startPatience

	state  atomic.Int32 // one of the state constants; only grows
	failed chan error   // capacity 1: the first failure
	stop   chan struct{}
	watch  sync.WaitGroup

	shutdown sync.Once
	down     chan struct{} // closed when the server has gone
}

const (
	stateNew int32 = iota
	stateStarted
	stateStopped
)

// NewServer checks cfg and builds the server. It starts nothing and touches no file. The error names the key or field
// that is wrong.
func NewServer(cfg ServerConfig) (*Server, error) {
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	s := &Server{
		log:    cfg.Logger,
		failed: make(chan error, 1),
		stop:   make(chan struct{}),
		down:   make(chan struct{}),
	}
	opts, err := s.buildOptions(cfg)
	if err != nil {
		return nil, fmt.Errorf("configure nats server: %w", err)
	}
	// The server's own rule (standAloneMode), from which follows who deletes whose streams.
	s.clustered = opts.Cluster.Port != 0 || opts.Gateway.Port != 0
	logger := &serverLogger{log: s.log, fatal: func(reason string) { s.fail(s.explain(reason)) }}
	if opts.NoAuthUser == anonymousUser && len(opts.Users) == 1 {
		// Our anonymous user has an empty password on purpose.
		logger.hidden = []string{"Plaintext passwords detected"}
	}
	debug := opts.Debug || s.log.Enabled(context.Background(), slog.LevelDebug)
	if s.ns, err = server.NewServer(opts); err != nil {
		return nil, fmt.Errorf("configure nats server: %w", err)
	}
	s.ns.SetLoggerV2(logger, debug, opts.Trace, opts.TraceVerbose)
	s.start, s.patience = s.ns.Start, startPatience
	return s, nil
}

// buildOptions makes nats-server's options out of cfg, and the internal users with them.
func (s *Server) buildOptions(cfg ServerConfig) (*server.Options, error) {
	// Without a configuration nobody has said that the network may reach an unauthenticated server.
	opts := &server.Options{Host: "127.0.0.1"}
	if cfg.Options != nil {
		opts = cfg.Options.Clone()
		opts.Accounts = slices.Clone(opts.Accounts)
	}
	var faults []error
	refuse := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	// agree picks the one that is given of two ways to say one thing.
	agree := func(key, fromFile, field, given string) string {
		switch {
		case given == "" && fromFile == "":
			refuse("%s is not set", key)
		case given != "" && fromFile != "" && given != fromFile:
			refuse("%s is %q in the configuration, but the %s is %q: take one of them out", key, fromFile, field, given)
		}
		return cmp.Or(given, fromFile)
	}
	cfg.Name = agree("server_name", opts.ServerName, "node's name", cfg.Name)
	cfg.DataDir = agree("store_dir", opts.StoreDir, "data directory", cfg.DataDir)
	cfg.LogAccount = cmp.Or(cfg.LogAccount, defaultLogAccount)
	s.cfg = cfg
	if strings.ContainsFunc(cfg.Name, func(r rune) bool { return unicode.IsSpace(r) || !unicode.IsPrint(r) }) {
		refuse("server_name %q has white space or control characters", cfg.Name)
	}

	opts.ServerName, opts.StoreDir = cfg.Name, cfg.DataDir
	opts.Host = cmp.Or(cfg.Host, opts.Host)
	opts.Port = cmp.Or(cfg.Port, opts.Port)
	opts.DontListen = false // with it routes never form, and lame duck mode does nothing
	opts.NoSigs = true      // signals are the program's
	opts.JetStream = true
	opts.DisableJetStreamBanner = true
	if !opts.SyncAlways && opts.SyncInterval != 0 {
		refuse("jetstream.sync_interval is %v: only \"always\" is allowed, or a power loss loses acknowledged reservations",
			opts.SyncInterval)
	}
	opts.SyncAlways = true
	if opts.JetStreamMaxMemory == 0 {
		opts.JetStreamMaxMemory = defaultMaxMemory
	}
	if opts.LameDuckDuration == 0 && opts.LameDuckGracePeriod == 0 {
		opts.LameDuckDuration, opts.LameDuckGracePeriod = lameDuckDuration, lameDuckGrace
	}
	if opts.MaxPayload != 0 && opts.MaxPayload < minPayload {
		refuse("max_payload is %d: at least %d, or the log cannot take its larger entries", opts.MaxPayload, minPayload)
	}
	if opts.MaxConn > 0 {
		opts.MaxConn += 2 // ours do not take away from the operator's number
	}
	if opts.LogFile != "" || opts.Syslog || opts.RemoteSyslog != "" {
		s.log.Warn("log_file and syslog of the configuration are not used: nats-server logs where the node does")
	}
	switch {
	case opts.Cluster.Port != 0 && opts.Cluster.Name == "":
		refuse("cluster.name is not set: every node needs the same one")
	case opts.Cluster.Port != 0 && len(opts.Routes) == 0:
		refuse("cluster.routes is empty: list all nodes in it, on every node")
	case opts.Cluster.Port == 0 && len(opts.Routes) > 0:
		refuse("cluster.routes are given, but no cluster.listen or cluster.port: nodes could not reach this one")
	}
	faults = append(faults, s.addUsers(opts)...)
	if len(faults) > 0 {
		return nil, errors.Join(faults...)
	}
	return opts, nil
}

// Start runs the server and returns when it accepts connections and JetStream is on in the log's account. In a cluster
// that is before there is a quorum: see Health. A port in use, a JetStream that does not come up, or anything else
// that stops the server is an error of one line that says how to mend it; the server has been shut down then. Start
// works once. When ctx ends while JetStream recovers its streams, it returns after that.
func (s *Server) Start(ctx context.Context) error {
	if ctx.Err() != nil {
		return fmt.Errorf("start nats server %q: %w", s.Name(), context.Cause(ctx))
	}
	if !s.state.CompareAndSwap(stateNew, stateStarted) {
		return fmt.Errorf("start nats server %q: it was started or shut down before", s.Name())
	}
	started := make(chan struct{})
	go func() {
		defer close(started)
		s.start()
	}()
	err := s.awaitReady(ctx, started)
	if err == nil {
		err = s.checkAccount()
	}
	if err != nil {
		// nats-server must not be shut down before its Start has returned: it would go on to start JetStream and
		// listeners, and nobody would stop those. One that hangs ends with the process.
		select {
		case <-started:
			s.abort()
		case <-time.After(s.patience):
			err = fmt.Errorf("%w; it still hangs in its start, and ends with the process only", err)
		}
		return fmt.Errorf("start nats server %q: %w", s.Name(), err)
	}
	s.watch.Go(s.watchJetStream)
	return nil
}

func (s *Server) awaitReady(ctx context.Context, started <-chan struct{}) error {
	slow := time.NewTicker(s.patience)
	defer slow.Stop()
	for begun, up := time.Now(), false; !up; {
		select {
		case err := <-s.failed:
			return err
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-slow.C:
			s.log.Warn("nats-server is still reading its store: with much data that takes a while, but a damaged file can keep it "+
				"busy for ever", "since", time.Since(begun).Round(time.Second), "data", s.cfg.DataDir)
		case <-started:
			up = true
		}
	}
	// The listener for routes comes up in a goroutine of its own.
	for {
		ready := s.ns.ReadyForConnections(readyPoll)
		select {
		case err := <-s.failed:
			return err
		case <-ctx.Done():
			return context.Cause(ctx)
		default:
		}
		if ready {
			return nil
		}
	}
}

func (s *Server) checkAccount() error {
	acc, err := s.ns.LookupAccount(s.cfg.LogAccount)
	if err != nil {
		return fmt.Errorf("account %s: %w", s.cfg.LogAccount, err)
	}
	if !s.ns.JetStreamEnabled() || !acc.JetStreamEnabled() {
		return fmt.Errorf("JetStream is not on in account %s: see the log lines above", s.cfg.LogAccount)
	}
	return nil
}

// watchJetStream reports a JetStream that was turned off, once.
func (s *Server) watchJetStream() {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for {
		select {
		case <-s.stop:
			return
		case <-tick.C:
			if !s.ns.JetStreamEnabled() {
				s.fail(fmt.Errorf("nats server %q has turned JetStream off: is the disk of %q full or failing? "+
					"Mend it, then restart the node", s.Name(), s.cfg.DataDir))
				return
			}
		}
	}
}

// fail keeps the first failure.
func (s *Server) fail(err error) {
	select {
	case s.failed <- err:
	default:
	}
}

// explain adds to one of nats-server's last words what to do about it.
func (s *Server) explain(reason string) error {
	hint := ""
	switch {
	case strings.Contains(reason, "address already in use"):
		hint = ": another process listens there: stop it, or configure another port"
	case strings.Contains(reason, "Can't start JetStream"):
		hint = fmt.Sprintf(": the data directory is %q: it must be a directory that this process can write to, with space "+
			"left and intact files", s.cfg.DataDir)
	case strings.Contains(reason, "cannot assign requested address"):
		hint = ": no interface of this machine has that address: configure another host"
	case strings.Contains(reason, "permission denied"):
		hint = ": this process lacks the right: ports below 1024 often need it"
	}
	return errors.New(strings.ReplaceAll(reason, "\n", " ") + hint)
}

// LogConn opens an in-process connection to the log's account. It reconnects for ever unless opts say otherwise, and
// the caller closes it. No client can log in as its user, which has a key made at start and may connect in-process only.
func (s *Server) LogConn(opts ...nats.Option) (*nats.Conn, error) {
	return s.connect("log", s.logUser, opts)
}

// ServiceConn is LogConn for the clients' account.
func (s *Server) ServiceConn(opts ...nats.Option) (*nats.Conn, error) {
	return s.connect("service", s.svcUser, opts)
}

func (s *Server) connect(role string, id identity, opts []nats.Option) (*nats.Conn, error) {
	all := []nats.Option{nats.Name("allocnode " + s.Name() + " " + role), nats.MaxReconnects(-1)}
	all = append(all, opts...)
	// Last, so that no option of the caller leads elsewhere.
	all = append(all, nats.InProcessServer(s.ns), nats.Nkey(id.public, id.sign))
	nc, err := nats.Connect("", all...)
	if err != nil {
		return nil, fmt.Errorf("connect to nats server %q in-process as its %s user: %w", s.Name(), role, err)
	}
	return nc, nil
}

// ClientURL is the URL for clients of this server, such as nats://127.0.0.1:4222. The host is as configured, so it may
// be 0.0.0.0. It holds the chosen port after Start.
func (s *Server) ClientURL() string { return s.ns.ClientURL() }

// ClusterAddr is the address that routes connect to, or nil where there is no cluster or the server does not run.
func (s *Server) ClusterAddr() net.Addr {
	if addr := s.ns.ClusterAddr(); addr != nil {
		return addr
	}
	return nil // not a *net.TCPAddr that is nil inside an interface that is not
}

// Clustered reports whether JetStream runs clustered. A store must not change sides: nats-server deletes a standalone
// node's streams as orphans soon after it is restarted with a cluster block.
func (s *Server) Clustered() bool { return s.clustered }

// Name is the server's name.
func (s *Server) Name() string { return s.cfg.Name }

// Failed delivers the first thing that broke the server after Start: nats-server gave up, or turned JetStream off. The
// process should shut down then. It is never closed.
func (s *Server) Failed() <-chan error { return s.failed }

// Health is nil while the server accepts connections and JetStream is on. Alone, its streams must be recovered and
// writable too; in a cluster, the meta group must have a leader with which this node is current. It may take a millisecond or
// two, and says nothing of the log's own group.
func (s *Server) Health() error {
	if s.state.Load() != stateStarted {
		return fmt.Errorf("nats server %q is not running", s.Name())
	}
	status := s.ns.Healthz(&server.HealthzOptions{JSMetaOnly: s.clustered})
	if status.Error != "" {
		return fmt.Errorf("nats server %q: %s", s.Name(), status.Error)
	}
	return nil
}

// Shutdown stops the server in good order: Raft leaders are handed over (that takes a second), clients are told and
// given a moment to leave, then everything is closed and awaited. When ctx ends earlier the grace is cut short, and the
// error says so; the server is down nevertheless. Every call waits for the end; the first decides how. Close or drain
// the node's own connections before.
func (s *Server) Shutdown(ctx context.Context) error {
	was := s.state.Swap(stateStopped)
	s.shutdown.Do(func() {
		close(s.stop)
		if was == stateNew {
			// Never started: there is nothing to stop, and nats-server's own Shutdown expects a running one.
			close(s.down)
			return
		}
		go func() {
			defer close(s.down)
			s.watch.Wait()
			s.ns.LameDuckShutdown() // does nothing where the listener is not up
			s.ns.Shutdown()
			s.ns.WaitForShutdown()
		}()
	})
	select {
	case <-s.down:
		return nil // also where ctx has ended as well
	default:
	}
	select {
	case <-s.down:
		return nil
	case <-ctx.Done():
	}
	s.ns.Shutdown()
	<-s.down
	return fmt.Errorf("shut down nats server %q: the grace was cut short: %w", s.Name(), context.Cause(ctx))
}

// abort stops a server whose Start went wrong: there are no clients to be polite to.
func (s *Server) abort() {
	s.state.Store(stateStopped)
	s.shutdown.Do(func() {
		close(s.stop)
		s.ns.Shutdown()
		s.ns.WaitForShutdown()
		close(s.down)
	})
}
