package jetstream

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	natsjs "github.com/nats-io/nats.go/jetstream"
)

func TestStreamName(t *testing.T) {
	for prefix, want := range map[string]string{
		"alloc":      "ALLOC_LOG",
		"eu.alloc-2": "EU_ALLOC-2_LOG",
		"a_b":        "A_B_LOG",
		"aß*> c":     "A____C_LOG",
	} {
		if got := StreamName(prefix); got != want {
			t.Errorf("StreamName(%q) = %q: want %q", prefix, got, want)
		}
	}
}

func TestLogConfigValidate(t *testing.T) {
	for _, c := range []LogConfig{DefaultLogConfig(), {Prefix: "a.b_C-9", Replicas: 3}, {Prefix: strings.Repeat("x", maxToken), Replicas: 1}} {
		if err := c.Validate(); err != nil {
			t.Errorf("%+v: %v", c, err)
		}
	}
	for _, prefix := range []string{"", ".", "a.", ".a", "a..b", "a.*", "a.>", "a b", "$JS", "ä", strings.Repeat("x", maxToken+1)} {
		err := LogConfig{Prefix: prefix, Replicas: 2}.Validate()
		// Every fault is reported, not the first.
		if err == nil || !strings.Contains(err.Error(), "prefix") || !strings.Contains(err.Error(), "replicas 2") {
			t.Errorf("prefix %q, 2 replicas: error %v", prefix, err)
		}
	}
}

func TestNewLogRefuses(t *testing.T) {
	nc := logTestConnect(t, logTestServer(t))
	for _, node := range []string{"", "a.b", "*", ">", "a b"} {
		if _, err := NewLog(nc, LogConfig{}, node); err == nil {
			t.Errorf("node %q was taken", node)
		}
	}
	if _, err := NewLog(nc, LogConfig{Replicas: 2}, "n1"); err == nil {
		t.Error("2 replicas were taken")
	}
	nc.Close()
	if _, err := NewLog(nc, LogConfig{}, "n1"); err == nil {
		t.Error("a closed connection was taken")
	}
}

func TestAppendAcksInOrder(t *testing.T) {
	l, _ := logTestAlone(t)
	const n = 500
	type answer struct {
		tag uint64
		ack Ack
	}
	answers := make(chan answer, n)
	l.OnAck(func(tag uint64, ack Ack) { answers <- answer{tag, ack} })
	data := []byte("x")
	for i := range uint64(n) {
		data[0] = byte(i)
		logTestOK(t, l.Append(i*1e15, fmt.Sprint("id-", i), data))
	}
	for i := range uint64(n) {
		got, want := logTestRecv(t, answers), answer{i * 1e15, Ack{Seq: i + 1}}
		if got != want {
			t.Fatalf("answer %d is %+v: want %+v", i, got, want)
		}
	}
	// data was overwritten after each append, and each entry has its own.
	for _, i := range []uint64{0, 7, n - 1} {
		m, err := l.Get(logTestCtx(t), i+1)
		logTestOK(t, err)
		if m.Seq != i+1 || m.Subject != "alloc.log.n1" || !bytes.Equal(m.Data, []byte{byte(i)}) {
			t.Errorf("entry %d is %+v", i+1, m)
		}
	}
}

func TestAppendDuplicate(t *testing.T) {
	l, _ := logTestAlone(t)
	acks := make(chan Ack, 3)
	l.OnAck(func(_ uint64, a Ack) { acks <- a })
	for i, c := range []struct {
		id   string
		want Ack
	}{{"a", Ack{Seq: 1}}, {"b", Ack{Seq: 2}}, {"a", Ack{Seq: 1, Duplicate: true}}} {
		logTestOK(t, l.Append(uint64(i), c.id, []byte(c.id)))
		if got := logTestRecv(t, acks); got != c.want {
			t.Errorf("append %d of id %s: %+v: want %+v", i, c.id, got, c.want)
		}
	}
}

