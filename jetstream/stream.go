package jetstream

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	natsjs "github.com/nats-io/nats.go/jetstream"

	"github.com/allocnode/allocnode/internal/wire"
)

const (
	metaClusterID = "allocnode.cluster_id"
	metaEpoch     = "allocnode.epoch"
	metaFirst     = "allocnode.first"    // seq of the genesis, in the log of a recovery
	metaRecovery  = "allocnode.recovery" // which one

	// An entry is published again within seconds or not at all. The window costs every replica memory for each entry in it,
	// and the state machine does not rely on it.
	duplicateWindow = 30 * time.Second
)

// Identity is what the stream's leader says of the stream.
type Identity struct {
	Created   time.Time // differs after a deletion and a new creation
	ClusterID wire.ID
	Epoch     uint64
	FirstSeq  uint64 // of a stream that never held anything 0, or where it begins; of one that was emptied LastSeq+1
	LastSeq   uint64 // 0 if it never held anything, or one before where it begins
	Leader    string // the server's name

	First    uint64  // in the log of a recovery: where it begins. 0 is 1
	Recovery wire.ID // and which recovery that is
}

// Begin is the seq of the genesis.
func (id *Identity) Begin() uint64 { return max(id.First, 1) }

// Empty reports whether the stream holds nothing yet.
func (id *Identity) Empty() bool { return id.LastSeq < id.Begin() }

// StreamConfigError says that a stream of the log's name is not a log that this build can trust.
type StreamConfigError struct {
	Stream    string
	Setting   string // as JetStream's JSON names it, "metadata.<key>" for metadata
	Got, Want string
}

func (e *StreamConfigError) Error() string {
	return fmt.Sprintf("jetstream: stream %s: setting %s is %s: want %s", e.Stream, e.Setting, e.Got, e.Want)
}

// streamConfig is the one set of settings under which the stream is made. Two creators whose settings differ in one byte get
// an error instead of the same stream, so nothing of a node's own may enter.
func (l *Log) streamConfig(clusterID wire.ID, epoch uint64) natsjs.StreamConfig {
	return natsjs.StreamConfig{
		Name:              l.stream,
		Description:       "allocnode: the log of reservations",
		Subjects:          []string{logSubject(l.cfg.Prefix, l.cfg.Epoch) + "*"},
		Retention:         natsjs.LimitsPolicy,
		MaxConsumers:      -1,
		MaxMsgs:           -1,
		MaxBytes:          -1,
		Discard:           natsjs.DiscardNew,
		MaxMsgsPerSubject: -1,
		MaxMsgSize:        maxMessage,
		Storage:           natsjs.FileStorage,
		Replicas:          l.cfg.Replicas,
		Duplicates:        duplicateWindow,
		DenyDelete:        true,
		Compression:       natsjs.NoCompression, // the server rewrites what it compresses
		RePublish: &natsjs.RePublish{
			Source:      logSubject(l.cfg.Prefix, l.cfg.Epoch) + "*",
			Destination: feedSubject(l.cfg.Prefix, clusterID),
		},
		AllowDirect: true,
		Metadata: map[string]string{
			metaClusterID: clusterID.String(),
			metaEpoch:     strconv.FormatUint(epoch, 10),
		},
	}
}

// Origin is what the stream of a recovery is made with.
type Origin struct {
	ClusterID wire.ID
	Epoch     uint64
	First     uint64  // seq of the genesis, 2 and up
	Recovery  wire.ID // differs where anything of the recovery does
}

func (l *Log) recoveredConfig(o Origin) natsjs.StreamConfig {
	c := l.streamConfig(o.ClusterID, o.Epoch)
	c.FirstSeq = o.First
	c.Metadata[metaFirst] = strconv.FormatUint(o.First, 10)
	c.Metadata[metaRecovery] = o.Recovery.String()
	return c
}

