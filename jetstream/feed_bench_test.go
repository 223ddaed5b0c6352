package jetstream

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	natsjs "github.com/nats-io/nats.go/jetstream"
)

// BenchmarkFeed measures the ways by which a node can see its own entry: three servers in one process on the loopback, every
// write synced, one entry of 256 bytes in flight. All ways watch the same entries of one run; the next entry is appended when
// all have seen the one before. The medians are in microseconds from the append on:
//
//	p50-ack-µs        until the acknowledgement, which is what any way costs at least
//	p50-consumer-µs   until an ordered consumer delivers; it lives on a random server
//	p50-feed-µs       until the message that the leader republished is there
//
// The time per operation is that of the slowest way.
func BenchmarkFeed(b *testing.B) {
	servers := logTestCluster(b)
	ctx := logTestCtx(b)
	id, err := logTestNew(b, logTestConnect(b, servers[0]), LogConfig{Replicas: 3}, "maker").Create(ctx, logTestID(1), 1)
	logTestOK(b, err)
	var leader, follower *nats.Conn
	for _, s := range servers {
		if s.Name() == id.Leader {
			leader = logTestConnect(b, s)
		} else {
			follower = logTestConnect(b, s)
		}
	}
	b.Run("leader", func(b *testing.B) { benchmarkFeed(b, leader) })
	b.Run("follower", func(b *testing.B) { benchmarkFeed(b, follower) })
}

func benchmarkFeed(b *testing.B, nc *nats.Conn) {
	const ways = 3
	type sight struct {
		way int
		at  time.Time
		seq uint64
	}
	ctx := logTestCtx(b)
	l := logTestNew(b, nc, LogConfig{Replicas: 3}, "n1")
	id, err := l.Identity(ctx)
	logTestOK(b, err)
	seen := make(chan sight, 1000)
	l.OnAck(func(_ uint64, a Ack) {
		if a.Err != nil {
			b.Error(a.Err)
		}
		seen <- sight{0, time.Now(), a.Seq}
	})
	js, err := natsjs.New(nc)
	logTestOK(b, err)
	consumer, err := js.OrderedConsumer(ctx, l.stream, natsjs.OrderedConsumerConfig{
		DeliverPolicy: natsjs.DeliverByStartSequencePolicy, OptStartSeq: id.LastSeq + 1,
	})
	logTestOK(b, err)
	consuming, err := consumer.Consume(func(m natsjs.Msg) {
		at := time.Now()
		meta, err := m.Metadata()
		if err != nil {
			b.Error(err)
			return
		}
		seen <- sight{1, at, meta.Sequence.Stream}
	})
	logTestOK(b, err)
	defer consuming.Stop()
	_, err = l.Feed(id.ClusterID, func(m Message) { seen <- sight{2, time.Now(), m.Seq} })
	logTestOK(b, err)

	data := make([]byte, 256)
	seq := id.LastSeq
	// see appends one entry and returns how long each way took, once all have seen it.
	see := func(patience time.Duration) (took [ways]time.Duration, all bool) {
		seq++
		start := time.Now()
		logTestOK(b, l.Append(seq, fmt.Sprint("bench-", seq), data))
		deadline := time.After(patience)
		for left := ways; left > 0; {
			select {
			case s := <-seen:
				if s.seq == seq { // not what is left of one that was given up below
					took[s.way] = s.at.Sub(start)
					left--
				}
			case <-deadline:
				return took, false
			}
		}
		return took, true
	}
	for range 50 { // until interest has spread, and a little more
		for _, all := see(2 * time.Second); !all; _, all = see(2 * time.Second) {
		}
	}
	var took [ways][]time.Duration
	for b.Loop() {
		t, all := see(30 * time.Second)
		if !all {
			b.Fatalf("entry %d was not seen by all: %v", seq, t)
		}
		for way := range ways {
			took[way] = append(took[way], t[way])
		}
	}
	for way, name := range []string{"ack", "consumer", "feed"} {
		slices.Sort(took[way])
		p50 := took[way][len(took[way])/2]
		b.ReportMetric(float64(p50.Nanoseconds())/1e3, "p50-"+name+"-µs")
	}
}
