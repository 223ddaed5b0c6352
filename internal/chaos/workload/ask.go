package workload

import (
	"encoding/json"
	"strconv"

	"github.com/allocnode/allocnode/internal/chaos/history"
)

// ask is what a worker wants, frozen before its first attempt.
type ask struct {
	action               history.Action
	sequence, key        string
	count                uint64
	partial              bool
	since                uint64
	to                   uint64
	first, max, maxCount uint64

	items []ask // of a list: each is a reservation under its own key, all with since
}

// parts are the reservations of a list, or a itself: each is an attempt of its own in the history.
func (a *ask) parts() []ask {
	if a.items != nil {
		return a.items
	}
	return []ask{*a}
}

// record is the begin of an attempt at node.
func (a *ask) record(node string) history.Record {
	return history.Record{
		Kind: history.KindBegin, Action: a.action, Node: node, Sequence: a.sequence, Key: a.key, Count: a.count,
		Partial: a.partial, Since: a.since, To: a.to, First: a.first, Max: a.max, MaxCount: a.maxCount,
	}
}

// askOf is what an attempt of the history wanted.
func askOf(a *history.Attempt) ask {
	return ask{
		action: a.Action, sequence: a.Sequence, key: a.Key, count: a.Count, partial: a.Partial, since: a.Since,
		to: a.To, first: a.First, max: a.Max, maxCount: a.MaxCount,
	}
}

// request is the subject and the body, the same ones each time.
func (a *ask) request(prefix string) (subject string, body []byte) {
	if a.items != nil {
		return prefix + ".reserve", a.list()
	}
	subject = prefix + "." + string(a.action) + "." + a.sequence
	switch a.action {
	case history.Reserve:
		if a.key == "" && !a.partial {
			return subject, strconv.AppendUint(nil, a.count, 10)
		}
		return subject, encode(struct {
			Count   uint64 `json:"count"`
			Key     string `json:"key,omitempty"`
			Since   uint64 `json:"since,omitempty"`
			Partial bool   `json:"partial,omitempty"`
		}{a.count, a.key, a.since, a.partial})
	case history.Next:
		return subject, strconv.AppendUint(nil, a.count, 10)
	case history.Create:
		return subject, encode(struct {
			First    uint64 `json:"first,omitempty"`
			Max      uint64 `json:"max,omitempty"`
			MaxCount uint64 `json:"max_count,omitempty"`
		}{a.first, a.max, a.maxCount})
	case history.Advance:
		return subject, strconv.AppendUint(nil, a.to, 10)
	case history.Info:
		return subject, []byte(`{"consistent":true}`)
	}
	panic("workload: an ask to " + string(a.action))
}

func (a *ask) list() []byte {
	type item struct {
		Sequence string `json:"sequence"`
		Count    uint64 `json:"count"`
		Key      string `json:"key"`
		Partial  bool   `json:"partial,omitempty"`
	}
	body := struct {
		Since    uint64 `json:"since,omitempty"`
		Requests []item `json:"requests"`
	}{Since: a.since}
	for _, i := range a.items {
		body.Requests = append(body.Requests, item{i.sequence, i.count, i.key, i.partial})
	}
	return encode(body)
}

func encode(body any) []byte {
	b, err := json.Marshal(body)
	if err != nil {
		panic(err) // numbers and strings
	}
	return b
}

// reply is every field of every answer.
type reply struct {
	Sequence string  `json:"sequence"`
	Start    *uint64 `json:"start"`
	End      *uint64 `json:"end"`
	ID       *uint64 `json:"id"`
	Ranges   []struct {
		Start uint64 `json:"start"`
		End   uint64 `json:"end"`
	} `json:"ranges"`
	First   *uint64 `json:"first"`
	Old     *uint64 `json:"old"`
	HWM     *uint64 `json:"hwm"`
	Seq     uint64  `json:"seq"`
	Cluster string  `json:"cluster"`
	Results []reply `json:"results"`
	Error   *struct {
		Code    string `json:"code"`
		Message string `json:"message"`
	} `json:"error"`
}

