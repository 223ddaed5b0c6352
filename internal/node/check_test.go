package node

import (
	"fmt"
	"regexp"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/allocnode/allocnode/apply"
	"github.com/allocnode/allocnode/internal/propose"
	"github.com/allocnode/allocnode/internal/wire"
	"github.com/allocnode/allocnode/jetstream"
)

// bubble runs test with a log that holds its genesis.
func bubble(t *testing.T, test func(t *testing.T, f *fakeLog)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { test(t, newFakeLog()) })
}

// settle is long enough for any check that finds nothing.
const settle = 2 * checkTimeout

// cluster starts three nodes and wants them to serve.
func (f *fakeLog) cluster(t *testing.T) (nodes []*unit) {
	t.Helper()
	for _, name := range names {
		nodes = append(nodes, f.start(t, name))
	}
	pass(settle)
	for _, u := range nodes {
		u.state(wire.StateServing, "")
	}
	return nodes
}

func TestCheckRound(t *testing.T) {
	bubble(t, func(t *testing.T, f *fakeLog) {
		nodes := f.cluster(t)
		asks := f.ops(t, wire.KindCheck, func(_ *wire.Entry, op *wire.Op) bool { return op.Check.Ask })
		all := f.last()
		if asks != 3 || all > 1+3+6 {
			t.Errorf("%d asks in %d entries: want 3, and at most two answers to each", asks, all)
		}
		// Answers are not answered, and a check that has ended asks no more. Checked: with every check entry taken for a
		// question the three went on answering for ever, within one moment.
		pass(time.Hour)
		if last := f.last(); last != all {
			t.Errorf("the log grew from %d entries to %d in an hour without requests", all, last)
		}
		if r := <-nodes[0].ask(10); r.Err != nil || r.Outcomes[0].Start != 1 {
			t.Errorf("reserved %+v", r)
		}
	})
}

// The word of another node counts when its cursor shows that it had seen the question.
// Checked: with any earlier word counted, and with its own word as enough, it served early.
func TestCheckMajorityByCursor(t *testing.T) {
	bubble(t, func(t *testing.T, f *fakeLog) {
		f.put(f.entry("n2", 1, checkOp("n2", false))) // said before the question
		u := f.start(t, "n1")
		pass(time.Second)
		question := f.last()
		u.state(wire.StateChecking, "majority")
		f.put(f.entry("n2", question-1, checkOp("n2", false)))
		pass(time.Second)
		u.state(wire.StateChecking, "majority")
		f.put(f.entry("n3", question, checkOp("n3", false)))
		pass(time.Second)
		u.state(wire.StateServing, "")
	})
}

// A node without its majority asks again, more and more seldom: each time is an entry for ever.
// Checked: asking every 5 s, as it was, made 17,281 entries of the day.
func TestCheckAsksAgainButDoesNotFillTheLog(t *testing.T) {
	bubble(t, func(t *testing.T, f *fakeLog) {
		u := f.start(t, "n1")
		pass(24 * time.Hour)
		u.state(wire.StateChecking, "majority")
		if n := f.last(); n < 10 || n > 300 {
			t.Errorf("the log holds %d entries after a day of waiting: want some questions, and few", n)
		}
		f.start(t, "n2")
		pass(settle)
		u.state(wire.StateServing, "")
	})
}

// Another leader while a check is under way: what was found before counts no more.
// Checked: without the comparison of tickets in check only one question stood in the log, made before the second change.
func TestCheckDuringWhichTheLeaderChanges(t *testing.T) {
	bubble(t, func(t *testing.T, f *fakeLog) {
		nodes := f.cluster(t)
		u := nodes[0]
		before := f.last()
		once := false
		var again chan struct{}
		f.with(func() {
			again = make(chan struct{})
			f.asked = func(uint64) {
				if !once {
					once = true
					u.checker.Begin("the second new leader")
					close(again)
				}
			}
		})
		u.checker.Begin("the first new leader")
		<-again
		pass(settle)
		u.state(wire.StateServing, "")
		asks := f.ops(t, wire.KindCheck, func(e *wire.Entry, op *wire.Op) bool {
			return string(e.Node) == "n1" && op.Check.Ask && e.Cursor >= before
		})
		if asks != 2 {
			t.Errorf("%d questions after two changes, the second in the middle of the first check: want 2", asks)
		}
	})
}

