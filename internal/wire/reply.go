package wire

import (
	"encoding/hex"
	"strconv"
	"unicode/utf8"

	"github.com/allocnode/allocnode"
)

// Every encoder here appends one JSON object to dst and returns the result. None uses reflection, and none allocates where
// dst has room. Sequence and node names stand in them as they are: their alphabet needs no escaping. The cluster id comes
// last, and is left out only while it is not known (a zero ID).

// ReserveResult is one answer of a list: a range, or an error.
type ReserveResult struct {
	Sequence string
	Range    allocnode.Range
	Err      *allocnode.Error // then there is no range
}

// AppendReserveReply appends the answer to one reservation:
//
//	{"sequence":"orders","start":1,"end":1001,"count":1000,"seq":17,"cluster":"…"}
//
// With stringIDs, start and end are JSON strings.
func AppendReserveReply(dst []byte, sequence string, r allocnode.Range, seq uint64, cluster ID, stringIDs bool) []byte {
	dst = appendRange(dst, sequence, r, stringIDs)
	return appendEnd(dst, seq, cluster)
}

// AppendReserveListReply appends the answer to a list, in the order of its items:
//
//	{"results":[{"sequence":"orders","start":1,"end":11,"count":10},{"error":{…}}],"seq":17,"cluster":"…"}
func AppendReserveListReply(dst []byte, results []ReserveResult, seq uint64, cluster ID, stringIDs bool) []byte {
	dst = append(dst, `{"results":[`...)
	for i := range results {
		if i > 0 {
			dst = append(dst, ',')
		}
		if r := &results[i]; r.Err != nil {
			dst = appendError(dst, r.Err)
		} else {
			dst = appendRange(dst, r.Sequence, r.Range, stringIDs)
		}
		dst = append(dst, '}')
	}
	dst = append(dst, ']')
	return appendEnd(dst, seq, cluster)
}

// AppendNextReply appends the answer to a next: one id, or ranges that hold count ids in all.
//
//	{"sequence":"orders","id":17,"cluster":"…"}
//	{"sequence":"orders","count":5,"ranges":[{"start":1,"end":4},{"start":9,"end":11}],"cluster":"…"}
//
// With stringIDs, id, start and end are JSON strings.
func AppendNextReply(
	dst []byte, sequence string, ranges []allocnode.Range, count uint64, cluster ID, stringIDs bool,
) []byte {
	dst = appendName(dst, `{"sequence":"`, sequence)
	if count == 1 {
		return appendCluster(appendID(dst, `,"id":`, ranges[0].Start, stringIDs), cluster)
	}
	dst = appendField(dst, `,"count":`, count)
	dst = append(dst, `,"ranges":[`...)
	for i, r := range ranges {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = appendID(dst, `{"start":`, r.Start, stringIDs)
		dst = appendID(dst, `,"end":`, r.End, stringIDs)
		dst = append(dst, '}')
	}
	return appendCluster(append(dst, ']'), cluster)
}

// AppendAdvanceReply appends the answer to an advance, with the high-water mark before and after:
//
//	{"sequence":"orders","old":1000,"hwm":5000,"seq":17,"cluster":"…"}
func AppendAdvanceReply(dst []byte, sequence string, old, hwm, seq uint64, cluster ID) []byte {
	dst = appendName(dst, `{"sequence":"`, sequence)
	dst = appendField(dst, `,"old":`, old)
	dst = appendField(dst, `,"hwm":`, hwm)
	return appendEnd(dst, seq, cluster)
}

// AppendCreateReply appends the answer to a create, with the sequence's settings:
//
//	{"sequence":"orders","first":1,"max":9007199254740991,"max_count":1000000,"seq":17,"cluster":"…"}
func AppendCreateReply(dst []byte, sequence string, s Settings, seq uint64, cluster ID) []byte {
	dst = appendName(dst, `{"sequence":"`, sequence)
	dst = appendField(dst, `,"first":`, s.First)
	dst = appendField(dst, `,"max":`, s.Max)
	dst = appendField(dst, `,"max_count":`, s.MaxCount)
	return appendEnd(dst, seq, cluster)
}

// AppendInfoReply appends the state of a sequence, as it stands at seq or later:
//
//	{"sequence":"orders","first":1,"max":…,"max_count":…,"hwm":1000,"remaining":…,"halted":false,"seq":17,"cluster":"…"}
//
// With stringIDs, first, max, hwm and remaining are JSON strings.
func AppendInfoReply(dst []byte, info *SequenceInfo, seq uint64, cluster ID, stringIDs bool) []byte {
	dst = appendInfo(dst, info, stringIDs)
	return appendEnd(dst, seq, cluster)
}

