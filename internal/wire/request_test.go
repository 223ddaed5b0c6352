package wire

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/allocnode/allocnode"
)

func reserveOne(seq string, count uint64) ReserveRequest {
	return ReserveRequest{ReserveItem: ReserveItem{Sequence: seq, Count: count}}
}

func TestParseReserve(t *testing.T) {
	keyed := reserveOne("orders", 1000)
	keyed.Key, keyed.Since, keyed.Partial, keyed.StringIDs = "k 1", 17, true, true
	for _, tt := range []struct {
		sequence, body string
		want           ReserveRequest
	}{
		{"orders", "", reserveOne("orders", 1)},
		{"orders", " \r\n\t", reserveOne("orders", 1)},
		{"orders.eu", "1000", reserveOne("orders.eu", 1000)},
		{"orders", " 1000\n", reserveOne("orders", 1000)},
		{"orders", "9223372036854775807", reserveOne("orders", allocnode.MaxID)},
		{"orders", "{}", reserveOne("orders", 1)},
		{"orders", ` { "count" : 5 } ` + "\n", reserveOne("orders", 5)},
		{"orders", `{"ids":"number","partial":false,"since":0}`, reserveOne("orders", 1)},
		{"orders", `{"count":1000,"key":"k 1","partial":true,"since":17,"ids":"string"}`, keyed},
		{"", `{"requests":[{"sequence":"a","count":2},{"sequence":"b","key":"x","partial":true}],"key":"L","since":9}`,
			ReserveRequest{ReserveItem: ReserveItem{Key: "L"}, Since: 9, List: []ReserveItem{
				{Sequence: "a", Count: 2}, {Sequence: "b", Count: 1, Key: "x", Partial: true}}}},
		{"a", `{"requests":[{},{"sequence":"a","count":3}]}`,
			ReserveRequest{List: []ReserveItem{{Sequence: "a", Count: 1}, {Sequence: "a", Count: 3}}}},
		{"a", `{"key":"{\"null\":[{"}`, ReserveRequest{ReserveItem: ReserveItem{Sequence: "a", Count: 1, Key: `{"null":[{`}}},
	} {
		got, err := ParseReserve(tt.sequence, []byte(tt.body))
		if err != nil || !reflect.DeepEqual(got, tt.want) {
			t.Errorf("ParseReserve(%q, %q) = %+v, %v, want %+v", tt.sequence, tt.body, got, err, tt.want)
		}
	}
}

// items is a list of n reservations of one id each.
func items(n int) string {
	return `{"requests":[` + strings.TrimSuffix(strings.Repeat(`{"sequence":"a"},`, n), ",") + "]}"
}

