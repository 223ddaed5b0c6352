package apply

import (
	"testing"

	"github.com/allocnode/allocnode/internal/wire"
)

// FuzzApply: no operations, however odd, panic the machine or break an invariant. The bytes are the operations of one
// entry, applied twice under two ids, so that keys and names meet what the first left behind.
func FuzzApply(f *testing.F) {
	check := &wire.Check{CatalogID: testID("disk"), Verdict: wire.VerdictContradiction, Reason: "other"}
	for _, ops := range [][]wire.Op{
		{reserveOp("orders", 10, "k1", 1), reserveOp("orders", 1<<64-1, "", 0)},
		{{Kind: wire.KindAdvance, Name: []byte("orders"), Count: 1 << 62}, {Kind: wire.KindResume, Name: []byte("orders")}},
		{{Kind: wire.KindCreate, Name: []byte("a"), Settings: wire.Settings{First: 1, Max: 1<<63 - 1, MaxCount: 9}, Given: 7}},
		{{Kind: wire.KindCheck, Name: []byte("n1"), Check: check}, {Kind: wire.KindForget, Name: []byte("n1")}},
		{{Kind: wire.KindActivate, Count: 2}},
		{{Kind: wire.KindGenesis, Genesis: testGenesis()}, {Kind: wire.KindBarrier}},
	} {
		var b []byte
		for i := range ops {
			b = wire.AppendOp(b, &ops[i])
		}
		f.Add(b, uint64(1), true)
	}
	f.Fuzz(func(t *testing.T, ops []byte, cursor uint64, halt bool) {
		g := testGenesis()
		g.HaltOnExhaustion = halt
		c := newChecked(t)
		c.must(genesisEntry(g))
		for counter := range uint64(2) {
			h := testHeader("n1", counter+2, cursor)
			entry := append(wire.AppendHeader(nil, &h), ops...)
			wire.Seal(entry)
			if _, _, err := c.apply(c.m.Head().Cursor+1, entry); err != nil {
				return // not operations; checked.apply saw that nothing changed
			}
		}
		c.restart()
		c.must(seal(testHeader("n2", 1, 0), reserveOp("orders", 1, "k1", 1)))
	})
}
