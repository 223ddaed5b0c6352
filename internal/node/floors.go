package node

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/allocnode/allocnode/apply"
	"github.com/allocnode/allocnode/internal/wire"
)

// The files of a recovery. Each is one line of JSON that says what it is, binary records, and the SHA-256 of all before it:
//
//	floors     what one stopped node's catalog holds, by Export
//	recovery   the state that the next log begins with, by PlanRecovery
//
// Both are whole or refused: they travel between machines by hand.
const (
	floorsKind   = "allocnode floors"
	recoveryKind = "allocnode recovery"
	fileFormat   = 1

	// recoveryName is the recovery that a node is prepared for, in its data directory.
	recoveryName = "recovery"
)

// fileHead is the first line of either file.
type fileHead struct {
	Kind    string  `json:"kind"`
	Format  int     `json:"format"`
	Cluster wire.ID `json:"cluster,omitzero"`

	// Of floors.
	Node    string     `json:"node,omitempty"`
	Catalog wire.ID    `json:"catalog,omitzero"`
	Head    apply.Head `json:"head,omitzero"`
	Witness apply.Head `json:"witness,omitzero"`
	Clean   bool       `json:"clean,omitempty"`

	// Of a recovery.
	Recovery wire.ID `json:"recovery,omitzero"`
	Epoch    uint64  `json:"epoch,omitempty"`
}

// floors is what one node's catalog holds.
type floors struct {
	fileHead
	state *apply.Machine
}

// recovery is a recovery file, read.
type recovery struct {
	fileHead
	genesis *wire.Genesis
	parts   [][]byte
	state   *apply.Machine // after the last part: the floors
}

func (f *floors) encode() ([]byte, error) {
	f.Kind, f.Format = floorsKind, fileFormat
	return encodeFile(f.fileHead, func(add func([]byte)) {
		for r := range f.state.Records() {
			add(r.Key)
			add(r.Value)
		}
	})
}

// readFloors reads a floors file.
func readFloors(path string) (*floors, error) {
	f := &floors{}
	records, err := readFile(path, floorsKind, &f.fileHead)
	if err != nil {
		return nil, err
	}
	if len(records)%2 != 0 {
		return nil, fmt.Errorf("%s: a record has no value", path)
	}
	r := apply.NewRestorer()
	for i := 0; i < len(records); i += 2 {
		if err := r.Add(apply.Record{Key: records[i], Value: records[i+1]}); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
	}
	if f.state, err = r.Machine(f.Head); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return f, nil
}

// encodeRecovery is a recovery file.
func encodeRecovery(cluster wire.ID, r *apply.Recovered) ([]byte, error) {
	h := fileHead{
		Kind: recoveryKind, Format: fileFormat, Cluster: cluster, Epoch: r.Genesis.Epoch, Recovery: r.Genesis.RecoveryID(cluster),
	}
	return encodeFile(h, func(add func([]byte)) {
		add(wire.AppendOp(nil, &wire.Op{Kind: wire.KindGenesis, Genesis: r.Genesis}))
		for _, p := range r.Parts {
			add(p)
		}
	})
}

// readRecovery reads a recovery file, and makes the state of it, as every node will.
func readRecovery(path string) (*recovery, error) {
	r := &recovery{}
	records, err := readFile(path, recoveryKind, &r.fileHead)
	if err != nil {
		return nil, err
	}
	if len(records) == 0 {
		return nil, fmt.Errorf("%s: it has no genesis", path)
	}
	d := wire.NewReader(records[0])
	r.genesis, r.parts = d.Genesis(), records[1:]
	if err := d.Close(); err != nil {
		return nil, fmt.Errorf("%s: genesis: %w", path, err)
	}
	if r.genesis.Recovery == nil || r.genesis.RecoveryID(r.Cluster) != r.Recovery || r.genesis.Epoch != r.Epoch {
		return nil, fmt.Errorf("%s: the genesis is not that of recovery %s", path, r.Recovery)
	}
	if r.state, err = r.rehearse(); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return r, nil
}

// rehearse applies the recovery as its log will hold it.
func (r *recovery) rehearse() (*apply.Machine, error) {
	m := apply.New()
	seq := r.genesis.First()
	for i := -1; i < len(r.parts); i++ {
		data, err := r.entry(i, m.Head(), r.genesis.Created)
		if err != nil {
			return nil, err
		}
		out, _, err := m.Apply(seq, data)
		if err != nil {
			return nil, err
		}
		if len(out.Ops) != 1 || out.Ops[0].Reject != wire.Accepted {
			return nil, fmt.Errorf("part %d is not what the genesis says", i)
		}
		seq++
	}
	if m.Restoring() {
		return nil, fmt.Errorf("%d parts, the genesis names %d", len(r.parts), len(r.genesis.Recovery.Parts))
	}
	return m, nil
}

