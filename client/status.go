package client

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go"
)

// NodeStatus is what a node says of itself. It is the view of that node alone, at the moment of the answer.
type NodeStatus struct {
	Name        string // unique in its cluster
	Role        string // in the log's raft group: leader, follower, alone or unknown
	Cluster     string // id, 32 hexadecimal digits; empty while the node does not know it
	Epoch       uint64 // 1, and one more after each recovery
	Incarnation string // id of this run of its process
	Catalog     string // id of its catalog
	Version     string
	Level       uint8 // newest level of operations that takes effect

	Cursor uint64 // seq of the last entry applied
	Last   uint64 // last seq of the log, as far as the node knows
	Lag    uint64 // Last less Cursor, in entries
	Digest string // running hash at Cursor, 32 hexadecimal digits: equal on all nodes at equal cursors

	Ready  bool   // answers requests now
	State  string // starting, checking, serving, fenced, halted or stopping
	Reason string // why it is not ready

	Sequences uint64 // how many sequences there are
	Counters  map[string]uint64

	Raw json.RawMessage `json:"-"` // the answer as it came
}

// How long [Client.Status] listens.
const (
	statusFirst = 2 * time.Second        // for the first answer
	statusQuiet = 250 * time.Millisecond // after the last one
)

// Status asks every node of every state, and returns what came until no answer had come for a quarter of a second, or for
// 2 s none at all, or ctx ended; by cluster, then by name. How many nodes there should be is not known here. Answers of
// other clusters on the same prefix are among them, told apart by Cluster. ErrUnavailable: no node answered.
func (c *Client) Status(ctx context.Context) ([]NodeStatus, error) {
	ctx, done, err := c.within(ctx)
	if err != nil {
		return nil, fmt.Errorf("status: %w", err)
	}
	defer done()
	box, err := c.inbox.open(1024)
	if err != nil {
		return nil, fmt.Errorf("status: %w", &unsentError{cause: err})
	}
	defer box.close()
	if err := c.send(ctx, &question{subject: c.cfg.prefix + ".status"}, box); err != nil {
		return nil, fmt.Errorf("status: %w", &unsentError{cause: err})
	}
	var all []NodeStatus
	quiet := time.NewTimer(statusFirst)
	defer quiet.Stop()
	for {
		select {
		case a := <-box.ch:
			if noResponders(a.msg) {
				return nil, fmt.Errorf("status: %w", errNoResponders)
			}
			if st, ok := parseStatus(a.msg); ok {
				all = append(all, st)
				quiet.Reset(statusQuiet)
			}
			continue
		case <-quiet.C:
			err = errNoAnswers
		case <-ctx.Done():
			err = &unsentError{cause: cause(ctx), last: errNoAnswers}
		}
		break
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("status: %w", err)
	}
	slices.SortFunc(all, func(a, b NodeStatus) int {
		return cmp.Or(cmp.Compare(a.Cluster, b.Cluster), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Incarnation, b.Incarnation))
	})
	return all, nil
}

// parseStatus reads an answer. A stream that captured the subject answers too, with something else.
func parseStatus(m *nats.Msg) (st NodeStatus, ok bool) {
	if err := json.Unmarshal(m.Data, &st); err != nil || st.Name == "" || st.State == "" {
		return NodeStatus{}, false
	}
	st.Raw = slices.Clone(m.Data)
	return st, true
}
