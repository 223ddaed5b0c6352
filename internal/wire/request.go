package wire

import (
	"errors"
	"strings"
	"unicode/utf8"

	"github.com/allocnode/allocnode"
)

// Bounds of a request.
const (
	MaxBody      = 64 << 10 // of a request's body, in bytes
	MaxListItems = 1000     // reservations in one list
	MaxPage      = 1000     // sequences in one page of the list of sequences
	DefaultPage  = 100      // sequences in a page when the request does not say
)

// ReserveItem is one reservation of a list.
type ReserveItem struct {
	Sequence string
	Count    uint64 // 1 to [allocnode.MaxID]; the sequence's max_count is not known here
	Key      string // names (sequence, key); empty when the item has none of its own
	Partial  bool   // take what is left when Count does not fit
}

// ReserveRequest is what a reserve asks for: one reservation, or a list of them that stand in one entry.
type ReserveRequest struct {
	// ReserveItem is the one reservation. Of a list only its Key counts, which then names the list as a whole.
	ReserveItem

	List      []ReserveItem // nil for one reservation, otherwise 1 to [MaxListItems]
	Since     uint64        // last seq that the sender had seen before its first attempt; 0 is none
	StringIDs bool          // ids in the answer are JSON strings
}

// NextRequest asks for ids from the node's own batch.
type NextRequest struct {
	Sequence  string
	Count     uint64 // 1 to [allocnode.MaxID]
	StringIDs bool
}

// CreateRequest makes a sequence, or checks its settings.
type CreateRequest struct {
	Sequence string
	Settings Settings
	Given    uint8 // which of Settings the request names: GivenFirst and so on; the others are the defaults
}

// AdvanceRequest raises a high-water mark.
type AdvanceRequest struct {
	Sequence string
	To       uint64 // 0 to [allocnode.MaxID]
}

// InfoRequest asks for the state of one sequence.
type InfoRequest struct {
	Sequence   string
	Consistent bool // behind a barrier in the log
	StringIDs  bool
}

// ListRequest asks for a page of the sequences, in the order of their creation.
type ListRequest struct {
	After      uint64 // "next" of the page before; 0 begins
	Limit      int    // 1 to [MaxPage]
	Consistent bool   // behind a barrier in the log
	StringIDs  bool
}

// The bodies as JSON. A pointer tells a field that is absent from one that is zero; null is refused before it gets here.
type (
	reserveBody struct {
		Count    *uint64    `json:"count"`
		Key      *string    `json:"key"`
		Partial  *bool      `json:"partial"`
		Since    uint64     `json:"since"`
		IDs      *string    `json:"ids"`
		Requests []itemBody `json:"requests"`
	}
	itemBody struct {
		Sequence *string `json:"sequence"`
		Count    *uint64 `json:"count"`
		Key      *string `json:"key"`
		Partial  bool    `json:"partial"`
	}
)

var (
	reserveFields = []string{"count", "key", "partial", "since", "ids", "requests"}
	itemFields    = []string{"sequence", "count", "key", "partial"}
	nextFields    = []string{"count", "ids"}
	createFields  = []string{"first", "max", "max_count"}
	advanceFields = []string{"to"}
	infoFields    = []string{"consistent", "ids"}
	listFields    = []string{"after", "limit", "consistent", "ids"}
	forgetFields  = []string{"node"}
)

// ParseReserve reads the body of a reserve: empty (one id), a plain number, or a JSON object. sequence is the one that the
// subject names; empty, the body must be a list, whose items name theirs. Otherwise the items of a list must name that
// sequence or none. Every fault is an [*allocnode.Error] with bad_request or too_large.
func ParseReserve(sequence string, body []byte) (ReserveRequest, error) {
	n, form, err := readBody(body)
	if err != nil {
		return ReserveRequest{}, err
	}
	if sequence != "" {
		if err := allocnode.CheckName(sequence); err != nil {
			return ReserveRequest{}, err
		}
	} else if form != formObject {
		return ReserveRequest{}, badRequest(`the subject names no sequence: name one there, or send {"requests":[…]}`)
	}
	switch form {
	case formEmpty:
		return ReserveRequest{ReserveItem: ReserveItem{Sequence: sequence, Count: 1}}, nil
	case formNumber:
		if err := checkCount(n); err != nil {
			return ReserveRequest{}, err
		}
		return ReserveRequest{ReserveItem: ReserveItem{Sequence: sequence, Count: n}}, nil
	}
	if q, ok := plainReserve(sequence, body); ok {
		return q, nil
	}
	return parseReserveObject(sequence, body)
}

