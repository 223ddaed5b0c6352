//go:build linux

package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/allocnode/allocnode/internal/wire"
)

const (
	firstStream = "ALLOC_LOG" // of the first epoch; later ones have a number behind it

	// The observer's users, one for each account. They exist on the observer alone, which no client of the nodes reaches.
	logUser, systemUser = "log", "system"
	anonymous           = "anonymous"
	observerSecret      = "chaos"
)

// startObserver starts the observer's process; see [Observe].
func (l *Lab) startObserver() (err error) {
	var routes []string
	for _, n := range l.Nodes {
		routes = append(routes, fmt.Sprintf("\"nats://%s:%d\"", n.host.ip, routePort))
	}
	conf := filepath.Join(l.cfg.Dir, "observer.conf")
	text := fmt.Sprintf(`server_name: observer
listen: "%s:%d"
cluster { name: chaos, listen: "%[1]s:%[3]d", routes: [%[4]s], no_advertise: true }
leafnodes { listen: "%[1]s:7422" }
accounts {
  ALLOC { jetstream: enabled, users: [ { user: %[5]s, password: %[7]s } ] }
  "$SYS" { users: [ { user: %[6]s, password: %[7]s } ] }
}
system_account: "$SYS"
`, l.ctl.ip, clientPort, routePort, strings.Join(routes, ", "), logUser, systemUser, observerSecret)
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		return fmt.Errorf("start the observer: %w", err)
	}
	l.observer, err = l.startProcess(l.ctl, filepath.Join(l.cfg.Dir, "observer.log"), nil, l.cfg.Self, "observe", conf)
	return err
}

// Observe is the observer's process: a nats-server by the file conf, until ctx ends.
func Observe(ctx context.Context, conf string) error {
	opts, err := server.ProcessConfigFile(conf)
	if err != nil {
		return fmt.Errorf("observe: %w", err)
	}
	opts.NoSigs = true
	// The configuration has no way to put a user beside others into the global account, the clients'.
	opts.Users, opts.NoAuthUser = append(opts.Users, &server.User{Username: anonymous}), anonymous
	s, err := server.NewServer(opts)
	if err != nil {
		return fmt.Errorf("observe: %w", err)
	}
	s.ConfigureLogger()
	s.Start()
	<-ctx.Done()
	s.Shutdown()
	s.WaitForShutdown()
	return nil
}

// Observer sees into the cluster. Requests that nobody answers are errors; ask again.
type Observer struct {
	clients, log, system *nats.Conn

	stream string // the log
	first  uint64 // seq at which it begins
}

// Observer connects to the observer's three accounts. The connections come back by themselves; Close ends them.
func (l *Lab) Observer(ctx context.Context) (*Observer, error) {
	o := &Observer{stream: firstStream, first: 1}
	for _, c := range []struct {
		user string
		nc   **nats.Conn
	}{{"", &o.clients}, {logUser, &o.log}, {systemUser, &o.system}} {
		nc, err := nats.Connect(fmt.Sprintf("nats://%s:%d", l.ctl.ip, clientPort),
			nats.SetCustomDialer(Dialer{l.ctl.netns}), nats.MaxReconnects(-1), nats.ReconnectWait(100*time.Millisecond),
			nats.RetryOnFailedConnect(true), nats.UserInfo(c.user, map[bool]string{true: observerSecret}[c.user != ""]))
		if err != nil {
			o.Close()
			return nil, fmt.Errorf("connect to the observer: %w", err)
		}
		*c.nc = nc
		for !nc.IsConnected() {
			if err := ctx.Err(); err != nil || !l.observer.Running() {
				o.Close()
				return nil, errors.Join(fmt.Errorf("connect to the observer: its process: %s", l.observer.End()), err)
			}
			pause()
		}
	}
	return o, nil
}

// Connect makes a connection of the campaign's to one node, as a client of it, which is not told of others.
func (l *Lab) Connect(n *Node) (*nats.Conn, error) {
	return nats.Connect(n.URL(), nats.SetCustomDialer(Dialer{l.ctl.netns}), nats.MaxReconnects(-1), nats.IgnoreDiscoveredServers(),
		nats.ReconnectWait(200*time.Millisecond), nats.RetryOnFailedConnect(true), nats.Timeout(dialTimeout))
}

