package service

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/allocnode/allocnode"
	"github.com/allocnode/allocnode/internal/next"
	"github.com/allocnode/allocnode/internal/wire"
	"github.com/nats-io/nats.go"
)

func TestNext(t *testing.T) {
	f := start(t, true, nil)
	begin := time.Now()
	f.want("alloc.next.orders", "", `{"sequence":"orders","id":1`)
	f.want("alloc.next.orders", "1", `{"sequence":"orders","id":2`)
	f.want("alloc.next.orders", `{"count":1}`, `{"sequence":"orders","id":3`)
	f.want("alloc.next.orders.eu", `{"ids":"string"}`, `{"sequence":"orders.eu","id":"4"`)
	f.want("alloc.next.orders", "3\n", `{"sequence":"orders","count":3,"ranges":[{"start":5,"end":8}]`)
	f.want("alloc.next.orders", `{"count":4}`,
		`{"sequence":"orders","count":4,"ranges":[{"start":8,"end":10},{"start":11,"end":13}]`)
	f.want("alloc.next.orders", `{"count":2,"ids":"string"}`,
		`{"sequence":"orders","count":2,"ranges":[{"start":"13","end":"15"}]`)
	reply, err := wire.DecodeNext(f.request("alloc.next.orders", "10").Data, 10)
	if err != nil || len(reply.Ranges) != 2 || reply.Ranges[1] != (allocnode.Range{Start: 21, End: 26}) {
		t.Errorf("decoded %+v, %v", reply, err)
	}
	takes := f.log.taken()
	for _, r := range takes {
		if d := r.Deadline.Sub(begin); d < DefaultTimeout || d > DefaultTimeout+wait {
			t.Errorf("deadline after %s", d)
		}
	}
	if ops := f.log.ops(); len(takes) != 8 || len(ops) != 0 {
		t.Errorf("%d requests were taken, %d operations are in the log", len(takes), len(ops))
	}
	if st := f.svc.Stats()["next"]; st.Requests != 8 || st.Errors != nil {
		t.Errorf("counters: %+v", st)
	}
}

// Nothing that is malformed or asks for too much takes ids. Seen to fail with the parse error ignored, and without
// checkCount.
func TestBadNextTakesNothing(t *testing.T) {
	f := start(t, true, nil)
	f.want("alloc.create.narrow", `{"max_count":5}`,
		`{"sequence":"narrow","first":1,"max":9007199254740991,"max_count":5,"seq":1`)
	for _, tt := range []struct {
		subject, body string
		code          allocnode.Code
		message       string
	}{
		{"orders", "0", "bad_request", "count is 0"},
		{"orders", "-5", "bad_request", "whole number"},
		{"orders", "\x00\xff\xfe", "bad_request", "whole number"},
		{"orders", `{"count":1,"key":"k"}`, "bad_request", "unknown field"},
		{"orders", `{"ids":"roman"}`, "bad_request", "ids"},
		{"orders", "1001", "bad_request", "count 1001 is above max_count 1000 of orders"},
		{"narrow", "6", "bad_request", "count 6 is above max_count 5 of narrow"},
		{"ord*rs", "", "bad_request", "character"},
	} {
		f.refused("alloc.next."+tt.subject, tt.body, tt.code, tt.message)
	}
	f.noResponders("alloc.next")
	if takes := f.log.taken(); len(takes) != 0 {
		t.Errorf("%d requests were taken", len(takes))
	}
}

func TestNextRefusals(t *testing.T) {
	f := start(t, true, nil)
	for _, code := range []allocnode.Code{"exhausted", "not_found", "fenced", "unavailable", "too_large", "bad_request"} {
		f.log.set(func() { f.log.err = &allocnode.Error{Code: code, Message: "why", Remaining: 3} })
		f.refused("alloc.next.a", "5", code, "why")
	}
	_, err := wire.DecodeNext(f.request("alloc.next.a", "").Data, 1)
	if !errors.Is(err, allocnode.ErrBadRequest) {
		t.Error(err)
	}
	f.log.set(func() { f.log.err = errors.New("plain") })
	f.refused("alloc.next.a", "", "unknown_outcome", "internal: plain")
	if st := f.svc.Stats()["next"]; st.Errors["exhausted"] != 1 || st.Errors["bad_request"] != 2 || st.Requests != 8 {
		t.Errorf("counters: %+v", st)
	}
}

// A next that no one waits for takes nothing, nor does one whose answer would go where its requester may not publish. Seen
// to fail with the endpoint marked mute, and without mayAnswer.
func TestNextWithoutReply(t *testing.T) {
	f := start(t, true, nil)
	if err := f.nc.Publish("alloc.next.a", nil); err != nil {
		t.Fatal(err)
	}
	for _, reply := range []string{"$KV.bucket.key", "alloc.log.n1"} {
		if err := f.nc.PublishRequest("alloc.next.a", reply, nil); err != nil {
			t.Fatal(err)
		}
	}
	f.request("alloc.next.x", "x") // refused, and handled after them
	if takes := f.log.taken(); len(takes) != 0 {
		t.Errorf("%d requests were taken", len(takes))
	}
	if st := f.svc.Stats()["next"]; st.NoReply != 3 {
		t.Errorf("counters: %+v", st)
	}
}

