package wire

import (
	"crypto/sha256"
	"encoding/binary"
)

// Bounds of a recovered state.
const (
	MaxPart  = 320 << 10 // bytes of one part: the keys of one entry fit, and a part fits an entry
	MaxParts = 16 << 10  // parts: their hashes stand in one genesis
)

// Recovery is what the genesis of an epoch above 1 says of the state that its log begins with. The state itself follows, in
// parts, and nobody serves before the last of them.
type Recovery struct {
	// First is the seq of the genesis: above every seq that anybody may have seen before, so that seqs, which clients
	// remember as `since`, go on rising.
	First uint64

	Base     uint64 // highest cursor among the catalogs that the state was made from
	KeyFloor uint64 // up to this seq a key that the window does not hold may have been used
	Floor    uint64 // the least high-water mark of sequences that the state does not name; 0 when it names all
	Level    uint64 // newest level of operations that takes effect
	Parts    []Digest
}

func (r *Recovery) append(dst []byte) []byte {
	for _, n := range []uint64{r.First, r.Base, r.KeyFloor, r.Floor, r.Level, uint64(len(r.Parts))} {
		dst = binary.AppendUvarint(dst, n)
	}
	for _, d := range r.Parts {
		dst = append(dst, d[:]...)
	}
	return dst
}

func (r *Reader) recovery() *Recovery {
	v := &Recovery{First: r.Uvarint(), Base: r.Uvarint(), KeyFloor: r.Uvarint(), Floor: r.Uvarint(), Level: r.Uvarint()}
	n := r.Uvarint()
	if n > MaxParts || v.First < 2 || v.First > 1<<62 || v.Base >= v.First || v.KeyFloor >= v.First || v.Level == 0 {
		r.fail(errOp)
		return v
	}
	for range n {
		var d Digest
		r.Fixed(d[:])
		v.Parts = append(v.Parts, d)
	}
	return v
}

// First is the seq at which the log of this genesis begins.
func (g *Genesis) First() uint64 {
	if g.Recovery == nil {
		return 1
	}
	return g.Recovery.First
}

// RecoveryID names a recovery by everything that it fixes, but not by when its stream was made: two recoveries of one
// cluster that differ in anything differ in it. It is zero for a genesis that is none of a recovery.
func (g *Genesis) RecoveryID(cluster ID) ID {
	if g.Recovery == nil {
		return ID{}
	}
	plain := *g
	plain.Created = 0
	b := append([]byte("allocnode recovery"), cluster[:]...)
	full := sha256.Sum256(AppendOp(b, &Op{Kind: KindGenesis, Genesis: &plain}))
	return ID(full[:16])
}