// While a check is under way requests and answers wait, and go on when it has ended.
func TestCheckHoldsRequests(t *testing.T) {
	bubble(t, func(t *testing.T, f *fakeLog) {
		nodes := f.cluster(t)
		u := nodes[0]
		f.with(func() { f.err = jetstream.ErrNoLeader })
		u.checker.Begin("new leader")
		answer := u.ask(3)
		pass(time.Second)
		if len(answer) != 0 {
			t.Fatal("answered during the check")
		}
		u.state(wire.StateChecking, "cannot be checked")
		f.with(func() { f.err = nil })
		if r := <-answer; r.Err != nil {
			t.Fatal(r.Err)
		}
	})
}

// Behind a connection that was made anew another log may be. Nothing goes into it, also of what was under way, before it has
// been compared. Checked: without conns in mayAppend the entry was there at once.
func TestNothingIsAppendedToALogUnseen(t *testing.T) {
	bubble(t, func(t *testing.T, f *fakeLog) {
		u := f.cluster(t)[0]
		f.with(func() { f.vanish = true }) // with the connection
		answer := u.ask(3)
		pass(100 * time.Millisecond)
		if _, inFlight := u.prop.Waiting(); inFlight != 1 {
			t.Fatalf("%d requests under way", inFlight)
		}
		u.conns.Add(1)
		f.with(func() { f.vanish = false })
		before := f.last()
		pass(2 * time.Second)
		if f.last() != before || len(answer) != 0 {
			t.Fatalf("the log went from seq %d to %d unseen, %d answers", before, f.last(), len(answer))
		}
		u.checker.Begin("connected to NATS again")
		if r := <-answer; r.Err != nil {
			t.Error(r.Err)
		}
		u.state(wire.StateServing, "")

		// It is another's.
		u.conns.Add(1)
		f.with(func() { f.id.ClusterID = wire.ID{9} })
		u.checker.Begin("connected to NATS again")
		before = f.last()
		pass(time.Minute)
		u.state(wire.StateFenced, "cluster")
		if f.last() != before {
			t.Errorf("the log of another cluster went from seq %d to %d", before, f.last())
		}
	})
}

// A name that is registered with another catalog: refused, without filling the log, until it is forgotten.
// Checked: without refusal, which asks the state first, the log grew by 14,000 entries in the hour.
func TestCheckRefusesAnotherCatalogUntilForgotten(t *testing.T) {
	bubble(t, func(t *testing.T, f *fakeLog) {
		f.start(t, "n2")
		f.start(t, "n3")
		op := checkOp("n1", false)
		op.Check.CatalogID = wire.ID{0xFF}
		f.put(f.entry("n1", 1, op))
		u := f.start(t, "n1")
		pass(settle)
		u.state(wire.StateChecking, "allocnode forget n1")
		if u.guard.Listen(true) {
			t.Error("a refused node listens")
		}
		before := f.last()
		pass(time.Hour)
		if last := f.last(); last != before {
			t.Errorf("a refused node made the log grow from %d to %d entries in an hour", before, last)
		}
		f.put(f.entry("n2", before, &wire.Op{Kind: wire.KindForget, Name: []byte("n1")}))
		pass(settle)
		u.state(wire.StateServing, "")
	})
}

