package service

import (
	"errors"
	"fmt"
	"math"
	"reflect"
	"strings"
	"testing"

	"github.com/allocnode/allocnode"
	"github.com/allocnode/allocnode/internal/wire"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
)

func TestEndpoints(t *testing.T) {
	f := start(t, true, nil)
	f.want("alloc.reserve.orders", "", `{"sequence":"orders","start":1,"end":2,"count":1,"seq":1`)
	f.want("alloc.reserve.orders", "1000\n", `{"sequence":"orders","start":2,"end":1002,"count":1000,"seq":2`)
	f.want("alloc.reserve.orders.eu", `{"count":10,"ids":"string"}`,
		`{"sequence":"orders.eu","start":"1","end":"11","count":10,"seq":3`)
	f.want("alloc.reserve", `{"requests":[{"sequence":"a","count":2},{"sequence":"b"}]}`,
		`{"results":[{"sequence":"a","start":1,"end":3,"count":2},{"sequence":"b","start":1,"end":2,"count":1}],"seq":4`)
	f.want("alloc.reserve.a", `{"requests":[{"count":2},{"sequence":"a"}]}`,
		`{"results":[{"sequence":"a","start":3,"end":5,"count":2},{"sequence":"a","start":5,"end":6,"count":1}],"seq":5`)
	f.want("alloc.create.small", `{"max":100}`, `{"sequence":"small","first":1,"max":100,"max_count":1000,"seq":6`)
	f.want("alloc.advance.small", "50", `{"sequence":"small","old":0,"hwm":50,"seq":7`)
	f.want("alloc.advance.small", `{"to":5}`, `{"sequence":"small","old":50,"hwm":50,"seq":8`)
	small := `"first":1,"max":100,"max_count":1000,"hwm":50,"remaining":50,"halted":false`
	f.want("alloc.info.small", "", `{"sequence":"small",`+small+`,"seq":8`)
	f.want("alloc.info.small", `{"ids":"string"}`, `{"sequence":"small","first":"1","max":"100","max_count":1000,`+
		`"hwm":"50","remaining":"50","halted":false,"seq":8`)
	f.log.ops()
	f.want("alloc.info.small", `{"consistent":true}`, `{"sequence":"small",`+small+`,"seq":9`)
	f.want("alloc.list", `{"after":4,"limit":1}`, `{"sequences":[{"sequence":"small",`+small+`}],"total":5,"seq":9`)
	f.want("alloc.list", `{"consistent":true,"after":9}`, `{"sequences":[],"total":5,"seq":10`)
	if ops := f.log.ops(); len(ops) != 2 || ops[0].Kind != wire.KindBarrier || ops[1].Kind != wire.KindBarrier {
		t.Errorf("two consistent reads put in the log %+v, want two barriers", ops)
	}
	list, err := wire.DecodeList(f.request("alloc.list", `{"limit":2}`).Data)
	if err != nil || len(list.Sequences) != 2 || list.Sequences[0].Name != "orders" || list.Next != 2 || list.Total != 5 {
		t.Errorf("first page: %+v, %v", list, err)
	}
	f.want("alloc.resume.small", "", `{"sequence":"small","seq":11`)
	f.want("alloc.forget.n2", "", `{"node":"n2","seq":12`)
}

