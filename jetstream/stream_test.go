package jetstream

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	natsjs "github.com/nats-io/nats.go/jetstream"
)

// Every setting of the created stream, as the server tells it. What the server adds of its own starts with "_nats.".
func TestCreateSettings(t *testing.T) {
	l, nc := logTestAlone(t)
	var info natsjs.StreamInfo
	logTestOK(t, call(logTestCtx(t), nc, "STREAM.INFO."+l.stream, nil, &info))
	for key := range info.Config.Metadata {
		if strings.HasPrefix(key, "_nats.") {
			delete(info.Config.Metadata, key)
		}
	}
	want := natsjs.StreamConfig{
		Name:              "ALLOC_LOG",
		Description:       "allocnode: the log of reservations",
		Subjects:          []string{"alloc.log.*"},
		Retention:         natsjs.LimitsPolicy,
		MaxConsumers:      -1,
		MaxMsgs:           -1,
		MaxBytes:          -1,
		Discard:           natsjs.DiscardNew,
		MaxMsgsPerSubject: -1,
		MaxMsgSize:        1 << 20,
		Storage:           natsjs.FileStorage,
		Replicas:          1,
		Duplicates:        30 * time.Second,
		DenyDelete:        true,
		RePublish: &natsjs.RePublish{
			Source:      "alloc.log.*",
			Destination: "alloc.feed.00000000000000000000000000000001",
		},
		AllowDirect: true,
		Metadata: map[string]string{
			"allocnode.cluster_id": "00000000000000000000000000000001",
			"allocnode.epoch":      "1",
		},
	}
	if !reflect.DeepEqual(info.Config, want) {
		t.Errorf("settings\n%+v\nwant\n%+v", info.Config, want)
	}
}