// A node that lives registers again when its name is released, at once: one that serves must be known by its catalog.
// Checked: without Begin in Forgotten it was not registered an hour later.
func TestCheckForgottenWhileItLives(t *testing.T) {
	bubble(t, func(t *testing.T, f *fakeLog) {
		nodes := f.cluster(t)
		f.put(f.entry("n2", f.last(), &wire.Op{Kind: wire.KindForget, Name: []byte("n1")}))
		pass(settle)
		for _, u := range nodes {
			u.state(wire.StateServing, "")
		}
		if member, ok := f.machine(t, int(f.last())).Member("n1"); !ok || member.CatalogID != catalogOf("n1") {
			t.Errorf("n1 is registered: %v, with %v", ok, member.CatalogID)
		}
	})
}

func TestCheckRefusesWhoIsNotNamed(t *testing.T) {
	bubble(t, func(t *testing.T, f *fakeLog) {
		f.cluster(t)
		u := f.start(t, "n4")
		before := f.last()
		pass(time.Hour)
		u.state(wire.StateChecking, "no node n4 is named")
		if last := f.last(); last != before {
			t.Errorf("the log grew from %d to %d entries", before, last)
		}
	})
}

// What contradicts the log, found by a node that serves: fenced with the reason, and published where it is the same log.
// Checked: each case but "lost", which the place of the node's own entry proves as well, served on, or fenced for another reason,
// without its line in compareIdentity or compareEntry.
// "made anew", with nothing published, fenced this node alone.
func TestCheckFindsContradictions(t *testing.T) {
	lost := func(f *fakeLog) { f.entries = f.entries[:4] }
	for name, c := range map[string]struct {
		damage  func(f *fakeLog)
		words   string // a regular expression
		publish bool   // told to the others too, who fence by it
	}{
		"no stream":   {func(f *fakeLog) { f.err = fmt.Errorf("info: %w", jetstream.ErrNoStream) }, "there is no stream", false},
		"settings":    {func(f *fakeLog) { f.err = &jetstream.StreamConfigError{Setting: "max_age"} }, "max_age", false},
		"cluster":     {func(f *fakeLog) { f.id.ClusterID = wire.ID{9} }, "of cluster 09", false},
		"epoch":       {func(f *fakeLog) { f.id.Epoch = 2 }, "of epoch 2", false},
		"made anew":   {func(f *fakeLog) { f.id.Created = f.id.Created.Add(1) }, "made anew", true},
		"purged":      {func(f *fakeLog) { f.id.FirstSeq = 3 }, "purged", false},
		"lost":        {lost, "lost entries|rewritten: at seq 5", true}, // there stands its own entry by then: who is first
		"made, empty": {func(f *fakeLog) { f.entries = nil; f.id.Created = f.id.Created.Add(1) }, "made anew", false},
		"rewritten": {func(f *fakeLog) {
			n := len(f.entries)
			f.entries[n-1] = f.entryLocked("n2", 2, reserveOp(77))
		}, "rewritten", true},
		"middle gone": {func(f *fakeLog) { f.hole = uint64(len(f.entries)) }, "holds no entry", true},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, f *fakeLog) {
				nodes := f.cluster(t)
				<-nodes[2].ask(5)
				synctest.Wait()
				u := nodes[0]
				f.with(func() { c.damage(f) })
				u.checker.Begin("new leader")
				pass(10 * checkTimeout)
				u.state(wire.StateFenced, "")
				if _, why := u.guard.State(); !regexp.MustCompile(c.words).MatchString(why) {
					t.Errorf("fenced because %q, want %q", why, c.words)
				}
				if r := <-u.ask(1); r.Err == nil {
					t.Error("a fenced node reserved")
				}
				if n := f.contradictionsOf(t, "n1", c.publish); c.publish != (n > 0) {
					t.Errorf("%d contradictions published: want some is %v", n, c.publish)
				}
				if c.publish {
					for _, other := range nodes[1:] {
						other.state(wire.StateFenced, "")
					}
				}
			})
		})
	}
}

