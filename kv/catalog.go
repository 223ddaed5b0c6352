package kv

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/dgraph-io/badger/v4"

	"github.com/allocnode/allocnode/apply"
	"github.com/allocnode/allocnode/internal/wire"
)

// Errors on which a caller may branch. All that Open returns say in their text what to do.
var (
	ErrInUse         = errors.New("kv: the catalog is open in another process")
	ErrOtherNode     = errors.New("kv: the catalog belongs to another node")
	ErrOtherMode     = errors.New("kv: the catalog is of another mode")
	ErrUnknownFormat = errors.New("kv: unknown catalog format")
	ErrNoWitness     = errors.New("kv: the catalog's witness cannot be read")
	ErrNoSpace       = errors.New("kv: too little free disk space")

	// ErrStateDropped means that the state was damaged and is gone: rebuild it from the log. Identity and witness stay.
	ErrStateDropped = errors.New("kv: state dropped")

	// ErrOutOfOrder means that a commit does not continue what is committed. Nothing was written.
	ErrOutOfOrder = errors.New("kv: commit out of order")

	// ErrContradiction means that a head contradicts the witness: another cluster, an older epoch, or another digest at
	// the witness's cursor. The log is not the one that this catalog has seen. Nothing was written.
	ErrContradiction = errors.New("kv: the log contradicts the witness")

	// ErrTooLarge means a record, or a run, beyond the bounds. Nothing was written.
	ErrTooLarge = errors.New("kv: too large")
)

// Catalog is an open catalog directory. [Catalog.Load] comes first, and once; then commits.
type Catalog struct {
	dir    string
	bdir   string
	logger *slog.Logger
	lock   *os.File
	card   card

	db      *badger.DB      // nil after a failure that only a new Open mends
	loaded  bool            // Load has vouched for the state
	dropped error           // why the state was set aside at Open; Load reports it
	blocks  map[string]bool // the memtables' logs that have their blocks
	archive string          // where setAside moves the state, if not empty

	sideDone apply.Head // witness in the side file
	sideTime time.Time  // when it was written
	hash     hasher
	hashes   hashes // of the records in db, once loaded

	mu      sync.Mutex // guards head and witness, which any goroutine may read
	head    apply.Head
	witness apply.Head

	// Seams for tests.
	commitTxn func(*badger.Txn) error
	writeSide func(string, side) error
	freeBytes func(string) (uint64, error)
}

// Open opens the catalog in dir for the node want, or creates it. dir and its parents are made as needed.
//
// It refuses with [ErrInUse], [ErrOtherNode], [ErrOtherMode], [ErrUnknownFormat], [ErrNoSpace], or [ErrNoWitness] (the state
// is damaged and so is the witness: to go on would forget what the log once held). Where badger's files are damaged and the
// witness is not, it sets the state aside, and the next Load returns [ErrStateDropped].
func Open(dir string, want Identity, logger *slog.Logger) (*Catalog, error) {
	return open(dir, want, logger, freeBytes)
}

func open(dir string, want Identity, logger *slog.Logger, free func(string) (uint64, error)) (_ *Catalog, err error) {
	if n := len(want.Node); n < 1 || n > maxName {
		return nil, fmt.Errorf("kv: node name of %d bytes: want 1 to %d", n, maxName)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("kv: open catalog: %w", err)
	}
	lock, err := lockDir(dir)
	if err != nil {
		return nil, err
	}
	c := &Catalog{
		dir: dir, bdir: filepath.Join(dir, "badger"), logger: logger, lock: lock,
		commitTxn: (*badger.Txn).Commit, writeSide: writeSide, freeBytes: free,
	}
	defer func() {
		if err != nil {
			c.closeDB()
			lock.Close()
		}
	}()
	if err := c.checkSpace(0); err != nil { // badger's Open writes through memory maps, too
		return nil, err
	}
	if err := c.open(want); err != nil {
		return nil, err
	}
	c.reserveFence()
	return c, nil
}