// ConnectAny makes a connection of the campaign's to one of several addresses, and to another when that one goes.
func (l *Lab) ConnectAny(urls []string) (*nats.Conn, error) {
	return nats.Connect(strings.Join(urls, ","), nats.SetCustomDialer(Dialer{l.ctl.netns}), nats.MaxReconnects(-1),
		nats.ReconnectWait(200*time.Millisecond), nats.Timeout(dialTimeout))
}

// Close ends the connections.
func (o *Observer) Close() {
	for _, nc := range []*nats.Conn{o.clients, o.log, o.system} {
		if nc != nil {
			nc.Close()
		}
	}
}

// Statuses asks all nodes and collects what comes until want have answered or wait is over.
func (o *Observer) Statuses(want int, wait time.Duration) (map[string]wire.Status, error) {
	inbox, err := o.clients.SubscribeSync(o.clients.NewRespInbox())
	if err != nil {
		return nil, fmt.Errorf("ask for the nodes' status: %w", err)
	}
	defer inbox.Unsubscribe() //nolint:errcheck // the connection is being closed, then
	if err := o.clients.PublishRequest("alloc.status", inbox.Subject, nil); err != nil {
		return nil, fmt.Errorf("ask for the nodes' status: %w", err)
	}
	all := map[string]wire.Status{}
	for end := time.Now().Add(wait); len(all) < want; {
		m, err := inbox.NextMsg(time.Until(end))
		if err != nil {
			return all, nil // who does not answer is missing, also when nobody does
		}
		var s wire.Status
		if len(m.Data) == 0 || json.Unmarshal(m.Data, &s) != nil || s.Name == "" {
			continue
		}
		all[s.Name] = s
	}
	return all, nil
}

// Request asks the service through the observer.
func (o *Observer) Request(subject, body string, wait time.Duration) ([]byte, error) {
	m, err := o.clients.Request(subject, []byte(body), wait)
	if err != nil {
		return nil, fmt.Errorf("request %s: %w", subject, err)
	}
	return m.Data, nil
}

type apiAnswer struct {
	Error *struct {
		Description string `json:"description"`
	} `json:"error"`
	Success bool `json:"success"`
	Cluster struct {
		Leader   string `json:"leader"`
		Replicas []struct {
			Name    string `json:"name"`
			Current bool   `json:"current"`
			Offline bool   `json:"offline"`
		} `json:"replicas"`
	} `json:"cluster"`
	State struct {
		First uint64 `json:"first_seq"`
		Last  uint64 `json:"last_seq"`
	} `json:"state"`
}

func ask(nc *nats.Conn, subject, body string) (a apiAnswer, err error) {
	m, err := nc.Request(subject, []byte(body), 2*time.Second)
	if err != nil {
		return a, fmt.Errorf("request %s: %w", subject, err)
	}
	if err := json.Unmarshal(m.Data, &a); err != nil {
		return a, fmt.Errorf("request %s: %w", subject, err)
	}
	if a.Error != nil {
		return a, fmt.Errorf("request %s: %s", subject, a.Error.Description)
	}
	return a, nil
}

// StreamLeader is the node that leads the log, and the log's last seq. No leader is an error.
func (o *Observer) StreamLeader() (node string, last uint64, err error) {
	a, err := ask(o.log, "$JS.API.STREAM.INFO."+o.stream, "")
	if err == nil && a.Cluster.Leader == "" {
		err = errors.New("the log has no leader")
	}
	return a.Cluster.Leader, a.State.Last, err
}

// StreamFollowers is the nodes that hold the log beside its leader, and are current: three of five nodes hold it.
func (o *Observer) StreamFollowers() (nodes []string, err error) {
	a, err := ask(o.log, "$JS.API.STREAM.INFO."+o.stream, "")
	for _, r := range a.Cluster.Replicas {
		if r.Current && !r.Offline {
			nodes = append(nodes, r.Name)
		}
	}
	if err == nil && len(nodes) == 0 {
		err = errors.New("no follower of the log is current")
	}
	return nodes, err
}

// Follow has everything be about the log of an epoch, from 2 on: a recovery made it, and it begins where that says.
func (o *Observer) Follow(epoch uint64) error {
	stream := fmt.Sprintf("%s_%d", firstStream, epoch)
	a, err := ask(o.log, "$JS.API.STREAM.INFO."+stream, "")
	if err != nil {
		return fmt.Errorf("follow epoch %d: %w", epoch, err)
	}
	o.stream, o.first = stream, a.State.First
	return nil
}