// contradictionsOf is contradictions for a log that may not be readable.
func (f *fakeLog) contradictionsOf(t *testing.T, node string, readable bool) int {
	if !readable {
		f.with(func() {
			f.entries = slices.DeleteFunc(f.entries, func(b []byte) bool { return wire.DecodeEntry(b, &wire.Entry{}) != nil })
		})
	}
	return f.contradictions(t, node)
}

// A stream that is missing for two seconds, as after a restart of all servers, is no lost stream.
// Checked: with a compareLong that looks once the node fenced.
func TestCheckStreamGoneForAMoment(t *testing.T) {
	bubble(t, func(t *testing.T, f *fakeLog) {
		u := f.cluster(t)[0]
		f.with(func() { f.err = jetstream.ErrNoStream })
		u.checker.Begin("new leader")
		pass(2500 * time.Millisecond)
		u.state(wire.StateChecking, "")
		f.with(func() { f.err = nil })
		pass(settle)
		u.state(wire.StateServing, "")
	})
}

// A node that serves and is asked by another stops answering at the first sign of a contradiction, not at its proof.
// Checked: without hold it went on serving for the five seconds.
func TestCheckHoldsAtTheFirstSign(t *testing.T) {
	bubble(t, func(t *testing.T, f *fakeLog) {
		u := f.cluster(t)[0]
		f.with(func() { f.id.FirstSeq = 3 })
		f.put(f.entry("n2", f.last(), checkOp("n2", true)))
		pass(time.Second)
		u.state(wire.StateChecking, "looking again")
		answer := u.ask(1)
		pass(settle)
		u.state(wire.StateFenced, "purged")
		if r := <-answer; r.Err == nil {
			t.Error("answered between the first sign and the proof")
		}
	})
}

// A node that knows nothing yet learns from the log itself when the stream was made.
// Checked: without the second comparison, after catching up, it served on a log that the others fence on.
func TestCheckOfAnEmptyNodeComparesTheGenesis(t *testing.T) {
	bubble(t, func(t *testing.T, f *fakeLog) {
		f.id.Created = f.id.Created.Add(time.Hour)
		f.put(f.entry("n2", 1, checkOp("n2", false)))
		u := f.start(t, "n1")
		pass(3 * time.Second)
		f.put(f.entry("n2", f.last(), checkOp("n2", false)))
		f.put(f.entry("n3", f.last(), checkOp("n3", false)))
		pass(10 * checkTimeout)
		u.state(wire.StateFenced, "made anew")
	})
}

// A replica whose own disk is damaged fences its node; the leader, asked for the proof, has none, and the others go on.
// Checked: without asking the leader (compareLong in prove) the others were fenced with it.
func TestCheckDoesNotPublishWhatOneReplicaShows(t *testing.T) {
	bubble(t, func(t *testing.T, f *fakeLog) {
		nodes := f.cluster(t)
		last := f.last()
		other := f.entry("n2", 1, reserveOp(9))
		f.with(func() { f.direct[last] = [][]byte{other} })
		f.with(func() { f.deaf = true }) // the next read begins at the cursor
		f.put(f.entry("n2", 1, &wire.Op{Kind: wire.KindBarrier}))
		nodes[0].replica.Expect(last + 1)
		pass(time.Minute)
		nodes[0].state(wire.StateFenced, "rewritten")
		nodes[1].state(wire.StateServing, "")
		if n := f.contradictions(t, "n1"); n != 0 {
			t.Errorf("%d contradictions published", n)
		}
	})
}

// The quorum is gone while the proof is to be published: it is published when it is back, once.
func TestCheckPublishesTheProofLater(t *testing.T) {
	bubble(t, func(t *testing.T, f *fakeLog) {
		nodes := f.cluster(t)
		last := f.last()
		other := f.entry("n2", 1, reserveOp(9))
		f.with(func() {
			f.entries[last-1] = other
			f.vanish = true
		})
		nodes[0].replica.Expect(last + 1) // it reads from its cursor
		pass(time.Minute)
		nodes[0].state(wire.StateFenced, "rewritten")
		nodes[1].state(wire.StateServing, "")
		f.with(func() { f.vanish = false })
		pass(time.Minute)
		nodes[1].state(wire.StateFenced, "n1 found another log")
		if n := f.contradictions(t, "n1"); n != 1 {
			t.Errorf("the proof stands in the log %d times: want 1", n)
		}
	})
}