// noEffect are the codes that say that this attempt had no effect; retriable are those of them that a later attempt may
// better. Any other code may have had one.
var (
	noEffect = map[string]bool{
		"bad_request": true, "not_found": true, "conflict": true, "exhausted": true, "key_expired": true, "too_large": true,
		"fenced": true, "unavailable": true,
	}
	retriable = map[string]bool{"fenced": true, "unavailable": true}
)

// read is what an answer's body says to each part of a.
func (a *ask) read(body []byte) []history.Record {
	parts := a.parts()
	ends := make([]history.Record, len(parts))
	var r reply
	why := ""
	if len(body) == 0 {
		why = "no responders"
	} else if err := json.Unmarshal(body, &r); err != nil {
		why = err.Error()
	} else if r.Error == nil && len(r.Results) != len(a.items) {
		why = "not an answer"
	}
	for i := range parts {
		end := &ends[i]
		*end = history.Record{Kind: history.KindEnd, Outcome: history.Unknown}
		switch {
		case why != "":
		case a.items != nil && r.Error == nil:
			item := &r.Results[i]
			item.Seq, item.Cluster = r.Seq, r.Cluster
			parts[i].readOne(item, end)
		default:
			parts[i].readOne(&r, end)
		}
		if end.Outcome == history.Unknown && end.Code == "" {
			if why == "" {
				why = "not an answer"
			}
			end.Text = why + ": " + string(body[:min(len(body), 200)])
		}
	}
	return ends
}

// readOne fills in what r says to a. It leaves end unknown where that is nothing.
func (a *ask) readOne(r *reply, end *history.Record) {
	end.Cluster = r.Cluster
	if r.Error != nil {
		end.Code = r.Error.Code
		if noEffect[r.Error.Code] {
			end.Outcome = history.Failed
		}
		return
	}
	if r.Sequence != a.sequence {
		return
	}
	switch {
	case a.action == history.Reserve && r.Start != nil && r.End != nil:
		end.Ranges = []history.Range{{*r.Start, *r.End}}
	case a.action == history.Next && r.ID != nil:
		end.Ranges = []history.Range{{*r.ID, *r.ID + 1}}
	case a.action == history.Next && r.Ranges != nil:
		for _, s := range r.Ranges {
			end.Ranges = append(end.Ranges, history.Range{s.Start, s.End})
		}
	case a.action == history.Create && r.First != nil:
	case a.action == history.Advance && r.Old != nil && r.HWM != nil:
		end.Old, end.HWM = *r.Old, *r.HWM
	case a.action == history.Info && r.HWM != nil:
		end.HWM = *r.HWM
	default:
		return
	}
	end.Seq, end.Outcome = r.Seq, history.OK
}

// definite says that another attempt would tell nothing new about any part.
func definite(ends ...history.Record) bool {
	for i := range ends {
		if !settled(&ends[i]) {
			return false
		}
	}
	return len(ends) > 0
}

func settled(end *history.Record) bool {
	return end.Outcome == history.OK || end.Outcome == history.Failed && !retriable[end.Code]
}

// Unfinished returns, each once, the keyed reservations in h of which nobody knows the outcome: what a client process that
// was killed, or stopped, had under way. Another one gives them to [Config.Resume].
func Unfinished(h *history.History) []history.Attempt {
	type name struct{ sequence, key string }
	closed := map[name]bool{}
	for i := range h.Attempts {
		a := &h.Attempts[i]
		for n := range a.Answers {
			answer := &a.Answers[n]
			if settled(&history.Record{Outcome: answer.Outcome, Code: answer.Code}) {
				closed[name{a.Sequence, a.Key}] = true
			}
		}
	}
	var open []history.Attempt
	for i := range h.Attempts {
		a := &h.Attempts[i]
		if at := (name{a.Sequence, a.Key}); a.Action == history.Reserve && a.Key != "" && !closed[at] {
			closed[at] = true
			open = append(open, *a)
		}
	}
	return open
}
