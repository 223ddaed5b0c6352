package history

import (
	"encoding/json"
	"fmt"
	"os"
	"sync/atomic"
)

// Writer appends records to a history. It is safe for concurrent use, also by other processes on the same file.
type Writer struct {
	file    *os.File
	process string
	ids     atomic.Uint64
}

// Open opens the history at path for appending, and makes it if need be. process is what its records carry: unique in the
// run.
func Open(path, process string) (*Writer, error) {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o644)
	if err != nil {
		return nil, fmt.Errorf("open history: %w", err)
	}
	return &Writer{file: file, process: process}, nil
}

// NextID returns an id that no other record of this writer has, 1 and up.
func (w *Writer) NextID() uint64 { return w.ids.Add(1) }

// Write appends r in one write(2): a SIGKILL loses at most the line at hand, and lines of several processes do not mix. It
// fills in Process, and At where it is 0. What was to follow the record (a send) must not happen after an error.
func (w *Writer) Write(r Record) error {
	r.Process = w.process
	if r.At == 0 {
		r.At = Now()
	}
	line, err := json.Marshal(&r)
	if err != nil {
		return fmt.Errorf("encode history record: %w", err)
	}
	if _, err := w.file.Write(append(line, '\n')); err != nil {
		return fmt.Errorf("append to history: %w", err)
	}
	return nil
}

// Fault records that a fault of a kind begins, and returns its id for Healed.
func (w *Writer) Fault(kind, target, proof string) (uint64, error) {
	id := w.NextID()
	return id, w.Write(Record{Kind: KindFault, ID: id, Fault: kind, Target: target, Proof: proof})
}

// Healed records that the fault is over, with what proof of its effect there is by then.
func (w *Writer) Healed(id uint64, proof string) error {
	return w.Write(Record{Kind: KindHealed, ID: id, Proof: proof})
}

// Close closes the file.
func (w *Writer) Close() error { return w.file.Close() }