// Each setting that matters, changed alone, is refused by its name. Checked for the table in checkConfig by dropping its lines
// one at a time: each made its case here fail.
func TestConfigErrors(t *testing.T) {
	nc := logTestConnect(t, logTestServer(t))
	l := logTestNew(t, nc, LogConfig{Prefix: "p", Replicas: 3}, "n1")
	for _, c := range []struct {
		setting string
		change  func(*natsjs.StreamConfig)
	}{
		{"metadata.allocnode.cluster_id", func(c *natsjs.StreamConfig) { c.Metadata = nil }},
		{"metadata.allocnode.cluster_id", func(c *natsjs.StreamConfig) { c.Metadata[metaClusterID] = "1" }},
		{"metadata.allocnode.cluster_id", func(c *natsjs.StreamConfig) { c.Metadata[metaClusterID] = strings.Repeat("0", 32) }},
		{"metadata.allocnode.epoch", func(c *natsjs.StreamConfig) { delete(c.Metadata, metaEpoch) }},
		{"metadata.allocnode.epoch", func(c *natsjs.StreamConfig) { c.Metadata[metaEpoch] = "-1" }},
		{"subjects", func(c *natsjs.StreamConfig) { c.Subjects = append(c.Subjects, "x") }},
		{"subjects", func(c *natsjs.StreamConfig) { c.Subjects = []string{"p.>"} }},
		{"storage", func(c *natsjs.StreamConfig) { c.Storage = natsjs.MemoryStorage }},
		{"num_replicas", func(c *natsjs.StreamConfig) { c.Replicas = 1 }},
		{"retention", func(c *natsjs.StreamConfig) { c.Retention = natsjs.WorkQueuePolicy }},
		{"discard", func(c *natsjs.StreamConfig) { c.Discard = natsjs.DiscardOld }},
		{"discard_new_per_subject", func(c *natsjs.StreamConfig) { c.DiscardNewPerSubject = true }},
		{"max_age", func(c *natsjs.StreamConfig) { c.MaxAge = time.Hour }},
		{"max_msgs", func(c *natsjs.StreamConfig) { c.MaxMsgs = 1e9 }},
		{"max_bytes", func(c *natsjs.StreamConfig) { c.MaxBytes = 1e12 }},
		{"max_msgs_per_subject", func(c *natsjs.StreamConfig) { c.MaxMsgsPerSubject = 1 }},
		{"no_ack", func(c *natsjs.StreamConfig) { c.NoAck = true }},
		{"mirror", func(c *natsjs.StreamConfig) { c.Mirror = &natsjs.StreamSource{Name: "M"} }},
		{"sources", func(c *natsjs.StreamConfig) { c.Sources = []*natsjs.StreamSource{{Name: "S"}} }},
		{"sealed", func(c *natsjs.StreamConfig) { c.Sealed = true }},
		{"deny_delete", func(c *natsjs.StreamConfig) { c.DenyDelete = false }},
		{"allow_rollup_hdrs", func(c *natsjs.StreamConfig) { c.AllowRollup = true }},
		{"compression", func(c *natsjs.StreamConfig) { c.Compression = natsjs.S2Compression }},
		{"subject_transform", func(c *natsjs.StreamConfig) { c.SubjectTransform = &natsjs.SubjectTransformConfig{} }},
		{"republish", func(c *natsjs.StreamConfig) { c.RePublish = nil }},
		{"republish", func(c *natsjs.StreamConfig) { c.RePublish.Source = ">" }},
		{"republish", func(c *natsjs.StreamConfig) { c.RePublish.Destination = feedSubject("p", logTestID(2)) }},
		{"republish", func(c *natsjs.StreamConfig) { c.RePublish.HeadersOnly = true }},
		{"allow_direct", func(c *natsjs.StreamConfig) { c.AllowDirect = false }},
		{"mirror_direct", func(c *natsjs.StreamConfig) { c.MirrorDirect = true }},
		{"allow_msg_ttl", func(c *natsjs.StreamConfig) { c.AllowMsgTTL = true }},
		{"subject_delete_marker_ttl", func(c *natsjs.StreamConfig) { c.SubjectDeleteMarkerTTL = time.Hour }},
		{"allow_msg_counter", func(c *natsjs.StreamConfig) { c.AllowMsgCounter = true }},
		{"allow_atomic", func(c *natsjs.StreamConfig) { c.AllowAtomicPublish = true }},
		{"allow_msg_schedules", func(c *natsjs.StreamConfig) { c.AllowMsgSchedules = true }},
		{"persist_mode", func(c *natsjs.StreamConfig) { c.PersistMode = natsjs.AsyncPersistMode }},
		{"allow_batched", func(c *natsjs.StreamConfig) { c.AllowBatchPublish = true }},
		{"max_msg_size", func(c *natsjs.StreamConfig) { c.MaxMsgSize = 1000 }},
		{"first_seq", func(c *natsjs.StreamConfig) { c.FirstSeq = 2 }},
	} {
		cfg := l.streamConfig(logTestID(1), 7)
		c.change(&cfg)
		_, _, err := l.checkConfig(cfg)
		var wrong *StreamConfigError
		if !errors.As(err, &wrong) || wrong.Setting != c.setting || wrong.Stream != "P_LOG" {
			t.Errorf("%s changed: %v", c.setting, err)
		}
	}

	cfg := l.streamConfig(logTestID(1), 7)
	cfg.Description, cfg.Duplicates, cfg.DenyPurge, cfg.MaxMsgSize = "mine", time.Minute, true, -1
	cfg.Placement = &natsjs.Placement{Tags: []string{"sync:always"}}
	if id, epoch, err := l.checkConfig(cfg); err != nil || id != logTestID(1) || epoch != 7 {
		t.Errorf("what an operator may choose: %v, %d, %v", id, epoch, err)
	}

	// The same through the server: a stream of that name which is no log of ours is found, and is not touched.
	l = logTestNew(t, nc, LogConfig{}, "n1")
	logTestMust(t, nc, "STREAM.CREATE."+l.stream, natsjs.StreamConfig{Name: l.stream, Subjects: []string{"alloc.log.*"}})
	var wrong *StreamConfigError
	if _, err := l.Identity(logTestCtx(t)); !errors.As(err, &wrong) {
		t.Errorf("identity of a foreign stream: %v", err)
	}
	if _, err := l.Create(logTestCtx(t), logTestID(1), 1); !errors.As(err, &wrong) {
		t.Errorf("creation over a foreign stream: %v", err)
	}
}

