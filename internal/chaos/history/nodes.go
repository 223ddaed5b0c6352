package history

import (
	"fmt"
	"strings"
	"time"
)

// Replica is what a node holds at the end of a run.
type Replica struct {
	Node    string
	Cluster string // in 32 hexadecimal digits
	Cursor  uint64
	Digest  string            // in 32 hexadecimal digits
	HWM     map[string]uint64 // of every sequence
}

// Digests returns the statuses that show another state than the reference had at the same cursor, a cursor beyond the log's
// end, and one that fell within a node's incarnation. The digest runs over every entry with its seq and outcomes: a node that
// left one out, or carved otherwise, never shows the reference's again. Nodes must have been asked one time after the other:
// answers to questions that overlap may stand in the history the wrong way round. A history without statuses is an error.
func Digests(h *History, log *Log) ([]Violation, error) {
	f := &found{rule: RuleDigest}
	type run struct{ node, incarnation string }
	cursors := map[run]uint64{}
	compared := 0
	for i := range h.Statuses {
		s := &h.Statuses[i]
		if s.Cursor == 0 {
			continue
		}
		compared++
		at := run{s.Node, s.Incarnation}
		switch {
		case s.Cursor < cursors[at]:
			f.add(nil, "%.3f %s stood at seq %d and then at %d, in one incarnation", ms(s.At), s.Node, cursors[at], s.Cursor)
		case log.between(s.Cursor):
		case s.Cursor > log.Last:
			f.add(nil, "%.3f %s had applied seq %d, the log ends at %d", ms(s.At), s.Node, s.Cursor, log.Last)
		case s.Digest != log.Digest(s.Cursor):
			f.add(nil, "%.3f %s had digest %s at seq %d, the log's is %s",
				ms(s.At), s.Node, s.Digest, s.Cursor, log.Digest(s.Cursor))
		}
		cursors[at] = s.Cursor
	}
	if compared == 0 {
		return nil, fmt.Errorf("compare digests: the history has no status with a cursor")
	}
	return f.all, nil
}

// Drained compares what the nodes hold at the end with the reference: cursor at the log's end, its digest, its hwms, for each
// of the nodes named. Read the log after the last entry, and the replicas after the log.
func Drained(nodes []string, replicas []Replica, log *Log) []Violation {
	f := &found{rule: RuleDrained}
	byNode := map[string]*Replica{}
	for i := range replicas {
		byNode[replicas[i].Node] = &replicas[i]
	}
	for _, node := range nodes {
		r := byNode[node]
		switch {
		case r == nil:
			f.add(nil, "%s was not read", node)
			continue
		case r.Cluster != log.Cluster:
			f.add(nil, "%s is of cluster %q, the log of %s", node, r.Cluster, log.Cluster)
		case r.Cursor != log.Last:
			f.add(nil, "%s has applied seq %d, the log ends at %d", node, r.Cursor, log.Last)
			continue
		case r.Digest != log.Digest(log.Last):
			f.add(nil, "%s has digest %s at the end, the log's is %s", node, r.Digest, log.Digest(log.Last))
		}
		for _, name := range sorted(log.HWM) {
			if got, ok := r.HWM[name]; !ok || got != log.HWM[name] {
				f.add(nil, "%s has hwm %d of %s, the log %d", node, got, name, log.HWM[name])
			}
		}
		for _, name := range sorted(r.HWM) {
			if _, ok := log.HWM[name]; !ok {
				f.add(nil, "%s has a sequence %s, the log has not", node, name)
			}
		}
	}
	return f.all
}

// Slack is by how much a process may end above its baseline.
type Slack struct {
	Goroutines, FDs uint64
	RSS             uint64 // bytes
}

// DefaultSlack is what caches, pools and the moment may hold. A node of three has
// 113 to 124 goroutines, under load and idle, one of five 123 to 137.
func DefaultSlack() Slack { return Slack{Goroutines: 25, FDs: 50, RSS: 256 << 20} }

// Hygiene compares each node's last sample with the first, and looks for the marks of a crash in what its processes wrote
// (output by node). A node of whom there are not two samples is an error.
func Hygiene(nodes []string, samples []Sample, output map[string]string, slack Slack) ([]Violation, error) {
	f := &found{rule: RuleHygiene}
	for _, node := range nodes {
		var first, last *Sample
		for i := range samples {
			if s := &samples[i]; s.Node == node {
				if last = s; first == nil {
					first = s
				}
			}
		}
		if first == last {
			return nil, fmt.Errorf("compare samples of %s: a baseline and an end are needed", node)
		}
		over := func(what string, was, is, slack uint64) {
			if is > was+slack {
				f.add(nil, "%s has %d %s, %d at the baseline", node, is, what, was)
			}
		}
		over("goroutines", first.Goroutines, last.Goroutines, slack.Goroutines)
		over("descriptors", first.FDs, last.FDs, slack.FDs)
		over("resident bytes", first.RSS, last.RSS, slack.RSS)
	}
	return append(f.all, Crashes(nodes, output)...), nil
}

// Crashes returns the marks of a crash in what each node's processes wrote.
func Crashes(nodes []string, output map[string]string) []Violation {
	f := &found{rule: RuleHygiene}
	for _, node := range nodes {
		for line := range strings.Lines(output[node]) {
			for _, bad := range []string{"panic:", "fatal error:", "DATA RACE", "goroutine 1 ["} {
				if strings.Contains(line, bad) {
					f.add(nil, "%s wrote %q", node, strings.TrimSpace(line))
				}
			}
		}
	}
	return f.all
}

// Liveness returns the actions of which none succeeded within bound of from (the last healing, by [Now]), and the nodes at
// which nothing sent to them did, or to which no client could connect while others were asked. An attempt counts that began
// after from. An action that nobody tried until then is an error.
func Liveness(h *History, from int64, bound time.Duration, actions []Action, nodes []string) ([]Violation, error) {
	f := &found{rule: RuleLiveness}
	until := from + bound.Nanoseconds()
	tried, done := map[Action]bool{}, map[Action]bool{}
	asked, answered := map[string]bool{}, map[string]bool{}
	for i := range h.Attempts {
		a := &h.Attempts[i]
		if a.Began < from || a.Began > until {
			continue
		}
		tried[a.Action], asked[a.Node] = true, true
		if ok := a.ok(); ok != nil && ok.At <= until {
			done[a.Action], answered[a.Node] = true, true
		}
	}
	for _, action := range actions {
		switch {
		case !tried[action]:
			return nil, fmt.Errorf("judge liveness: nobody tried %s within %v of %.3f", action, bound, ms(from))
		case !done[action]:
			f.add(nil, "no %s succeeded within %v of %.3f", action, bound, ms(from))
		}
	}
	for _, node := range nodes {
		switch {
		case len(tried) == 0:
			return nil, fmt.Errorf("judge liveness: nobody tried anything within %v of %.3f", bound, ms(from))
		case !asked[node]:
			f.add(nil, "no client could connect to %s within %v of %.3f", node, bound, ms(from))
		case !answered[node]:
			f.add(nil, "nothing sent to %s succeeded within %v of %.3f", node, bound, ms(from))
		}
	}
	return f.all, nil
}
