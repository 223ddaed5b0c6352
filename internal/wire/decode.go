package wire

import (
	"encoding/json"
	"fmt"
	"strconv"

	"github.com/allocnode/allocnode"
)

// NotReplyError is a body that no allocnode node sends as an answer to the request. A stream that captured the subject
// answers so, with its PubAck, while a node may have answered too: whether the request took effect is not known, and
// errors.Is with [allocnode.ErrUnknownOutcome] holds.
type NotReplyError struct {
	Body string // the beginning of the body
	Why  string
}

// Error names what is wrong, and quotes the body's beginning.
func (e *NotReplyError) Error() string {
	return fmt.Sprintf("wire: not an answer of allocnode: %s: %s", e.Why, quote(e.Body))
}

// Is makes errors.Is match [allocnode.ErrUnknownOutcome].
func (e *NotReplyError) Is(target error) bool { return target == allocnode.ErrUnknownOutcome }

// Origin is where an answer comes from. The decoders fill it in for error answers too, so that a client can tell the
// refusal of its own cluster from that of another.
type Origin struct {
	Seq     uint64 // of the entry that the answer stands on; for reads of a node's state, its cursor; 0 in errors and next
	Cluster ID     // zero in errors of a node that does not know its cluster yet
}

// ReserveReply is the answer to one reservation.
type ReserveReply struct {
	Origin
	Sequence string
	Range    allocnode.Range // never empty, within [1, allocnode.MaxID]
}

// ReserveListReply is the answer to a list, in the order of its items.
type ReserveListReply struct {
	Origin
	Results []ReserveResult
}

// NextReply is the answer to a next.
type NextReply struct {
	Origin
	Sequence string
	Ranges   []allocnode.Range // ascending, disjoint, none empty, within [1, allocnode.MaxID]
}

// AdvanceReply is the answer to an advance.
type AdvanceReply struct {
	Origin
	Sequence string
	Old, HWM uint64 // the high-water mark before and after
}

// CreateReply is the answer to a create.
type CreateReply struct {
	Origin
	Sequence string
	Settings Settings
}

// InfoReply is the answer to an info.
type InfoReply struct {
	Origin
	Info SequenceInfo
}

// ListReply is the answer to a list of sequences.
type ListReply struct {
	Origin
	Sequences []SequenceInfo
	Next      uint64 // "after" of the following page; 0 at the end
	Total     uint64
}

// number is an integer that may stand in a JSON string.
type number uint64

// UnmarshalJSON reads 17 and "17" alike.
func (n *number) UnmarshalJSON(b []byte) error {
	if len(b) >= 2 && b[0] == '"' && b[len(b)-1] == '"' {
		b = b[1 : len(b)-1]
	}
	v, err := strconv.ParseUint(string(b), 10, 64)
	*n = number(v)
	return err
}

// answer is every field of every reply. Unknown fields are ignored: a newer node may send more.
type answer struct {
	infoBody
	Start   *number    `json:"start"`
	End     *number    `json:"end"`
	Count   *number    `json:"count"`
	ID      *number    `json:"id"`
	Ranges  []span     `json:"ranges"`
	Old     *number    `json:"old"`
	Node    string     `json:"node"`
	Results []answer   `json:"results"`
	Page    []infoBody `json:"sequences"`
	Next    number     `json:"next"`
	Total   number     `json:"total"`
	Seq     *number    `json:"seq"`
	Cluster ID         `json:"cluster"`
	Error   *errorBody `json:"error"`
}

type infoBody struct {
	Sequence string  `json:"sequence"`
	First    *number `json:"first"`
	Max      *number `json:"max"`
	MaxCount *number `json:"max_count"`
	HWM      *number `json:"hwm"`
	Halted   bool    `json:"halted"`
}

type span struct {
	Start number `json:"start"`
	End   number `json:"end"`
}

type errorBody struct {
	Code      allocnode.Code `json:"code"`
	Message   string         `json:"message"`
	Remaining number         `json:"remaining"`
}

