package node

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/allocnode/allocnode/apply"
	"github.com/allocnode/allocnode/internal/wire"
	"github.com/allocnode/allocnode/jetstream"
)

// finding is what a comparison gave; the zero finding is none.
type finding struct {
	problem string

	// publish says that the proof belongs into the log: it is the same log, and others may remember less. A stream that
	// is another cluster's must not be told.
	publish bool

	// seq and applied say which entry was compared, where one was: a second look must be at the same one, since the log
	// may have grown over it.
	seq     uint64
	applied wire.Digest

	// rewritten says that the leader holds another entry where this node has applied one. What was committed never changes,
	// so a deposed leader would not say so either: it needs no more than a second look.
	rewritten bool

	// gone says that no entry of one's own can confirm the finding, since there is no log of ours to put it into.
	gone bool

	last uint64 // where the log ends, of a leader that said that it lost entries
}

// less says that the leader knows less than this node, and no more than that: so does one that was deposed.
func (f *finding) less() bool { return f.publish && !f.rewritten && !f.gone }

// compareTwice compares with the log. A problem counts only when it is still there after an entry of this node's own was
// applied, since a deposed leader answers too and knows less; where no entry can be made, only when the answer stays the
// same for a while.
//
// The deposed leader may go on answering after that entry was applied: when a partition heals, the new leader's feed comes
// through before the old one steps down. But who lacks that entry is not the leader that took it, and says nothing. Nothing is
// missed: in a log that did lose its end the entry lands at or below this node's cursor, which is a proof by itself, or the
// log was filled up with others, and the second look finds it rewritten.
func (c *checker) compareTwice(ctx context.Context) (finding, error) {
	first, err := c.compare(ctx)
	if err != nil || first.problem == "" {
		return finding{}, err
	}
	c.logger.Warn("the log differs from what this node remembers: look again", "found", first.problem)
	c.hold("looking again: " + first.problem)
	if first.rewritten {
		return c.compareAgain(ctx, first)
	}
	if !first.gone {
		barrier, _, err := c.submit(ctx, wire.AppendOp(nil, &wire.Op{Kind: wire.KindBarrier}))
		if err != nil {
			return finding{}, err
		}
		if first.seq > 0 {
			again, err := c.compareEntry(ctx, first.seq, first.applied)
			if err != nil {
				return finding{}, err
			}
			if again.problem != "" {
				return c.confirm(ctx, again, barrier)
			}
		}
		again, err := c.compare(ctx)
		if err != nil {
			return finding{}, err
		}
		return c.confirm(ctx, again, barrier)
	}
	return c.compareLong(ctx)
}

// confirm is f, found by a second look, unless it comes from a leader that does not have the entry that this node made at seq
// before that look. Who holds the log's end but lacks an entry has a hole, if it is always the same answer: the question
// for the end and that for the entry may be answered by two.
func (c *checker) confirm(ctx context.Context, f finding, seq uint64) (finding, error) {
	if !f.less() {
		return f, nil
	}
	if f.last >= seq {
		return f, nil
	}
	if f.last > 0 {
		return finding{}, fmt.Errorf("who answers as the leader lacks this node's entry at seq %d: %s", seq, f.problem)
	}
	for range 5 {
		select {
		case <-ctx.Done():
			return finding{}, context.Cause(ctx)
		case <-time.After(time.Second):
		}
		if err := c.confirmOnce(ctx, f, seq); err != nil {
			return finding{}, err
		}
	}
	return f, nil
}

func (c *checker) confirmOnce(ctx context.Context, f finding, seq uint64) error {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	switch id, err := c.log.Identity(ctx); {
	case err != nil:
		return err
	case id.LastSeq < seq:
		return fmt.Errorf("who answers as the leader lacks this node's entry at seq %d: %s", seq, f.problem)
	}
	if again, err := c.compareEntry(ctx, f.seq, f.applied); err != nil || again != f {
		return errors.Join(err, errors.New("the leader's answer changed"))
	}
	return nil
}

// hold stops answering at the first sign, also while it is only another node that has asked: to look again takes seconds.
// A round of this node's own follows.
func (c *checker) hold(why string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.due {
		c.guard.Await(why)
		return
	}
	c.ticket = c.guard.Hold(why)
	c.due, c.round = true, 0
}

// compareAgain looks once more at the entry of a finding. Others may be answering from the log that the finding proves
// wrong, so this must be quick.
func (c *checker) compareAgain(ctx context.Context, first finding) (finding, error) {
	select {
	case <-ctx.Done():
		return finding{}, context.Cause(ctx)
	case <-time.After(retryPause):
	}
	again, err := c.compareEntry(ctx, first.seq, first.applied)
	if err == nil && !again.rewritten {
		err = errors.New("the leader's answer changed")
	}
	return again, err
}

// compareLong finds a problem only when the leader's answer stays the same for a while.
func (c *checker) compareLong(ctx context.Context) (finding, error) {
	first, err := c.compare(ctx)
	if err != nil || first.problem == "" {
		return finding{}, err
	}
	if first.rewritten {
		return c.compareAgain(ctx, first)
	}
	for range 5 {
		select {
		case <-ctx.Done():
			return finding{}, context.Cause(ctx)
		case <-time.After(time.Second):
		}
		if again, err := c.compare(ctx); err != nil || again.problem == "" || again.gone != first.gone {
			return finding{}, errors.Join(err, errors.New("the leader's answer changed"))
		}
	}
	return first, nil
}