func (c *Catalog) open(want Identity) error {
	s, sideErr := readSide(c.dir)
	if sideErr != nil && !errors.Is(sideErr, errDamaged) {
		return fmt.Errorf("kv: open catalog: %w", sideErr)
	}
	if s != nil {
		if err := c.admit(s.card.Identity, want); err != nil {
			return err
		}
	}
	fresh, err := emptyDir(c.bdir)
	if err != nil {
		return fmt.Errorf("kv: open catalog: %w", err)
	}
	if s == nil && sideErr == nil && fresh {
		return c.create(want)
	}

	inDB, err := c.openDB()
	if errors.As(err, new(*brokenError)) {
		if s == nil {
			return fmt.Errorf("%w: %s and the state are both damaged (%v; %v): restore %s, or remove it and let the operator forget "+
				"this node", ErrNoWitness, sideName, sideErr, err, c.dir)
		}
		c.adopt(*s)
		return c.setAside(err)
	}
	if err != nil {
		return fmt.Errorf("kv: open catalog: %w", err)
	}
	switch {
	case inDB == nil && s == nil:
		return fmt.Errorf("%w: the state in %s is empty and %s is missing or damaged (%v): restore %s, or remove it and let the "+
			"operator forget this node", ErrNoWitness, c.bdir, sideName, sideErr, c.dir)
	case inDB == nil && s.witness == (apply.Head{}):
		c.adopt(*s) // a crash between the two steps of create, or soon after; Load finds out what else there is
		return c.fill()
	case inDB == nil:
		c.adopt(*s)
		return c.setAside(errors.New("the state has no identity: its files were removed or lost"))
	}
	if err := c.admit(inDB.card.Identity, want); err != nil {
		return err
	}
	if s == nil {
		c.logger.Warn("kv: side file is written anew", "dir", c.dir, "was", sideErr)
		c.adopt(*inDB)
		return c.saveSide(inDB.witness)
	}
	if s.card.id != inDB.card.id {
		return fmt.Errorf("%w: %s names catalog %s, the state in %s is catalog %s: put back what belongs together", ErrOtherNode,
			sideName, s.card.id, c.bdir, inDB.card.id)
	}
	c.adopt(*s)
	c.raiseWitness(inDB.witness)
	return nil
}

// admit refuses the catalog of another node or of another mode.
func (c *Catalog) admit(have, want Identity) error {
	if have.Node != want.Node {
		return fmt.Errorf("%w: %s is of node %q, this is %q: point this node to its own directory, or set its name back",
			ErrOtherNode, c.dir, have.Node, want.Node)
	}
	if have.mode() != want.mode() {
		return fmt.Errorf("%w: %s is of a node that is %s, this one is %s: growing from one node to three, or moving to another NATS, "+
			"is a backup and a restore", ErrOtherMode, c.dir, modeNames[have.mode()], modeNames[want.mode()])
	}
	return nil
}

var modeNames = map[byte]string{modeAlone: "alone", modeClustered: "clustered", modeExternal: "beside an existing NATS"}

// create makes a new catalog. The side file comes first: a badger directory without one is never taken for a new catalog.
func (c *Catalog) create(want Identity) error {
	s := side{card: card{Identity: want}}
	rand.Read(s.card.id[:]) // never fails
	c.adopt(s)
	if err := c.saveSide(apply.Head{}); err != nil {
		return err
	}
	return c.fill()
}

// adopt takes identity and witness from s.
func (c *Catalog) adopt(s side) {
	c.card = s.card
	c.sideDone, c.sideTime = s.witness, time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.witness = s.witness
}

func (c *Catalog) raiseWitness(h apply.Head) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if newer(h, c.witness) {
		c.witness = h
	}
}

// openDB opens badger and reads identity and witness; nil where it holds neither.
func (c *Catalog) openDB() (*side, error) {
	db, err := openBadger(c.bdir, badgerOptions(c.bdir, c.logger))
	if err != nil {
		return nil, err
	}
	c.db = db
	c.blocks = nil
	c.allocate()
	var s side
	err = db.View(func(txn *badger.Txn) error {
		b, err := get(txn, keyIdentity)
		if err != nil {
			return err
		}
		if s.card, _, err = cutCard(b); err != nil {
			return err
		}
		if b, err = get(txn, keyWitness); err != nil {
			return err
		}
		s.witness, _, err = parseHead(b, kindWitness)
		return err
	})
	switch {
	case errors.Is(err, badger.ErrKeyNotFound):
		return nil, nil
	case errors.Is(err, ErrUnknownFormat):
		return nil, err
	case err != nil:
		return nil, &brokenError{err}
	}
	return &s, nil
}

// fill opens an empty badger and writes identity and witness into it.
func (c *Catalog) fill() error {
	if c.db == nil {
		db, err := openBadger(c.bdir, badgerOptions(c.bdir, c.logger))
		if err != nil {
			return fmt.Errorf("kv: create state: %w", err)
		}
		c.db = db
		c.blocks = nil
		c.allocate()
	}
	err := c.db.Update(func(txn *badger.Txn) error {
		if err := txn.Set(keyIdentity, appendCard(nil, c.card)); err != nil {
			return err
		}
		return txn.Set(keyWitness, appendHead(nil, kindWitness, c.Witness(), sum{}))
	})
	if err != nil {
		return fmt.Errorf("kv: create state: %w", err)
	}
	return nil
}

// allocate sees to it that badger's memory maps cannot run out of disk while they are written.
func (c *Catalog) allocate() {
	var err error
	if c.blocks, err = allocate(c.bdir, c.blocks); err != nil {
		c.logger.Warn("reserve disk space for the catalog's log", "error", err)
	}
}

// saveSide writes the side file with the witness w.
func (c *Catalog) saveSide(w apply.Head) error {
	if err := c.writeSide(c.dir, side{card: c.card, witness: w}); err != nil {
		return fmt.Errorf("kv: write side file: %w", err)
	}
	c.sideDone, c.sideTime = w, time.Now()
	return nil
}

