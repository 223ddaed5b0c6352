package node

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/allocnode/allocnode/jetstream"
)

// read applies what one answering replica has of the log, from the cursor on.
func (r *replica) read(ctx context.Context) error {
	err := r.readFrom(ctx, max(r.Head().Cursor, r.first, 1))
	var purged *jetstream.PurgedError
	switch {
	case errors.As(err, &purged):
		r.stop(fmt.Sprintf("the log was purged: it begins at seq %d, this node has applied seq %d", purged.First, r.Head().Cursor))
		return nil
	case errors.Is(err, errHalted):
		return nil
	}
	var gap *jetstream.GapError
	if !errors.As(err, &gap) {
		r.holes = 0
		return err
	}
	// A leader that was deposed and does not know it yet lacks entries too, so one look is no proof.
	if r.holes++; r.holes == maxHoles {
		r.stop(fmt.Sprintf("the log lost entries: it holds seq %d and not seq %d", gap.Got, gap.Want))
	}
	return err
}

// readPatience is how long a read may bring nothing; and after that long it goes on to what was applied, or the log is known to
// hold, by then, and no further.
const readPatience = 10 * time.Second

var (
	errSilent = fmt.Errorf("nothing came for %s", readPatience)
	errEnough = errors.New("the log grows on")
)

// readFrom applies the log from seq from on, up to its end. A long log may take its time; one that grows as fast as it is
// applied does not keep Run from all else.
func (r *replica) readFrom(ctx context.Context, from uint64) error {
	began, goal := time.Now(), uint64(0)
	tryCtx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	silent := time.AfterFunc(readPatience, func() { cancel(errSilent) })
	defer silent.Stop()
	_, err := r.log.Read(tryCtx, from, func(msg jetstream.Message) error {
		silent.Stop() // what follows is this node's own time
		r.apply(ctx, msg)
		if r.halted {
			return errHalted
		}
		if time.Since(began) > readPatience {
			if goal == 0 {
				goal = max(r.want.Load(), r.Head().Cursor, 1)
			}
			if msg.Seq >= goal {
				return errEnough
			}
		}
		silent.Reset(readPatience)
		return context.Cause(ctx)
	})
	if errors.Is(err, errEnough) {
		return nil
	}
	return err
}

// maxHoles reads in a row, which takes fill more than 30 s, have to find a middle missing.
const maxHoles = 40