// DecodeReserve reads the answer to one reservation. A refusal comes back as an [*allocnode.Error]; anything that is
// neither as a [*NotReplyError].
func DecodeReserve(body []byte) (ReserveReply, error) {
	var a answer
	o, err := decodeAnswer(body, &a)
	if err != nil {
		return ReserveReply{Origin: o}, err
	}
	r, why := a.rangeOf()
	if why != "" {
		return ReserveReply{}, notReply(body, why)
	}
	return ReserveReply{Origin: o, Sequence: a.Sequence, Range: r}, nil
}

// DecodeReserveList reads the answer to a list of n reservations. Errors as [DecodeReserve]; a refused item is not one.
func DecodeReserveList(body []byte, n int) (ReserveListReply, error) {
	if reply, ok := plainList(body, n); ok {
		return reply, nil
	}
	return decodeReserveList(body, n)
}

func decodeReserveList(body []byte, n int) (ReserveListReply, error) {
	var a answer
	o, err := decodeAnswer(body, &a)
	if err != nil {
		return ReserveListReply{Origin: o}, err
	}
	if len(a.Results) != n {
		return ReserveListReply{}, notReply(body, fmt.Sprintf("%d results for %d requests", len(a.Results), n))
	}
	reply := ReserveListReply{Origin: o, Results: make([]ReserveResult, n)}
	for i := range a.Results {
		item, res := &a.Results[i], &reply.Results[i]
		switch {
		case item.Error != nil && item.Error.Code != "" && item.Start == nil:
			res.Err = item.Error.decoded()
		default:
			r, why := item.rangeOf()
			if why != "" {
				return ReserveListReply{}, notReply(body, fmt.Sprintf("result %d: %s", i, why))
			}
			res.Sequence, res.Range = item.Sequence, r
		}
	}
	return reply, nil
}

// DecodeNext reads the answer to a next that asked for count ids, 1 and up. Errors as [DecodeReserve]: a node gives all
// of them or none.
func DecodeNext(body []byte, count uint64) (NextReply, error) {
	var a answer
	o, err := decodeUnlogged(body, &a)
	if err != nil {
		return NextReply{Origin: o}, err
	}
	if a.ID != nil && a.Ranges == nil {
		a.Ranges = []span{{*a.ID, *a.ID + 1}}
	} else if a.ID != nil || a.Count == nil || uint64(*a.Count) != count {
		return NextReply{}, notReply(body, fmt.Sprintf("neither one id nor %d", count))
	}
	reply := NextReply{Origin: o, Sequence: a.Sequence}
	var got, last uint64
	for _, s := range a.Ranges {
		r := allocnode.Range{Start: uint64(s.Start), End: uint64(s.End)}
		if r.Start <= last || r.Empty() || r.End > allocnode.MaxID+1 {
			return NextReply{}, notReply(body, fmt.Sprintf("%s is no range of ids above %d", r, last))
		}
		got, last = got+r.Count(), r.End-1
		reply.Ranges = append(reply.Ranges, r)
	}
	if a.Sequence == "" || got != count {
		return NextReply{}, notReply(body, fmt.Sprintf("%d ids, not %d", got, count))
	}
	return reply, nil
}

// DecodeAdvance reads the answer to an advance. Errors as [DecodeReserve].
func DecodeAdvance(body []byte) (AdvanceReply, error) {
	var a answer
	o, err := decodeAnswer(body, &a)
	if err != nil {
		return AdvanceReply{Origin: o}, err
	}
	if a.Sequence == "" || a.Old == nil || a.HWM == nil {
		return AdvanceReply{}, notReply(body, "no old and hwm")
	}
	return AdvanceReply{Origin: o, Sequence: a.Sequence, Old: uint64(*a.Old), HWM: uint64(*a.HWM)}, nil
}

// DecodeCreate reads the answer to a create. Errors as [DecodeReserve].
func DecodeCreate(body []byte) (CreateReply, error) {
	var a answer
	o, err := decodeAnswer(body, &a)
	if err != nil {
		return CreateReply{Origin: o}, err
	}
	s, ok := a.settings()
	if !ok {
		return CreateReply{}, notReply(body, "no settings")
	}
	return CreateReply{Origin: o, Sequence: a.Sequence, Settings: s}, nil
}