// compareBehind looks once more, behind an entry of this node's own. A node that is cut off beside a deposed leader hears for
// long that the log lost entries, and would tell the others so when it is back. It may be unable to apply what it puts in, so
// the log's acknowledgement says where that stands.
func (c *checker) compareBehind(ctx context.Context) (finding, error) {
	before := c.stored.Load()
	seq, _, err := c.submit(ctx, wire.AppendOp(nil, &wire.Op{Kind: wire.KindBarrier}))
	if err != nil {
		if c.stored.Load() == before {
			return finding{}, err
		}
		seq = c.at.Load()
	}
	again, err := c.compare(ctx)
	if err != nil {
		return finding{}, err
	}
	return c.confirm(ctx, again, seq)
}

// compare asks the stream's leader once, and notes whether the log that answers is this node's.
func (c *checker) compare(ctx context.Context) (finding, error) {
	conns := c.conns() // before the question
	f, err := c.compareOnce(ctx)
	if err == nil {
		c.apart.Store(f.gone && !f.publish)
		c.known.Store(conns)
	}
	return f, err
}

func (c *checker) compareOnce(ctx context.Context) (finding, error) {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()

	var head apply.Head
	var genesis *wire.Genesis
	var applied wire.Digest
	view := func(m *apply.Machine) {
		head, genesis = m.Head(), m.Genesis()
		applied, _ = m.EntryHash(head.Cursor)
	}
	c.replica.View(view)
	id, err := c.log.Identity(ctx)
	var config *jetstream.StreamConfigError
	switch {
	case errors.Is(err, jetstream.ErrNoStream):
		return finding{problem: "the log is gone: there is no stream", gone: true}, nil
	case errors.As(err, &config):
		return finding{problem: config.Error(), gone: true}, nil
	case err != nil:
		return finding{}, err
	}
	if f := compareIdentity(id, head, c.witness, genesis); f.problem != "" {
		f.seq, f.applied = head.Cursor, applied
		return f, nil
	}
	if head.Cursor > 0 { // before catching up, which a log that was rewritten may make impossible
		if f, err := c.compareEntry(ctx, head.Cursor, applied); err != nil || f.problem != "" {
			return f, err
		}
	}
	if c.guard.Fenced() { // it only asks for the proof, and may not be able to follow
		return finding{}, nil
	}
	if err := c.catchUp(ctx, id.LastSeq); err != nil {
		return finding{}, err
	}
	if genesis == nil { // it is known now what the log says of itself
		c.replica.View(view)
		return compareIdentity(id, apply.Head{ClusterID: head.ClusterID, Epoch: head.Epoch}, c.witness, genesis), nil
	}
	return finding{}, nil
}

// compareEntry holds the leader's entry at seq against the hash of the one applied here.
func (c *checker) compareEntry(ctx context.Context, seq uint64, applied wire.Digest) (finding, error) {
	msg, err := c.log.Get(ctx, seq)
	switch {
	case errors.Is(err, jetstream.ErrNoMessage):
		problem := fmt.Sprintf("the log holds no entry at seq %d, which this node has applied", seq)
		return finding{problem: problem, publish: true, seq: seq, applied: applied}, nil
	case err != nil:
		return finding{}, err
	case apply.HashEntry(msg.Data) == applied:
		return finding{}, nil
	case damaged(msg.Data):
		return finding{}, fmt.Errorf("the leader's copy of the entry at seq %d is damaged", seq)
	}
	problem := fmt.Sprintf("the log was rewritten: at seq %d stands another entry than this node applied there", seq)
	return finding{problem: problem, publish: true, seq: seq, applied: applied, rewritten: true}, nil
}

// compareIdentity holds what the leader says of the stream against what the node remembers of it.
func compareIdentity(id jetstream.Identity, head, witness apply.Head, genesis *wire.Genesis) finding {
	if witness.Epoch < id.Epoch && head.ClusterID.IsZero() {
		witness = apply.Head{ClusterID: witness.ClusterID} // of a log that is over; see rejoin
	}
	known := head
	if known.ClusterID.IsZero() {
		known = witness
	}
	remembered := max(head.Cursor, witness.Cursor)
	switch {
	case !known.ClusterID.IsZero() && id.ClusterID != known.ClusterID:
		problem := fmt.Sprintf("the log here is of cluster %s, this node's data are of cluster %s", id.ClusterID, known.ClusterID)
		return finding{problem: problem, gone: true}
	case known.Epoch != 0 && id.Epoch != known.Epoch:
		problem := fmt.Sprintf("the log here is of epoch %d, this node's data are of epoch %d", id.Epoch, known.Epoch)
		return finding{problem: problem, gone: true}
	case genesis != nil && id.Created.UnixNano() != genesis.Created:
		made := time.Unix(0, genesis.Created).UTC().Format(time.RFC3339Nano)
		problem := fmt.Sprintf("the log was made anew at %s: this node has applied seq %d of the one made at %s",
			id.Created.UTC().Format(time.RFC3339Nano), head.Cursor, made)
		// Of one cluster and epoch: who follows it remembers less, as after a recovery that was made a second time.
		return finding{problem: problem, gone: true, publish: !id.Empty()}
	case id.FirstSeq > id.Begin():
		return finding{problem: fmt.Sprintf("the log was purged: it begins at seq %d", id.FirstSeq), gone: true}
	case id.LastSeq < remembered:
		problem := fmt.Sprintf("the log lost entries: it ends at seq %d, this node has applied seq %d", id.LastSeq, remembered)
		return finding{problem: problem, publish: true, last: id.LastSeq}
	}
	return finding{}
}

// catchUp waits until the replica has applied seq.
func (c *checker) catchUp(ctx context.Context, seq uint64) error {
	ticker := time.NewTicker(2 * time.Millisecond)
	defer ticker.Stop()
	c.replica.Expect(seq)
	for {
		cursor := c.replica.Head().Cursor
		if cursor >= seq {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("applied seq %d of %d", cursor, seq)
		case <-ticker.C:
		}
	}
}
