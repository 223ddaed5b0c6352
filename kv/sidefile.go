package kv

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/allocnode/allocnode/apply"
)

const sideName = "witness"

// side is what the side file holds.
type side struct {
	card    card
	witness apply.Head
}

// readSide reads the side file. No file is (nil, nil); a damaged one wraps errDamaged.
func readSide(dir string) (*side, error) {
	path := filepath.Join(dir, sideName)
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	c, rest, err := cutCard(b)
	if err != nil {
		return nil, fmt.Errorf("side file %s: %w", path, err)
	}
	w, _, err := parseHead(rest, kindWitness)
	if err != nil {
		return nil, fmt.Errorf("side file %s: %w", path, err)
	}
	return &side{card: c, witness: w}, nil
}

// writeSide replaces the side file. After a nil error the new one survives a power cut; after an error either is there, whole.
func writeSide(dir string, s side) error {
	path := filepath.Join(dir, sideName)
	tmp := path + ".tmp"
	f, err := os.OpenFile(tmp, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(appendHead(appendCard(nil, s.card), kindWitness, s.witness, sum{}))
	if err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return err
	}
	if err := os.Rename(tmp, path); err != nil {
		return err
	}
	return syncDir(dir)
}

func syncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	err = f.Sync()
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	return err
}