// Each row was seen to fail once with its check taken out: checkFields as a whole for the rows on unknown, repeated,
// escaped and null fields, utf8.Valid, the surrogate check, the bounds of the list, the key, the body and the numbers.
func TestParseReserveRefuses(t *testing.T) {
	for _, tt := range []struct {
		sequence, body string
		code           allocnode.Code
		message        string // a part of it
	}{
		{"orders", "0", "bad_request", "count is 0: 1 to 9223372036854775807"},
		{"orders", "-1", "bad_request", "whole number"},
		{"orders", "+1", "bad_request", "whole number"},
		{"orders", "1.5", "bad_request", "whole number"},
		{"orders", "1e3", "bad_request", "whole number"},
		{"orders", "007", "bad_request", "begins with a zero"},
		{"orders", "1 2", "bad_request", "whole number"},
		{"orders", "1\x00", "bad_request", "whole number"},
		{"orders", "9223372036854775808", "bad_request", "1 to 9223372036854775807"},
		{"orders", "18446744073709551616", "bad_request", "too large"},
		{"orders", strings.Repeat("9", 300), "bad_request", "too large"},
		{"orders", "ten", "bad_request", "whole number"},
		{"orders", `"10"`, "bad_request", "JSON object"},
		{"orders", "[1]", "bad_request", "JSON object"},
		{"orders", "null", "bad_request", "JSON object"},
		{"orders", "\xff\xfe", "bad_request", "JSON object"},
		{"orders", `{"count":0}`, "bad_request", "count is 0"},
		{"orders", `{"count":-1}`, "bad_request", "count is a number -1"},
		{"orders", `{"count":1.0}`, "bad_request", "count is a number 1.0"},
		{"orders", `{"count":1e2}`, "bad_request", "count is a number 1e2"},
		{"orders", `{"count":"5"}`, "bad_request", "count is a string"},
		{"orders", `{"count":99999999999999999999}`, "bad_request", "count is a number 9999"},
		{"orders", `{"count":9223372036854775808}`, "bad_request", "1 to 9223372036854775807"},
		{"orders", `{"count":null}`, "bad_request", "null is not allowed"},
		{"orders", `{"count":{}}`, "bad_request", "count is a object"},
		{"orders", `{"count":5,"count":6}`, "bad_request", `"count" is given twice`},
		{"orders", `{"Count":5}`, "bad_request", `unknown field "Count": allowed are count, key`},
		{"orders", `{"\u0063ount":5}`, "bad_request", "unknown field"},
		{"orders", `{"` + "\u017f" + `ince":5}`, "bad_request", "unknown field"}, // folds to since
		{"orders", `{"amount":5}`, "bad_request", `unknown field "amount"`},
		{"orders", `{"partial":1}`, "bad_request", "true or false is wanted"},
		{"orders", `{"key":""}`, "bad_request", "the key is empty"},
		{"orders", `{"key":7}`, "bad_request", "key is a number: a string is wanted"},
		{"orders", `{"key":"` + strings.Repeat("k", 129) + `"}`, "bad_request", "129 bytes long: at most 128"},
		{"orders", `{"key":"\ud800"}`, "bad_request", "surrogate"},
		{"orders", `{"key":"` + "\xff" + `"}`, "bad_request", "UTF-8"},
		{"orders", `{"ids":"text"}`, "bad_request", `ids is "text": "number" or "string"`},
		{"orders", `{"since":-1}`, "bad_request", "since"},
		{"orders", `{"count":5`, "bad_request", "malformed JSON"},
		{"orders", `{"count":5}}`, "bad_request", "malformed JSON"},
		{"orders", `{"count":5} 7`, "bad_request", "malformed JSON"},
		{"orders", `{count:5}`, "bad_request", "malformed JSON"},
		{"orders", strings.Repeat(" ", MaxBody+1), "too_large", "65537 bytes long: at most 65536"},
		{"", "", "bad_request", "names no sequence"},
		{"", "5", "bad_request", "names no sequence"},
		{"", `{"count":5}`, "bad_request", "names no sequence"},
		{"a..b", "5", "bad_request", "empty token"},
		{"a b", "5", "bad_request", "character"},
		{strings.Repeat("a", 129), "", "bad_request", "at most 128"},
		{"", `{"requests":[]}`, "bad_request", "1 to 1000 items"},
		{"", `{"requests":{}}`, "bad_request", "a list of objects is wanted"},
		{"", `{"requests":[7]}`, "bad_request", "an object is wanted"},
		{"", `{"requests":[null]}`, "bad_request", "null is not allowed"},
		{"", `{"requests":[{"sequence":"a"},{"sequence":"b","count":0}]}`, "bad_request", "item 1: count is 0"},
		{"", `{"requests":[{"count":1}]}`, "bad_request", "item 0: the item names no sequence"},
		{"", `{"requests":[{"sequence":"a."}]}`, "bad_request", "item 0: the sequence name"},
		{"", `{"requests":[{"sequence":"a","since":1}]}`, "bad_request", "allowed are sequence, count, key, partial"},
		{"", `{"requests":[{"sequence":"a","key":""}]}`, "bad_request", "item 0: the key is empty"},
		{"", `{"requests":[{"sequence":"a"}],"count":5}`, "bad_request", "not beside it"},
		{"", `{"requests":[{"sequence":"a"}],"partial":false}`, "bad_request", "not beside it"},
		{"", `{"requests":[{"sequence":"a"}],"key":""}`, "bad_request", "the key is empty"},
		{"a", `{"requests":[{"sequence":"b"}]}`, "bad_request", "must agree"},
		{"", items(MaxListItems + 1), "too_large", "at most 1000"},
	} {
		got, err := ParseReserve(tt.sequence, []byte(tt.body))
		checkRefusal(t, fmt.Sprintf("ParseReserve(%.40q, %.80q)", tt.sequence, tt.body), err, tt.code, tt.message)
		if !reflect.DeepEqual(got, ReserveRequest{}) {
			t.Errorf("ParseReserve(%.40q, %.80q) returned a request beside its error: %+v", tt.sequence, tt.body, got)
		}
	}
	if q, err := ParseReserve("", []byte(items(MaxListItems))); err != nil || len(q.List) != MaxListItems {
		t.Errorf("a list of %d items: %d, %v", MaxListItems, len(q.List), err)
	}
}

