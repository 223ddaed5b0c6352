package client

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/allocnode/allocnode"
)

// config is what the options of New set.
type config struct {
	prefix      string
	try         time.Duration // until the first retry of a request that has no answer
	minBackoff  time.Duration
	maxBackoff  time.Duration
	inFlight    int
	perSequence bool
	logger      *slog.Logger
}

func defaultConfig() config {
	return config{
		prefix: "alloc", try: time.Second, minBackoff: 20 * time.Millisecond, maxBackoff: time.Second, inFlight: 1,
		logger: slog.New(slog.DiscardHandler),
	}
}

func (c *config) validate() error {
	var faults []error
	if allocnode.CheckName(c.prefix) != nil {
		faults = append(faults, fmt.Errorf("prefix %q: want subject tokens of letters, digits, '_' and '-'", c.prefix))
	}
	if c.try < time.Millisecond {
		faults = append(faults, fmt.Errorf("retry after %s: want 1ms or more", c.try))
	}
	if c.minBackoff <= 0 || c.maxBackoff < c.minBackoff {
		faults = append(faults, fmt.Errorf("backoff %s to %s: want above 0, and the first no more than the second",
			c.minBackoff, c.maxBackoff))
	}
	if c.inFlight < 1 || c.inFlight > 64 {
		faults = append(faults, fmt.Errorf("%d requests in flight: want 1 to 64", c.inFlight))
	}
	return errors.Join(faults...)
}

// Option configures a [Client].
type Option func(*config)

// WithPrefix sets what the cluster's subjects begin with; the default is "alloc".
func WithPrefix(prefix string) Option { return func(c *config) { c.prefix = prefix } }

// WithRetryAfter sets how long a request waits for its answer before it is sent again, under the same key; twice as long
// for the second time, four times from then on. Default 1 s, at least 1 ms. An answer to an earlier try still counts.
func WithRetryAfter(d time.Duration) Option { return func(c *config) { c.try = d } }

// WithBackoff bounds the pause after a refusal that may be repeated; it doubles from least to most, and a random part of
// up to a half is left out. Default 20 ms and 1 s.
func WithBackoff(least, most time.Duration) Option {
	return func(c *config) { c.minBackoff, c.maxBackoff = least, most }
}

// WithInFlight sets how many merged requests may be under way at a time, 1 to 64. Default 1: with 256 and 4,096 callers it
// was measured to carry more than 2 or 4, since each request then holds more calls. A request that was sent again does not
// count: what waits need not wait for a lost answer.
func WithInFlight(n int) Option { return func(c *config) { c.inFlight = n } }

// WithRequestPerSequence merges calls of the same sequence only, and sends each request to the subject that names it: for
// a role that may not publish to the subject of lists, prefix.reserve. Default: all calls are merged.
func WithRequestPerSequence() Option { return func(c *config) { c.perSequence = true } }

// WithLogger sets where retries (debug) and answers of another cluster (warn) are logged. Default: nowhere.
func WithLogger(l *slog.Logger) Option { return func(c *config) { c.logger = l } }

// call is one reservation, as its caller asked for it.
type call struct {
	sequence string
	count    uint64
	key      string // the caller's own; empty: it has none
	partial  bool
	receipt  *Receipt
}

func (q *call) check() error {
	if err := allocnode.CheckName(q.sequence); err != nil {
		return err
	}
	if q.count < 1 || q.count > allocnode.MaxID {
		return badRequest("count is %d: 1 to %d ids may be asked for", q.count, allocnode.MaxID)
	}
	switch {
	case len(q.key) > allocnode.MaxKeyLen:
		return badRequest("the key is %d bytes long: at most %d are allowed", len(q.key), allocnode.MaxKeyLen)
	case !utf8.ValidString(q.key) || strings.ContainsRune(q.key, utf8.RuneError):
		return badRequest("the key %q is not valid UTF-8", q.key)
	}
	return nil
}

// ReserveOption configures one [Client.Reserve].
type ReserveOption func(*call)

// WithKey names the reservation with a key of the caller's own, 1 to 128 bytes of UTF-8; empty is as if it were not
// given. The same sequence, count and key give the same range for as long as the cluster remembers the key: by default
// the last 131,072 keyed reservations. With a key of [Client.NewKey], or one that this Client returned in an
// [UnknownOutcomeError], a key that has been forgotten is noticed, and refused with [allocnode.ErrKeyExpired].
func WithKey(key string) ReserveOption { return func(q *call) { q.key = key } }

// WithPartial takes what is left when count does not fit below the sequence's max: the range may then be shorter. When
// nothing is left the error is [allocnode.ErrExhausted] still.
func WithPartial() ReserveOption { return func(q *call) { q.partial = true } }

// WithReceipt fills r in before Reserve returns nil.
func WithReceipt(r *Receipt) ReserveOption { return func(q *call) { q.receipt = r } }

// Receipt is what is known of a reservation beside its range.
type Receipt struct {
	Seq     uint64 // of the log's entry that answered; of a repeated key, not of the one that carved
	Cluster string // id of the cluster, 32 hexadecimal digits
}