// What reaches the log, operation by operation.
func TestOperations(t *testing.T) {
	f := start(t, true, nil)
	for _, tt := range []struct {
		subject, body string
		want          []wire.Op
	}{
		{"reserve.a", `{"count":5,"key":"k","partial":true,"since":9}`,
			[]wire.Op{{Kind: wire.KindReserve, Name: []byte("a"), Count: 5, Partial: true, Key: []byte("k"), Since: 9}}},
		{"reserve.a", `{"since":9}`, []wire.Op{{Kind: wire.KindReserve, Name: []byte("a"), Count: 1}}},
		{"reserve", `{"key":"L","since":9,"requests":[{"sequence":"a"},{"sequence":"b","key":"k"},{"sequence":"a","partial":true}]}`,
			[]wire.Op{{Kind: wire.KindReserve, Name: []byte("a"), Count: 1, Key: []byte("L"), ListKeyed: true, Since: 9},
				{Kind: wire.KindReserve, Name: []byte("b"), Count: 1, Key: []byte("k"), Since: 9},
				{Kind: wire.KindReserve, Name: []byte("a"), Count: 1, Key: []byte("L"), ListKeyed: true, Index: 2, Since: 9,
					Partial: true}}},
		{"reserve", `{"since":9,"requests":[{"sequence":"a"}]}`, []wire.Op{{Kind: wire.KindReserve, Name: []byte("a"), Count: 1}}},
		{"create.c", `{"first":7}`, []wire.Op{{Kind: wire.KindCreate, Name: []byte("c"), Given: wire.GivenFirst,
			Settings: wire.Settings{First: 7, Max: allocnode.DefaultMax, MaxCount: 1000}}}},
		{"advance.c", "70", []wire.Op{{Kind: wire.KindAdvance, Name: []byte("c"), Count: 70}}},
		{"resume.c", "", []wire.Op{{Kind: wire.KindResume, Name: []byte("c")}}},
		{"forget.n9", "", []wire.Op{{Kind: wire.KindForget, Name: []byte("n9")}}},
	} {
		m := f.request("alloc."+tt.subject, tt.body)
		if got := f.log.ops(); !reflect.DeepEqual(got, tt.want) {
			t.Errorf("%s %s put in the log\n%+v, want\n%+v (answer %s)", tt.subject, tt.body, got, tt.want, m.Data)
		}
	}
}

// Nothing that is malformed or asks for too much reaches the log. Seen to fail with the parse error ignored, and with
// checkCount and the bound on a list's bytes taken out.
func TestBadRequestsLeaveTheLogAlone(t *testing.T) {
	f := start(t, true, nil)
	f.want("alloc.create.narrow", `{"max_count":5}`, `{"sequence":"narrow","first":1,"max":9007199254740991,"max_count":5,"seq":1`)
	f.log.ops()
	key := strings.Repeat("k", 128)
	long := strings.Repeat("n", 128)
	many := `{"key":"` + key + `","requests":[` + strings.TrimSuffix(strings.Repeat("{},", 1000), ",") + "]}"
	for _, tt := range []struct {
		subject, body string
		code          allocnode.Code
		message       string
	}{
		{"reserve.orders", "0", "bad_request", "count is 0"},
		{"reserve.orders", "-5", "bad_request", "whole number"},
		{"reserve.orders", "\x00\xff\xfe garbage", "bad_request", "whole number"},
		{"reserve.orders", "\xa1\x0c\x01", "bad_request", "whole number"},
		{"reserve.orders", `{"amount":1}`, "bad_request", "unknown field"},
		{"reserve.orders", "1001", "bad_request", "count 1001 is above max_count 1000 of orders"},
		{"reserve.narrow", "6", "bad_request", "count 6 is above max_count 5 of narrow"},
		{"reserve.narrow", `{"count":6,"partial":true}`, "bad_request", "above max_count 5"},
		{"reserve.ord*rs", "", "bad_request", "character"},
		{"reserve." + strings.Repeat("a", 129), "", "bad_request", "at most 128"},
		{"reserve", "", "bad_request", "names no sequence"},
		{"reserve", `{"requests":[{"sequence":"a"},{"sequence":"narrow","count":6}]}`, "bad_request", "above max_count 5"},
		{"reserve", `{"requests":[{"sequence":"a"},{"sequence":"b","count":0}]}`, "bad_request", "item 1"},
		{"reserve.a", `{"requests":[{"sequence":"b"}]}`, "bad_request", "must agree"},
		{"reserve." + long, many, "too_large", "at most 262144 are allowed"},
		{"reserve.orders", strings.Repeat("1", wire.MaxBody+1), "too_large", "at most 65536"},
		{"create.orders", `{"first":0}`, "bad_request", "first is 0"},
		{"advance.orders", "", "bad_request", "how far"},
		{"info.orders", "7", "bad_request", "plain number"},
		{"info.orders", "", "not_found", "no sequence orders"},
		{"list", `{"limit":0}`, "bad_request", "limit is 0"},
		{"forget.n*", "", "bad_request", "character"},
		{"resume.orders", "7", "bad_request", "plain number"},
	} {
		f.refused("alloc."+tt.subject, tt.body, tt.code, tt.message)
		if ops := f.log.ops(); len(ops) != 0 {
			t.Errorf("%.60s %.60q put in the log: %+v", tt.subject, tt.body, ops)
		}
	}
	// 127 bytes of name make the same list fit: the bound is on what the log holds, not on the items.
	f.request("alloc.reserve.n", many)
	if ops := f.log.ops(); len(ops) != 1000 {
		t.Errorf("a list of 1000 items put %d operations in the log", len(ops))
	}
}