func parseReserveObject(sequence string, body []byte) (q ReserveRequest, err error) {
	var b reserveBody
	if err := decodeObject(body, &b, reserveFields, itemFields); err != nil {
		return q, err
	}
	q.Since = b.Since
	if q.StringIDs, err = stringIDs(b.IDs); err != nil {
		return ReserveRequest{}, err
	}
	if q.Key, err = optionalKey(b.Key); err != nil {
		return ReserveRequest{}, err
	}
	if b.Requests == nil {
		if sequence == "" {
			return ReserveRequest{}, badRequest(`the subject names no sequence: name one there, or send {"requests":[…]}`)
		}
		q.Sequence = sequence
		q.Partial = b.Partial != nil && *b.Partial
		if q.Count, err = optionalCount(b.Count); err != nil {
			return ReserveRequest{}, err
		}
		return q, nil
	}
	switch {
	case b.Count != nil || b.Partial != nil:
		return ReserveRequest{}, badRequest("count and partial stand in the items of requests, not beside it")
	case len(b.Requests) == 0:
		return ReserveRequest{}, badRequest("requests is empty: a list holds 1 to %d items", MaxListItems)
	}
	q.List = make([]ReserveItem, len(b.Requests)) // checkFields has counted them
	for i := range b.Requests {
		if err := parseItem(&q.List[i], sequence, &b.Requests[i]); err != nil {
			return ReserveRequest{}, inItem(i, err)
		}
	}
	return q, nil
}

func parseItem(item *ReserveItem, sequence string, b *itemBody) (err error) {
	switch {
	case b.Sequence == nil && sequence == "":
		return badRequest("the item names no sequence")
	case b.Sequence == nil:
		item.Sequence = sequence
	case sequence != "" && *b.Sequence != sequence:
		return badRequest("the item names the sequence %s, the subject %s: here they must agree", quote(*b.Sequence), sequence)
	default:
		item.Sequence = *b.Sequence
		if err := allocnode.CheckName(item.Sequence); err != nil {
			return err
		}
	}
	item.Partial = b.Partial
	if item.Count, err = optionalCount(b.Count); err != nil {
		return err
	}
	item.Key, err = optionalKey(b.Key)
	return err
}

// ParseNext reads the body of a next: empty (one id), a plain number, or {"count":n,"ids":"string"}. Errors as
// [ParseReserve].
func ParseNext(sequence string, body []byte) (NextRequest, error) {
	q := NextRequest{Sequence: sequence, Count: 1}
	n, form, err := readNamed(sequence, body)
	if err != nil {
		return NextRequest{}, err
	}
	switch form {
	case formNumber:
		q.Count, err = n, checkCount(n)
	case formObject:
		var b struct {
			Count *uint64 `json:"count"`
			IDs   *string `json:"ids"`
		}
		if err = decodeObject(body, &b, nextFields, nil); err == nil {
			q.StringIDs, err = stringIDs(b.IDs)
		}
		if err == nil {
			q.Count, err = optionalCount(b.Count)
		}
	}
	if err != nil {
		return NextRequest{}, err
	}
	return q, nil
}

// ParseCreate reads the body of a create: empty, or {"first":…,"max":…,"max_count":…}, each optional. What is not given
// comes from defaults, and the whole must pass [Settings.Check]. Errors as [ParseReserve].
func ParseCreate(sequence string, body []byte, defaults Settings) (CreateRequest, error) {
	q := CreateRequest{Sequence: sequence, Settings: defaults}
	_, form, err := readNamed(sequence, body)
	if err != nil {
		return CreateRequest{}, err
	}
	switch form {
	case formNumber:
		return CreateRequest{}, badRequest(`a create takes no plain number: send nothing or {"first":…,"max":…,"max_count":…}`)
	case formObject:
		var b struct {
			First    *uint64 `json:"first"`
			Max      *uint64 `json:"max"`
			MaxCount *uint64 `json:"max_count"`
		}
		if err := decodeObject(body, &b, createFields, nil); err != nil {
			return CreateRequest{}, err
		}
		take := func(dst *uint64, given *uint64, bit uint8) {
			if given != nil {
				*dst = *given
				q.Given |= bit
			}
		}
		take(&q.Settings.First, b.First, GivenFirst)
		take(&q.Settings.Max, b.Max, GivenMax)
		take(&q.Settings.MaxCount, b.MaxCount, GivenMaxCount)
	}
	if err := q.Settings.Check(); err != nil {
		return CreateRequest{}, err
	}
	return q, nil
}

// ParseAdvance reads the body of an advance: a plain number, or {"to":N}. Errors as [ParseReserve].
func ParseAdvance(sequence string, body []byte) (AdvanceRequest, error) {
	n, form, err := readNamed(sequence, body)
	if err != nil {
		return AdvanceRequest{}, err
	}
	to := &n
	switch form {
	case formEmpty:
		to = nil
	case formObject:
		var b struct {
			To *uint64 `json:"to"`
		}
		if err := decodeObject(body, &b, advanceFields, nil); err != nil {
			return AdvanceRequest{}, err
		}
		to = b.To
	}
	if to == nil {
		return AdvanceRequest{}, badRequest(`an advance says how far: a number, or {"to":N}`)
	}
	if *to > allocnode.MaxID {
		return AdvanceRequest{}, badRequest("to is %d: at most %d", *to, allocnode.MaxID)
	}
	return AdvanceRequest{Sequence: sequence, To: *to}, nil
}