// A rebuilt state that comes to another digest than the catalog remembers: fenced before an answer, not when it commits.
// Checked: without contradicted in apply the node served.
func TestReplicaComparesTheWitness(t *testing.T) {
	bubble(t, func(t *testing.T, f *fakeLog) {
		for range 5 {
			f.put(f.entry("n2", 1, reserveOp(10)))
		}
		right := f.machine(t, 4).Head()
		wrong := right
		wrong.Digest[0] ^= 1
		f.start(t, "n2")
		u := f.start(t, "n1", func(o *unitOptions) { o.witness = right })
		other := f.start(t, "n3", func(o *unitOptions) { o.witness = wrong })
		pass(settle)
		u.state(wire.StateServing, "")
		other.state(wire.StateFenced, "catalog remembers")
	})
}

// A witness beyond the log's end is a proof, whatever the state holds.
func TestCheckComparesTheWitness(t *testing.T) {
	bubble(t, func(t *testing.T, f *fakeLog) {
		u := f.start(t, "n1", func(o *unitOptions) {
			o.witness = apply.Head{ClusterID: f.id.ClusterID, Epoch: 1, Cursor: 100}
		})
		f.start(t, "n2")
		pass(10 * checkTimeout)
		u.state(wire.StateFenced, "lost entries")
	})
}

// Stop in the middle: a check that waits for the leader, a request that waits for the check. Everything ends, and the
// request is answered.
func TestCheckStops(t *testing.T) {
	bubble(t, func(t *testing.T, f *fakeLog) {
		u := f.cluster(t)[0]
		f.with(func() { f.err = jetstream.ErrNoStream })
		u.checker.Begin("new leader")
		answer := u.ask(3)
		pass(time.Second)
		u.stop() // synctest reports a goroutine that stays
		if r := <-answer; r.Err == nil {
			t.Errorf("answered %+v", r)
		}
	})
}

// Fence before outcomes: the entry that proves a loss answers nobody, nor does any after it.
// Checked: with the fence told after the outcomes the reservation was answered with a range.
func TestReplicaFencesBeforeItAnswers(t *testing.T) {
	bubble(t, func(t *testing.T, f *fakeLog) {
		u := f.cluster(t)[0]
		var answers [2]<-chan propose.Result
		f.with(func() { f.vanish = true })
		answers[0] = u.ask(1)
		pass(10 * time.Millisecond)
		answers[1] = u.ask(2)
		pass(10 * time.Millisecond)
		f.put(f.entry("n2", 1000, checkOp("n2", false))) // it had applied seq 1000
		f.with(func() { f.vanish = false })
		pass(settle)
		u.state(wire.StateFenced, "lost entries")
		for i, a := range answers {
			if r := <-a; r.Err == nil {
				t.Errorf("request %d was answered %+v", i, r.Outcomes)
			}
		}
	})
}

// A copied data directory has the same node name and the same catalog id, so that the log lets both in. What gives it away
// is a check entry of another run under this node's name, made after one of this run was seen. An earlier run's entry that
// comes late is none.
//
// Checked: with no twin ever found n1 serves on; without the comparison of cursors the late entry fences it.
func TestCheckFindsACopyOfItsDirectory(t *testing.T) {
	bubble(t, func(t *testing.T, f *fakeLog) {
		late := f.entry("n1", f.last(), checkOp("n1", false))
		n1 := f.cluster(t)[0]
		f.put(late)
		pass(settle)
		n1.state(wire.StateServing, "")
		f.put(f.entry("n1", f.last(), checkOp("n1", true)))
		pass(settle)
		n1.state(wire.StateFenced, "another process runs under the name and with the catalog of n1")
	})
}
