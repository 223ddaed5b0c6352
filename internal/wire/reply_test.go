package wire

import (
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/allocnode/allocnode"
)

var testCluster = ID{0x0a, 0x1b, 15: 0xff}

const testClusterHex = "0a1b00000000000000000000000000ff"

func TestRepliesGolden(t *testing.T) {
	end := `"cluster":"` + testClusterHex + `"}`
	r := allocnode.Range{Start: 1, End: 1001}
	ranges := []allocnode.Range{{Start: 1, End: 4}, {Start: 9, End: 11}}
	info := SequenceInfo{Name: "orders", Settings: Settings{1, 1 << 60, 1000}, HWM: 1000}
	infoJSON := `{"sequence":"orders","first":1,"max":1152921504606846976,"max_count":1000,"hwm":1000,` +
		`"remaining":1152921504606845976,"halted":false`
	infoText := `{"sequence":"orders","first":"1","max":"1152921504606846976","max_count":1000,"hwm":"1000",` +
		`"remaining":"1152921504606845976","halted":false`
	exhausted := &allocnode.Error{Code: allocnode.CodeExhausted, Message: `5 of "orders"`, Remaining: 3}
	results := []ReserveResult{{Sequence: "orders", Range: r}, {Err: exhausted}}
	for _, tt := range []struct {
		name string
		got  []byte
		want string
	}{
		{"reserve", AppendReserveReply(nil, "orders", r, 17, testCluster, false),
			`{"sequence":"orders","start":1,"end":1001,"count":1000,"seq":17,` + end},
		{"reserve, text", AppendReserveReply(nil, "orders", r, 17, testCluster, true),
			`{"sequence":"orders","start":"1","end":"1001","count":1000,"seq":17,` + end},
		{"list of reserves", AppendReserveListReply(nil, results, 17, testCluster, false),
			`{"results":[{"sequence":"orders","start":1,"end":1001,"count":1000},` +
				`{"error":{"code":"exhausted","message":"5 of \"orders\"","remaining":3}}],"seq":17,` + end},
		{"next", AppendNextReply(nil, "orders", []allocnode.Range{{Start: 17, End: 18}}, 1, testCluster, false),
			`{"sequence":"orders","id":17,` + end},
		{"next, text", AppendNextReply(nil, "orders", []allocnode.Range{{Start: 17, End: 18}}, 1, testCluster, true),
			`{"sequence":"orders","id":"17",` + end},
		{"next of many", AppendNextReply(nil, "orders", ranges, 5, testCluster, false),
			`{"sequence":"orders","count":5,"ranges":[{"start":1,"end":4},{"start":9,"end":11}],` + end},
		{"next of many, text", AppendNextReply(nil, "orders", ranges, 5, testCluster, true),
			`{"sequence":"orders","count":5,"ranges":[{"start":"1","end":"4"},{"start":"9","end":"11"}],` + end},
		{"advance", AppendAdvanceReply(nil, "orders", 1000, 5000, 17, testCluster),
			`{"sequence":"orders","old":1000,"hwm":5000,"seq":17,` + end},
		{"create", AppendCreateReply(nil, "orders", Settings{1, 99, 10}, 17, testCluster),
			`{"sequence":"orders","first":1,"max":99,"max_count":10,"seq":17,` + end},
		{"info", AppendInfoReply(nil, &info, 17, testCluster, false), infoJSON + `,"seq":17,` + end},
		{"info, text", AppendInfoReply(nil, &info, 17, testCluster, true), infoText + `,"seq":17,` + end},
		{"list", AppendListReply(nil, []SequenceInfo{info, info}, 2, 5, 17, testCluster, false),
			`{"sequences":[` + infoJSON + "}," + infoJSON + `}],"next":2,"total":5,"seq":17,` + end},
		{"list, last page", AppendListReply(nil, nil, 0, 0, 17, testCluster, false), `{"sequences":[],"total":0,"seq":17,` + end},
		{"resume", AppendResumeReply(nil, "orders", 17, testCluster), `{"sequence":"orders","seq":17,` + end},
		{"forget", AppendForgetReply(nil, "n1", 17, testCluster), `{"node":"n1","seq":17,` + end},
		{"error", AppendErrorReply(nil, exhausted, testCluster),
			`{"error":{"code":"exhausted","message":"5 of \"orders\"","remaining":3},` + end},
		{"error without remaining", AppendErrorReply(nil, allocnode.Errorf(allocnode.CodeFenced, "no"), testCluster),
			`{"error":{"code":"fenced","message":"no"},` + end},
		{"error of a node without a cluster", AppendErrorReply(nil, allocnode.Errorf(allocnode.CodeFenced, "no"), ID{}),
			`{"error":{"code":"fenced","message":"no"}}`},
	} {
		if string(tt.got) != tt.want {
			t.Errorf("%s:\ngot  %s\nwant %s", tt.name, tt.got, tt.want)
		}
		if !json.Valid(tt.got) {
			t.Errorf("%s is not valid JSON", tt.name)
		}
	}
}

