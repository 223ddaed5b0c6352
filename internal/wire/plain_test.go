package wire

import (
	"reflect"
	"strings"
	"testing"

	"github.com/allocnode/allocnode"
)

// plainRequests are the bodies that clients send, with the sequence that the subject names.
var plainRequests = []struct{ sequence, body string }{
	{"orders", `{}`},
	{"orders", `{"count":10}`},
	{"orders", ` { "count" : 9223372036854775807 , "key" : "k 1" } ` + "\n"},
	{"orders", `{"key":"0123456789abcdef","since":123456,"partial":true,"ids":"string","count":1000}`},
	{"orders", `{"ids":"number","partial":false}`},
	{"", `{"requests":[{"sequence":"a"}]}`},
	{"", `{"key":"L","since":7,"requests":[{"count":5,"sequence":"a","key":"x","partial":true},{"sequence":"b.c"},{"sequence":"b.c","count":2}]}`},
	{"a", `{"requests":[{"count":5},{"sequence":"a"},{}],"ids":"string"}`},
}

// What the fast reader must leave to the other: faults, and JSON that is not plain.
var otherRequests = []struct{ sequence, body string }{
	{"orders", `{"count":0}`}, {"orders", `{"count":9223372036854775808}`}, {"orders", `{"count":18446744073709551617}`},
	{"orders", `{"count":01}`}, {"orders", `{"count":1.0}`}, {"orders", `{"count":1e2}`}, {"orders", `{"count":-1}`},
	{"orders", `{"count":"1"}`}, {"orders", `{"count":1,"count":2}`}, {"orders", `{"count":1,}`}, {"orders", `{"count":1}}`},
	{"orders", `{"count":1} {}`}, {"orders", `{"count":1`}, {"orders", `{"count" 1}`}, {"orders", `{,}`}, {"orders", `{`},
	{"orders", `{"Count":1}`}, {"orders", `{"c\u006funt":1}`}, {"orders", `{"key":""}`}, {"orders", `{"key":"é"}`},
	{"orders", `{"key":"a\"b"}`}, {"orders", "{\"key\":\"a\nb\"}"}, {"orders", `{"key":"` + strings.Repeat("k", maxKey+1) + `"}`},
	{"orders", `{"key":null}`}, {"orders", `{"partial":1}`}, {"orders", `{"partial":True}`}, {"orders", `{"partial":trueish}`},
	{"orders", `{"ids":"both"}`}, {"orders", `{"other":1}`}, {"orders", `{"requests":[]}`}, {"orders", `{"requests":[{}],"count":1}`},
	{"orders", `{"requests":[{}],"partial":false}`}, {"orders", `{"requests":[{"sequence":"b"}]}`}, {"orders", `{"requests":[{},]}`},
	{"orders", `{"requests":[{}],"requests":[{}]}`}, {"orders", `{"requests":[{"count":1,"count":1}]}`}, {"orders", `{"requests":{}}`},
	{"orders", `{"requests":[{"since":1}]}`}, {"", `{"count":1}`}, {"", `{"requests":[{}]}`}, {"", `{"requests":[{"sequence":""}]}`},
	{"", `{"requests":[{"sequence":"a..b"}]}`}, {"", `{"requests":[` + strings.Repeat(`{"sequence":"a"},`, MaxListItems) + `{"sequence":"a"}]}`},
}

const plainCluster = "00112233445566778899aabbccddeeff"

// Answers to a list of two.
var (
	plainAnswers = []string{
		`{"results":[{"sequence":"a","start":1,"end":11,"count":10},{"sequence":"b","start":5,"end":6,"count":1}],"seq":17,"cluster":"` + plainCluster + `"}`,
		`{"cluster":"` + plainCluster + `", "seq":0, "results":[ {"count":1,"end":9223372036854775808,"start":9223372036854775807,"sequence":"a"} , ` +
			`{"sequence":"a","start":5,"end":6,"count":1} ] }`,
	}
	otherAnswers = []string{
		`{"results":[{"sequence":"a","start":1,"end":11,"count":10}],"seq":17,"cluster":"` + plainCluster + `"}`,
		`{"results":[{"sequence":"a","start":"1","end":"11","count":10},{"sequence":"b","start":5,"end":6,"count":1}],"seq":17,"cluster":"` + plainCluster + `"}`,
		`{"results":[{"sequence":"a","start":1,"end":11,"count":9},{"sequence":"b","start":5,"end":6,"count":1}],"seq":17,"cluster":"` + plainCluster + `"}`,
		`{"results":[{"sequence":"a","start":0,"end":1,"count":1},{"sequence":"b","start":5,"end":6,"count":1}],"seq":17,"cluster":"` + plainCluster + `"}`,
		`{"results":[{"sequence":"a","start":2,"start":1,"end":2,"count":1},{"sequence":"b","start":5,"end":6,"count":1}],"seq":17,"cluster":"` + plainCluster + `"}`,
		`{"results":[{"sequence":"","start":1,"end":2,"count":1},{"sequence":"b","start":5,"end":6,"count":1}],"seq":17,"cluster":"` + plainCluster + `"}`,
		`{"results":[{"error":{"code":"exhausted","message":"m"}},{"sequence":"b","start":5,"end":6,"count":1}],"seq":17,"cluster":"` + plainCluster + `"}`,
		`{"results":[{"sequence":"a","start":1,"end":2,"count":1},{"sequence":"b","start":5,"end":6,"count":1}],"cluster":"` + plainCluster + `"}`,
		`{"results":[{"sequence":"a","start":1,"end":2,"count":1},{"sequence":"b","start":5,"end":6,"count":1}],"seq":17}`,
		`{"results":[{"sequence":"a","start":1,"end":2,"count":1},{"sequence":"b","start":5,"end":6,"count":1}],"seq":17,"seq":18,"cluster":"` + plainCluster + `"}`,
		`{"results":[{"sequence":"a","start":1,"end":2,"count":1},{"sequence":"b","start":5,"end":6,"count":1}],"seq":17,"cluster":"` + plainCluster + `","more":1}`,
		`{"error":{"code":"unavailable","message":"m"},"cluster":"` + plainCluster + `"}`, `{"stream":"S","seq":4}`, `{`, ``,
	}
)