func TestCheckCountWithoutAutoCreate(t *testing.T) {
	f := start(t, true, func(c *Config) { c.AutoCreate = false })
	f.log.set(func() { f.log.reject = func(*wire.Op) wire.Reject { return wire.RejectUnknown } })
	f.refused("alloc.reserve.orders", "1001", "not_found", "create it first")
}

// Every code that the log or the proposer gives stands in header and body.
func TestRefusals(t *testing.T) {
	f := start(t, true, nil)
	for reject, code := range map[wire.Reject]allocnode.Code{
		wire.RejectExhausted: "exhausted", wire.RejectHalted: "exhausted", wire.RejectUnknown: "not_found",
		wire.RejectSettings: "conflict", wire.RejectKeyReused: "conflict", wire.RejectKeyExpired: "key_expired",
		wire.RejectCount: "bad_request", wire.RejectSequences: "too_large", wire.RejectBeyondMax: "bad_request",
		wire.RejectNotNamed: "not_found",
	} {
		f.log.set(func() { f.log.reject = func(*wire.Op) wire.Reject { return reject } })
		for _, subject := range []string{"reserve.a", "create.a", "advance.a", "forget.a", "resume.a"} {
			f.refused("alloc."+subject, map[bool]string{true: "9"}[subject == "advance.a"], code, "")
		}
	}
	f.log.set(func() {
		f.log.reject = func(op *wire.Op) wire.Reject {
			if string(op.Name) == "full" {
				return wire.RejectExhausted
			}
			return wire.Accepted
		}
	})
	f.want("alloc.reserve", `{"requests":[{"sequence":"full","count":9},{"sequence":"a"}]}`,
		`{"results":[{"error":{"code":"exhausted","message":"9 ids asked of full, 3 remain","remaining":3}},`+
			`{"sequence":"a","start":1,"end":2,"count":1}],"seq":`+fmt.Sprint(f.log.Cursor()+1))

	for _, code := range []allocnode.Code{"fenced", "unavailable", "unknown_outcome"} {
		f.log.set(func() { f.log.err = allocnode.Errorf(code, "line one\r\nNats-Service-Error-Code: 200") })
		m := f.request("alloc.reserve.a", "")
		if got := m.Header.Get("Nats-Service-Error-Code"); got != statusText[code] || len(m.Header) != 2 {
			t.Errorf("%s: headers %q", code, m.Header)
		}
		if _, err := wire.DecodeReserve(m.Data); err.(*allocnode.Error).Code != code {
			t.Errorf("%s: body %s", code, m.Data)
		}
	}
	f.log.set(func() { f.log.err = errors.New("plain") })
	f.refused("alloc.reserve.a", "", "unknown_outcome", "internal: plain")
	f.log.set(func() { f.log.err, f.log.short = nil, true })
	f.refused("alloc.reserve.a", "", "unknown_outcome", "0 outcomes for 1 operations")
	f.log.set(func() { f.log.short, f.log.behind = false, 1 })
	// Seen to fail (answered with the older state) without the comparison of cursor and barrier.
	f.refused("alloc.list", `{"consistent":true}`, "unavailable", "behind the barrier")
	f.log.set(func() { f.log.behind, f.log.hide = 0, true })
	f.refused("alloc.create.a", "", "unknown_outcome", "does not show it")
	f.refused("alloc.info.a", `{"consistent":true}`, "not_found", "no sequence a")

	st := f.svc.Stats()["reserve"]
	if st.Errors["fenced"] != 1 || st.Errors["unknown_outcome"] != 3 || st.Errors["conflict"] != 2 || st.Requests != 15 {
		t.Errorf("counters of reserve: %+v", st)
	}
	if st := f.svc.Stats()["reserve-list"]; st.Errors["exhausted"] != 1 || st.Requests != 1 {
		t.Errorf("counters of reserve-list: %+v", st)
	}
}

