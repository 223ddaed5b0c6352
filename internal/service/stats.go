package service

import (
	"slices"
	"strings"
	"sync/atomic"

	"github.com/allocnode/allocnode"
)

// endpoint is one subject that the service listens on.
type endpoint uint8

// The endpoints. Those before firstInternal belong to the micro service.
const (
	epReserve endpoint = iota
	epReserveList
	epNext
	epCreate
	epAdvance
	epInfo
	epList
	epForget
	epResume
	epStatus
	endpoints

	firstInternal = epForget
)

// table describes the endpoints.
var table = [endpoints]struct {
	name    string
	subject string // after the prefix and a dot
	appends bool   // every request goes through the log
	mute    bool   // takes effect without a reply subject too: it repeats harmlessly, and loses nothing
}{
	epReserve:     {"reserve", "reserve.>", true, false},
	epReserveList: {"reserve-list", "reserve", true, false},
	epNext:        {"next", "next.>", false, false},
	epCreate:      {"create", "create.>", true, true},
	epAdvance:     {"advance", "advance.>", true, true},
	epInfo:        {"info", "info.>", false, false},
	epList:        {"list", "list", false, false},
	epForget:      {"forget", "forget.*", true, true},
	epResume:      {"resume", "resume.>", true, true},
	epStatus:      {"status", "status", false, false},
}

func (ep endpoint) String() string { return table[ep].name }

// subject is what ep listens on.
func (s *Service) subject(ep endpoint) string { return s.cfg.Prefix + "." + table[ep].subject }

// named is what stands for ep's wildcard in subject; empty when ep has none.
func (s *Service) named(ep endpoint, subject string) string {
	fixed, wild := strings.CutSuffix(table[ep].subject, ">")
	if !wild {
		fixed, wild = strings.CutSuffix(table[ep].subject, "*")
	}
	n := len(s.cfg.Prefix) + 1 + len(fixed)
	if !wild || len(subject) < n {
		return ""
	}
	return subject[n:]
}

// codes are the codes that are counted; one that stands not here counts as the last.
var codes = []allocnode.Code{
	allocnode.CodeBadRequest, allocnode.CodeNotFound, allocnode.CodeConflict, allocnode.CodeExhausted,
	allocnode.CodeKeyExpired, allocnode.CodeTooLarge, allocnode.CodeFenced, allocnode.CodeUnavailable,
	allocnode.CodeUnknownOutcome,
}

// counters are what happened on one endpoint since the process began.
type counters struct {
	requests atomic.Uint64
	noReply  atomic.Uint64 // requests without a subject to answer to
	unsent   atomic.Uint64 // answers that the connection did not take
	errors   [9]atomic.Uint64
}

func (n *counters) failed(code allocnode.Code) {
	i := slices.Index(codes, code)
	if i < 0 {
		i = len(codes) - 1
	}
	n.errors[i].Add(1)
}

// EndpointStats is what stands in the data of an endpoint's statistics, in counts since the process began. Unlike micro's
// own numbers it knows what was answered later.
type EndpointStats struct {
	Requests uint64                    `json:"requests"`
	NoReply  uint64                    `json:"no_reply"` // requests without a subject that may be answered to
	Unsent   uint64                    `json:"unsent"`   // answers that could not be published
	Errors   map[allocnode.Code]uint64 `json:"errors,omitempty"`
}

func (n *counters) snapshot() EndpointStats {
	st := EndpointStats{Requests: n.requests.Load(), NoReply: n.noReply.Load(), Unsent: n.unsent.Load()}
	for i, code := range codes {
		if v := n.errors[i].Load(); v > 0 {
			if st.Errors == nil {
				st.Errors = make(map[allocnode.Code]uint64)
			}
			st.Errors[code] = v
		}
	}
	return st
}

// Stats is what happened on each endpoint since the process began, by the endpoint's name: reserve, reserve-list, next,
// create, advance, info, list, forget, resume, status.
func (s *Service) Stats() map[string]EndpointStats {
	all := make(map[string]EndpointStats, endpoints)
	for ep := range endpoints {
		all[ep.String()] = s.counters[ep].snapshot()
	}
	return all
}

func (s *Service) endpointStats(name string) EndpointStats {
	for ep := range endpoints {
		if ep.String() == name {
			return s.counters[ep].snapshot()
		}
	}
	return EndpointStats{}
}
