package apply_test

import (
	"fmt"

	"github.com/allocnode/allocnode/apply"
	"github.com/allocnode/allocnode/internal/wire"
)

// Two entries of a log: the genesis, and a reservation of 1,000 ids by node n1.
func ExampleMachine_Apply() {
	header := wire.Header{
		ClusterID: wire.ID{1}, Level: wire.Level, Node: []byte("n1"), ID: wire.EntryID{Incarnation: wire.ID{2}, Counter: 1},
		AutoCreate: true, Defaults: wire.Settings{First: 1, Max: 1<<53 - 1, MaxCount: 1_000_000},
	}
	entry := func(op wire.Op) []byte {
		data := wire.AppendOp(wire.AppendHeader(nil, &header), &op)
		wire.Seal(data)
		header.ID.Counter++
		return data
	}
	genesis := wire.Genesis{Epoch: 1, Nodes: []string{"n1"}, KeyWindow: 131072, EntryWindow: 4096, MaxSequences: 1000}

	m := apply.New()
	for i, op := range []wire.Op{
		{Kind: wire.KindGenesis, Genesis: &genesis},
		{Kind: wire.KindReserve, Name: []byte("orders"), Count: 1000},
	} {
		out, delta, err := m.Apply(uint64(i+1), entry(op))
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Printf("seq %d: [%d, %d), %d records to store\n", out.Seq, out.Ops[0].Start, out.Ops[0].End, len(delta.Records))
	}
	info, _ := m.Info("orders")
	fmt.Println("hwm", info.HWM)
	// Output:
	// seq 1: [0, 0), 3 records to store
	// seq 2: [1, 1001), 2 records to store
	// hwm 1000
}