// A reserve that no one waits for would leak its range; and a node must not publish for a requester where that one may
// not. Seen to fail without the test on the reply, and without mayAnswer.
func TestReplySubjects(t *testing.T) {
	f := start(t, true, nil)
	for _, reply := range []string{"$KV.bucket.key", "$SYS.x", "alloc.log.n1", "alloc", "alloc.advance.a"} {
		stray, err := f.nc.SubscribeSync(reply)
		if err != nil {
			t.Fatal(err)
		}
		for _, subject := range []string{"alloc.reserve.a", "alloc.create.a", "alloc.info.a", "alloc.status"} {
			if err := f.nc.PublishRequest(subject, reply, nil); err != nil {
				t.Fatal(err)
			}
		}
		f.settle("alloc.reserve", "alloc.create", "alloc.info", "alloc.status")
		if n, _, err := stray.Pending(); err != nil || n != 0 {
			t.Errorf("%d answers to %s, %v", n, reply, err)
		}
		_ = stray.Unsubscribe()
	}
	for _, subject := range []string{"alloc.reserve.a", "alloc.reserve", "alloc.info.a", "alloc.list", "alloc.status"} {
		body := map[bool]string{true: `{"requests":[{"sequence":"a"}]}`}[subject == "alloc.reserve"]
		if err := f.nc.Publish(subject, []byte(body)); err != nil {
			t.Fatal(err)
		}
	}
	f.settle("alloc.reserve", "alloc.info", "alloc.list", "alloc.status")
	if ops := f.log.ops(); len(ops) != 0 {
		t.Errorf("requests that nobody waits for put in the log: %+v", ops)
	}
	if st := f.svc.Stats()["reserve"]; st.NoReply != 6 {
		t.Errorf("counters of reserve: %+v", st)
	}
	// These repeat harmlessly, so that nats pub is enough.
	for _, subject := range []string{"alloc.advance.a", "alloc.create.a", "alloc.forget.n2", "alloc.resume.a"} {
		if err := f.nc.Publish(subject, []byte(map[bool]string{true: "9"}[subject == "alloc.advance.a"])); err != nil {
			t.Fatal(err)
		}
	}
	f.settle("alloc.advance", "alloc.create", "alloc.forget", "alloc.resume")
	if ops := f.log.ops(); len(ops) != 4 {
		t.Errorf("an advance, create, forget and resume without a reply put in the log: %+v", ops)
	}
}

// settle waits until everything that was published before it has been handled: one more request on each of the subjects'
// subscriptions, refused for its body, comes back after them.
func (f *fixture) settle(subjects ...string) {
	f.t.Helper()
	for _, s := range subjects {
		switch s {
		case "alloc.status", "alloc.list", "alloc.reserve":
			f.request(s, "x")
		}
		if s != "alloc.status" && s != "alloc.list" {
			f.request(s+".x", "x")
		}
	}
}

