package jetstream

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	natsjs "github.com/nats-io/nats.go/jetstream"
)

// logTestRead is the seqs that Read gives from from on.
func logTestRead(t *testing.T, ctx context.Context, l *Log, from uint64) (seqs []uint64, last uint64, err error) {
	t.Helper()
	last, err = l.Read(ctx, from, func(m Message) error {
		if string(m.Data) != fmt.Sprint(m.Seq) {
			t.Errorf("seq %d holds %q", m.Seq, m.Data)
		}
		seqs = append(seqs, m.Seq)
		return nil
	})
	return seqs, last, err
}

// logTestSeqs is first to last.
func logTestSeqs(first, last uint64) (seqs []uint64) {
	for s := first; s <= last; s++ {
		seqs = append(seqs, s)
	}
	return seqs
}

func TestRead(t *testing.T) {
	l, nc := logTestAlone(t)
	ctx := logTestCtx(t)
	if seqs, last, err := logTestRead(t, ctx, l, 1); err != nil || last != 0 || len(seqs) != 0 {
		t.Errorf("empty log: read %v to %d, %v", seqs, last, err)
	}
	const n = 2*readBatch + 50
	logTestFill(t, l, n)
	for _, from := range []uint64{1, 2, 50, 51, readBatch + 50, n, n + 1, n + 2, n + 1000} {
		seqs, last, err := logTestRead(t, ctx, l, from)
		logTestOK(t, err)
		if want := logTestSeqs(from, n); !slices.Equal(seqs, want) || last != max(n, from-1) {
			t.Errorf("from %d: read %d seqs to %d: want %d to %d", from, len(seqs), last, len(want), n)
		}
	}
	if _, err := l.Read(ctx, 0, func(Message) error { return nil }); err == nil {
		t.Error("read from seq 0")
	}

	stop := errors.New("stop")
	last, err := l.Read(ctx, 5, func(m Message) error {
		if m.Seq == 9 {
			return stop
		}
		return nil
	})
	if err != stop || last != 8 {
		t.Errorf("fn failed at 9: last %d, error %v", last, err)
	}

	// Purged: behind the first seq that is left it goes on, before it there is an error with that seq.
	logTestMust(t, nc, "STREAM.PURGE."+l.stream, map[string]any{"seq": 301})
	if seqs, _, err := logTestRead(t, ctx, l, 301); err != nil || !slices.Equal(seqs, logTestSeqs(301, n)) {
		t.Errorf("after a purge: read %d seqs, %v", len(seqs), err)
	}
	for _, from := range []uint64{1, 300} {
		_, last, err := logTestRead(t, ctx, l, from)
		var purged *PurgedError
		if !errors.As(err, &purged) || *purged != (PurgedError{Want: from, First: 301}) || last != from-1 {
			t.Errorf("from %d after a purge: to %d, %v", from, last, err)
		}
	}
	// Purged whole: nothing follows, and still it is not the end. Checked by taking the 404 for the end at once.
	logTestMust(t, nc, "STREAM.PURGE."+l.stream, nil)
	var purged *PurgedError
	if _, _, err := logTestRead(t, ctx, l, n); !errors.As(err, &purged) || purged.First != n+1 {
		t.Errorf("from %d after a whole purge: %v", n, err)
	}
	if _, last, err := logTestRead(t, ctx, l, n+1); err != nil || last != n {
		t.Errorf("from %d after a whole purge: to %d, %v", n+1, last, err)
	}
}

func TestGetErrors(t *testing.T) {
	l, nc := logTestAlone(t)
	ctx := logTestCtx(t)
	logTestFill(t, l, 2)
	for name, get := range map[string]func(context.Context, uint64) (Message, error){"Get": l.Get, "GetDirect": l.GetDirect} {
		m, err := get(ctx, 2)
		if err != nil || m.Seq != 2 || m.Subject != "alloc.log.n1" || string(m.Data) != "2" {
			t.Errorf("%s(2) = %+v, %v", name, m, err)
		}
		_, err = get(ctx, 3)
		logTestIs(t, err, ErrNoMessage)
		if _, err = get(ctx, 0); err == nil {
			t.Errorf("%s(0) gave a message", name)
		}
	}
	logTestMust(t, nc, "STREAM.DELETE."+l.stream, nil)
	_, err := l.Get(ctx, 1)
	logTestIs(t, err, ErrNoStream)
	_, err = l.GetDirect(ctx, 1)
	logTestIs(t, err, ErrNoStream)
	_, err = l.Read(ctx, 1, func(Message) error { return nil })
	logTestIs(t, err, ErrNoStream)
}