// Drain waits for the answer of a next, and leaves nobody listening.
func TestDrainNext(t *testing.T) {
	f := start(t, true, nil)
	f.log.set(func() { f.log.hold = true })
	inbox := nats.NewInbox()
	sub, err := f.nc.SubscribeSync(inbox)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.nc.PublishRequest("alloc.next.a", inbox, nil); err != nil {
		t.Fatal(err)
	}
	<-f.log.arrived
	drained := make(chan error, 1)
	go func() { drained <- f.svc.Drain(deadline(t)) }()
	f.noResponders("alloc.next.a")
	notYet(t, drained)
	for _, r := range f.log.taken() {
		f.log.give(r)
	}
	if err := <-drained; err != nil {
		t.Errorf("Drain: %v", err)
	}
	if m, err := sub.NextMsgWithContext(deadline(t)); err != nil || len(m.Header) != 0 {
		t.Errorf("%v, %v", m, err)
	}
}

// takerFunc is a Taker.
type takerFunc func(r *next.Request)

func (f takerFunc) Take(r *next.Request) { f(r) }

// Whoever calls Done, and whether Take has returned by then: one answer for each request. Seen to fail with the answer left
// to the handler always (none comes after Take), and given to the outbox always as well (two come). Run it with -race.
func TestNextDoneFromElsewhere(t *testing.T) {
	var wg sync.WaitGroup
	defer wg.Wait()
	log := newFakeLog()
	for name, take := range map[string]takerFunc{
		"before Take returns": func(r *next.Request) {
			done := make(chan struct{})
			go func() { log.give(r); close(done) }()
			<-done
		},
		"after": func(r *next.Request) {
			returned := make(chan struct{})
			wg.Go(func() { <-returned; log.give(r) })
			defer close(returned)
		},
		"meanwhile": func(r *next.Request) { wg.Go(func() { log.give(r) }) },
	} {
		t.Run(name, func(t *testing.T) {
			f := start(t, false, nil)
			f.svc.taker = take
			f.serve()
			inbox := nats.NewInbox()
			sub, err := f.nc.SubscribeSync(inbox)
			if err != nil {
				t.Fatal(err)
			}
			const n = 500
			for range n {
				if err := f.nc.PublishRequest("alloc.next.a", inbox, nil); err != nil {
					t.Fatal(err)
				}
			}
			seen := make(map[uint64]bool)
			for range n {
				m, err := sub.NextMsgWithContext(deadline(t))
				if err != nil {
					t.Fatal(err)
				}
				r, err := wire.DecodeNext(m.Data, 1)
				if err != nil || seen[r.Ranges[0].Start] {
					t.Fatalf("%s, %v", m.Data, err)
				}
				seen[r.Ranges[0].Start] = true
			}
			if err := f.svc.Drain(deadline(t)); err != nil {
				t.Error(err)
			}
			if err := f.nc.Flush(); err != nil {
				t.Fatal(err)
			}
			if more, _, err := sub.Pending(); more != 0 || err != nil {
				t.Errorf("%d answers more, %v", more, err)
			}
		})
	}
}

// A real pool behind the endpoint, and many requesters: each id is given once. Run it with -race.
func TestNextFromPool(t *testing.T) {
	f := start(t, false, nil)
	startPool(t, f)
	var mu sync.Mutex
	seen := make(map[string]bool)
	var wg sync.WaitGroup
	for range 8 {
		nc := connect(t, f.url)
		wg.Go(func() {
			for i := range 200 {
				sequence, count := fmt.Sprintf("s%d", i%3), uint64(1+i%5)
				m, err := nc.Request("alloc.next."+sequence, fmt.Appendf(nil, "%d", count), wait)
				if err != nil {
					t.Error(err)
					return
				}
				r, err := wire.DecodeNext(m.Data, count)
				if err != nil || r.Sequence != sequence || r.Cluster != testCluster {
					t.Errorf("%s: %v", m.Data, err)
					return
				}
				mu.Lock()
				for _, ids := range r.Ranges {
					for id := ids.Start; id < ids.End; id++ {
						if key := fmt.Sprint(sequence, " ", id); seen[key] {
							t.Errorf("%s twice", key)
						} else {
							seen[key] = true
						}
					}
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if len(seen) != 8*200*3 {
		t.Errorf("%d ids, want %d", len(seen), 8*200*3)
	}
}

var _ Taker = (*next.Pool)(nil)