// checkOrigin reads what the metadata of a recovery's stream say beside cluster and epoch; all zero for another.
func (l *Log) checkOrigin(got natsjs.StreamConfig) (first uint64, recovery wire.ID, err error) {
	text, ok := got.Metadata[metaFirst]
	if !ok {
		return 0, wire.ID{}, nil
	}
	if first, err = strconv.ParseUint(text, 10, 64); err != nil || first < 2 {
		return 0, wire.ID{}, &StreamConfigError{l.stream, "metadata." + metaFirst, strconv.Quote(text), "a number, 2 and up"}
	}
	text = got.Metadata[metaRecovery]
	if recovery, err = wire.ParseID(text); err != nil || recovery.IsZero() {
		return 0, wire.ID{}, &StreamConfigError{l.stream, "metadata." + metaRecovery, strconv.Quote(text), "32 hexadecimal digits"}
	}
	return first, recovery, nil
}

// checkConfig returns what got's metadata say, or a [*StreamConfigError] for the first setting that could lose, hide or change
// an entry, or silence the feed. Not compared: description, placement, consumer limits, the duplicate window (best effort) and
// deny_purge (stricter is fine).
func (l *Log) checkConfig(got natsjs.StreamConfig) (clusterID wire.ID, epoch uint64, err error) {
	wrong := func(setting string, got, want any) error {
		return &StreamConfigError{l.stream, setting, fmt.Sprint(got), fmt.Sprint(want)}
	}
	text := got.Metadata[metaClusterID]
	clusterID, err = wire.ParseID(text)
	if err != nil || clusterID.IsZero() {
		return wire.ID{}, 0, wrong("metadata."+metaClusterID, strconv.Quote(text), "32 hexadecimal digits, not all zero")
	}
	text = got.Metadata[metaEpoch]
	epoch, err = strconv.ParseUint(text, 10, 64)
	if err != nil {
		return wire.ID{}, 0, wrong("metadata."+metaEpoch, strconv.Quote(text), "a number")
	}
	if l.cfg.Epoch > 1 && epoch != l.cfg.Epoch {
		return wire.ID{}, 0, wrong("metadata."+metaEpoch, strconv.Quote(text), l.cfg.Epoch)
	}
	first, _, err := l.checkOrigin(got)
	if err != nil {
		return wire.ID{}, 0, err
	}
	want := l.streamConfig(clusterID, epoch)
	var rePublish natsjs.RePublish
	if got.RePublish != nil {
		rePublish = *got.RePublish
	}
	for _, s := range []struct {
		setting   string
		got, want any
	}{
		{"subjects", got.Subjects, want.Subjects},
		{"storage", got.Storage, want.Storage},
		{"num_replicas", got.Replicas, want.Replicas},
		{"retention", got.Retention, want.Retention},
		{"discard", got.Discard, want.Discard},
		{"discard_new_per_subject", got.DiscardNewPerSubject, false},
		{"max_age", got.MaxAge, want.MaxAge},
		{"max_msgs", got.MaxMsgs, want.MaxMsgs},
		{"max_bytes", got.MaxBytes, want.MaxBytes},
		{"max_msgs_per_subject", got.MaxMsgsPerSubject, want.MaxMsgsPerSubject},
		{"no_ack", got.NoAck, false},
		{"mirror", got.Mirror != nil, false},
		{"sources", len(got.Sources), 0},
		{"sealed", got.Sealed, false},
		{"deny_delete", got.DenyDelete, true},
		{"allow_rollup_hdrs", got.AllowRollup, false},
		{"compression", got.Compression, want.Compression},
		{"subject_transform", got.SubjectTransform != nil, false},
		{"republish", rePublish, *want.RePublish},
		{"allow_direct", got.AllowDirect, true},
		{"mirror_direct", got.MirrorDirect, false},
		{"allow_msg_ttl", got.AllowMsgTTL, false},
		{"subject_delete_marker_ttl", got.SubjectDeleteMarkerTTL, time.Duration(0)},
		{"allow_msg_counter", got.AllowMsgCounter, false},
		{"allow_atomic", got.AllowAtomicPublish, false},
		{"allow_msg_schedules", got.AllowMsgSchedules, false},
		{"persist_mode", got.PersistMode, natsjs.DefaultPersistMode},
		{"allow_batched", got.AllowBatchPublish, false},
	} {
		if !reflect.DeepEqual(s.got, s.want) {
			return wire.ID{}, 0, wrong(s.setting, s.got, s.want)
		}
	}
	if got.MaxMsgSize >= 0 && got.MaxMsgSize < want.MaxMsgSize {
		return wire.ID{}, 0, wrong("max_msg_size", got.MaxMsgSize, fmt.Sprintf("at least %d", want.MaxMsgSize))
	}
	if max(got.FirstSeq, 1) != max(first, 1) {
		return wire.ID{}, 0, wrong("first_seq", got.FirstSeq, max(first, 1))
	}
	return clusterID, epoch, nil
}

