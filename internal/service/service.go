package service

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/allocnode/allocnode"
	"github.com/allocnode/allocnode/internal/propose"
	"github.com/allocnode/allocnode/internal/wire"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"
)

// Name is the name of the micro service.
const Name = "allocnode"

// DefaultTimeout is how long a request may take: less than the 5 s after which the usual clients give up.
const DefaultTimeout = 4 * time.Second

// overlap is how long the old subscriptions stay beside the new ones. A request for which the server has looked up who
// listens just before it took note of the new ones finds the old ones only, and no word tells when none such is left. On a
// busy machine one swap in two hundred met one. It is for the requester's comfort: nobody listening is an error, at once.
const overlap = 50 * time.Millisecond

// subscribeTimeout bounds the wait for the server to take note of subscriptions. It answers at once, or something is broken.
const subscribeTimeout = 10 * time.Second

// Submitter hands operations to the log. Submit must not block, and calls r.Done exactly once, by r.Deadline. When Done
// is called with a seq, a State read by another goroutine from then on has that entry in it.
type Submitter interface {
	Submit(r *propose.Request)
}

// State is the node's own view of the sequences. Its methods are called from any goroutine, but never within Done.
type State interface {
	// Info is the state of one sequence.
	Info(name string) (wire.SequenceInfo, bool)

	// List is a page of at most limit sequences in the order of their creation, what to give as after for the next page
	// (0: there is none), and how many sequences there are in all. It may return what the caller then keeps.
	List(after uint64, limit int) (page []wire.SequenceInfo, next uint64, total int)

	// Cursor is the seq of the last entry applied. Info and List called after it are at least as new.
	Cursor() uint64
}

// Config is what a Service is made with.
type Config struct {
	Prefix  string // of all subjects, one or more subject tokens
	Node    string // this node's name, for the service's metadata
	Version string // of the product, in SemVer's syntax: micro accepts no other

	// AutoCreate and Defaults are as in the entries that the proposer makes: whether a sequence comes into being on first
	// use, and with what settings.
	AutoCreate bool
	Defaults   wire.Settings

	Timeout time.Duration // from a request's arrival to its answer, at least 1 ms
}

// DefaultConfig is the configuration of a node that was told nothing, but for its Node and Version.
func DefaultConfig() Config {
	return Config{
		Prefix:     "alloc",
		AutoCreate: true,
		Defaults:   wire.Settings{First: 1, Max: allocnode.DefaultMax, MaxCount: allocnode.DefaultMaxCount},
		Timeout:    DefaultTimeout,
	}
}

// Validate reports every fault of c.
func (c *Config) Validate() error {
	var errs []error
	if err := allocnode.CheckName(c.Prefix); err != nil {
		errs = append(errs, fmt.Errorf("prefix %q: want subject tokens of letters, digits, '_' and '-'", c.Prefix))
	}
	if c.Version == "" {
		errs = append(errs, errors.New("version is empty"))
	}
	if err := c.Defaults.Check(); err != nil {
		errs = append(errs, fmt.Errorf("defaults: %w", err))
	}
	if c.Timeout < time.Millisecond {
		errs = append(errs, fmt.Errorf("timeout %s: want 1ms or more", c.Timeout))
	}
	return errors.Join(errs...)
}

// Service answers on one connection. Its methods may be called from any goroutine, but not from a handler.
type Service struct {
	nc       *nats.Conn
	cfg      Config
	submit   Submitter // users' requests
	operator Submitter // forget and resume, which a node takes that does not serve
	taker    Taker
	state    State
	status   func() wire.Status

	outbox   *outbox
	counters [endpoints]counters

	mu      sync.Mutex // guards all below; held while subscribing, so that two starts cannot overlap
	always  *run       // status; nil before Start and after Close
	operate *run       // forget and resume
	serve   *run       // the micro service
	leaving []*run     // what serve was before, with requests that are not answered yet
}

// New makes a Service from a valid cfg. It starts nothing. Set nc's closed and error handlers before StartServing, not
// later: micro chains to those that it finds. submit takes users' requests, and refuses them while the node is fenced;
// operate takes forget and resume, then too. taker gives the ids of next. status must return at once, and is called from
// any goroutine.
func New(
	nc *nats.Conn, cfg Config, submit, operate Submitter, taker Taker, state State, status func() wire.Status,
) *Service {
	return &Service{
		nc: nc, cfg: cfg, submit: submit, operator: operate, taker: taker, state: state, status: status, outbox: newOutbox(nc),
	}
}

// Start answers on the status subject, until Close.
func (s *Service) Start() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.always != nil {
		return errors.New("service: started twice")
	}
	r := newRun(s, wire.ID{})
	if err := r.subscribe(epStatus, ""); err != nil {
		return err
	}
	s.outbox.start()
	s.always = r
	return nil
}

