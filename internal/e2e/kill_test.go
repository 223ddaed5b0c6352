package e2e

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	mrand "math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/allocnode/allocnode/internal/service"
)

const (
	killClients = 20
	killFor     = 60 * time.Second

	// Below these the run says nothing. On two busy cores with the race detector it makes thousands and about ten.
	leastAcked = 500
	leastKills = 4

	// A client begins one reservation in this time at most, so that on any machine all keys stay within the key window,
	// and the retries at the end take less time than the run.
	pace = 25 * time.Millisecond
)

// operation is one reservation that a client wants, under its key.
type operation struct {
	sequence string
	count    uint64
	key      string
	since    uint64
	attempts int
	got      span
}

// body is the same at every attempt.
func (o *operation) body() []byte {
	b, _ := json.Marshal(struct { // of strings and numbers: it cannot fail
		Count uint64 `json:"count"`
		Key   string `json:"key"`
		Since uint64 `json:"since,omitempty"`
	}{o.count, o.key, o.since})
	return b
}

// reserve asks until it has a range. What may or may not have happened is asked for again under the same key, as is what
// did not happen; any other answer is a fault.
func (o *operation) reserve(ctx context.Context, nc *nats.Conn) (answer, error) {
	for {
		o.attempts++
		var a answer
		m, err := requestOnce(ctx, nc, "alloc.reserve."+o.sequence, o.body())
		switch {
		case ctx.Err() != nil:
			return answer{}, fmt.Errorf("key %s of %s: no range after %d attempts: %w",
				o.key, o.sequence, o.attempts, errors.Join(ctx.Err(), err))
		case err != nil: // time-out, no responders, not connected
		case json.Unmarshal(m.Data, &a) != nil:
			return answer{}, fmt.Errorf("key %s: the answer %q is no JSON", o.key, m.Data)
		case a.Error == nil:
			if a.End-a.Start != o.count || a.Count != o.count || a.Sequence != o.sequence {
				return answer{}, fmt.Errorf("key %s asked for %d ids of %s: got %s", o.key, o.count, o.sequence, m.Data)
			}
			return a, nil
		case a.Error.Code != "unavailable" && a.Error.Code != "unknown_outcome":
			return answer{}, fmt.Errorf("key %s of %s: %s", o.key, o.sequence, m.Data)
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Duration(20+mrand.IntN(80)) * time.Millisecond): // do not press
		}
	}
}

func requestOnce(ctx context.Context, nc *nats.Conn, subject string, body []byte) (*nats.Msg, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	return nc.RequestWithContext(ctx, subject, body)
}

// client reserves under fresh keys until stop ends; the last one it goes on asking for until ctx ends.
func client(ctx, stop context.Context, nc *nats.Conn, id int) (done []*operation, err error) {
	sequences := []string{"orders", "orders.eu", "users"}
	var seen uint64
	tick := time.NewTicker(pace)
	defer tick.Stop()
	for ; stop.Err() == nil; <-tick.C {
		raw := make([]byte, 16)
		_, _ = rand.Read(raw) // never fails
		o := &operation{sequence: sequences[mrand.IntN(len(sequences))], count: 1 + mrand.Uint64N(50), key: hex.EncodeToString(raw)}
		if id%2 == 0 {
			o.since = seen
		}
		a, err := o.reserve(ctx, nc)
		if err != nil {
			return done, err
		}
		o.got = span{start: a.Start, end: a.End, key: o.key}
		seen = max(seen, a.Seq)
		done = append(done, o)
	}
	return done, nil
}

// killInTurn kills one node after the other, and starts it again, until stop ends. Between, it waits until all serve or
// some seconds have passed, so that kills hit elections and catching up too.
func (c *cluster) killInTurn(stop context.Context, nc *nats.Conn) (kills int) {
	for i := mrand.IntN(3); ; i = (i + 1) % 3 {
		calm, cancel := context.WithTimeout(stop, time.Duration(500+mrand.IntN(6000))*time.Millisecond)
		_ = poll(calm, func() error { return servingAll(statuses(c.t, nc, 3), 3) }) // in calm or not
		cancel()
		if !within(stop, mrand.IntN(1500)) {
			return kills
		}
		c.nodes[i].kill()
		kills++
		within(stop, mrand.IntN(2000))
		c.start(i)
	}
}

// within lets ms pass, and reports whether stop has not ended.
func within(stop context.Context, ms int) bool {
	select {
	case <-stop.Done():
		return false
	case <-time.After(time.Duration(ms) * time.Millisecond):
		return true
	}
}

