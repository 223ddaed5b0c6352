package history_test

import (
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/allocnode/allocnode/apply"
	"github.com/allocnode/allocnode/internal/chaos/history"
	"github.com/allocnode/allocnode/internal/wire"
)

// recoveredLog begins a log of the next epoch with what m remembers; upTo is how many of its parts are written. Between them
// stands what a log may hold there: other operations, a part twice, a part that is another.
func recoveredLog(t *testing.T, rng *rand.Rand, m *apply.Machine, plan apply.Plan, upTo int) *logMaker {
	t.Helper()
	made, err := apply.Recover([]apply.Catalog{{Name: "n0", State: m}}, plan)
	if err != nil {
		t.Fatal(err)
	}
	l := &logMaker{rng: rng, before: made.Genesis.First() - 1, counter: 1 << 20}
	h := l.header()
	h.Cursor = l.before
	l.append(l.seal(h, wire.Op{Kind: wire.KindGenesis, Genesis: made.Genesis}))
	for i, part := range made.Parts[:min(upTo, len(made.Parts))] {
		restore := wire.Op{Kind: wire.KindRestore, Index: uint64(i), Data: part}
		other := restore
		other.Data = append([]byte{0}, part...)
		reserve := wire.Op{Kind: wire.KindReserve, Name: []byte("s1"), Count: 1}
		for _, ops := range [][]wire.Op{{reserve}, {other}, {restore, reserve}, {restore}, {restore}} {
			l.append(l.seal(l.header(), ops...))
		}
	}
	return l
}

// TestFoldAgreesOnRecoveredLogs goes on after a recovery, several times over: what was reserved under a key of before, the
// floors, the windows, and what is refused until the state is whole, are the same by both. Checked: with the recovered keys, the
// floor of unnamed sequences, the key floor, or the refusals before the last part left out of the reference, it failed.
func TestFoldAgreesOnRecoveredLogs(t *testing.T) {
	seen := map[wire.Reject]int{}
	repeats, floors := 0, 0
	for seed := range uint64(8) {
		l := &logMaker{rng: rand.New(rand.NewPCG(seed, 5))}
		h := l.header()
		h.Cursor = 0
		g := genesis(l.rng)
		g.MaxSequences = 40 // some are first used after a recovery
		l.append(l.seal(h, wire.Op{Kind: wire.KindGenesis, Genesis: g}))
		for range 6 {
			l.step()
		}
		for epoch := uint64(2); epoch < 5; epoch++ {
			before, m := agree(t, l, seen)
			plan := apply.Plan{Epoch: epoch, Complete: seed%2 == 0}
			if !plan.Complete {
				plan.RaiseBy = 7
			}
			l = recoveredLog(t, l.rng, m, plan, 1<<20)
			whole := len(l.messages)
			for range 6 + 300*(epoch-2) {
				l.step()
			}
			after, _ := agree(t, l, seen)
			joined, violations := history.Join(before, after)
			wantNone(t, violations)
			if joined.Epoch != epoch || joined.Digest(before.Last) != before.Digest(before.Last) || joined.Digest(before.Last+1) != "" ||
				joined.Digest(after.Last) != after.Digest(after.Last) || len(joined.Results) != len(before.Results)+len(after.Results) {
				t.Fatalf("seed %d: joined to epoch %d, seq %d", seed, joined.Epoch, joined.Last)
			}
			for name, floor := range after.Floors {
				if hwm := before.HWM[name]; floor < hwm || !plan.Complete && floor == hwm && hwm < 290 {
					t.Errorf("seed %d: %s begins at %d, it had come to %d", seed, name, floor, hwm)
				}
				floors++
			}
			first := after.First + uint64(whole)
			carved := map[string]bool{}
			for _, r := range after.Results {
				if r.Action == history.Reserve && r.Refused == 0 && r.Seq >= first {
					if r.Repeated && r.Key != "" && !carved[r.Key] {
						repeats++ // of a key of before
					}
					carved[r.Key] = true
				}
			}
		}
	}
	for _, reject := range []wire.Reject{wire.RejectRestoring, wire.RejectRestore, wire.RejectKeyExpired, wire.RejectKeyReused} {
		if seen[reject] == 0 {
			t.Errorf("no log had rejection %d", reject)
		}
	}
	if repeats == 0 || floors == 0 {
		t.Errorf("%d keys of before were asked for again, %d floors", repeats, floors)
	}
}

// TestFoldRefusesHalfARecovery: a log that ends before its state is whole says nothing.
func TestFoldRefusesHalfARecovery(t *testing.T) {
	l := &logMaker{rng: rand.New(rand.NewPCG(1, 6))}
	h := l.header()
	h.Cursor = 0
	l.append(l.seal(h, wire.Op{Kind: wire.KindGenesis, Genesis: genesis(l.rng)}))
	for range 20 {
		l.step()
	}
	_, m := agree(t, l, map[wire.Reject]int{})
	for name, tt := range map[string]struct {
		edit func(l *logMaker)
		want string
	}{
		"no part":         {func(l *logMaker) { l.messages = l.messages[:1] }, "0 of 1 parts"},
		"another first":   {func(l *logMaker) { l.messages[0].Seq++ }, "stands where"},
		"without genesis": {func(l *logMaker) { l.messages = l.messages[1:] }, "no genesis"},
	} {
		after := recoveredLog(t, rand.New(rand.NewPCG(1, 7)), m, apply.Plan{Epoch: 2, Complete: true}, 1)
		tt.edit(after)
		if _, err := history.Fold(after.messages); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: error %v, want %q in it", name, err, tt.want)
		}
	}
}