// Identity asks the stream's leader. It tries until ctx ends, then the error is [ErrNoLeader]; [ErrNoStream] if the cluster
// knows no such stream; a [*StreamConfigError] if the stream is not such a log. A leader that was deposed and does not know it
// yet answers too.
func (l *Log) Identity(ctx context.Context) (Identity, error) {
	var id Identity
	err := retry(ctx, func() (err error) {
		id, err = l.identity(ctx)
		return err
	})
	if err != nil {
		return Identity{}, fmt.Errorf("identity of %s: %w", l.stream, err)
	}
	return id, nil
}

func (l *Log) identity(ctx context.Context) (Identity, error) {
	var info natsjs.StreamInfo
	if err := call(ctx, l.nc, "STREAM.INFO."+l.stream, nil, &info); err != nil {
		if isCode(err, codeNoStream) {
			return Identity{}, ErrNoStream
		}
		return Identity{}, err
	}
	// Where the group has no leader any replica answers, with what it happens to hold.
	if info.Cluster == nil || info.Cluster.Leader == "" {
		return Identity{}, fmt.Errorf("stream has no leader: %w", errNotYet)
	}
	clusterID, epoch, err := l.checkConfig(info.Config)
	if err != nil {
		return Identity{}, err
	}
	first, recovery, err := l.checkOrigin(info.Config)
	if err != nil {
		return Identity{}, err
	}
	return Identity{
		First: first, Recovery: recovery,
		Created:   info.Created,
		ClusterID: clusterID,
		Epoch:     epoch,
		FirstSeq:  info.State.FirstSeq,
		LastSeq:   info.State.LastSeq,
		Leader:    info.Cluster.Leader,
	}, nil
}

// Create makes the stream, or finds that there is one, and returns its identity: another cluster id than the one given means
// that another creator was first. Until ctx ends it tries again where the cluster has no leader, too few servers or no answer;
// then the error is [ErrNoLeader], and the stream may exist or come to exist. [ErrOneServer] is as it says; a
// [*StreamConfigError] is as in [Log.Identity].
func (l *Log) Create(ctx context.Context, clusterID wire.ID, epoch uint64) (Identity, error) {
	if clusterID.IsZero() {
		return Identity{}, fmt.Errorf("create %s: cluster id is zero", l.stream)
	}
	return l.create(ctx, l.streamConfig(clusterID, epoch))
}

// CreateRecovered is Create for the stream of a recovery: another Recovery than the one given means that the operator's nodes
// do not have the same one.
func (l *Log) CreateRecovered(ctx context.Context, o Origin) (Identity, error) {
	if o.ClusterID.IsZero() || o.Recovery.IsZero() || o.First < 2 || o.Epoch < 2 || o.Epoch != l.cfg.Epoch {
		return Identity{}, fmt.Errorf("create %s: not the origin of a recovery: %+v", l.stream, o)
	}
	return l.create(ctx, l.recoveredConfig(o))
}

func (l *Log) create(ctx context.Context, cfg natsjs.StreamConfig) (Identity, error) {
	var id Identity
	err := retry(ctx, func() (err error) {
		var created struct{}
		err = call(ctx, l.nc, "STREAM.CREATE."+l.stream, cfg, &created)
		switch {
		case isCode(err, codeOneServer):
			return ErrOneServer
		case err != nil && !isCode(err, codeNameInUse):
			return err
		}
		id, err = l.identity(ctx)
		if errors.Is(err, ErrNoStream) {
			return fmt.Errorf("stream was made and is not known: %w", errNotYet) // its assignment is on its way
		}
		return err
	})
	if err != nil {
		return Identity{}, fmt.Errorf("create %s: %w", l.stream, err)
	}
	return id, nil
}