// The fast readers know what clients and nodes send, and nothing that is faulty.
func TestPlain(t *testing.T) {
	for _, tt := range plainRequests {
		if _, ok := plainReserve(tt.sequence, []byte(tt.body)); !ok {
			t.Errorf("plainReserve(%q, %s) leaves it to encoding/json", tt.sequence, tt.body)
		}
	}
	for _, tt := range otherRequests {
		if q, ok := plainReserve(tt.sequence, []byte(tt.body)); ok {
			t.Errorf("plainReserve(%q, %s) = %+v", tt.sequence, tt.body, q)
		}
	}
	for _, body := range plainAnswers {
		if _, ok := plainList([]byte(body), 2); !ok {
			t.Errorf("plainList(%s) leaves it to encoding/json", body)
		}
	}
	for _, body := range otherAnswers {
		if r, ok := plainList([]byte(body), 2); ok {
			t.Errorf("plainList(%s) = %+v", body, r)
		}
	}
}

// What the fast readers take, encoding/json reads alike. Checked: with a number that may begin with a zero, a field given
// twice, or bytes after the object, this fails on the seeds.
func FuzzPlain(f *testing.F) {
	for _, tt := range plainRequests {
		f.Add(tt.sequence, []byte(tt.body))
	}
	for _, tt := range otherRequests {
		f.Add(tt.sequence, []byte(tt.body))
	}
	for _, body := range append(plainAnswers, otherAnswers...) {
		f.Add("", []byte(body))
	}
	f.Fuzz(func(t *testing.T, sequence string, body []byte) {
		if sequence == "" || allocnode.CheckName(sequence) == nil {
			if fast, ok := plainReserve(sequence, body); ok {
				if slow, err := parseReserveObject(sequence, body); err != nil || !reflect.DeepEqual(fast, slow) {
					t.Errorf("request %q %q:\nfast %+v\nslow %+v %v", sequence, body, fast, slow, err)
				}
			}
		}
		for n := range 4 {
			if fast, ok := plainList(body, n); ok {
				if slow, err := decodeReserveList(body, n); err != nil || !reflect.DeepEqual(fast, slow) {
					t.Errorf("answer %q to %d:\nfast %+v\nslow %+v %v", body, n, fast, slow, err)
				}
			}
		}
	})
}

// A keyed request allocates its key; a list its items, and each name and key of them.
func TestPlainAllocations(t *testing.T) {
	for _, tt := range []struct {
		body string
		want float64
	}{
		{`{"count":10}`, 0},
		{`{"count":1,"key":"0123456789abcdef","since":123456}`, 1},
		{`{"key":"L","since":7,"requests":[{"count":1},{"count":2},{"count":3},{"sequence":"orders"}]}`, 2},
	} {
		body := []byte(tt.body)
		if got := testing.AllocsPerRun(100, func() {
			if _, err := ParseReserve("orders", body); err != nil {
				t.Fatal(err)
			}
		}); got > tt.want {
			t.Errorf("%s allocates %v times, want at most %v", tt.body, got, tt.want)
		}
	}
	body := []byte(plainAnswers[0])
	if got := testing.AllocsPerRun(100, func() {
		if _, err := DecodeReserveList(body, 2); err != nil {
			t.Fatal(err)
		}
	}); got > 3 { // the results, and two names
		t.Errorf("an answer of two allocates %v times, want at most 3", got)
	}
}

func BenchmarkParseReserve(b *testing.B) {
	item := `{"count":1},`
	for name, body := range map[string]string{
		"number": "1000", "keyed": `{"count":1,"key":"0123456789abcdef","since":123456}`,
		"list=100": `{"key":"L","since":7,"requests":[` + strings.Repeat(item, 99) + `{"count":1}]}`,
	} {
		b.Run(name, func(b *testing.B) {
			body := []byte(body)
			b.ReportAllocs()
			for b.Loop() {
				if _, err := ParseReserve("orders", body); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