// AppendListReply appends a page of the sequences. next, where not 0, is the "after" of the following page, and total
// counts the sequences of all pages:
//
//	{"sequences":[{"sequence":"orders",…},…],"next":100,"total":250,"seq":17,"cluster":"…"}
func AppendListReply(
	dst []byte, page []SequenceInfo, next uint64, total int, seq uint64, cluster ID, stringIDs bool,
) []byte {
	dst = append(dst, `{"sequences":[`...)
	for i := range page {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = appendInfo(dst, &page[i], stringIDs)
		dst = append(dst, '}')
	}
	dst = append(dst, ']')
	if next > 0 {
		dst = appendField(dst, `,"next":`, next)
	}
	dst = appendField(dst, `,"total":`, uint64(total))
	return appendEnd(dst, seq, cluster)
}

// AppendResumeReply appends {"sequence":"orders","seq":17,"cluster":"…"}.
func AppendResumeReply(dst []byte, sequence string, seq uint64, cluster ID) []byte {
	return appendEnd(appendName(dst, `{"sequence":"`, sequence), seq, cluster)
}

// AppendForgetReply appends {"node":"n1","seq":17,"cluster":"…"}.
func AppendForgetReply(dst []byte, node string, seq uint64, cluster ID) []byte {
	return appendEnd(appendName(dst, `{"node":"`, node), seq, cluster)
}

// AppendErrorReply appends the answer to what was refused; remaining stands there for [allocnode.CodeExhausted] only:
//
//	{"error":{"code":"exhausted","message":"…","remaining":3},"cluster":"…"}
func AppendErrorReply(dst []byte, err *allocnode.Error, cluster ID) []byte {
	return appendCluster(appendError(dst, err), cluster)
}

// appendRange appends a range as an object that is still open.
func appendRange(dst []byte, sequence string, r allocnode.Range, stringIDs bool) []byte {
	dst = appendName(dst, `{"sequence":"`, sequence)
	dst = appendID(dst, `,"start":`, r.Start, stringIDs)
	dst = appendID(dst, `,"end":`, r.End, stringIDs)
	return appendField(dst, `,"count":`, r.Count())
}

// appendInfo appends the state of a sequence as an object that is still open.
func appendInfo(dst []byte, info *SequenceInfo, stringIDs bool) []byte {
	dst = appendName(dst, `{"sequence":"`, info.Name)
	dst = appendID(dst, `,"first":`, info.First, stringIDs)
	dst = appendID(dst, `,"max":`, info.Max, stringIDs)
	dst = appendField(dst, `,"max_count":`, info.MaxCount)
	dst = appendID(dst, `,"hwm":`, info.HWM, stringIDs)
	dst = appendID(dst, `,"remaining":`, info.Remaining(), stringIDs)
	dst = append(dst, `,"halted":`...)
	return strconv.AppendBool(dst, info.Halted)
}

// appendError appends an error as an object that is still open.
func appendError(dst []byte, err *allocnode.Error) []byte {
	dst = append(dst, `{"error":{"code":`...)
	dst = appendQuoted(dst, string(err.Code))
	dst = append(dst, `,"message":`...)
	dst = appendQuoted(dst, err.Message)
	if err.Code == allocnode.CodeExhausted {
		dst = appendField(dst, `,"remaining":`, err.Remaining)
	}
	return append(dst, '}')
}

func appendEnd(dst []byte, seq uint64, cluster ID) []byte {
	return appendCluster(appendField(dst, `,"seq":`, seq), cluster)
}

func appendCluster(dst []byte, cluster ID) []byte {
	if !cluster.IsZero() {
		dst = append(dst, `,"cluster":"`...)
		dst = hex.AppendEncode(dst, cluster[:])
		dst = append(dst, '"')
	}
	return append(dst, '}')
}

func appendName(dst []byte, label, name string) []byte {
	dst = append(dst, label...)
	dst = append(dst, name...)
	return append(dst, '"')
}

func appendField(dst []byte, label string, n uint64) []byte {
	return strconv.AppendUint(append(dst, label...), n, 10)
}

func appendID(dst []byte, label string, n uint64, quoted bool) []byte {
	dst = append(dst, label...)
	if !quoted {
		return strconv.AppendUint(dst, n, 10)
	}
	return append(strconv.AppendUint(append(dst, '"'), n, 10), '"')
}

// appendQuoted appends s as a JSON string; bytes that are not UTF-8 become U+FFFD.
func appendQuoted(dst []byte, s string) []byte {
	const digits = "0123456789abcdef"
	dst = append(dst, '"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			dst = append(dst, '\\', byte(r))
		case r < ' ' || r == 0x7f:
			dst = append(dst, '\\', 'u', '0', '0', digits[r>>4], digits[r&15])
		default:
			dst = utf8.AppendRune(dst, r)
		}
	}
	return append(dst, '"')
}
