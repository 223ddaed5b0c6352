package jetstream

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	natsjs "github.com/nats-io/nats.go/jetstream"
)

const (
	// A request that was lost with a leader, or made before there is one, is never answered: it is made again after this.
	tryTimeout = 2 * time.Second
	retryPause = 100 * time.Millisecond

	apiPrefix = "$JS.API."
)

// Codes of JetStream's errors, from nats-server's errors.json; nats.go names some of them only.
const (
	codeNoPeers           natsjs.ErrorCode = 10005 // peers have not joined yet
	codeNotAvailable      natsjs.ErrorCode = 10008 // no meta leader
	codeNoResources       natsjs.ErrorCode = 10023
	codeNoMessage                          = natsjs.JSErrCodeMessageNotFound
	codeNotForAccount                      = natsjs.JSErrCodeJetStreamNotEnabledForAccount
	codeNameInUse                          = natsjs.JSErrCodeStreamNameInUse
	codeNoStream                           = natsjs.JSErrCodeStreamNotFound
	codeWrongLastSeq                       = natsjs.JSErrCodeStreamWrongLastSequence
	codeNotEnabled                         = natsjs.JSErrCodeJetStreamNotEnabled
	codeStreamOffline     natsjs.ErrorCode = 10118
	codeDuplicateInFlight natsjs.ErrorCode = 10158
	codeWrongLastSeqConst                  = natsjs.JSErrCodeStreamWrongLastSequenceConstant
	codeTooManyRequests   natsjs.ErrorCode = 10167
	codeOfflineReason     natsjs.ErrorCode = 10194
	codeOneServer         natsjs.ErrorCode = 10074 // replicas > 1, but JetStream is not clustered
)

// errNotYet marks an answer that a later try may better.
var errNotYet = errors.New("not yet")

func isCode(err error, code natsjs.ErrorCode) bool {
	var e *natsjs.APIError
	return errors.As(err, &e) && e.ErrorCode == code
}

// passing says that err is no answer, or one that a later try may better.
func passing(err error) bool {
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) ||
		errors.Is(err, nats.ErrNoResponders) || errors.Is(err, nats.ErrTimeout) || errors.Is(err, errNotYet) ||
		errors.Is(err, nats.ErrReconnectBufExceeded) { // the connection is away
		return true
	}
	var e *natsjs.APIError
	if !errors.As(err, &e) {
		return false
	}
	switch e.ErrorCode {
	case codeNoPeers, codeNotAvailable, codeNoResources, codeStreamOffline, codeDuplicateInFlight, codeTooManyRequests,
		codeOfflineReason:
		return true
	}
	return false
}

// retry repeats attempt until it succeeds, fails for good, or ctx ends; then the error is [ErrNoLeader] with ctx's cause and
// the last thing that was heard.
func retry(ctx context.Context, attempt func() error) error {
	for {
		err := attempt()
		if err == nil || !passing(err) {
			return err
		}
		if !pause(ctx) {
			return fmt.Errorf("%w: %w (last try: %v)", ErrNoLeader, context.Cause(ctx), err)
		}
	}
}

// pause waits between tries. It reports false if ctx has ended.
func pause(ctx context.Context) bool {
	t := time.NewTimer(retryPause)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

// try sends m once and waits for one answer, at most tryTimeout.
func try(ctx context.Context, nc *nats.Conn, m *nats.Msg) (*nats.Msg, error) {
	ctx, cancel := context.WithTimeout(ctx, tryTimeout)
	defer cancel()
	return nc.RequestMsgWithContext(ctx, m)
}

// call makes one try of the API request "$JS.API.<verb>" and decodes the answer's other fields into resp. An error answer is a
// [*natsjs.APIError].
func call(ctx context.Context, nc *nats.Conn, verb string, req, resp any) error {
	var body []byte
	if req != nil {
		var err error
		if body, err = json.Marshal(req); err != nil {
			return fmt.Errorf("encode request %s: %w", verb, err)
		}
	}
	m, err := try(ctx, nc, &nats.Msg{Subject: apiPrefix + verb, Data: body})
	if err != nil {
		return err
	}
	var failed struct {
		Error *natsjs.APIError `json:"error"`
	}
	if err := json.Unmarshal(m.Data, &failed); err != nil {
		return fmt.Errorf("decode answer to %s, %d bytes: %w", verb, len(m.Data), err)
	}
	if failed.Error != nil {
		return failed.Error
	}
	if err := json.Unmarshal(m.Data, resp); err != nil {
		return fmt.Errorf("decode answer to %s, %d bytes: %w", verb, len(m.Data), err)
	}
	return nil
}

// ProbeSubjects are subjects of every kind on which requests under prefix come in, with a name that no sequence and no node
// can have: a stream that captures such subjects by wildcard captures these too.
func ProbeSubjects(prefix string) (subjects []string) {
	for _, verb := range serviceVerbs {
		subjects = append(subjects, prefix+"."+verb, prefix+"."+verb+".~probe")
	}
	return subjects
}