// Checked as in TestFeed: with the first value of the headers this was a gap at 999, and the forged status ended the batch.
func TestReadForgedHeaders(t *testing.T) {
	l, nc := logTestAlone(t)
	for i := range 3 {
		_, err := nc.RequestMsg(&nats.Msg{Subject: "alloc.log.x", Data: fmt.Append(nil, i+1), Header: nats.Header{
			natsjs.SequenceHeader: {"999"}, natsjs.LastSequenceHeader: {"998"}, natsjs.StreamHeader: {"forged"}, "Status": {"204"},
		}}, 10*time.Second)
		logTestOK(t, err)
	}
	if seqs, last, err := logTestRead(t, logTestCtx(t), l, 1); err != nil || last != 3 || !slices.Equal(seqs, logTestSeqs(1, 3)) {
		t.Errorf("read %v to %d, %v", seqs, last, err)
	}
	if m, err := l.GetDirect(logTestCtx(t), 2); err != nil || m.Seq != 2 {
		t.Errorf("GetDirect(2) = %+v, %v", m, err)
	}
}

// A replica lacks a middle. The leader has it, or the stream begins behind it, or it is gone. Checked by handing messages over
// without the loop that fills: 1, 4 was read.
func TestReadHole(t *testing.T) {
	l, f := logTestFakeLog(t)
	holed := func(m *nats.Msg, seq uint64) {
		prev := uint64(0)
		for _, s := range []uint64{1, 4, 5} {
			if s >= seq {
				f.send(m, s, prev)
				prev = s
			}
		}
		f.end(m, prev, 0)
	}
	f.direct = append(f.direct, holed)
	f.leader[2], f.leader[3] = "2", "3"
	ctx := logTestCtx(t)
	for from := uint64(1); from <= 4; from++ {
		if seqs, last, err := logTestRead(t, ctx, l, from); err != nil || last != 5 || !slices.Equal(seqs, logTestSeqs(from, 5)) {
			t.Errorf("from %d: read %v to %d, %v", from, seqs, last, err)
		}
	}

	set := func(fn func()) { f.mu.Lock(); fn(); f.mu.Unlock() }
	set(func() { delete(f.leader, 3) })
	seqs, last, err := logTestRead(t, ctx, l, 1)
	var gap *GapError
	if !errors.As(err, &gap) || *gap != (GapError{Want: 3, Got: 4}) || last != 2 || !slices.Equal(seqs, logTestSeqs(1, 2)) {
		t.Errorf("hole: read %v to %d, %v", seqs, last, err)
	}
	if _, _, err = logTestRead(t, ctx, l, 3); !errors.As(err, &gap) || *gap != (GapError{Want: 3, Got: 4}) {
		t.Errorf("hole at the start: %v", err)
	}

	set(func() { f.info.State.FirstSeq = 4 })
	_, last, err = logTestRead(t, ctx, l, 1)
	var purged *PurgedError
	if !errors.As(err, &purged) || *purged != (PurgedError{Want: 3, First: 4}) || last != 2 {
		t.Errorf("purged while reading: to %d, %v", last, err)
	}
}

