package allocnode_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/allocnode/allocnode"
)

func TestCodes(t *testing.T) {
	codes := []struct {
		code     allocnode.Code
		text     string
		status   int
		sentinel error
	}{
		{allocnode.CodeBadRequest, "bad_request", 400, allocnode.ErrBadRequest},
		{allocnode.CodeNotFound, "not_found", 404, allocnode.ErrNotFound},
		{allocnode.CodeConflict, "conflict", 409, allocnode.ErrConflict},
		{allocnode.CodeExhausted, "exhausted", 410, allocnode.ErrExhausted},
		{allocnode.CodeKeyExpired, "key_expired", 410, allocnode.ErrKeyExpired},
		{allocnode.CodeTooLarge, "too_large", 413, allocnode.ErrTooLarge},
		{allocnode.CodeFenced, "fenced", 503, allocnode.ErrFenced},
		{allocnode.CodeUnavailable, "unavailable", 503, allocnode.ErrUnavailable},
		{allocnode.CodeUnknownOutcome, "unknown_outcome", 504, allocnode.ErrUnknownOutcome},
	}
	for _, c := range codes {
		err := fmt.Errorf("reserve: %w", allocnode.Errorf(c.code, "%d ids", 7))
		if string(c.code) != c.text || c.code.Status() != c.status || err.Error() != "reserve: "+c.text+": 7 ids" {
			t.Errorf("%s: status %d, error %q", c.code, c.code.Status(), err)
		}
		var typed *allocnode.Error
		if !errors.As(err, &typed) || typed.Code != c.code || typed.Message != "7 ids" {
			t.Errorf("%s: as an Error it is %+v", c.code, typed)
		}
		for _, other := range codes { // a code is its own sentinel and no other
			if got := errors.Is(err, other.sentinel); got != (other.code == c.code) {
				t.Errorf("%s is %v: %v", c.code, other.sentinel, got)
			}
		}
		if !strings.HasPrefix(c.sentinel.Error(), "allocnode: ") {
			t.Errorf("sentinel %q", c.sentinel)
		}
	}
}

// A code of a later version is an error like any other, and no sentinel.
func TestUnknownCode(t *testing.T) {
	err := allocnode.Errorf("of_tomorrow", "?")
	if err.Code.Status() != 500 || errors.Is(err, allocnode.ErrBadRequest) || errors.Is(err, nil) {
		t.Errorf("%v: status %d", err, err.Code.Status())
	}
}