func TestIdentity(t *testing.T) {
	s := logTestServer(t)
	nc := logTestConnect(t, s)
	l := logTestNew(t, nc, LogConfig{}, "n1")
	ctx := logTestCtx(t)
	_, err := l.Identity(ctx)
	logTestIs(t, err, ErrNoStream)
	if _, err := l.Create(ctx, logTestID(0), 1); err == nil {
		t.Error("a cluster id of zero was taken")
	}

	made, err := l.Create(ctx, logTestID(1), 1)
	logTestOK(t, err)
	want := Identity{Created: made.Created, ClusterID: logTestID(1), Epoch: 1, FirstSeq: made.FirstSeq, Leader: s.Name()}
	if made != want || made.Created.IsZero() || made.FirstSeq > 1 {
		t.Errorf("created %+v: want %+v", made, want)
	}
	// A second creator, of another cluster id or the same, finds the first one's.
	for _, b := range []byte{1, 2} {
		if again, err := l.Create(ctx, logTestID(b), uint64(b)); err != nil || again != made {
			t.Errorf("created again by %d: %+v, %v: want %+v", b, again, err, made)
		}
	}
	logTestFill(t, l, 5)
	got, err := l.Identity(ctx)
	logTestOK(t, err)
	if want.FirstSeq, want.LastSeq = 1, 5; got != want {
		t.Errorf("filled: %+v: want %+v", got, want)
	}

	// Deleted and made anew under the same id: only the time of creation tells, and the end of the log.
	logTestMust(t, nc, "STREAM.DELETE."+l.stream, nil)
	anew, err := l.Create(ctx, logTestID(1), 1)
	logTestOK(t, err)
	if anew.Created.Equal(made.Created) || anew.LastSeq != 0 {
		t.Errorf("made anew: %+v, before: %+v", anew, made)
	}
	logTestMust(t, nc, "STREAM.DELETE."+l.stream, nil)
	other, err := l.Create(ctx, logTestID(2), 3)
	logTestOK(t, err)
	if other.ClusterID != logTestID(2) || other.Epoch != 3 {
		t.Errorf("made anew by another: %+v", other)
	}
}

// The first request gets no answer, as before a meta leader is there. Checked by one try that lasts as long as the context: the
// fake saw one request, and the context ended.
func TestIdentityTriesAgain(t *testing.T) {
	l, f := logTestFakeLog(t)
	f.ignored = 1
	ctx, cancel := context.WithTimeout(context.Background(), 10*tryTimeout)
	defer cancel()
	if id, err := l.Identity(ctx); err != nil || id.Leader != "n2" {
		t.Errorf("identity %+v, %v", id, err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.asked != 2 {
		t.Errorf("asked %d times: want 2", f.asked)
	}
}

// What a replica without a leader says of the stream is not its identity. Checked by leaving the look at the leader out.
func TestIdentityLeaderless(t *testing.T) {
	for _, cluster := range []*natsjs.ClusterInfo{nil, {}} {
		l, f := logTestFakeLog(t)
		f.info.Cluster = cluster
		ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
		defer cancel()
		_, err := l.Identity(ctx)
		logTestIs(t, err, ErrNoLeader)
		logTestIs(t, err, context.DeadlineExceeded)
	}
}

// Errors that pass are tried again until ctx ends, others are not. Checked by taking the codes out of passing one at a time, and
// by taking the stream's absence after its creation for the answer.
func TestCreateRetries(t *testing.T) {
	l, f := logTestFakeLog(t)
	answers := []natsjs.ErrorCode{codeNotAvailable, codeNoPeers, codeNoResources, 0, codeNameInUse, codeNameInUse}
	f.on("STREAM.CREATE."+l.stream, func(m *nats.Msg) {
		code := answers[0]
		answers = answers[1:]
		if code == 0 {
			f.json(m, f.info)
			return
		}
		f.json(m, map[string]any{"error": natsjs.APIError{Code: 503, ErrorCode: code}})
	})
	logTestOK(t, f.nc.Flush())
	f.unknown = 2 // the stream's assignment reaches the server that answers a little later
	if id, err := l.Create(logTestCtx(t), logTestID(1), 1); err != nil || id.ClusterID != logTestID(1) {
		t.Errorf("created %+v, %v", id, err)
	}
	f.mu.Lock()
	answers = []natsjs.ErrorCode{10074} // replicas > 1 without a cluster
	f.mu.Unlock()
	_, err := l.Create(logTestCtx(t), logTestID(1), 1)
	logTestIs(t, err, ErrOneServer)
}

func TestCheckSubjects(t *testing.T) {
	_, nc := logTestAlone(t) // with a log, which is no stream to complain of
	ctx := logTestCtx(t)
	logTestOK(t, CheckSubjects(ctx, nc, "alloc"))
	for i, subject := range []string{"alloc.reserve.*", "alloc.reserve", "alloc.*", "alloc.next.>", "alloc.info.orders", "alloc.status",
		"alloc.create.>", "alloc.advance.eu.*", "alloc.list"} {
		name := fmt.Sprintf("CAPTURE_%d", i)
		logTestMust(t, nc, "STREAM.CREATE."+name, natsjs.StreamConfig{Name: name, Subjects: []string{subject}})
		err := CheckSubjects(ctx, nc, "alloc")
		if err == nil || !strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), "alloc.") {
			t.Errorf("stream %s on %s: %v", name, subject, err)
		}
		logTestMust(t, nc, "STREAM.DELETE."+name, nil)
	}
	logTestMust(t, nc, "STREAM.CREATE.BESIDE", natsjs.StreamConfig{Name: "BESIDE", Subjects: []string{"alloc.audit.>", "orders.>"}})
	logTestOK(t, CheckSubjects(ctx, nc, "alloc"))
}