// What is lost between replica and reader is asked for again, and is no hole. Checked by leaving the comparison with the
// sequence before out of batch (a gap at 2), that with the last one out of status (the end was taken to be 4), that with next
// out of batch (the reading went back to 3), and that with the reply (the late batch's 5 ended the reading).
func TestReadLosesAnswers(t *testing.T) {
	l, f := logTestFakeLog(t)
	var asked []uint64
	step := func(fn func(m *nats.Msg)) {
		f.direct = append(f.direct, func(m *nats.Msg, seq uint64) { asked = append(asked, seq); fn(m) })
	}
	var late *nats.Msg
	step(func(m *nats.Msg) { f.send(m, 1, 0); f.send(m, 3, 2); f.end(m, 3, 3) })      // 2 is lost
	step(func(m *nats.Msg) { f.send(m, 2, 0); f.send(m, 3, 2); f.end(m, 4, 2) })      // 4 is lost, and more to come
	step(func(m *nats.Msg) { f.send(m, 4, 0); f.end(m, 5, 0) })                       // 5 is lost, and the end says that it was sent
	step(func(m *nats.Msg) { late = m; f.send(m, 3, 0) })                             // what was not asked for
	step(func(m *nats.Msg) { f.send(late, 5, 0); f.end(late, 5, 0); f.end(m, 5, 0) }) // a batch that was given up goes on
	step(func(m *nats.Msg) { f.send(m, 5, 0); f.end(m, 5, 1) })
	step(func(m *nats.Msg) { f.send(m, 6, 0); f.end(m, 6, 0) })
	seqs, last, err := logTestRead(t, logTestCtx(t), l, 1)
	if err != nil || last != 6 || !slices.Equal(seqs, logTestSeqs(1, 6)) {
		t.Errorf("read %v to %d, %v", seqs, last, err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if want := []uint64{1, 2, 4, 5, 5, 5, 6}; !slices.Equal(asked, want) {
		t.Errorf("asked from %v: want %v", asked, want)
	}
}

// The next batch is asked for with the first message of one that has more behind it, and what comes of it early waits for its
// turn. Where the first one is cut short, the next one that was asked for is not the one that is wanted. Checked: without the
// question ahead the first batch was given up after a try's time; without room for what comes early, or with any batch that was
// asked ahead taken for the next one, seqs were asked for twice or left out.
func TestReadAhead(t *testing.T) {
	const last = 3*readBatch + 10
	for name, cut := range map[string]uint64{"whole": readBatch, "cut short": 100} {
		l, f := logTestFakeLog(t)
		var asked []uint64
		var first *nats.Msg
		send := func(m *nats.Msg, from, to uint64) { // the batch from from to to, but for the message that went before
			for seq := from; seq <= to; seq++ {
				f.sendPending(m, seq, seq-1, last-seq)
			}
			f.end(m, to, last-to)
		}
		f.direct = append(f.direct, func(m *nats.Msg, seq uint64) {
			asked = append(asked, seq)
			switch {
			case len(asked) == 1:
				first = m
				f.sendPending(m, 1, 0, last-1)
				return // the rest comes after the second question
			case len(asked) == 2:
				f.sendPending(m, seq, 0, last-seq)
				send(first, 2, cut)
				send(m, seq+1, seq+readBatch-1)
				return
			}
			f.sendPending(m, seq, 0, last-seq)
			send(m, seq+1, min(seq+readBatch-1, last))
		})
		seqs, to, err := logTestRead(t, logTestCtx(t), l, 1)
		if err != nil || to != last || !slices.Equal(seqs, logTestSeqs(1, last)) {
			t.Errorf("%s: read %d seqs to %d, %v", name, len(seqs), to, err)
		}
		want := []uint64{1, 1 + readBatch, 1 + 2*readBatch, 1 + 3*readBatch}
		if cut < readBatch {
			want = []uint64{1, 1 + readBatch, cut + 1, cut + 1 + readBatch, cut + 1 + 2*readBatch}
		}
		f.mu.Lock()
		if !slices.Equal(asked, want) {
			t.Errorf("%s: asked from %v, want %v", name, asked, want)
		}
		f.mu.Unlock()
	}
}

// A replica that dies in the middle of a batch does not end the reading: after one try's time the rest is asked for again.
func TestReadReplicaDies(t *testing.T) {
	l, f := logTestFakeLog(t)
	f.direct = append(f.direct,
		func(m *nats.Msg, _ uint64) { f.send(m, 1, 0) },
		func(m *nats.Msg, seq uint64) { f.send(m, seq, 0); f.end(m, seq, 0) })
	seqs, last, err := logTestRead(t, logTestCtx(t), l, 1)
	if err != nil || last != 2 || !slices.Equal(seqs, logTestSeqs(1, 2)) {
		t.Errorf("read %v to %d, %v", seqs, last, err)
	}
}

func TestReadEndsWithContext(t *testing.T) {
	l, f := logTestFakeLog(t)
	cause := errors.New("shutting down")
	ctx, cancel := context.WithCancelCause(context.Background())
	f.direct = append(f.direct, func(m *nats.Msg, _ uint64) { f.send(m, 1, 0); cancel(cause) })
	_, last, err := logTestRead(t, ctx, l, 1)
	logTestIs(t, err, ErrNoLeader)
	logTestIs(t, err, cause)
	if last > 1 {
		t.Errorf("read to %d", last)
	}
}

// A status that nobody foresaw is an error, not the end.
func TestReadUnknownStatus(t *testing.T) {
	l, f := logTestFakeLog(t)
	f.direct = append(f.direct, func(m *nats.Msg, _ uint64) { f.respond(m, nats.Header{"Status": {"500"}}, nil) })
	if _, _, err := logTestRead(t, logTestCtx(t), l, 1); err == nil || errors.Is(err, ErrNoLeader) {
		t.Errorf("status 500: %v", err)
	}
}