// LatestEpoch asks JetStream which epochs of the log under prefix have a stream, and returns the highest; 0 where there is none.
// It tries until ctx ends, then the error is [ErrNoLeader].
func LatestEpoch(ctx context.Context, nc *nats.Conn, prefix string) (epoch uint64, err error) {
	var names []string
	err = retry(ctx, func() error {
		var found struct {
			Streams []string `json:"streams"`
		}
		err := call(ctx, nc, "STREAM.NAMES", map[string]string{"subject": prefix + ".log.>"}, &found)
		names = found.Streams
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("look for logs under %s: %w", prefix, err)
	}
	for _, name := range names {
		if e, ok := epochOf(prefix, name); ok {
			epoch = max(epoch, e)
		}
	}
	return epoch, nil
}

// epochOf is the epoch whose log a stream of this name holds.
func epochOf(prefix, name string) (epoch uint64, ok bool) {
	if name == StreamName(prefix) {
		return 1, true
	}
	text, ok := strings.CutPrefix(name, StreamName(prefix)+"_")
	if !ok {
		return 0, false
	}
	epoch, err := strconv.ParseUint(text, 10, 64)
	return epoch, err == nil && epoch > 1 && streamName(prefix, epoch) == name
}

// serviceVerbs are the second tokens of the subjects on which requests come in.
var serviceVerbs = []string{"reserve", "next", "info", "list", "create", "advance", "status", "forget", "resume"}

// CheckSubjects returns an error that names stream and subject if a stream in nc's account captures a subject of the service
// under prefix. JetStream would send its PubAck to the requester's inbox, most likely before the range, and keep a copy of each
// request. The log itself captures none. No JetStream in the account is no error. Where nobody answers until ctx ends the error
// is [ErrNoLeader]: not known.
func CheckSubjects(ctx context.Context, nc *nats.Conn, prefix string) error {
	for _, verb := range serviceVerbs {
		for _, subject := range []string{prefix + "." + verb, prefix + "." + verb + ".>"} {
			names, err := capturing(ctx, nc, subject)
			if err != nil {
				return fmt.Errorf("look for streams on %s: %w", subject, err)
			}
			if len(names) > 0 {
				return fmt.Errorf("stream %s captures the service subject %s: JetStream would answer requests with its own "+
					"acknowledgement, which reaches the requester's inbox in place of a range; "+
					"take the subject out of the stream, or use another prefix", names[0], subject)
			}
		}
	}
	return nil
}

func capturing(ctx context.Context, nc *nats.Conn, subject string) ([]string, error) {
	var found struct {
		Streams []string `json:"streams"`
	}
	err := retry(ctx, func() error {
		err := call(ctx, nc, "STREAM.NAMES", map[string]string{"subject": subject}, &found)
		// With JetStream elsewhere in the cluster but not for this account there may be nobody to answer, or an error.
		if errors.Is(err, nats.ErrNoResponders) || isCode(err, codeNotForAccount) || isCode(err, codeNotEnabled) {
			return nil
		}
		return err
	})
	return found.Streams, err
}

// HoldsLog reports whether the data directory of an embedded server holds entries of the log under prefix, and whether the
// server that wrote them was one of a cluster. It looks at nats-server's files without opening them, so it is for before
// the server is started: one that is started in the other mode than before deletes them.
func HoldsLog(dataDir, prefix string) (holds, clustered bool, err error) {
	store := filepath.Join(dataDir, "jetstream")
	streams := filepath.Join(store, defaultLogAccount, "streams")
	dirs, err := os.ReadDir(streams)
	if errors.Is(err, fs.ErrNotExist) {
		return false, false, nil
	}
	for _, dir := range dirs {
		if _, ours := epochOf(prefix, dir.Name()); !ours {
			continue
		}
		files, dirErr := os.ReadDir(filepath.Join(streams, dir.Name(), "msgs"))
		if !errors.Is(dirErr, fs.ErrNotExist) {
			err = errors.Join(err, dirErr)
		}
		for _, f := range files {
			info, infoErr := f.Info()
			err = errors.Join(err, infoErr)
			holds = holds || infoErr == nil && filepath.Ext(f.Name()) == ".blk" && info.Size() > 0
		}
	}
	if err != nil {
		return false, false, fmt.Errorf("look for files of a log: %w", err)
	}
	_, err = os.Stat(filepath.Join(store, "$SYS", "_js_", "_meta_"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, false, fmt.Errorf("look for files of a cluster: %w", err)
	}
	return holds, err == nil, nil
}