func TestAppendErrors(t *testing.T) {
	nc := logTestConnect(t, logTestServer(t))
	l := logTestNew(t, nc, LogConfig{}, "n1")
	acks := make(chan Ack, 1)
	l.OnAck(func(_ uint64, a Ack) { acks <- a })

	logTestOK(t, l.Append(1, "a", nil))
	logTestIs(t, logTestRecv(t, acks).Err, nats.ErrNoResponders)

	if err := l.Append(2, "b", make([]byte, MaxData+1)); err == nil {
		t.Errorf("an entry of %d bytes was taken", MaxData+1)
	}

	_, err := l.Create(logTestCtx(t), logTestID(1), 1)
	logTestOK(t, err)
	logTestOK(t, l.Append(3, strings.Repeat("i", 900), make([]byte, MaxData))) // with the longest headers that we could have
	if a := logTestRecv(t, acks); a != (Ack{Seq: 1}) {
		t.Errorf("ack of the largest entry: %+v", a)
	}

	// An error reply of JetStream: no entry is taken by a sealed stream.
	cfg := l.streamConfig(logTestID(1), 1)
	cfg.Sealed = true
	logTestMust(t, nc, "STREAM.UPDATE."+l.stream, cfg)
	logTestOK(t, l.Append(4, "d", nil))
	if a := logTestRecv(t, acks); a.Seq != 0 || !isCode(a.Err, 10109) {
		t.Errorf("ack of a sealed stream: %+v", a)
	}
}

// An answer that does not come from our stream is no proof. Checked by taking the comparison in parseAck out: the first two
// answers then counted as acknowledgements.
func TestAckThatIsNone(t *testing.T) {
	l, f := logTestFakeLog(t)
	answers := []string{`{"stream":"OTHER","seq":7}`, `{"stream":"ALLOC_LOG"}`, `{`, ``, `{"start":1,"end":2}`}
	next := 0
	_, err := f.nc.Subscribe("alloc.log.*", func(m *nats.Msg) {
		if err := m.Respond([]byte(answers[next])); err != nil {
			t.Error(err)
		}
		next++
	})
	logTestOK(t, err)
	logTestOK(t, f.nc.Flush())
	acks := make(chan Ack, 1)
	l.OnAck(func(_ uint64, a Ack) { acks <- a })
	for i, answer := range answers {
		logTestOK(t, l.Append(uint64(i), "id", nil))
		if a := logTestRecv(t, acks); a.Err == nil || a.Seq != 0 {
			t.Errorf("answer %q: ack %+v", answer, a)
		}
	}
}

func TestAppendFirst(t *testing.T) {
	l, nc := logTestAlone(t)
	ctx := logTestCtx(t)
	logTestOK(t, l.AppendFirst(ctx, "genesis-1", []byte("genesis 1")))

	// Checked by dropping the expected-last-sequence header: the second genesis was taken.
	logTestIs(t, l.AppendFirst(ctx, "genesis-2", []byte("genesis 2")), ErrNotEmpty)

	// The acknowledgement of the first try was lost. A server alone refuses the second by its expected sequence, before it
	// looks at the message id. Checked by returning ErrNotEmpty without a look at the first entry: this failed.
	logTestOK(t, l.AppendFirst(ctx, "genesis-1", []byte("genesis 1")))

	id, err := l.Identity(ctx)
	logTestOK(t, err)
	if id.LastSeq != 1 {
		t.Errorf("log ends at %d: want 1", id.LastSeq)
	}

	// An emptied log is not an empty one.
	logTestMust(t, nc, "STREAM.PURGE."+l.stream, nil)
	logTestIs(t, l.AppendFirst(ctx, "genesis-3", []byte("genesis 3")), ErrNotEmpty)
	if err := l.AppendFirst(ctx, "x", make([]byte, MaxData+1)); err == nil {
		t.Errorf("a first entry of %d bytes was taken", MaxData+1)
	}
}

// The id of the genesis is known from an entry further on: it does not stand first, whatever the server says.
func TestAppendFirstDuplicateElsewhere(t *testing.T) {
	l, f := logTestFakeLog(t)
	_, err := f.nc.Subscribe("alloc.log.*", func(m *nats.Msg) {
		if err := m.Respond([]byte(`{"stream":"ALLOC_LOG","seq":2,"duplicate":true}`)); err != nil {
			t.Error(err)
		}
	})
	logTestOK(t, err)
	logTestOK(t, f.nc.Flush())
	logTestIs(t, l.AppendFirst(logTestCtx(t), "genesis", nil), ErrNotEmpty)
}

func TestAppendFirstWithoutStream(t *testing.T) {
	l := logTestNew(t, logTestConnect(t, logTestServer(t)), LogConfig{}, "n1")
	ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
	defer cancel()
	err := l.AppendFirst(ctx, "genesis", nil)
	logTestIs(t, err, ErrNoLeader)
	logTestIs(t, err, context.DeadlineExceeded)
}