// DecodeInfo reads the answer to an info. Errors as [DecodeReserve].
func DecodeInfo(body []byte) (InfoReply, error) {
	var a answer
	o, err := decodeAnswer(body, &a)
	if err != nil {
		return InfoReply{Origin: o}, err
	}
	info, ok := a.info()
	if !ok {
		return InfoReply{}, notReply(body, "no state of a sequence")
	}
	return InfoReply{Origin: o, Info: info}, nil
}

// DecodeList reads a page of the sequences. Errors as [DecodeReserve].
func DecodeList(body []byte) (ListReply, error) {
	var a answer
	o, err := decodeAnswer(body, &a)
	if err != nil {
		return ListReply{Origin: o}, err
	}
	if a.Page == nil {
		return ListReply{}, notReply(body, "no sequences")
	}
	reply := ListReply{Origin: o, Next: uint64(a.Next), Total: uint64(a.Total)}
	for i := range a.Page {
		info, ok := a.Page[i].info()
		if !ok {
			return ListReply{}, notReply(body, fmt.Sprintf("sequence %d is incomplete", i))
		}
		reply.Sequences = append(reply.Sequences, info)
	}
	return reply, nil
}

// DecodeDone reads the answer to a resume or a forget, and returns the name of the sequence or node. Errors as
// [DecodeReserve].
func DecodeDone(body []byte) (string, Origin, error) {
	var a answer
	o, err := decodeAnswer(body, &a)
	switch {
	case err != nil:
		return "", o, err
	case (a.Sequence == "") == (a.Node == ""):
		return "", Origin{}, notReply(body, "names neither a sequence nor a node")
	}
	return a.Sequence + a.Node, o, nil
}

// decodeAnswer reads what all answers have in common that stand on an entry.
func decodeAnswer(body []byte, a *answer) (Origin, error) {
	o, err := decodeUnlogged(body, a)
	if err == nil && a.Seq == nil {
		return Origin{}, notReply(body, "neither an error nor seq and cluster")
	}
	return o, err
}

// decodeUnlogged reads what all answers have in common.
func decodeUnlogged(body []byte, a *answer) (Origin, error) {
	if err := json.Unmarshal(body, a); err != nil {
		return Origin{}, notReply(body, err.Error())
	}
	if a.Error != nil {
		if a.Error.Code == "" || a.Start != nil || a.Results != nil || a.ID != nil || a.Ranges != nil {
			return Origin{}, notReply(body, "an error without a code, or beside ids")
		}
		return Origin{Cluster: a.Cluster}, a.Error.decoded()
	}
	if a.Cluster.IsZero() {
		return Origin{}, notReply(body, "neither an error nor a cluster")
	}
	o := Origin{Cluster: a.Cluster}
	if a.Seq != nil {
		o.Seq = uint64(*a.Seq)
	}
	return o, nil
}

// rangeOf is the range in a, or what is wrong with it.
func (a *answer) rangeOf() (r allocnode.Range, why string) {
	if a.Sequence == "" || a.Start == nil || a.End == nil || a.Count == nil {
		return r, "neither a range nor an error"
	}
	r = allocnode.Range{Start: uint64(*a.Start), End: uint64(*a.End)}
	if r.Start == 0 || r.Empty() || r.End > allocnode.MaxID+1 || r.Count() != uint64(*a.Count) {
		return r, fmt.Sprintf("%s with count %d is no range of ids", r, *a.Count)
	}
	return r, ""
}

func (b *infoBody) settings() (Settings, bool) {
	if b.Sequence == "" || b.First == nil || b.Max == nil || b.MaxCount == nil {
		return Settings{}, false
	}
	return Settings{First: uint64(*b.First), Max: uint64(*b.Max), MaxCount: uint64(*b.MaxCount)}, true
}

func (b *infoBody) info() (SequenceInfo, bool) {
	s, ok := b.settings()
	if !ok || b.HWM == nil {
		return SequenceInfo{}, false
	}
	return SequenceInfo{Name: b.Sequence, Settings: s, HWM: uint64(*b.HWM), Halted: b.Halted}, true
}

func (e *errorBody) decoded() *allocnode.Error {
	return &allocnode.Error{Code: e.Code, Message: e.Message, Remaining: uint64(e.Remaining)}
}

func notReply(body []byte, why string) error {
	const limit = 256
	return &NotReplyError{Body: string(body[:min(len(body), limit)]), Why: why}
}