// TestKilledNodes is the promise as users see it: nodes die by SIGKILL at any moment, and nothing is issued twice, what
// was acknowledged stays, and a key has its range for good. How it was checked: with a key window of 10 in the
// genesis of newCluster, retries report key_expired during the run, and other ranges at the end.
func TestKilledNodes(t *testing.T) {
	c := startCluster(t)
	observer := connect(t, c.urls...)
	ctx, cancel := context.WithTimeout(t.Context(), killFor+2*patience)
	defer cancel()
	stop, cancelStop := context.WithTimeout(ctx, killFor)
	defer cancelStop()

	var mu sync.Mutex // guards all
	var all []*operation
	var clients sync.WaitGroup
	for id := range killClients {
		nc := connect(t, c.urls...)
		clients.Go(func() {
			done, err := client(ctx, stop, nc, id)
			if err != nil {
				t.Errorf("client %d: %v", id, err)
			}
			mu.Lock()
			defer mu.Unlock()
			all = append(all, done...)
		})
	}
	kills := c.killInTurn(stop, observer)
	c.awaitServing(observer)
	clients.Wait()

	retried := 0
	spans := make(map[string][]span)
	for _, o := range all {
		spans[o.sequence] = append(spans[o.sequence], o.got)
		if o.attempts > 1 {
			retried++
		}
	}
	t.Logf("%d acknowledged, %d of them after a retry, %d kills", len(all), retried, kills)
	if len(all) < leastAcked || kills < leastKills || retried == 0 {
		t.Fatalf("inconclusive: want %d acknowledged, one of them after a retry, and %d kills", leastAcked, leastKills)
	}
	for sequence, s := range spans {
		if err := disjoint(s); err != nil {
			t.Errorf("%s: %v", sequence, err)
		}
	}
	c.agree(observer)

	// The node that takes reservations answers all keys; then, without it, another one does.
	first := c.retryAll(ctx, all, 0, 1, 2)
	c.nodes[first].kill()
	second := c.retryAll(ctx, all, (first+1)%3, (first+2)%3)
	if second == first {
		t.Errorf("%s is dead, and answers", c.names[first])
	}
	c.start(first)
	c.awaitServing(observer)
	c.agree(observer)

	// Nothing of what follows may come from some process's memory.
	for _, p := range c.nodes {
		p.kill()
	}
	for i := range c.names {
		c.start(i)
	}
	c.awaitServing(observer)
	c.retryAll(ctx, all, 0, 1, 2)
	c.agree(observer)
	for sequence, s := range spans {
		info := ask(t, observer, "alloc.info."+sequence, `{"consistent":true}`)
		for _, got := range s {
			if info.HWM < got.end-1 {
				t.Errorf("the hwm of %s is %d, key %s has [%d, %d)", sequence, info.HWM, got.key, got.start, got.end)
			}
		}
	}
}

// retryAll sends every operation again, by way of the nodes in turn, and wants the range it had. One node answers, that
// leads the stream; retryAll returns it, after it has asserted that it answered a good part.
func (c *cluster) retryAll(ctx context.Context, all []*operation, nodes ...int) (taker int) {
	c.t.Helper()
	const workersEach = 8
	var workers sync.WaitGroup
	step := workersEach * len(nodes)
	for part := range step {
		i := nodes[part%len(nodes)]
		nc := connect(c.t, c.urls[i])
		workers.Go(func() {
			for n := part; n < len(all); n += step {
				o := *all[n]
				a, err := o.reserve(ctx, nc)
				if err != nil {
					c.t.Errorf("retry by way of %s: %v", c.names[i], err)
					return
				}
				if a.Start != o.got.start || a.End != o.got.end {
					c.t.Errorf("key %s of %s had [%d, %d), a retry by way of %s gave [%d, %d)",
						o.key, o.sequence, o.got.start, o.got.end, c.names[i], a.Start, a.End)
				}
			}
		})
	}
	workers.Wait()
	taker, requests := c.taker(connect(c.t, c.urls[nodes[0]]), len(nodes))
	if want := uint64(len(all) / 4); requests < want {
		c.t.Errorf("%s was asked for %d of %d: want %d or more, or it was not put to the test", c.names[taker], requests, len(all), want)
	}
	return taker
}

// taker waits until one of the nodes that serve, which are want, has the endpoint reserve and all have info. It returns that
// node, and how many reservations it was asked for since it started, by its micro statistics.
func (c *cluster) taker(nc *nats.Conn, want int) (taker int, requests uint64) {
	c.t.Helper()
	eventually(c.t, "one node takes reservations", func() error {
		inbox := nc.NewInbox()
		sub, err := nc.SubscribeSync(inbox)
		if err != nil {
			return err
		}
		defer func() { _ = sub.Unsubscribe() }()
		if err := nc.PublishRequest("$SRV.STATS."+service.Name, inbox, nil); err != nil {
			return err
		}
		var takers, informers []string
		for range want {
			m, err := sub.NextMsg(time.Second)
			if err != nil {
				return fmt.Errorf("%d nodes answered: %w", len(informers), err)
			}
			var s struct {
				Metadata  map[string]string `json:"metadata"`
				Endpoints []struct {
					Name string                `json:"name"`
					Data service.EndpointStats `json:"data"`
				} `json:"endpoints"`
			}
			if err := json.Unmarshal(m.Data, &s); err != nil {
				return err
			}
			for _, ep := range s.Endpoints {
				switch ep.Name {
				case "reserve":
					takers = append(takers, s.Metadata["node"])
					requests = ep.Data.Requests
				case "info":
					informers = append(informers, s.Metadata["node"])
				}
			}
		}
		slices.Sort(informers)
		if len(takers) != 1 || len(slices.Compact(informers)) != want {
			return fmt.Errorf("reserve is an endpoint of %v, info of %v", takers, informers)
		}
		taker = slices.Index(c.names, takers[0])
		return nil
	})
	return taker, requests
}