func TestCheckSubjectsWithoutJetStream(t *testing.T) {
	plain := logTestStart(t, &server.Options{})
	logTestOK(t, CheckSubjects(logTestCtx(t), logTestConnect(t, plain), "alloc"))

	// JetStream for another account only.
	withJS := server.NewAccount("ALLOC")
	o := &server.Options{JetStream: true, StoreDir: t.TempDir(), SyncAlways: true, Accounts: []*server.Account{withJS}}
	o.Users = []*server.User{{Username: "log", Password: "p", Account: withJS}, {Username: "any", Password: "p"}}
	s := logTestStart(t, o)
	acc, err := s.LookupAccount("ALLOC")
	logTestOK(t, err)
	logTestOK(t, acc.EnableJetStream(nil, nil))
	nc, err := nats.Connect("", nats.InProcessServer(s), nats.UserInfo("any", "p"))
	logTestOK(t, err)
	defer nc.Close()
	logTestOK(t, CheckSubjects(logTestCtx(t), nc, "alloc"))

	// Nobody says yes or no: not known.
	_, f := logTestFakeLog(t)
	f.on("STREAM.NAMES", func(*nats.Msg) {})
	logTestOK(t, f.nc.Flush())
	ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
	defer cancel()
	logTestIs(t, CheckSubjects(ctx, f.nc, "alloc"), ErrNoLeader)
}

