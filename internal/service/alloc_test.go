package service

import (
	"testing"

	"github.com/allocnode/allocnode/internal/propose"
	"github.com/allocnode/allocnode/internal/wire"
)

// instantLog answers at once, and allocates nothing.
type instantLog struct {
	*fakeLog
	outcomes [1]wire.Outcome
}

func (l *instantLog) Submit(r *propose.Request) {
	l.seq++
	l.outcomes[0] = wire.Outcome{Start: l.seq, End: l.seq + 1}
	r.Done(propose.Result{Seq: l.seq, Outcomes: l.outcomes[:]})
}

// What a reservation allocates between the subscription and the connection: the call, with its operation in it, the func
// that the log calls, and a key as the string that it was parsed to. Checked: with a name of its own, an operation of its own or
// a request that escapes, or without the buffers that are used again, each is one more, and this fails.
func TestReserveAllocations(t *testing.T) {
	for _, tt := range []struct {
		body string
		want float64
	}{
		{"", 2}, {"10", 2}, {`{"count":10}`, 2},
		{`{"count":1,"key":"0123456789abcdef","since":7}`, 3},
	} {
		log := &instantLog{fakeLog: newFakeLog()}
		s := New(nil, testConfig(), log, log, log, log, nil)
		s.outbox.queue = make([]answer, 0, 1)
		r, body := newRun(s, testCluster), []byte(tt.body)
		got := testing.AllocsPerRun(200, func() {
			r.handle(epReserve, "alloc.reserve.orders", "_INBOX.x.y", body)
			if len(s.outbox.queue) != 1 || s.outbox.queue[0].err != nil {
				t.Fatalf("%q: %d answers, error %v", tt.body, len(s.outbox.queue), s.outbox.queue[0].err)
			}
			bufs.Put(s.outbox.queue[0].body) // as the outbox does once it is published
			s.outbox.queue = s.outbox.queue[:0]
		})
		if got > tt.want {
			t.Errorf("%q: a reservation allocates %v times, want at most %v", tt.body, got, tt.want)
		}
	}
}
