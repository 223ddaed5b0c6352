package client

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/allocnode/allocnode"
	"github.com/allocnode/allocnode/internal/wire"
)

// ErrClosed is what calls return after, and waiting calls at, the Close of their [Client] or [Sequence].
var ErrClosed = errors.New("allocnode: client closed")

// UnknownOutcomeError says that the request may have taken effect, or may do so later: it was sent, and no answer came
// before the context ended. errors.Is with [allocnode.ErrUnknownOutcome], and with what Err is, holds.
type UnknownOutcomeError struct {
	// Key names the reservation: the same call with [WithKey] of it gives the range that was carved, or carves it now.
	// A key that ends in a dot and a number is of a call that was merged with others; only this Client can ask with it,
	// and remembers the last 4,096 of them. Empty for calls that reserve nothing: those may simply be repeated.
	Key string

	Err error // why no answer came: the context's error, and what was seen last
}

// Error is the reason, with the key.
func (e *UnknownOutcomeError) Error() string {
	if e.Key == "" {
		return fmt.Sprintf("allocnode: outcome unknown, repeat the call: %v", e.Err)
	}
	return fmt.Sprintf("allocnode: outcome unknown, repeat it with key %s: %v", e.Key, e.Err)
}

// Unwrap is Err.
func (e *UnknownOutcomeError) Unwrap() error { return e.Err }

// Is makes errors.Is match [allocnode.ErrUnknownOutcome].
func (e *UnknownOutcomeError) Is(target error) bool { return target == allocnode.ErrUnknownOutcome }

// ClusterError says that only a cluster other than the first one seen has answered. It comes within an
// [UnknownOutcomeError]: the first one may have acted without being heard.
type ClusterError struct {
	Pinned, Got string // cluster ids, 32 hexadecimal digits
}

// Error names both clusters.
func (e *ClusterError) Error() string {
	return fmt.Sprintf("allocnode: cluster %s answers, this client belongs to %s: give each cluster a prefix of its own",
		e.Got, e.Pinned)
}

// unsentError is the end of a call that certainly had no effect: nothing was sent, or every node that got it refused.
type unsentError struct {
	cause error // why the call ended: the context's
	last  error // what was seen last, or nil
}

func (e *unsentError) Error() string {
	if e.last == nil {
		return fmt.Sprintf("unavailable: nothing was sent: %v", e.cause)
	}
	return fmt.Sprintf("unavailable: %s: %v", strings.TrimPrefix(e.last.Error(), "unavailable: "), e.cause)
}

func (e *unsentError) Is(target error) bool { return target == allocnode.ErrUnavailable }

func (e *unsentError) As(target any) bool {
	if p, ok := target.(**allocnode.Error); ok {
		*p = &allocnode.Error{Code: allocnode.CodeUnavailable, Message: strings.TrimPrefix(e.Error(), "unavailable: ")}
		return true
	}
	return false
}

func (e *unsentError) Unwrap() []error {
	if e.last == nil {
		return []error{e.cause}
	}
	return []error{e.cause, e.last}
}

// cause is why ctx ended, such that errors.Is with ctx.Err() holds too; nil while it has not. A flight's context is
// cancelled with the reason of its last caller, which stands for itself.
func cause(ctx context.Context) error {
	c, err := context.Cause(ctx), ctx.Err()
	if err == nil || errors.Is(c, err) || errors.Is(c, ErrClosed) || errors.Is(c, context.DeadlineExceeded) {
		return c
	}
	return fmt.Errorf("%w: %w", err, c)
}

// codeOf is the code of the refusal in err, or empty.
func codeOf(err error) allocnode.Code {
	var e *allocnode.Error
	if errors.As(err, &e) {
		return e.Code
	}
	return ""
}

// isNotReply reports whether err is about a body that is no answer: it says nothing, and a real one may follow.
func isNotReply(err error) bool {
	var e *wire.NotReplyError
	return errors.As(err, &e)
}

func badRequest(format string, args ...any) error {
	return allocnode.Errorf(allocnode.CodeBadRequest, format, args...)
}