// A message comes out of encoding/json as it went in, whatever is in it.
func FuzzErrorReply(f *testing.F) {
	for _, s := range []string{"", `"\/`, "a\r\n\t\x00\x1f\x7f", "é\u2028𝄞\ufffd", "<&>", "\xff\xc3"} {
		f.Add(s, uint64(7))
	}
	f.Fuzz(func(t *testing.T, message string, remaining uint64) {
		in := &allocnode.Error{Code: allocnode.CodeExhausted, Message: message, Remaining: remaining}
		body := AppendErrorReply(nil, in, testCluster)
		var got struct {
			Error struct{ Message string }
		}
		if err := json.Unmarshal(body, &got); err != nil {
			t.Fatalf("%q: %v", body, err)
		}
		if want := strings.ToValidUTF8(message, "\ufffd"); strings.ReplaceAll(got.Error.Message, "\ufffd", "") !=
			strings.ReplaceAll(want, "\ufffd", "") {
			t.Fatalf("message %q, want %q", got.Error.Message, want)
		}
		reply, err := DecodeReserve(body)
		var e *allocnode.Error
		if !errors.As(err, &e) || e.Code != in.Code || e.Remaining != remaining || reply.Cluster != testCluster {
			t.Fatalf("decoded %+v, %#v", reply, err)
		}
	})
}

func TestAppendAllocatesNothing(t *testing.T) {
	buf := make([]byte, 0, 512)
	r := allocnode.Range{Start: 1, End: 1001}
	e := &allocnode.Error{Code: allocnode.CodeExhausted, Message: "no", Remaining: 3}
	for name, f := range map[string]func(){
		"reserve": func() { buf = AppendReserveReply(buf[:0], "orders", r, 17, testCluster, false) },
		"next":    func() { buf = AppendNextReply(buf[:0], "orders", []allocnode.Range{r, r}, 2000, testCluster, true) },
		"error":   func() { buf = AppendErrorReply(buf[:0], e, testCluster) },
	} {
		if n := testing.AllocsPerRun(100, f); n != 0 {
			t.Errorf("%s allocates %v times", name, n)
		}
	}
}

func TestDecodeRoundTrips(t *testing.T) {
	from := Origin{Seq: 17, Cluster: testCluster}
	r := allocnode.Range{Start: 1 << 60, End: allocnode.MaxID + 1}
	info := SequenceInfo{Name: "orders", Settings: Settings{1, allocnode.MaxID, 1000}, HWM: 1 << 60, Halted: true}
	results := []ReserveResult{{Sequence: "a.b", Range: r}, {Err: allocnode.Errorf(allocnode.CodeConflict, "no")}}
	check := func(what string, got any, err error, want any) {
		t.Helper()
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: got %+v, %v, want %+v", what, got, err, want)
		}
	}
	for _, text := range []bool{false, true} {
		one, err := DecodeReserve(AppendReserveReply(nil, "orders", r, 17, testCluster, text))
		check("reserve", one, err, ReserveReply{from, "orders", r})
		many, err := DecodeReserveList(AppendReserveListReply(nil, results, 17, testCluster, text), 2)
		check("reserve list", many, err, ReserveListReply{from, results})
		two := []allocnode.Range{{Start: 1, End: 3}, r}
		nx, err := DecodeNext(AppendNextReply(nil, "orders", two, 2+r.Count(), testCluster, text), 2+r.Count())
		check("next", nx, err, NextReply{Origin{Cluster: testCluster}, "orders", two})
		last := []allocnode.Range{{Start: allocnode.MaxID, End: allocnode.MaxID + 1}}
		nx, err = DecodeNext(AppendNextReply(nil, "orders", last, 1, testCluster, text), 1)
		check("next, one id", nx, err, NextReply{Origin{Cluster: testCluster}, "orders", last})
		in, err := DecodeInfo(AppendInfoReply(nil, &info, 17, testCluster, text))
		check("info", in, err, InfoReply{from, info})
		list, err := DecodeList(AppendListReply(nil, []SequenceInfo{info}, 9, 30, 17, testCluster, text))
		check("list", list, err, ListReply{from, []SequenceInfo{info}, 9, 30})
	}
	adv, err := DecodeAdvance(AppendAdvanceReply(nil, "orders", 0, 1<<60, 17, testCluster))
	check("advance", adv, err, AdvanceReply{from, "orders", 0, 1 << 60})
	created, err := DecodeCreate(AppendCreateReply(nil, "orders", info.Settings, 17, testCluster))
	check("create", created, err, CreateReply{from, "orders", info.Settings})
	name, o, err := DecodeDone(AppendForgetReply(nil, "n1", 17, testCluster))
	check("forget", []any{name, o}, err, []any{"n1", from})
	name, o, err = DecodeDone(AppendResumeReply(nil, "orders", 17, testCluster))
	check("resume", []any{name, o}, err, []any{"orders", from})
}