func checkRefusal(t *testing.T, what string, err error, code allocnode.Code, message string) {
	t.Helper()
	var e *allocnode.Error
	if !errors.As(err, &e) || e.Code != code || !strings.Contains(e.Message, message) {
		t.Errorf("%s: got %v, want %s with %q", what, err, code, message)
	}
}

func TestParseOthers(t *testing.T) {
	defaults := Settings{First: 1, Max: 1000, MaxCount: 10}
	parsers := map[string]func(name, body string) (any, error){
		"next":    func(n, b string) (any, error) { return ParseNext(n, []byte(b)) },
		"create":  func(n, b string) (any, error) { return ParseCreate(n, []byte(b), defaults) },
		"advance": func(n, b string) (any, error) { return ParseAdvance(n, []byte(b)) },
		"info":    func(n, b string) (any, error) { return ParseInfo(n, []byte(b)) },
		"list":    func(_, b string) (any, error) { return ParseList([]byte(b)) },
		"forget":  func(n, b string) (any, error) { return ParseForget(n, []byte(b)) },
		"resume":  func(n, b string) (any, error) { return nil, ParseResume(n, []byte(b)) },
	}
	for _, tt := range []struct {
		parser, name, body string
		want               any
	}{
		{"next", "a", "", NextRequest{Sequence: "a", Count: 1}},
		{"next", "a", "7\n", NextRequest{Sequence: "a", Count: 7}},
		{"next", "a", `{"count":7,"ids":"string"}`, NextRequest{Sequence: "a", Count: 7, StringIDs: true}},
		{"create", "a", "", CreateRequest{Sequence: "a", Settings: defaults}},
		{"create", "a", `{"first":5}`, CreateRequest{Sequence: "a", Settings: Settings{5, 1000, 10}, Given: GivenFirst}},
		{"create", "a", `{"first":1,"max":4294967295,"max_count":3}`,
			CreateRequest{"a", Settings{1, 4294967295, 3}, GivenFirst | GivenMax | GivenMaxCount}},
		{"advance", "a", "5000", AdvanceRequest{"a", 5000}},
		{"advance", "a", `{"to":0}`, AdvanceRequest{"a", 0}},
		{"info", "a", "", InfoRequest{Sequence: "a"}},
		{"info", "a", `{"consistent":true,"ids":"string"}`, InfoRequest{"a", true, true}},
		{"list", "", "", ListRequest{Limit: 100}},
		{"list", "", `{"after":7,"limit":1000,"consistent":true,"ids":"string"}`, ListRequest{7, 1000, true, true}},
		{"forget", "n1", "", "n1"},
		{"forget", "", `{"node":"n1"}`, "n1"},
		{"forget", "n1", `{"node":"n1"}`, "n1"},
		{"resume", "a.b", "{}", nil},
	} {
		if got, err := parsers[tt.parser](tt.name, tt.body); err != nil || !reflect.DeepEqual(got, tt.want) {
			t.Errorf("%s(%q, %q) = %+v, %v, want %+v", tt.parser, tt.name, tt.body, got, err, tt.want)
		}
	}
	for _, tt := range []struct{ parser, name, body, message string }{
		{"next", "a", "0", "count is 0"},
		{"next", "a", `{"count":0}`, "count is 0"},
		{"next", "a", `{"key":"k"}`, "allowed are count, ids"},
		{"next", "", "", "name is empty"},
		{"create", "a", "7", "no plain number"},
		{"create", "a", `{"first":0}`, "first is 0"},
		{"create", "a", `{"first":2000}`, "first 2000 is above max 1000"},
		{"create", "a", `{"max":9223372036854775808}`, "at most 9223372036854775807"},
		{"create", "a", `{"max_count":0}`, "max_count is 0"},
		{"create", "a", `{"max":1,"max":2}`, "twice"},
		{"create", "a*", "", "character"},
		{"advance", "a", "", "says how far"},
		{"advance", "a", "{}", "says how far"},
		{"advance", "a", "-5", "whole number"},
		{"advance", "a", "9223372036854775808", "at most 9223372036854775807"},
		{"advance", "a", `{"to":1.5}`, "to is a number 1.5"},
		{"info", "a", "1", "plain number"},
		{"info", "a", `{"consistent":"yes"}`, "true or false"},
		{"info", "a>", "", "character"},
		{"list", "", "1", "plain number"},
		{"list", "", `{"limit":0}`, "1 to 1000"},
		{"list", "", `{"limit":1001}`, "1 to 1000"},
		{"list", "", `{"after":"orders"}`, "after is a string"},
		{"forget", "", "", "names a node"},
		{"forget", "n1", `{"node":"n2"}`, "must agree"},
		{"forget", "", `{"node":"n.1"}`, "character"},
		{"forget", strings.Repeat("n", 65), "", "at most 64"},
		{"resume", "a", `{"force":true}`, "none is allowed"},
		{"resume", "a", "1", "plain number"},
		{"resume", "", "", "name is empty"},
	} {
		_, err := parsers[tt.parser](tt.name, tt.body)
		checkRefusal(t, fmt.Sprintf("%s(%q, %q)", tt.parser, tt.name, tt.body), err, allocnode.CodeBadRequest, tt.message)
	}
	for name, parse := range parsers {
		_, err := parse("a", strings.Repeat(" ", MaxBody+1))
		checkRefusal(t, name, err, allocnode.CodeTooLarge, "at most 65536")
	}
}

