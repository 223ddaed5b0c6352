package systems

import (
	"context"
	"encoding/binary"
	"os"
	"path/filepath"
	"sync/atomic"

	"github.com/bwmarrin/snowflake"
	"github.com/google/uuid"
	"github.com/oklog/ulid/v2"
	"github.com/sony/sonyflake/v2"

	"github.com/allocnode/allocnode/bench/load"
)

// chunk is of how many calls in this process one is timed: the clock costs more than they do.
const chunk = 256

// local opens loads whose callers all use one generator. It lives as long as the system, so that all
// its ids are of one counter. chunk is 1 where a call is slow enough to be timed, as each has to end before the run can.
func local(counter string, chunk int, next func() (load.ID, error)) Open {
	draw := func(_ context.Context, ids []load.ID) (err error) {
		for i := range ids {
			if ids[i], err = next(); err != nil {
				return err
			}
		}
		return nil
	}
	return func(_ context.Context, callers int) (*load.Load, error) {
		return &load.Load{Chunk: chunk, Counter: counter, Draws: same(callers, draw)}, nil
	}
}

// generators are what a program links to make ids by itself: unique by clock, node number or luck.
func generators() System {
	row := func(name, durability string) Row { return Row{Name: name, Durability: durability, Dialled: InProcess} }
	return System{
		Name: "in this process",
		Rows: []Row{
			row(AtomicAdd, "none"), row(Sonyflake, "none: clock and machine id"), row(Snowflake, "none: clock and node id"),
			row(ULID, "none: clock and chance"), row(UUID, "none: clock and chance"),
		},
		Start: func(context.Context, Env) (map[string]Open, func(), error) {
			opens, err := openGenerators()
			return opens, func() {}, err
		},
	}
}

func openGenerators() (map[string]Open, error) {
	sony, err := sonyflake.New(sonyflake.Settings{MachineID: func() (int, error) { return 1, nil }})
	if err != nil {
		return nil, err
	}
	snow, err := snowflake.NewNode(1)
	if err != nil {
		return nil, err
	}
	return map[string]Open{
		AtomicAdd: add(),
		Sonyflake: local("sonyflake", 1, func() (load.ID, error) {
			id, err := sony.NextID()
			return load.ID{Lo: uint64(id)}, err
		}),
		Snowflake: local("snowflake", chunk, func() (load.ID, error) { return load.ID{Lo: uint64(snow.Generate())}, nil }),
		ULID:      local("ulid", chunk, func() (load.ID, error) { return id128(ulid.Make()), nil }),
		UUID: local("uuid", chunk, func() (load.ID, error) {
			id, err := uuid.NewV7()
			return id128(id), err
		}),
	}, nil
}

// add is without local's call through a function: it would cost as much as the addition.
func add() Open {
	n := new(atomic.Uint64)
	draw := func(_ context.Context, ids []load.ID) error {
		for i := range ids {
			ids[i].Lo = n.Add(1)
		}
		return nil
	}
	return func(_ context.Context, callers int) (*load.Load, error) {
		return &load.Load{Chunk: chunk, Counter: "add", Draws: same(callers, draw)}, nil
	}
}

func id128(b [16]byte) load.ID {
	return load.ID{Hi: binary.BigEndian.Uint64(b[:8]), Lo: binary.BigEndian.Uint64(b[8:])}
}

// disk is the file system by itself: a block is appended to a file and synced, as a log does it.
func disk() System {
	return System{
		Name: "the disk",
		Rows: []Row{{Name: Fsync, Durability: "fsync", Copies: 1, Dialled: InProcess, NoIDs: true, Only: []int{1}}},
		Start: func(_ context.Context, e Env) (map[string]Open, func(), error) {
			open := func(context.Context, int) (*load.Load, error) {
				f, err := os.Create(filepath.Join(e.Dir, "file"))
				if err != nil {
					return nil, err
				}
				block := make([]byte, 4096)
				write := func(context.Context, []load.ID) error {
					if _, err := f.Write(block); err != nil {
						return err
					}
					return f.Sync()
				}
				return &load.Load{Draws: []load.Draw{write}, Close: func() { _ = f.Close() }}, nil
			}
			return map[string]Open{Fsync: open}, func() {}, nil
		},
	}
}
