package allocnode

import (
	"errors"
	"fmt"
)

// Code names a kind of refusal. It stands in the JSON body of an error reply; [Code.Status] stands in its
// Nats-Service-Error-Code header.
type Code string

// The codes, with what each promises about the effect.
const (
	CodeBadRequest     Code = "bad_request"     // malformed; nothing reached the log
	CodeNotFound       Code = "not_found"       // no such sequence or node; nothing changed
	CodeConflict       Code = "conflict"        // other settings, or other parameters under a known key; nothing changed
	CodeExhausted      Code = "exhausted"       // the ids do not fit below max; nothing was carved
	CodeKeyExpired     Code = "key_expired"     // the key window no longer reaches back to since; nothing was carved
	CodeTooLarge       Code = "too_large"       // a bound on size was passed; nothing changed
	CodeFenced         Code = "fenced"          // the node cannot prove that it is safe
	CodeUnavailable    Code = "unavailable"     // not now; this attempt did not happen
	CodeUnknownOutcome Code = "unknown_outcome" // it may have happened: retry with the same key
)

// Status is the number of c in the style of HTTP, as NATS services carry it. An unknown code is 500.
func (c Code) Status() int {
	switch c {
	case CodeBadRequest:
		return 400
	case CodeNotFound:
		return 404
	case CodeConflict:
		return 409
	case CodeExhausted, CodeKeyExpired:
		return 410
	case CodeTooLarge:
		return 413
	case CodeFenced, CodeUnavailable:
		return 503
	case CodeUnknownOutcome:
		return 504
	}
	return 500
}

// Sentinels: errors.Is(err, ErrX) holds for every [*Error] with the code of X.
var (
	ErrBadRequest     = errors.New("allocnode: bad request")
	ErrNotFound       = errors.New("allocnode: not found")
	ErrConflict       = errors.New("allocnode: conflict")
	ErrExhausted      = errors.New("allocnode: sequence exhausted")
	ErrKeyExpired     = errors.New("allocnode: key expired")
	ErrTooLarge       = errors.New("allocnode: too large")
	ErrFenced         = errors.New("allocnode: fenced")
	ErrUnavailable    = errors.New("allocnode: unavailable")
	ErrUnknownOutcome = errors.New("allocnode: outcome unknown")
)

var sentinels = map[Code]error{
	CodeBadRequest:     ErrBadRequest,
	CodeNotFound:       ErrNotFound,
	CodeConflict:       ErrConflict,
	CodeExhausted:      ErrExhausted,
	CodeKeyExpired:     ErrKeyExpired,
	CodeTooLarge:       ErrTooLarge,
	CodeFenced:         ErrFenced,
	CodeUnavailable:    ErrUnavailable,
	CodeUnknownOutcome: ErrUnknownOutcome,
}

// Error is a refusal, as it crosses the wire.
type Error struct {
	Code    Code
	Message string

	// Remaining is how many ids the sequence still has, where Code is CodeExhausted.
	Remaining uint64
}

// Errorf makes an [*Error] with the formatted message.
func Errorf(code Code, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...)}
}

// Error is the message with its code before it.
func (e *Error) Error() string { return string(e.Code) + ": " + e.Message }

// Is makes errors.Is match e with the sentinel of its code.
func (e *Error) Is(target error) bool { return sentinels[e.Code] == target }