// The hot path: a request that is a plain number, or nothing.
func TestParseReserveAllocatesNothing(t *testing.T) {
	for _, body := range [][]byte{nil, []byte("1000"), []byte(" 1000\n")} {
		if n := testing.AllocsPerRun(100, func() {
			if _, err := ParseReserve("orders.eu", body); err != nil {
				t.Fatal(err)
			}
		}); n != 0 {
			t.Errorf("ParseReserve of %q allocates %v times", body, n)
		}
	}
}

// Whatever the bytes: a request within bounds, or bad_request or too_large with a message that is fit for a header.
func FuzzParseRequests(f *testing.F) {
	for _, body := range []string{"", "1000", " 7\n", "{}", `{"count":5,"key":"k","partial":true,"since":9,"ids":"string"}`,
		`{"requests":[{"sequence":"a","count":2,"key":"x","partial":true},{}],"key":"L"}`, `{"first":1,"max":9,"max_count":2}`,
		`{"to":5}`, `{"consistent":true}`, `{"after":1,"limit":3}`, `{"node":"n1"}`, `{"key":"\ud800"}`, `{"a\"`, `}{`, "null"} {
		f.Add("orders.eu", []byte(body))
		f.Add("", []byte(body))
	}
	f.Fuzz(func(t *testing.T, name string, body []byte) {
		check := func(err error) bool {
			if err == nil {
				return true
			}
			var e *allocnode.Error
			if !errors.As(err, &e) || e.Code != allocnode.CodeBadRequest && e.Code != allocnode.CodeTooLarge {
				t.Fatalf("error %#v", err)
			}
			if !utf8.ValidString(e.Message) || strings.ContainsAny(e.Message, "\r\n\x00") || len(e.Message) > 1024 {
				t.Fatalf("message %q", e.Message)
			}
			return false
		}
		item := func(i *ReserveItem) {
			if allocnode.CheckName(i.Sequence) != nil || i.Count < 1 || i.Count > allocnode.MaxID || len(i.Key) > maxKey {
				t.Fatalf("item out of bounds: %+v", i)
			}
		}
		if q, err := ParseReserve(name, body); check(err) {
			if q.List == nil {
				item(&q.ReserveItem)
			} else if len(q.List) < 1 || len(q.List) > MaxListItems || len(q.Key) > maxKey || q.Count != 0 {
				t.Fatalf("list out of bounds: %+v", q)
			}
			for i := range q.List {
				if item(&q.List[i]); name != "" && q.List[i].Sequence != name {
					t.Fatalf("item %d of %s names %s", i, name, q.List[i].Sequence)
				}
			}
		}
		if q, err := ParseNext(name, body); check(err) && (q.Count < 1 || q.Count > allocnode.MaxID) {
			t.Fatalf("next out of bounds: %+v", q)
		}
		if q, err := ParseCreate(name, body, Settings{1, 1000, 10}); check(err) && q.Settings.Check() != nil {
			t.Fatalf("create out of bounds: %+v", q)
		}
		if q, err := ParseAdvance(name, body); check(err) && q.To > allocnode.MaxID {
			t.Fatalf("advance out of bounds: %+v", q)
		}
		if q, err := ParseList(body); check(err) && (q.Limit < 1 || q.Limit > MaxPage) {
			t.Fatalf("list out of bounds: %+v", q)
		}
		if node, err := ParseForget(name, body); check(err) && (node == "" || len(node) > MaxNodeLen) {
			t.Fatalf("forget out of bounds: %q", node)
		}
		_, err := ParseInfo(name, body)
		check(err)
		check(ParseResume(name, body))
	})
}