// What is no answer of a node is an unknown outcome, never a range and never a refusal. Seen to fail with the checks of
// decodeAnswer and rangeOf taken out.
func TestDecodeReserveRefuses(t *testing.T) {
	end := `,"seq":17,"cluster":"` + testClusterHex + `"}`
	for _, body := range []string{
		"", "null", "[]", "7", "{}", "+OK", "\xff",
		`{"stream":"ORDERS","seq":17}`, // a PubAck
		`{"stream":"ORDERS","seq":17,"duplicate":true}`,
		`{"sequence":"orders"` + end,
		`{"sequence":"orders","start":1,"count":1` + end,
		`{"start":1,"end":2,"count":1` + end,
		`{"sequence":"orders","start":0,"end":1,"count":1` + end,
		`{"sequence":"orders","start":5,"end":5,"count":0` + end,
		`{"sequence":"orders","start":6,"end":5,"count":1` + end,
		`{"sequence":"orders","start":1,"end":3,"count":1` + end,
		`{"sequence":"orders","start":1,"end":9223372036854775809,"count":9223372036854775808` + end,
		`{"sequence":"orders","start":-1,"end":3,"count":4` + end,
		`{"sequence":"orders","start":1.5,"end":3,"count":2` + end,
		`{"sequence":"orders","start":"","end":3,"count":2` + end,
		`{"sequence":"orders","start":1,"end":2,"count":1,"seq":17}`,
		`{"sequence":"orders","start":1,"end":2,"count":1,"seq":17,"cluster":"0a"}`,
		`{"sequence":"orders","start":1,"end":2,"count":1,"error":{"code":"fenced","message":"x"}` + end,
		`{"error":{"message":"x"}}`,
		`{"error":{"code":"fenced"`,
		`{"results":[]` + end,
	} {
		reply, err := DecodeReserve([]byte(body))
		var no *NotReplyError
		if !errors.As(err, &no) || !errors.Is(err, allocnode.ErrUnknownOutcome) || reply != (ReserveReply{}) {
			t.Errorf("DecodeReserve(%q) = %+v, %v", body, reply, err)
		}
	}
	one := []ReserveResult{{Sequence: "a", Range: allocnode.Range{Start: 1, End: 2}}}
	list := AppendReserveListReply(nil, one, 17, testCluster, false)
	if _, err := DecodeReserveList(list, 2); !errors.Is(err, allocnode.ErrUnknownOutcome) {
		t.Errorf("one result for two requests: %v", err)
	}
	refusal := `{"error":{"code":"fenced","message":"m"},"cluster":"` + testClusterHex + `"}`
	if reply, err := DecodeReserve([]byte(refusal)); !errors.Is(err, allocnode.ErrFenced) || reply.Cluster != testCluster {
		t.Errorf("a refusal: %+v, %v", reply, err)
	}
}