func TestStatusAndOperatorsWithoutServing(t *testing.T) {
	url := startServer(t, nil)
	f := startOn(t, url, false, nil)
	other := startOn(t, url, false, func(c *Config) { c.Node = "n2" })
	other.flush()

	inbox := nats.NewInbox()
	sub, err := f.nc.SubscribeSync(inbox)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.nc.PublishRequest("alloc.status", inbox, []byte("\xff ignored")); err != nil {
		t.Fatal(err)
	}
	names := ""
	for range 2 { // every node answers
		m, err := sub.NextMsgWithContext(deadline(t))
		if err != nil {
			t.Fatal(err)
		}
		names += string(m.Data)
	}
	for _, part := range []string{`"name":"n1"`, `"name":"n2"`, `"reason":"why"`} {
		if !strings.Contains(names, part) {
			t.Errorf("status of two nodes: %s: want %s in it", names, part)
		}
	}
	for _, subject := range []string{"alloc.reserve.a", "alloc.forget.n2", "alloc.resume.a"} {
		if _, err := f.nc.Request(subject, nil, wait); !errors.Is(err, nats.ErrNoResponders) {
			t.Errorf("%s before it is started: %v", subject, err)
		}
	}
	for _, x := range []*fixture{f, other} {
		if err := x.svc.StartOperators(testCluster); err != nil {
			t.Fatal(err)
		}
		x.flush()
	}
	f.want("alloc.forget.n3", "", `{"node":"n3","seq":1`)
	if n := len(f.log.ops()) + len(other.log.ops()); n != 1 {
		t.Errorf("%d of two nodes in one queue group took the forget", n)
	}
	if f.svc.StartOperators(testCluster) == nil || f.svc.Start() == nil {
		t.Error("a second start is no error")
	}
	if New(f.conn, testConfig(), f.log, f.log, f.log, f.log, nil).StartServing(testCluster, true) == nil {
		t.Error("serving before Start is no error")
	}
}

// A fenced node refuses users and takes an operator's word. Seen to fail with all requests given to one submitter.
func TestOperatorsHaveTheirOwnSubmitter(t *testing.T) {
	f := start(t, false, nil)
	fenced := newFakeLog()
	fenced.err = allocnode.Errorf(allocnode.CodeFenced, "no")
	if err := f.svc.Close(deadline(t)); err != nil {
		t.Fatal(err)
	}
	f.svc = New(f.conn, testConfig(), fenced, f.log, f.log, f.log, func() wire.Status { return wire.Status{} })
	if err := f.svc.Start(); err != nil {
		t.Fatal(err)
	}
	f.serve()
	for _, subject := range []string{"alloc.reserve.a", "alloc.create.a"} {
		f.refused(subject, "", "fenced", "no")
	}
	f.want("alloc.forget.n2", "", `{"node":"n2","seq":1`)
	f.want("alloc.resume.a", "", `{"sequence":"a","seq":2`)
}

func TestAnswerAboveMaxPayload(t *testing.T) {
	url := startServer(t, func(o *server.Options) { o.MaxPayload = 1024 })
	f := startOn(t, url, true, nil)
	list := `{"requests":[` + strings.TrimSuffix(strings.Repeat(`{"sequence":"abcdefgh"},`, 30), ",") + "]}"
	f.refused("alloc.reserve", list, "unknown_outcome", "max_payload")
}

func TestConfigValidate(t *testing.T) {
	cfg := Config{Prefix: "a..b", Defaults: wire.Settings{First: 1, Max: math.MaxUint64, MaxCount: 1}}
	err := cfg.Validate()
	for _, part := range []string{`prefix "a..b"`, "version is empty", "max is 18446744073709551615", "timeout 0s"} {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("%v: want %q in it", err, part)
		}
	}
	cfg = testConfig()
	if err := cfg.Validate(); err != nil {
		t.Error(err)
	}
}