// entry is the genesis (i is -1) or part i as an entry, made when head was applied. Nodes that make it at the same head make
// the same bytes, under the same id.
func (r *recovery) entry(i int, head apply.Head, created int64) ([]byte, error) {
	h := wire.Header{
		ClusterID: r.Cluster, Level: wire.Level, Node: []byte("recovery"), ID: r.entryID(i), Cursor: head.Cursor, Digest: head.Digest,
		Defaults: wire.Settings{First: 1, Max: 1, MaxCount: 1}, // nothing comes into being by first use here
	}
	op := wire.Op{Kind: wire.KindRestore, Index: uint64(max(i, 0))}
	if i < 0 {
		g := *r.genesis
		g.Created = created
		op = wire.Op{Kind: wire.KindGenesis, Genesis: &g}
		h.Cursor = g.First() - 1
	} else {
		op.Data = r.parts[i]
	}
	entry := wire.AppendOp(wire.AppendHeader(nil, &h), &op)
	wire.Seal(entry)
	if err := wire.DecodeEntry(entry, &wire.Entry{}); err != nil {
		return nil, fmt.Errorf("the entry of part %d: %w", i, err)
	}
	return entry, nil
}

func (r *recovery) entryID(i int) wire.EntryID {
	return wire.EntryID{Incarnation: r.Recovery, Counter: uint64(i + 2)}
}

func encodeFile(h fileHead, fill func(add func([]byte))) ([]byte, error) {
	line, err := json.Marshal(h)
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", h.Kind, err)
	}
	b := append(line, '\n')
	fill(func(item []byte) {
		b = binary.AppendUvarint(b, uint64(len(item)))
		b = append(b, item...)
	})
	sum := sha256.Sum256(b)
	return append(b, sum[:]...), nil
}

// readFile reads a file of a kind: its head, and its records.
func readFile(path, kind string, h *fileHead) (records [][]byte, err error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	line, err := bufio.NewReader(bytes.NewReader(b)).ReadBytes('\n')
	if err != nil || json.Unmarshal(line, h) != nil || h.Kind != kind {
		return nil, fmt.Errorf("%s is not a file of %s", path, kind)
	}
	if h.Format != fileFormat {
		return nil, fmt.Errorf("%s is of format %d, this build reads %d: use the version that wrote it", path, h.Format, fileFormat)
	}
	end := len(b) - sha256.Size
	if end < len(line) || sha256.Sum256(b[:end]) != [sha256.Size]byte(b[end:]) {
		return nil, fmt.Errorf("%s is damaged, or was cut short: copy it again", path)
	}
	for rest := b[len(line):end]; len(rest) > 0; {
		n, k := binary.Uvarint(rest)
		if k <= 0 || n > uint64(len(rest)-k) {
			return nil, fmt.Errorf("%s: a record of %d bytes in %d", path, n, len(rest))
		}
		records = append(records, rest[k:k+int(n)])
		rest = rest[k+int(n):]
	}
	return records, nil
}

// readFileHead reads the first line of a file of a kind, and vouches for nothing else.
func readFileHead(path, kind string) (h fileHead, err error) {
	f, err := os.Open(path)
	if err != nil {
		return h, err
	}
	defer f.Close()
	line, err := bufio.NewReader(f).ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, &h)
	}
	if err != nil || h.Kind != kind {
		return h, fmt.Errorf("%s is not a file of %s", path, kind)
	}
	return h, nil
}

// writeWhole writes b to path so that after a nil error it is there, whole, also after a power cut; before, what was there is.
func writeWhole(path string, b []byte) error {
	tmp := path + ".tmp"
	f, err := os.OpenFile(tmp, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err := os.Rename(tmp, path); err != nil {
		return err
	}
	return syncDir(filepath.Dir(path))
}

func syncDir(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// pendingRecovery is the recovery that the node of this data directory is prepared for, or nil.
func pendingRecovery(dataDir string) (*recovery, error) {
	r, err := readRecovery(filepath.Join(dataDir, recoveryName))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return r, err
}