// One cluster for all that needs one, since it takes seconds to come up. The order counts: the last part stops two servers.
func TestCluster(t *testing.T) {
	servers := logTestCluster(t)
	ctx := logTestCtx(t)
	logs := make([]*Log, len(servers))
	for i, s := range servers {
		logs[i] = logTestNew(t, logTestConnect(t, s), LogConfig{Replicas: 3}, s.Name())
	}

	// Three creators, at once and before there is a leader of all.
	ids, errs := make([]Identity, len(logs)), make([]error, len(logs))
	var wg sync.WaitGroup
	for i, l := range logs {
		wg.Go(func() { ids[i], errs[i] = l.Create(ctx, logTestID(byte(i+1)), uint64(i+1)) })
	}
	wg.Wait()
	for i := range logs {
		logTestOK(t, errs[i])
		// The leader may have changed in between.
		if ids[i].Created != ids[0].Created || ids[i].ClusterID != ids[0].ClusterID || ids[i].Epoch != ids[0].Epoch {
			t.Fatalf("creator %d has %+v, creator 0 %+v", i, ids[i], ids[0])
		}
	}

	// Of three who would be first one is.
	first := 0
	for i, l := range logs {
		wg.Go(func() { errs[i] = l.AppendFirst(ctx, fmt.Sprint("genesis-", i), fmt.Append(nil, "genesis ", i)) })
	}
	wg.Wait()
	for _, err := range errs {
		if err == nil {
			first++
		} else {
			logTestIs(t, err, ErrNotEmpty)
		}
	}
	if first != 1 {
		t.Errorf("%d put the first entry: want 1", first)
	}

	feeds := make([]chan Message, len(logs))
	elections := make(chan struct{}, 100)
	for i, l := range logs {
		feeds[i] = make(chan Message, 100)
		_, err := l.Feed(ids[0].ClusterID, func(m Message) { feeds[i] <- m })
		logTestOK(t, err)
		_, err = l.OnLeaderChange(func() { elections <- struct{}{} })
		logTestOK(t, err)
	}
	seq := uint64(1)
	acks := make(chan Ack, 1)
	logs[0].OnAck(func(_ uint64, a Ack) { acks <- a })
	appendOne := func() {
		t.Helper()
		seq++
		// An append that hits an election is repeated under its id, as a node does it.
		for {
			logTestOK(t, logs[0].Append(seq, fmt.Sprint("entry-", seq), fmt.Append(nil, seq)))
			select {
			case a := <-acks:
				if a.Err == nil && a.Seq == seq {
					return
				}
				if !errors.Is(a.Err, nats.ErrNoResponders) && !isCode(a.Err, codeDuplicateInFlight) {
					t.Fatalf("ack %+v: want seq %d", a, seq)
				}
			case <-time.After(tryTimeout):
			}
		}
	}
	// Interest in a feed spreads to the other servers on its own time, so the first message may miss one.
	for i, feed := range feeds {
		heard := false
		for !heard {
			appendOne()
			select {
			case <-feed:
				heard = true
			case <-time.After(time.Second):
			}
		}
		t.Logf("feed of %s is on at seq %d", servers[i].Name(), seq)
	}
	appendOne()
	for i, feed := range feeds {
		for {
			m := logTestRecv(t, feed)
			if string(m.Data) != fmt.Sprint(m.Seq) {
				t.Errorf("feed of %s gave seq %d with %q", servers[i].Name(), m.Seq, m.Data)
			}
			if m.Seq == seq {
				break
			}
		}
	}

	// After the leader steps down all is as it was, seen from each node.
	before, err := logs[0].Identity(ctx)
	logTestOK(t, err)
	for len(elections) > 0 {
		<-elections
	}
	logTestMust(t, logs[0].nc, "STREAM.LEADER.STEPDOWN."+logs[0].stream, nil)
	logTestRecv(t, elections)
	for i, l := range logs {
		m, err := l.Get(ctx, 2)
		if err != nil || string(m.Data) != "2" {
			t.Errorf("%s: Get(2) = %+v, %v", servers[i].Name(), m, err)
		}
		id, err := l.Identity(ctx)
		logTestOK(t, err)
		if id.Leader == "" || id.Leader == before.Leader {
			t.Errorf("%s: leader %q after %q stepped down", servers[i].Name(), id.Leader, before.Leader)
		}
		if id.Leader = before.Leader; id != before {
			t.Errorf("%s: identity %+v: want %+v", servers[i].Name(), id, before)
		}
		for range 5 { // whichever replica answers
			m, err = l.GetDirect(ctx, 2)
			if err != nil || string(m.Data) != "2" {
				t.Errorf("%s: GetDirect(2) = %+v, %v", servers[i].Name(), m, err)
			}
		}
	}
	appendOne()

	// A minority knows no leader, and says so when ctx ends. It goes on answering until it notices, if the lead came to it.
	id, err := logs[0].Identity(ctx)
	logTestOK(t, err)
	var left *Log
	for i, s := range servers {
		if left == nil && s.Name() != id.Leader {
			left = logs[i]
			continue
		}
		s.Shutdown()
	}
	alone := func(ask func(context.Context) error) (err error) {
		for end := time.Now().Add(30 * time.Second); time.Now().Before(end); {
			short, cancel := context.WithTimeout(ctx, 2*time.Second)
			err = ask(short)
			cancel()
			if errors.Is(err, ErrNoLeader) {
				break
			}
		}
		return err
	}
	logTestIs(t, alone(func(ctx context.Context) error { _, err := left.Identity(ctx); return err }), ErrNoLeader)
	logTestIs(t, alone(func(ctx context.Context) error { _, err := left.Get(ctx, 1); return err }), ErrNoLeader)
	logTestOK(t, left.Append(1, "in vain", nil))
}