// epochs is the good story, its log lost after the last seq, and a recovered log of four entries, 1000 on: a key of before asked
// for again, and ten ids more.
func epochs() (s *story, after *history.Log) {
	s = good()
	s.log.Epoch, s.log.First = 1, 1
	after = &history.Log{
		Cluster: s.log.Cluster, Epoch: 2, First: 1000, Last: 1003, HWM: map[string]uint64{"orders": 520}, KeyFloor: 1,
		Floors: map[string]uint64{"orders": 510}, Digests: []string{"e2-0", "e2-1", "e2-2", "e2-3"},
		Results: []history.Result{
			{Seq: 1002, Node: "n1", Action: history.Reserve, Sequence: "orders", Key: "key a of orders", Count: 10, Repeated: true, Range: history.Range{1, 11}},
			{Seq: 1003, Node: "n1", Action: history.Reserve, Sequence: "orders", Key: "key n of orders", Count: 10, Range: history.Range{511, 521}},
		},
	}
	s.reserve("a", 100, 101, 1, 10, 1002)
	s.reserve("n", 102, 103, 511, 10, 1003)
	return s, after
}

// TestEpochsRejected breaks a history over two epochs. Checked: without each of the rules of Join, without the digests of the
// epoch before, or with the seqs between counted as the log's, it failed.
func TestEpochsRejected(t *testing.T) {
	judge := func(s *story, after *history.Log) []history.Violation {
		joined, found := history.Join(s.log, after)
		found = append(found, history.Unique(s.h)...)
		found = append(found, history.Idempotent(s.h, joined)...)
		found = append(found, history.LogTruth(s.h, joined)...)
		found = append(found, history.Order(s.h, joined)...)
		s.h.Statuses = append(s.h.Statuses,
			status(1, "n1", "x", 9, "digest-9"),
			status(2, "n1", "x", 12, "lost-12"), // what stood there when the log was lost nobody knows
			status(3, "n1", "y", 1003, "e2-3"))
		digests, err := history.Digests(s.h, joined)
		if err != nil {
			t.Fatal(err)
		}
		return append(found, digests...)
	}
	s, after := epochs()
	wantNone(t, judge(s, after))
	for _, tt := range []struct {
		name string
		bad  func(s *story, after *history.Log)
		rule history.Rule
		want string
	}{
		{"a floor below", func(_ *story, after *history.Log) { after.Floors["orders"] = 509 }, history.RuleRecovery, "begins orders at 509, epoch 1 had carved 510"},
		{"a sequence is forgotten", func(s *story, _ *history.Log) { s.log.HWM["users"] = 1 }, history.RuleRecovery, "begins users at 0"},
		{"seqs used again", func(_ *story, after *history.Log) { after.First = 9 }, history.RuleRecovery, "begins at seq 9, that of 1 had come to 9"},
		{"another cluster", func(s *story, after *history.Log) { s.log.Cluster = "other" }, history.RuleRecovery, "is of cluster"},
		{"the same epoch", func(_ *story, after *history.Log) { after.Epoch = 1 }, history.RuleRecovery, "epoch 1 follows 1"},
		{"an id of before", func(s *story, after *history.Log) {
			s.reserve("z", 110, 111, 12, 3, 1003)
			after.Results = append(after.Results, history.Result{
				Seq: 1003, Node: "n1", Action: history.Reserve, Sequence: "orders", Key: "key z of orders", Count: 3, Range: history.Range{12, 15},
			})
		}, history.RuleUnique, "ids [12, 15) of orders were issued twice"},
		{"a key of before has another range", func(s *story, after *history.Log) {
			s.reserve("b", 110, 111, 521, 5, 1003)
			after.Results = append(after.Results, history.Result{
				Seq: 1003, Node: "n1", Action: history.Reserve, Sequence: "orders", Key: "key b of orders", Count: 5, Range: history.Range{521, 526},
			})
		}, history.RuleIdempotent, "key b of orders has two ranges"},
		{"an answer that is in neither log", func(s *story, _ *history.Log) { s.reserve("z", 110, 111, 700, 5, 500) }, history.RuleLogTruth, "does not stand in the log at seq 500"},
		{"another digest before", func(s *story, _ *history.Log) {
			s.h.Statuses = []history.Status{status(0, "n2", "z", 8, "digest-7")}
		}, history.RuleDigest, "n2 had digest digest-7 at seq 8"},
		{"beyond the end", func(s *story, _ *history.Log) {
			s.h.Statuses = []history.Status{status(0, "n2", "z", 1004, "e2-4")}
		}, history.RuleDigest, "n2 had applied seq 1004"},
	} {
		s, after := epochs()
		tt.bad(s, after)
		found := judge(s, after)
		ok := false
		for _, v := range found {
			ok = ok || v.Rule == tt.rule && strings.Contains(v.Text, tt.want)
		}
		if !ok {
			t.Errorf("%s: %v, want %s: %q", tt.name, found, tt.rule, tt.want)
		}
	}
}