// The same of a next. Seen to fail with the checks of DecodeNext and decodeUnlogged taken out, one by one.
func TestDecodeNextRefuses(t *testing.T) {
	end := `,"cluster":"` + testClusterHex + `"}`
	for _, tt := range []struct {
		count uint64
		body  string
	}{
		{1, ""}, {1, "{}"}, {1, "17"}, {1, `{"stream":"ORDERS","seq":17}`},
		{1, `{"sequence":"orders"` + end},
		{1, `{"id":17` + end},
		{1, `{"sequence":"orders","id":17}`},
		{1, `{"sequence":"orders","id":0` + end},
		{1, `{"sequence":"orders","id":9223372036854775808` + end},
		{1, `{"sequence":"orders","id":18446744073709551615` + end},
		{1, `{"sequence":"orders","id":-1` + end},
		{1, `{"sequence":"orders","id":17,"error":{"code":"fenced","message":"x"}` + end},
		{1, `{"sequence":"orders","ranges":[{"start":1,"end":2}],"error":{"code":"fenced","message":"x"}` + end},
		{1, `{"sequence":"orders","id":1,"count":1,"ranges":[{"start":1,"end":2}]` + end},
		{2, `{"sequence":"orders","id":17` + end},
		{2, `{"sequence":"orders","ranges":[{"start":1,"end":3}]` + end},
		{2, `{"sequence":"orders","count":2` + end},
		{2, `{"sequence":"orders","count":2,"ranges":[]` + end},
		{2, `{"sequence":"orders","count":2,"ranges":[{"start":1,"end":4}]` + end},
		{2, `{"sequence":"orders","count":3,"ranges":[{"start":1,"end":3}]` + end},
		{2, `{"sequence":"orders","count":2,"ranges":[{"start":1,"end":2},{"start":1,"end":2}]` + end},
		{2, `{"sequence":"orders","count":2,"ranges":[{"start":2,"end":3},{"start":1,"end":2}]` + end},
		{2, `{"sequence":"orders","count":2,"ranges":[{"start":1,"end":3},{"start":5,"end":5}]` + end},
		{2, `{"sequence":"orders","count":2,"ranges":[{"start":0,"end":2}]` + end},
		{2, `{"sequence":"orders","count":2,"ranges":[{"start":9223372036854775807,"end":9223372036854775809}]` + end},
		{2, `{"sequence":"orders","count":2,"ranges":[{"start":1,"end":4},{"start":6,"end":5}]` + end},
	} {
		reply, err := DecodeNext([]byte(tt.body), tt.count)
		var no *NotReplyError
		if !errors.As(err, &no) || !errors.Is(err, allocnode.ErrUnknownOutcome) || reply.Ranges != nil {
			t.Errorf("DecodeNext(%q, %d) = %+v, %v", tt.body, tt.count, reply, err)
		}
	}
	refusal := AppendErrorReply(nil, &allocnode.Error{Code: allocnode.CodeExhausted, Message: "m", Remaining: 3}, testCluster)
	reply, err := DecodeNext(refusal, 1)
	var e *allocnode.Error
	if !errors.As(err, &e) || e.Code != allocnode.CodeExhausted || e.Remaining != 3 || reply.Cluster != testCluster {
		t.Errorf("a refusal: %+v, %v", reply, err)
	}
}

func FuzzDecodeReplies(f *testing.F) {
	f.Add(AppendReserveReply(nil, "orders", allocnode.Range{Start: 1, End: 9}, 17, testCluster, true))
	f.Add([]byte(`{"stream":"ORDERS","seq":17}`))
	f.Add(AppendNextReply(nil, "orders", []allocnode.Range{{Start: 1, End: 3}, {Start: 5, End: 6}}, 3, testCluster, true))
	f.Add(AppendNextReply(nil, "orders", []allocnode.Range{{Start: 7, End: 8}}, 1, testCluster, false))
	f.Add([]byte(`{"results":[{},{"error":{}}],"sequences":[{}],"seq":1}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		r, err := DecodeReserve(body)
		if err == nil && (r.Range.Start == 0 || r.Range.Empty() || r.Range.End > allocnode.MaxID+1 || r.Cluster.IsZero()) {
			t.Fatalf("%q became %+v", body, r)
		}
		for count := range uint64(4) {
			n, err := DecodeNext(body, count+1)
			total := uint64(0)
			for _, r := range n.Ranges {
				if total += r.Count(); r.Start == 0 || r.Empty() || r.End > allocnode.MaxID+1 {
					t.Fatalf("%q became %+v", body, n)
				}
			}
			if err == nil && (total != count+1 || n.Cluster.IsZero()) {
				t.Fatalf("%q became %+v, with %d asked", body, n, count+1)
			}
		}
		for _, f := range []func() error{
			func() error { _, err := DecodeNext(body, 2); return err },
			func() error { _, err := DecodeReserveList(body, 2); return err },
			func() error { _, err := DecodeAdvance(body); return err },
			func() error { _, err := DecodeCreate(body); return err },
			func() error { _, err := DecodeInfo(body); return err },
			func() error { _, err := DecodeList(body); return err },
			func() error { _, _, err := DecodeDone(body); return err },
		} {
			var refused *allocnode.Error
			if err := f(); err != nil && !errors.As(err, &refused) && !errors.Is(err, allocnode.ErrUnknownOutcome) {
				t.Fatalf("%q: %v", body, err)
			}
		}
	})
}

func TestStatusJSON(t *testing.T) {
	in := Status{Name: "n1", Role: RoleLeader, Cluster: testCluster, Epoch: 1, Incarnation: ID{1}, Catalog: ID{2}, Version: "1.2.3",
		Level: 1, Cursor: 15, Last: 17, Lag: 2, Digest: Digest{3}.String(), State: StateFenced, Reason: "why", Sequences: 4,
		Counters: map[string]uint64{"skipped": 5}}
	body, err := json.Marshal(in)
	if err != nil {
		t.Fatal(err)
	}
	var out Status
	if err := json.Unmarshal(body, &out); err != nil || !reflect.DeepEqual(in, out) {
		t.Errorf("%s became %+v, %v", body, out, err)
	}
	if body, _ = json.Marshal(Status{}); strings.Contains(string(body), "cluster") {
		t.Errorf("a cluster id that is not known: %s", body)
	}
}
