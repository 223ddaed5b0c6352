//go:build linux

package chaos

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/allocnode/allocnode/internal/chaos/history"
)

// recoveryScripts go on after a loss, as docs/OPERATIONS.md says.
var recoveryScripts = []script{{"deleted-then-recovered", playRecovered}}

const (
	epochLoad  = 8 * time.Second // of each epoch
	askedAgain = 200             // keys of the first epoch, at most
	leastAsked = 20
	leastAcked = 200 // reservations of each epoch
)

// playRecovered has clients work, deletes the stream under the running cluster, goes through a recovery with the real binary,
// asks again for what the key window held, kills all nodes, and has the clients go on. The checkers judge both epochs as one.
//
// The clients rest while the first log is read and deleted: what was acknowledged after the reading could be held against
// nothing.
func playRecovered(ctx context.Context, r *rig) (string, error) {
	if err := r.startNodes(ctx); err != nil {
		return "", err
	}
	if err := r.samples(ctx, "baseline"); err != nil {
		return "", err
	}
	watchCtx, stop := context.WithCancel(ctx)
	var watching sync.WaitGroup
	watching.Go(func() { r.watch(watchCtx) })
	defer func() { stop(); watching.Wait() }()
	if err := r.load(ctx, false); err != nil {
		return "", err
	}
	last, err := r.drained(ctx)
	if err != nil {
		return "", err
	}
	before, err := r.readLog(ctx, last)
	if err != nil {
		return "", err
	}
	if err := os.Rename(filepath.Join(r.dir, "log.jsonl"), filepath.Join(r.dir, "log-1.jsonl")); err != nil {
		return "", err
	}
	lost, err := r.lose(ctx)
	if err != nil {
		return "", err
	}
	plan, err := r.recover(ctx)
	if err != nil {
		return "", err
	}
	took, err := r.healthy(ctx, gateBound)
	if err != nil {
		return "", err
	}
	if err := r.obs.Follow(before.Epoch + 1); err != nil {
		return "", err
	}
	first, err := history.ReadFile(r.file)
	if err != nil {
		return "", err
	}
	asked, err := r.askAgain(ctx, inWindow(first, before))
	if err != nil {
		return "", err
	}
	// nats-server 2.15 makes its store anew from the WAL now, from the first seq on that the recovery had set.
	if err := errors.Join(killAll(r.lab.Nodes...), startAll(r.lab.Nodes...)); err != nil {
		return "", err
	}
	again, err := r.healthy(ctx, gateBound)
	if err != nil {
		return "", err
	}
	healed := history.Now()
	if err := r.load(ctx, true); err != nil {
		return "", err
	}
	stop()
	watching.Wait()
	e, err := r.collect(ctx)
	if err != nil {
		return "", err
	}
	after := e.log
	joined, found := history.Join(before, after)
	e.log = joined
	more, err := r.judge(e, healed)
	if err != nil {
		return "", err
	}
	if found = append(found, more...); len(found) > 0 {
		return "", fmt.Errorf("%d violations over both epochs, the first: %s", len(found), found[0])
	}
	old := first.Count(before).Acked
	all := e.history.Count(joined).Acked
	if old < leastAcked || all-old < leastAcked {
		return "", fmt.Errorf("%d reservations were acknowledged in the first epoch and %d in the second, want %d of each", old, all-old, leastAcked)
	}
	return fmt.Sprintf("%s; %s; all served %s later, in epoch %d from seq %d on; %d keys of before got the same ranges; "+
		"killed, all served after %s; no violation over both epochs: %d reservations acknowledged in the first, %d in the second",
		lost, plan, round(took), after.Epoch, after.First, asked, round(again), old, all-old), nil
}

// load has the clients work for a time.
func (r *rig) load(ctx context.Context, resume bool) error {
	for range r.cfg.Clients {
		if err := r.startClient(resume); err != nil {
			return err
		}
	}
	if err := hold(ctx, epochLoad); err != nil {
		return err
	}
	return r.stopClients()
}

// lose deletes the stream, and wants all nodes fenced for that reason.
func (r *rig) lose(ctx context.Context) (seen string, err error) {
	if err := r.obs.StreamAPI("$JS.API.STREAM.DELETE.", false); err != nil {
		return "", err
	}
	if seen, err = r.fenced(ctx, r.lab.Nodes...); err != nil {
		return "", err
	}
	if n := strings.Count(seen, "the log is gone"); n != len(r.lab.Nodes) {
		return "", fmt.Errorf("not the true reason: %s", seen)
	}
	return fmt.Sprintf("the stream was deleted, and %d nodes are fenced: the log is gone", len(r.lab.Nodes)), r.silent(ctx, "when fenced", 2*time.Second)
}