// ParseInfo reads the body of an info: empty, or {"consistent":true,"ids":"string"}. Errors as [ParseReserve].
func ParseInfo(sequence string, body []byte) (InfoRequest, error) {
	_, form, err := readNamed(sequence, body)
	if err != nil {
		return InfoRequest{}, err
	}
	q := InfoRequest{Sequence: sequence}
	var b struct {
		Consistent bool    `json:"consistent"`
		IDs        *string `json:"ids"`
	}
	if err := optionalObject(form, body, &b, infoFields); err != nil {
		return InfoRequest{}, err
	}
	q.Consistent = b.Consistent
	if q.StringIDs, err = stringIDs(b.IDs); err != nil {
		return InfoRequest{}, err
	}
	return q, nil
}

// ParseList reads the body of a list: empty, or {"after":…,"limit":…,"consistent":true,"ids":"string"}. Errors as
// [ParseReserve].
func ParseList(body []byte) (ListRequest, error) {
	_, form, err := readBody(body)
	if err != nil {
		return ListRequest{}, err
	}
	limit := uint64(DefaultPage)
	var b struct {
		After      uint64  `json:"after"`
		Limit      *uint64 `json:"limit"`
		Consistent bool    `json:"consistent"`
		IDs        *string `json:"ids"`
	}
	if err := optionalObject(form, body, &b, listFields); err != nil {
		return ListRequest{}, err
	}
	if b.Limit != nil {
		limit = *b.Limit
	}
	if limit < 1 || limit > MaxPage {
		return ListRequest{}, badRequest("limit is %d: 1 to %d sequences fit a page", limit, MaxPage)
	}
	q := ListRequest{After: b.After, Limit: int(limit), Consistent: b.Consistent}
	if q.StringIDs, err = stringIDs(b.IDs); err != nil {
		return ListRequest{}, err
	}
	return q, nil
}

// ParseForget reads the body of a forget, empty or {"node":…}, and returns the node's name. node is the one that the
// subject names, or empty; where both name one they must agree. A name is 1 to [MaxNodeLen] of [A-Za-z0-9_-]. Errors as
// [ParseReserve].
func ParseForget(node string, body []byte) (string, error) {
	_, form, err := readBody(body)
	if err != nil {
		return "", err
	}
	var b struct {
		Node *string `json:"node"`
	}
	if err := optionalObject(form, body, &b, forgetFields); err != nil {
		return "", err
	}
	if b.Node != nil {
		if node != "" && node != *b.Node {
			return "", badRequest("the body names the node %s, the subject %s: they must agree", quote(*b.Node), quote(node))
		}
		node = *b.Node
	}
	switch {
	case node == "":
		return "", badRequest("a forget names a node, in its subject or as {\"node\":…}")
	case len(node) > MaxNodeLen:
		return "", badRequest("the node name is %d bytes long: at most %d are allowed", len(node), MaxNodeLen)
	case strings.Contains(node, ".") || allocnode.CheckName(node) != nil:
		return "", badRequest("the node name %s has a character that is not a letter, a digit, '_' or '-'", quote(node))
	}
	return node, nil
}

// ParseResume reads the body of a resume, which is empty or {}. Errors as [ParseReserve].
func ParseResume(sequence string, body []byte) error {
	_, form, err := readNamed(sequence, body)
	if err != nil {
		return err
	}
	return optionalObject(form, body, &struct{}{}, nil)
}

func checkCount(n uint64) error {
	if n < 1 || n > allocnode.MaxID {
		return badRequest("count is %d: 1 to %d ids may be asked for", n, allocnode.MaxID)
	}
	return nil
}

func optionalCount(n *uint64) (uint64, error) {
	if n == nil {
		return 1, nil
	}
	return *n, checkCount(*n)
}

func optionalKey(key *string) (string, error) {
	switch {
	case key == nil:
		return "", nil
	case *key == "":
		return "", badRequest("the key is empty: leave it out, or give 1 to %d bytes", maxKey)
	case len(*key) > maxKey:
		return "", badRequest("the key is %d bytes long: at most %d are allowed", len(*key), maxKey)
	case strings.ContainsRune(*key, utf8.RuneError):
		// encoding/json turns every lone surrogate into U+FFFD: two keys would become one, and share a range.
		return "", badRequest("the key %s has a half of a surrogate pair or U+FFFD in it", quote(*key))
	}
	return *key, nil
}

func stringIDs(ids *string) (bool, error) {
	switch {
	case ids == nil || *ids == "number":
		return false, nil
	case *ids == "string":
		return true, nil
	}
	return false, badRequest(`ids is %s: "number" or "string"`, quote(*ids))
}

func badRequest(format string, args ...any) error {
	return allocnode.Errorf(allocnode.CodeBadRequest, format, args...)
}

// inItem says which item of a list err is about.
func inItem(i int, err error) error {
	var e *allocnode.Error
	if !errors.As(err, &e) {
		return err
	}
	return allocnode.Errorf(e.Code, "item %d: %s", i, e.Message)
}
