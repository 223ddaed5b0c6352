//go:build linux

package chaos

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
)

// logKinds put into the log what no node would: every replica must pass over it alike.
var logKinds = []kind{
	{
		// JetStream's window drops most copies, and so the state machine's own guard against them would hardly ever be seen.
		name: "entries-copied",
		plan: func(_ context.Context, r *rig, rnd *rand.Rand) (*fault, error) {
			return &fault{target: "log", heal: nothing, begin: func(ctx context.Context) (string, error) {
				return r.copyEntries(ctx, rnd)
			}}, nil
		},
	},
	{
		name: "log-garbage",
		plan: func(_ context.Context, r *rig, rnd *rand.Rand) (*fault, error) {
			return &fault{target: "log", heal: nothing, begin: func(ctx context.Context) (string, error) {
				return r.litter(ctx, rnd)
			}}, nil
		},
	},
}

const (
	copies   = 20 // entries that are copied, one after the other
	copyFrom = 200
	rubbish  = 20
)

// end is the log's last seq.
func (r *rig) end(ctx context.Context) (end uint64, err error) {
	err = until(ctx, gateBound, "the log has an end", func() (err error) {
		_, end, err = r.obs.StreamLeader()
		return err
	})
	return end, err
}

// copyEntries appends entries again that stand a little before the log's end, under the subjects that they have.
func (r *rig) copyEntries(ctx context.Context, rnd *rand.Rand) (string, error) {
	first, last := uint64(0), uint64(0)
	for range copies {
		end, err := r.end(ctx)
		if err != nil {
			return "", err
		}
		of := end - rnd.Uint64N(min(copyFrom, end-1)) // never the genesis
		err = until(ctx, gateBound, "an entry is copied", func() error {
			subject, data, err := r.obs.Message(of)
			if err != nil {
				return err
			}
			last, err = r.obs.Append(subject, data)
			return err
		})
		if err != nil {
			return "", err
		}
		if first == 0 {
			first = last
		}
	}
	return fmt.Sprintf("%d copies of entries, at seqs %d to %d", copies, first, last), nil
}

// litter appends bytes that are no entry, or none.
func (r *rig) litter(ctx context.Context, rnd *rand.Rand) (string, error) {
	end, err := r.end(ctx)
	if err != nil {
		return "", err
	}
	var subject string
	err = until(ctx, gateBound, "the log's last message is read", func() (err error) {
		subject, _, err = r.obs.Message(end)
		return err
	})
	if err != nil {
		return "", err
	}
	first, last := uint64(0), uint64(0)
	for range rubbish {
		var data []byte
		for range rnd.IntN(40) {
			data = binary.BigEndian.AppendUint64(data, rnd.Uint64())
		}
		if len(data) > 1 && data[0] == 0xA1 && data[1] == 0x0C {
			data[0] = 0 // it would begin as an entry does, and stop the log: that is no rubbish
		}
		err := until(ctx, gateBound, "rubbish is appended", func() (err error) {
			last, err = r.obs.Append(subject, data)
			return err
		})
		if err != nil {
			return "", err
		}
		if first == 0 {
			first = last
		}
	}
	return fmt.Sprintf("%d messages that are no entries, at seqs %d to %d", rubbish, first, last), nil
}
