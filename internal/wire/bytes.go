package wire

import (
	"encoding/binary"
	"errors"

	"github.com/allocnode/allocnode"
)

const (
	maxName  = allocnode.MaxNameLen
	maxKey   = allocnode.MaxKeyLen
	maxNodes = 64
)

var (
	errShort = errors.New("bytes end too soon")
	errLong  = errors.New("a string is longer than its bound")
	errBool  = errors.New("a boolean is neither 0 nor 1")
	errTail  = errors.New("bytes after the end")
)

func appendBytes(dst, b []byte) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(b)))
	return append(dst, b...)
}

func appendString(dst []byte, s string) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(s)))
	return append(dst, s...)
}

func appendBool(dst []byte, b bool) []byte {
	if b {
		return append(dst, 1)
	}
	return append(dst, 0)
}

// Reader takes values off the front of a byte slice. After the first error every call returns zero values, so a decoder
// asks for the error once, at the end.
type Reader struct {
	rest []byte
	err  error
}

// NewReader reads from b, which the results of [Reader.Bytes] alias.
func NewReader(b []byte) *Reader { return &Reader{rest: b} }

// Close returns the first error, or an error when bytes are left.
func (r *Reader) Close() error {
	if r.err == nil && len(r.rest) > 0 {
		r.err = errTail
	}
	return r.err
}

// fail keeps the first error; nil is ignored.
func (r *Reader) fail(err error) {
	if r.err == nil && err != nil {
		r.err = err
		r.rest = nil
	}
}

// Byte takes one byte.
func (r *Reader) Byte() byte {
	if len(r.rest) == 0 {
		r.fail(errShort)
		return 0
	}
	b := r.rest[0]
	r.rest = r.rest[1:]
	return b
}

// Bool takes one byte that is 0 or 1.
func (r *Reader) Bool() bool {
	b := r.Byte()
	if b > 1 {
		r.fail(errBool)
	}
	return b == 1
}

// Uvarint takes a number, as encoding/binary writes it.
func (r *Reader) Uvarint() uint64 {
	v, n := binary.Uvarint(r.rest)
	if n <= 0 {
		r.fail(errShort)
		return 0
	}
	r.rest = r.rest[n:]
	return v
}

// Bytes takes a length and that many bytes, at most limit of them.
func (r *Reader) Bytes(limit int) []byte {
	n := r.Uvarint()
	switch {
	case n > uint64(limit):
		r.fail(errLong)
		return nil
	case n > uint64(len(r.rest)):
		r.fail(errShort)
		return nil
	}
	b := r.rest[:n:n]
	r.rest = r.rest[n:]
	return b
}

// Fixed fills dst from the next len(dst) bytes.
func (r *Reader) Fixed(dst []byte) {
	if len(r.rest) < len(dst) {
		r.fail(errShort)
		return
	}
	copy(dst, r.rest)
	r.rest = r.rest[len(dst):]
}

// Check returns nil when s is within the bounds of [Settings], and a bad_request error that names the fault otherwise.
func (s Settings) Check() error {
	switch {
	case s.First == 0:
		return allocnode.Errorf(allocnode.CodeBadRequest, "first is 0: ids start at 1")
	case s.Max > allocnode.MaxID:
		return allocnode.Errorf(allocnode.CodeBadRequest, "max is %d: at most %d", s.Max, allocnode.MaxID)
	case s.First > s.Max:
		return allocnode.Errorf(allocnode.CodeBadRequest, "first %d is above max %d", s.First, s.Max)
	case s.MaxCount == 0:
		return allocnode.Errorf(allocnode.CodeBadRequest, "max_count is 0: at least 1")
	}
	return nil
}