// recover is an operator's way, by the commands of the binary: stop, export on each, plan once, apply on each, start.
func (r *rig) recover(ctx context.Context) (planned string, err error) {
	if err := stopAll(r.lab.Nodes...); err != nil {
		return "", err
	}
	plan := []string{"recover", "plan", "-o", filepath.Join(r.dir, "recovery")}
	for _, n := range r.lab.Nodes {
		file := filepath.Join(r.dir, n.Name+".floors")
		said, err := n.Command(ctx, "recover", "export", "-o", file)
		if err == nil && !strings.Contains(said, "stopped cleanly") {
			err = fmt.Errorf("the floors of %s: %s", n.Name, said)
		}
		if err != nil {
			return "", err
		}
		plan = append(plan, file)
	}
	if planned, err = r.lab.Command(ctx, plan...); err != nil {
		return "", err
	}
	for _, n := range r.lab.Nodes {
		if _, err := n.Command(ctx, "recover", "apply", filepath.Join(r.dir, "recovery")); err != nil {
			return "", err
		}
	}
	return planned, startAll(r.lab.Nodes...)
}

// inWindow is the keyed reservations that a log's key window still holds, as they were answered when they were carved, the
// newest first.
func inWindow(h *history.History, log *history.Log) (held []history.Attempt) {
	type grant struct {
		seq      uint64
		sequence string
		got      history.Range
	}
	carved := map[grant]bool{}
	for _, res := range log.Results {
		if res.Action == history.Reserve && res.Key != "" && res.Refused == 0 && !res.Repeated && res.Seq > log.KeyFloor {
			carved[grant{res.Seq, res.Sequence, res.Range}] = true
		}
	}
	for _, a := range h.Attempts {
		if a.Action != history.Reserve || a.Key == "" || len(a.Answers) == 0 || len(a.Answers[0].Ranges) != 1 {
			continue
		}
		at := grant{a.Answers[0].Seq, a.Sequence, a.Answers[0].Ranges[0]}
		if carved[at] {
			held = append(held, a)
			delete(carved, at)
		}
	}
	slices.SortFunc(held, func(a, b history.Attempt) int { return cmp.Compare(b.Answers[0].Seq, a.Answers[0].Seq) })
	return held[:min(len(held), askedAgain)]
}

// askAgain repeats reservations as they were sent, and wants the ranges that they were given. They stand in the history too.
func (r *rig) askAgain(ctx context.Context, held []history.Attempt) (n int, err error) {
	if len(held) < leastAsked {
		return 0, fmt.Errorf("the key window holds %d reservations, want %d to ask for again", len(held), leastAsked)
	}
	for _, a := range held {
		body, err := json.Marshal(struct {
			Count   uint64 `json:"count"`
			Key     string `json:"key"`
			Partial bool   `json:"partial,omitempty"`
			Since   uint64 `json:"since,omitempty"`
		}{a.Count, a.Key, a.Partial, a.Since})
		if err != nil {
			return n, err
		}
		var got history.Range
		err = until(ctx, gateBound, "ask again for "+a.Key, func() (err error) {
			got, err = r.attempt(&a, string(body))
			return err
		})
		if err != nil {
			return n, err
		}
		if want := a.Answers[0].Ranges[0]; got != want {
			return n, fmt.Errorf("key %s of %s got [%d, %d): it had [%d, %d)", a.Key, a.Sequence, got.Start(), got.End(), want.Start(), want.End())
		}
		n++
	}
	return n, nil
}

// attempt sends a reservation once, through the observer, and records it.
func (r *rig) attempt(a *history.Attempt, body string) (got history.Range, err error) {
	id := r.hist.NextID()
	err = r.hist.Write(history.Record{
		Kind: history.KindBegin, ID: id, Action: a.Action, Node: "observer", Sequence: a.Sequence, Key: a.Key, Count: a.Count,
		Partial: a.Partial, Since: a.Since,
	})
	if err != nil {
		return got, err
	}
	end := history.Record{Kind: history.KindEnd, ID: id, Outcome: history.Unknown}
	reply, err := r.obs.Request("alloc.reserve."+a.Sequence, body, 5*time.Second)
	var told struct {
		answer
		Cluster string
	}
	if err == nil {
		err = json.Unmarshal(reply, &told)
	}
	switch {
	case err != nil:
		end.Text = err.Error()
	case told.Error != nil:
		end.Outcome, end.Code, end.Text = history.Failed, told.Error.Code, told.Error.Message
		if told.Error.Code == "unknown_outcome" {
			end.Outcome = history.Unknown
		}
		err = fmt.Errorf("%s: %s", told.Error.Code, told.Error.Message)
	default:
		got = history.Range{told.Start, told.End}
		end.Outcome, end.Ranges, end.Seq, end.Cluster = history.OK, []history.Range{got}, told.Seq, told.Cluster
	}
	return got, errors.Join(err, r.hist.Write(end))
}
