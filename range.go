package allocnode

import (
	"fmt"
	"math"
)

// Bounds that the formats and the state machine rest on.
const (
	// MaxID is the largest id that a sequence may be told to reach. It is 2^63-1, so that every id also fits a signed
	// 64-bit integer, and start+count never overflows a uint64.
	MaxID uint64 = math.MaxInt64

	// DefaultMax is the max of a sequence that did not ask for one: 2^53-1, the largest integer that every JSON reader
	// holds exactly.
	DefaultMax uint64 = 1<<53 - 1

	// DefaultMaxCount is how many ids one reservation may ask for where the sequence did not say otherwise.
	DefaultMaxCount uint64 = 1_000_000

	// MaxNameLen bounds a sequence's name, in bytes.
	MaxNameLen = 128

	// MaxKeyLen bounds a reservation's key, in bytes.
	MaxKeyLen = 128
)

// Range is the half-open interval [Start, End) of ids of one sequence. The zero Range is empty; id 0 is never issued.
type Range struct {
	Start uint64
	End   uint64
}

// Count is the number of ids in r.
func (r Range) Count() uint64 { return r.End - r.Start }

// Empty reports whether r holds no id.
func (r Range) Empty() bool { return r.Start >= r.End }

// Overlaps reports whether r and o share an id.
func (r Range) Overlaps(o Range) bool { return r.Start < o.End && o.Start < r.End }

// String shows r as "[start, end)".
func (r Range) String() string { return fmt.Sprintf("[%d, %d)", r.Start, r.End) }

// CheckName returns nil when name can name a sequence: NATS subject tokens of [A-Za-z0-9_-] joined by single dots, at
// most [MaxNameLen] bytes in all. Otherwise it returns a [CodeBadRequest] error that says what is wrong.
func CheckName(name string) error {
	switch {
	case name == "":
		return Errorf(CodeBadRequest, "the sequence name is empty: use letters, digits, '_' and '-', in tokens joined by dots")
	case len(name) > MaxNameLen:
		return Errorf(CodeBadRequest, "the sequence name is %d bytes long: at most %d are allowed", len(name), MaxNameLen)
	}
	tokenStart := true
	for i := range len(name) {
		c := name[i]
		switch {
		case c == '.':
			if tokenStart {
				return Errorf(CodeBadRequest, "the sequence name %q has an empty token", name)
			}
			tokenStart = true
		case c == '_' || c == '-' || '0' <= c && c <= '9' || 'A' <= c && c <= 'Z' || 'a' <= c && c <= 'z':
			tokenStart = false
		default:
			return Errorf(CodeBadRequest, "the sequence name %q has a character that is not a letter, a digit, '_', '-' or '.'", name)
		}
	}
	if tokenStart {
		return Errorf(CodeBadRequest, "the sequence name %q has an empty token", name)
	}
	return nil
}
