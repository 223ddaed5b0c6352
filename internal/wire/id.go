package wire

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
)

// ID is 128 random bits that name a cluster, a catalog or an incarnation. The zero ID names nothing.
type ID [16]byte

// IsZero reports whether id names nothing.
func (id ID) IsZero() bool { return id == ID{} }

// String is id in 32 lower-case hexadecimal digits.
func (id ID) String() string { return hex.EncodeToString(id[:]) }

// MarshalText is [ID.String], so that an ID stands in JSON as its digits.
func (id ID) MarshalText() ([]byte, error) { return []byte(id.String()), nil }

// UnmarshalText is the inverse of [ID.MarshalText].
func (id *ID) UnmarshalText(text []byte) error {
	if len(text) != hex.EncodedLen(len(id)) {
		return fmt.Errorf("id of %d characters: want %d hexadecimal digits", len(text), hex.EncodedLen(len(id)))
	}
	if _, err := hex.Decode(id[:], text); err != nil {
		return fmt.Errorf("id %q: %w", text, err)
	}
	return nil
}

// ParseID reads what [ID.String] wrote.
func ParseID(s string) (ID, error) {
	var id ID
	err := id.UnmarshalText([]byte(s))
	return id, err
}

// Digest is the first 128 bits of a SHA-256: of an entry's bytes, or of everything applied so far.
type Digest [16]byte

// String is d in 32 lower-case hexadecimal digits.
func (d Digest) String() string { return hex.EncodeToString(d[:]) }

// NewID returns 128 random bits.
func NewID() (id ID) {
	rand.Read(id[:])
	return id
}