func TestClose(t *testing.T) {
	l, nc := logTestAlone(t)
	running, release := make(chan struct{}), make(chan struct{})
	_, err := l.Feed(logTestID(1), func(Message) { close(running); <-release })
	logTestOK(t, err)
	logTestFill(t, l, 1)
	logTestRecv(t, running)
	closed := make(chan struct{})
	go func() { l.Close(); close(closed) }()
	// Close waits for the callback. Checked by leaving the wait on ended out of unsubscribe: closed came first.
	select {
	case <-closed:
		t.Fatal("Close returned while a callback ran")
	case <-time.After(50 * time.Millisecond):
	}
	close(release)
	logTestRecv(t, closed)
	l.Close()
	if _, err := l.Feed(logTestID(1), func(Message) {}); err == nil {
		t.Error("a closed log gave a feed")
	}
	if n := nc.NumSubscriptions(); n > 1 {
		t.Errorf("%d subscriptions are left: want at most the one that nats.go keeps for requests", n)
	}

	// With its connection gone, Close does not hang.
	l2 := logTestNew(t, nc, LogConfig{}, "n2")
	nc.Close()
	l2.Close()
}

func TestFeed(t *testing.T) {
	l, nc := logTestAlone(t)
	got := make(chan Message, 10)
	stop, err := l.Feed(logTestID(1), func(m Message) { got <- m })
	logTestOK(t, err)
	other, err := l.Feed(logTestID(2), func(m Message) { t.Errorf("another cluster's feed got %+v", m) })
	logTestOK(t, err)
	logTestFill(t, l, 3)
	// A publisher cannot choose the seq, nor the subject: the server's headers come last. Checked by reading the first value of
	// each header: 999 came.
	_, err = nc.RequestMsg(&nats.Msg{Subject: "alloc.log.x", Data: []byte("4"), Header: nats.Header{
		natsjs.SequenceHeader: {"999"}, natsjs.SubjectHeader: {"forged"}, natsjs.StreamHeader: {"forged"}, "Status": {"404"},
	}}, 10*time.Second)
	logTestOK(t, err)
	for i := range uint64(4) {
		want := Message{Seq: i + 1, Subject: "alloc.log.n1", Data: fmt.Append(nil, i+1)}
		if i == 3 {
			want.Subject = "alloc.log.x"
		}
		if m := logTestRecv(t, got); fmt.Sprint(m) != fmt.Sprint(want) {
			t.Errorf("feed gave %+v: want %+v", m, want)
		}
	}
	if n := l.Dropped(); n != 0 {
		t.Errorf("%d dropped", n)
	}
	logTestOK(t, nc.Publish(feedSubject("alloc", logTestID(1)), []byte("no message of the log")))
	logTestOK(t, nc.Publish(feedSubject("alloc", logTestID(1)), []byte("no message of the log")))
	// The next message through the same subscription says that the two before it have been seen.
	_, err = nc.Request("alloc.log.n1", nil, 10*time.Second)
	logTestOK(t, err)
	if m := logTestRecv(t, got); m.Seq != 5 {
		t.Errorf("feed gave %+v: want seq 5", m)
	}
	if n := l.Dropped(); n != 2 {
		t.Errorf("%d dropped: want 2", n)
	}
	stop()
	stop()
	other()
	_, err = nc.Request("alloc.log.n1", nil, 10*time.Second)
	logTestOK(t, err)
	select {
	case m := <-got:
		t.Errorf("a stopped feed gave %+v", m)
	default:
	}
}

// A feed that is slower than the log drops messages, counts them, and goes on counting them after it was stopped.
func TestFeedDropsAreCounted(t *testing.T) {
	l, nc := logTestAlone(t)
	running, release := make(chan struct{}, 1), make(chan struct{})
	stop, err := l.subscribe("test.slow", 2, 1<<20, func(*nats.Msg) { running <- struct{}{}; <-release })
	logTestOK(t, err)
	logTestOK(t, nc.Publish("test.slow", nil))
	logTestRecv(t, running)
	for range 10 { // one is with the callback and counts as pending, one more fits
		logTestOK(t, nc.Publish("test.slow", nil))
	}
	logTestOK(t, nc.Flush())
	if n := l.Dropped(); n != 9 {
		t.Errorf("%d dropped: want 9", n)
	}
	close(release)
	stop()
	if n := l.Dropped(); n != 9 {
		t.Errorf("%d dropped after stop: want 9", n)
	}
}