// MetaLeader is the node that leads JetStream's own group. A node that is cut off may believe so of another: what most say
// counts. No leader is an error.
func (o *Observer) MetaLeader(nodes int) (string, error) {
	inbox, err := o.system.SubscribeSync(o.system.NewRespInbox())
	if err != nil {
		return "", fmt.Errorf("ask for the meta leader: %w", err)
	}
	defer inbox.Unsubscribe() //nolint:errcheck // the connection is being closed, then
	if err := o.system.PublishRequest("$SYS.REQ.SERVER.PING.JSZ", inbox.Subject, nil); err != nil {
		return "", fmt.Errorf("ask for the meta leader: %w", err)
	}
	votes, answers := map[string]int{}, 0
	for end := time.Now().Add(time.Second); answers < nodes; answers++ {
		m, err := inbox.NextMsg(time.Until(end))
		if err != nil {
			break
		}
		var a struct {
			Data struct {
				Meta struct {
					Leader string `json:"leader"`
				} `json:"meta_cluster"`
			} `json:"data"`
		}
		if json.Unmarshal(m.Data, &a) == nil && a.Data.Meta.Leader != "" {
			votes[a.Data.Meta.Leader]++
		}
	}
	for node, n := range votes {
		if n > nodes/2 {
			return node, nil
		}
	}
	return "", fmt.Errorf("no meta leader: %d answers, %v", answers, votes)
}

// Elections calls each with every node that becomes the log's leader, from one goroutine, until the connection is closed.
func (o *Observer) Elections(each func(leader string)) error {
	_, err := o.log.Subscribe("$JS.EVENT.ADVISORY.STREAM.LEADER_ELECTED."+o.stream, func(m *nats.Msg) {
		var a struct {
			Leader string `json:"leader"`
		}
		if json.Unmarshal(m.Data, &a) == nil && a.Leader != "" {
			each(a.Leader)
		}
	})
	if err != nil {
		return fmt.Errorf("listen for elections: %w", err)
	}
	return o.log.Flush()
}

// StepDown has the log's leader give way, to the preferred node if one is named.
func (o *Observer) StepDown(preferred string) error {
	_, err := ask(o.log, "$JS.API.STREAM.LEADER.STEPDOWN."+o.stream, placement(preferred))
	return err
}

// MetaStepDown is the same for JetStream's own group.
func (o *Observer) MetaStepDown(preferred string) error {
	_, err := ask(o.system, "$JS.API.META.LEADER.STEPDOWN", placement(preferred))
	return err
}

// StreamAPI calls JetStream's API on the log: api is a subject but for the stream's name. With again it then makes a stream
// of the same settings, as somebody may who takes an empty log for no harm.
func (o *Observer) StreamAPI(api string, again bool) error {
	m, err := o.log.Request("$JS.API.STREAM.INFO."+o.stream, nil, 2*time.Second)
	if err != nil {
		return fmt.Errorf("call %s: %w", api, err)
	}
	var info struct {
		Config json.RawMessage `json:"config"`
	}
	if err := json.Unmarshal(m.Data, &info); err != nil {
		return fmt.Errorf("call %s: %w", api, err)
	}
	if _, err := ask(o.log, api+o.stream, ""); err != nil || !again {
		return err
	}
	_, err = ask(o.log, "$JS.API.STREAM.CREATE."+o.stream, string(info.Config))
	return err
}

// Message is the log's message at seq, as its leader has it.
func (o *Observer) Message(seq uint64) (subject string, data []byte, err error) {
	m, err := o.log.Request("$JS.API.STREAM.MSG.GET."+o.stream, fmt.Appendf(nil, `{"seq":%d}`, seq), 2*time.Second)
	if err != nil {
		return "", nil, fmt.Errorf("read seq %d: %w", seq, err)
	}
	var a struct {
		Message struct {
			Subject string `json:"subject"`
			Data    []byte `json:"data"`
		} `json:"message"`
	}
	if err := json.Unmarshal(m.Data, &a); err != nil || a.Message.Subject == "" {
		return "", nil, fmt.Errorf("read seq %d: %s: %w", seq, m.Data, err)
	}
	return a.Message.Subject, a.Message.Data, nil
}