// StartOperators takes forget and resume requests, until Close, whether the node serves or not. It wants Start before it.
func (s *Service) StartOperators(cluster wire.ID) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.always == nil || s.operate != nil {
		return errors.New("service: operators' subjects started before Start, or twice")
	}
	r := newRun(s, cluster)
	for _, ep := range []endpoint{epForget, epResume} {
		if err := r.subscribe(ep, OperatorQueue(cluster)); err != nil {
			r.unsubscribe()
			return err
		}
	}
	s.operate = r
	return nil
}

// StartServing adds the micro service, whose queue group carries the cluster id. Without appends it lacks the endpoints
// that go through the log: another node takes those. It wants Start before it. Called while serving, it puts another micro
// service in place of the one before, which ends 50 ms after the new one has begun: so at no moment is nobody there, and
// what the one before has received is still answered.
func (s *Service) StartServing(cluster wire.ID, appends bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.always == nil {
		return errors.New("service: serving started before Start")
	}
	r := newRun(s, cluster)
	if err := r.addService(appends); err != nil {
		return fmt.Errorf("add the micro service %s %s: %w", Name, s.cfg.Version, err)
	}
	before := s.serve
	s.serve = r
	ctx, cancel := context.WithTimeout(context.Background(), subscribeTimeout)
	defer cancel()
	err := s.nc.FlushWithContext(ctx) // once it returns, the server has the subscriptions
	if err != nil && !s.nc.IsClosed() {
		err = nil // a connection that is away brings them with it when it is back
	}
	if before != nil {
		time.Sleep(overlap)
		s.leaving = append(slices.DeleteFunc(s.leaving, (*run).isIdle), before)
		err = errors.Join(err, before.leave(ctx))
	}
	if err != nil {
		return fmt.Errorf("start the micro service: %w", err)
	}
	return nil
}

// Drain ends serving: no further request is taken, so that other nodes answer, and what was received is answered. It
// returns nil once that is so and the answers have been sent, and an error when ctx ends first; what was received is
// answered then too, later. Status and the operators' subjects go on. Without StartServing it returns nil.
func (s *Service) Drain(ctx context.Context) error {
	s.mu.Lock()
	r, leaving := s.serve, s.leaving
	s.serve, s.leaving = nil, nil
	s.mu.Unlock()
	return s.drain(ctx, leaving, r)
}

// Close drains everything, and ends the goroutine that publishes. The connection stays open.
func (s *Service) Close(ctx context.Context) error {
	s.mu.Lock()
	runs, leaving := []*run{s.serve, s.operate, s.always}, s.leaving
	started := s.always != nil
	s.serve, s.operate, s.always, s.leaving = nil, nil, nil, nil
	s.mu.Unlock()
	err := s.drain(ctx, leaving, runs...)
	if started {
		s.outbox.close()
	}
	return err
}

// drain drains runs, and awaits those that leave already.
func (s *Service) drain(ctx context.Context, leaving []*run, runs ...*run) error {
	if _, ok := ctx.Deadline(); !ok { // FlushWithContext wants one
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, 2*s.cfg.Timeout)
		defer cancel()
	}
	var errs []error
	for _, r := range runs {
		errs = append(errs, r.drain(ctx))
	}
	for _, r := range leaving {
		errs = append(errs, r.await(ctx))
	}
	return errors.Join(errs...)
}

// Queue is the queue group of the nodes of one cluster. Two clusters on one subject never share a group: both answer each
// request, and a client that pins its cluster refuses the other's answer.
func Queue(cluster wire.ID) string { return Name + "-" + cluster.String() }

// OperatorQueue is the queue group for forget and resume: nodes that do not serve belong to it too.
func OperatorQueue(cluster wire.ID) string { return Name + "-operators-" + cluster.String() }

// mayAnswer reports whether an answer may go to reply. A node may publish where its requester may not: the server's own
// subjects, key-value buckets ("$KV."), the log. The server itself refuses only "$JS.API." as a reply.
func (s *Service) mayAnswer(reply string) bool {
	return reply[0] != '$' && (!strings.HasPrefix(reply, s.cfg.Prefix) ||
		len(reply) > len(s.cfg.Prefix) && reply[len(s.cfg.Prefix)] != '.')
}

func (r *run) addService(appends bool) error {
	s := r.s
	svc, err := micro.AddService(s.nc, micro.Config{
		Name:         Name,
		Version:      s.cfg.Version,
		Description:  "unique integer ids, never issued twice",
		QueueGroup:   Queue(r.cluster),
		Metadata:     map[string]string{"cluster": r.cluster.String(), "node": s.cfg.Node},
		StatsHandler: func(e *micro.Endpoint) any { return s.endpointStats(e.Name) },
	})
	if err != nil {
		return err
	}
	for ep := range firstInternal {
		if table[ep].appends && !appends {
			continue
		}
		h := micro.HandlerFunc(func(req micro.Request) { r.handle(ep, req.Subject(), req.Reply(), req.Data()) })
		if err := svc.AddEndpoint(ep.String(), h, micro.WithEndpointSubject(s.subject(ep))); err != nil {
			return errors.Join(err, svc.Stop())
		}
	}
	r.svc = svc
	return nil
}
