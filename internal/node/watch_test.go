package node

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/allocnode/allocnode/internal/wire"
	"github.com/allocnode/allocnode/jetstream"
)

// Of everything that is new to it the watch tells once, and of nothing while there is no leader: also of what comes behind
// that. Checked: with every failure behind another taken for told, a stream that was deleted while it had no leader was missed,
// which a slow disk brought about.
func TestWatchTells(t *testing.T) {
	id := jetstream.Identity{Created: time.Unix(1, 0), ClusterID: wire.ID{1}, Epoch: 1, FirstSeq: 1, LastSeq: 20, Leader: "n1"}
	with := func(change func(*jetstream.Identity)) jetstream.Identity {
		id := id
		change(&id)
		return id
	}
	noLeader := fmt.Errorf("identity: %w", jetstream.ErrNoLeader)
	noStream := fmt.Errorf("identity: %w", jetstream.ErrNoStream)
	other := errors.New("max_age is set")
	const cursor = 10
	type look struct {
		id  jetstream.Identity
		err error
		why string
	}
	for name, looks := range map[string][]look{
		"all is as it was":         {{id, nil, ""}, {id, nil, ""}},
		"no leader":                {{id, nil, ""}, {err: noLeader}, {err: noLeader}, {id, nil, "the log answers again"}, {id, nil, ""}},
		"deleted":                  {{id, nil, ""}, {err: noStream, why: noStream.Error()}, {err: noStream}},
		"deleted, no leader":       {{id, nil, ""}, {err: noLeader}, {err: noStream, why: noStream.Error()}, {err: noLeader}, {err: noStream}},
		"deleted at first":         {{err: noLeader}, {err: noStream, why: noStream.Error()}},
		"another fault":            {{id, nil, ""}, {err: noStream, why: noStream.Error()}, {err: other, why: other.Error()}, {err: other}},
		"again":                    {{id, nil, ""}, {err: other, why: other.Error()}, {id, nil, "the log answers again"}, {err: other, why: other.Error()}},
		"the lead goes":            {{id, nil, ""}, {with(func(i *jetstream.Identity) { i.Leader = "n2" }), nil, "the stream's leader is n2, it was n1"}},
		"made anew":                {{id, nil, ""}, {with(func(i *jetstream.Identity) { i.Created = time.Unix(2, 0) }), nil, "the stream is another one"}},
		"of another cluster":       {{id, nil, ""}, {with(func(i *jetstream.Identity) { i.ClusterID = wire.ID{2} }), nil, "the stream is another one"}},
		"of another epoch":         {{id, nil, ""}, {with(func(i *jetstream.Identity) { i.Epoch = 2 }), nil, "the stream is another one"}},
		"purged":                   {{id, nil, ""}, {with(func(i *jetstream.Identity) { i.FirstSeq = 5 }), nil, "the log begins at seq 5"}},
		"shorter than what I know": {{id, nil, ""}, {with(func(i *jetstream.Identity) { i.LastSeq = 9 }), nil, "the log ends at seq 9, this node has applied 10"}},
	} {
		w := newWatch("n1", nil, nil, nil)
		for i, l := range looks {
			if why := w.note(l.id, l.err, cursor); why != l.why {
				t.Errorf("%s: look %d tells %q, want %q", name, i+1, why, l.why)
			}
			if w.silent() != (l.err != nil) || w.leads() != (l.err == nil && l.id.Leader == "n1") {
				t.Errorf("%s: after look %d silent is %v, leads %v", name, i+1, w.silent(), w.leads())
			}
		}
	}
}