// Append writes data into the log under a subject, without an id by which JetStream would know a copy, and returns its seq.
func (o *Observer) Append(subject string, data []byte) (seq uint64, err error) {
	m, err := o.log.Request(subject, data, 2*time.Second)
	if err != nil {
		return 0, fmt.Errorf("append on %s: %w", subject, err)
	}
	var a struct {
		Seq uint64 `json:"seq"`
	}
	if err := json.Unmarshal(m.Data, &a); err != nil || a.Seq == 0 {
		return 0, fmt.Errorf("append on %s: %s: %w", subject, m.Data, err)
	}
	return a.Seq, nil
}

func placement(preferred string) string {
	if preferred == "" {
		return ""
	}
	return fmt.Sprintf(`{"placement":{"preferred":%q}}`, preferred)
}

// LeaderLacks asks the log's leader for each message up to last, and returns the seqs that it does not have.
func (o *Observer) LeaderLacks(last uint64) (seqs []uint64, err error) {
	for seq := o.first; seq <= last; seq++ {
		m, err := o.log.Request("$JS.API.STREAM.MSG.GET."+o.stream, fmt.Appendf(nil, `{"seq":%d}`, seq), 2*time.Second)
		if err != nil {
			return nil, fmt.Errorf("ask the leader for seq %d: %w", seq, err)
		}
		var a apiAnswer
		if err := json.Unmarshal(m.Data, &a); err != nil {
			return nil, fmt.Errorf("ask the leader for seq %d: %w", seq, err)
		}
		if a.Error != nil {
			seqs = append(seqs, seq)
		}
	}
	return seqs, nil
}

const (
	readBatch = 1000 // messages that one request asks for
	readTries = 40   // requests that bring nothing, until the log counts as unreadable
)

// ReadLog reads the log from its beginning to last, each message once and in order. Any replica answers. One that has lost a message
// in the middle passes over it: such a seq is asked for again until another replica has it, and returned in holes. What none
// has is an error.
func (o *Observer) ReadLog(ctx context.Context, last uint64, each func(seq uint64, data []byte)) (holes []uint64, err error) {
	next, batch := o.first, readBatch
	for tries := 0; next <= last; {
		got, passed, err := o.readSome(next, min(last, next+uint64(batch)-1), each)
		if err != nil {
			return holes, fmt.Errorf("read the log: %w", err)
		}
		next, batch = next+got, readBatch
		if passed {
			batch = 1
			if n := len(holes); n == 0 || holes[n-1] != next {
				holes = append(holes, next)
			}
		}
		if tries++; got > 0 {
			tries = 0
		}
		if ctx.Err() != nil || tries == readTries {
			return holes, fmt.Errorf("read the log: no replica brings seq %d of %d", next, last)
		}
	}
	return holes, nil
}

// readSome asks one replica for the messages from first to last. It returns how many came in order, and whether the replica
// then passed over the next one.
func (o *Observer) readSome(first, last uint64, each func(seq uint64, data []byte)) (got uint64, passed bool, err error) {
	inbox, err := o.log.SubscribeSync(o.log.NewRespInbox())
	if err != nil {
		return 0, false, err
	}
	defer inbox.Unsubscribe() //nolint:errcheck // the connection is being closed, then
	if err := inbox.SetPendingLimits(-1, -1); err != nil {
		return 0, false, err
	}
	body := fmt.Sprintf(`{"seq":%d,"batch":%d,"max_bytes":%d}`, first, last-first+1, 8<<20)
	if err := o.log.PublishRequest("$JS.API.DIRECT.GET."+o.stream, inbox.Subject, []byte(body)); err != nil {
		return 0, false, err
	}
	for first+got <= last {
		m, err := inbox.NextMsg(time.Second)
		if err != nil || m.Header.Get("Status") != "" {
			// 404: this one has nothing from there on. Else: the end of a batch, or silence.
			return got, m != nil && m.Header.Get("Status") == "404", nil
		}
		seq, err := strconv.ParseUint(m.Header.Get("Nats-Sequence"), 10, 64)
		if err != nil {
			return got, false, fmt.Errorf("seq %q", m.Header.Get("Nats-Sequence"))
		}
		if seq != first+got {
			return got, true, nil
		}
		each(seq, m.Data)
		got++
	}
	return got, false, nil
}