// checkSpace refuses when the file system would not hold a rewrite of the tables, more bytes, and minFree besides.
func (c *Catalog) checkSpace(more uint64) error {
	free, err := c.freeBytes(c.dir)
	if err != nil {
		return fmt.Errorf("kv: %w", err)
	}
	want := minFree + more
	if c.db != nil {
		lsm, _ := c.db.Size() // as of the last minute
		want += uint64(lsm)
	}
	if free < want {
		return fmt.Errorf("%w: %d MiB free at %s, want %d MiB: make room", ErrNoSpace, free>>20, c.dir, want>>20)
	}
	return nil
}

// ID names this catalog: 128 random bits from its creation. It survives a dropped state.
func (c *Catalog) ID() wire.ID { return c.card.id }

// Head is the head last loaded or committed; zero before Load.
func (c *Catalog) Head() apply.Head {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.head
}

// Witness is the highest head (by epoch, then cursor) ever recorded here. After a crash that also broke badger it may be too
// low, by at most 10 s or 4,096 entries; it is never too high. It survives a dropped state.
func (c *Catalog) Witness() apply.Head {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.witness
}

// SetAside moves the state away and starts an empty one under the same identity and witness, as Load does with a damaged
// one. Head is zero afterwards, and Commit goes on from there. The reason is logged.
func (c *Catalog) SetAside(reason error) error {
	if err := c.setAside(reason); err != nil {
		return err
	}
	c.dropped, c.loaded = nil, true
	return nil
}

// Distrust is SetAside for a state that other nodes' contradict: the witness keeps its cursor, and no digest, since that was
// the state's.
func (c *Catalog) Distrust(reason error) error {
	c.mu.Lock()
	c.witness.Digest = wire.Digest{}
	c.mu.Unlock()
	return c.SetAside(reason)
}

// setAside requires that card and witness are known. It survives a crash at any point: the side file has both before the
// state moves, and Open takes an absent state beside a side file for a dropped one.
func (c *Catalog) setAside(reason error) error {
	if err := c.saveSide(c.Witness()); err != nil {
		return err
	}
	c.closeDB()
	to := "nowhere: there was none"
	empty, err := emptyDir(c.bdir)
	if err == nil && !empty {
		if c.archive != "" {
			to, err = moveTo(c.dir, c.bdir, c.archive)
		} else {
			to, err = moveAside(c.dir, c.bdir)
		}
	}
	if err != nil {
		return fmt.Errorf("kv: set state aside: %w", err)
	}
	w := c.Witness()
	level := slog.LevelError
	if c.archive != "" {
		level = slog.LevelWarn
	}
	c.logger.Log(context.Background(), level, "kv: state set aside, to be rebuilt from the log", "reason", reason, "moved_to", to,
		"cluster_id", w.ClusterID.String(), "epoch", w.Epoch, "witness_cursor", w.Cursor)
	c.mu.Lock()
	c.head = apply.Head{}
	c.mu.Unlock()
	c.dropped, c.loaded = reason, false
	c.hashes.empty()
	return c.fill()
}

// closeDB closes badger, whatever it says: its files are about to be moved, or the caller has an error already.
func (c *Catalog) closeDB() {
	if c.db == nil {
		return
	}
	if err := closeBadger(c.db); err != nil {
		c.logger.Warn("kv: close state", "error", err)
	}
	c.db = nil
}

func closeBadger(db *badger.DB) (err error) {
	defer recovered("close", &err)
	return db.Close()
}

// Close writes the side file, closes badger and gives the directory free. A second Close does nothing. Where the disk takes
// nothing any more badger is left unclosed, and the error says so; ending the process without Close is always safe.
func (c *Catalog) Close() error {
	if c.lock == nil {
		return nil
	}
	var errs []error
	if w := c.Witness(); w != c.sideDone {
		errs = append(errs, c.saveSide(w))
	}
	err := c.checkSpace(0)
	if !errors.Is(err, ErrNoSpace) {
		err = c.checkWrite()
	}
	if c.db != nil && err != nil {
		// To close is to write a table. On a full disk that would end the process by SIGBUS, on one that fails badger tries
		// again for ever. What is not in a table is in the synced log beside it.
		errs = append(errs, fmt.Errorf("kv: state left unclosed: %w", err))
	} else if c.db != nil {
		if err := closeBadger(c.db); err != nil {
			errs = append(errs, fmt.Errorf("kv: close: %w", err))
		}
		c.db = nil
	}
	errs = append(errs, c.lock.Close())
	c.lock = nil
	return errors.Join(errs...)
}

// probeFile is written, and removed, to see whether the disk takes anything.
const probeFile = "write-probe"

func (c *Catalog) checkWrite() error {
	f, err := os.OpenFile(filepath.Join(c.dir, probeFile), os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write([]byte{1})
	return errors.Join(err, f.Sync(), f.Close(), os.Remove(f.Name()))
}

func get(txn *badger.Txn, key []byte) ([]byte, error) {
	item, err := txn.Get(key)
	if err != nil {
		return nil, err
	}
	return item.ValueCopy(nil)
}
