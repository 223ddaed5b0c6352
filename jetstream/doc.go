// Package jetstream is allocnode's side of NATS: the server that a node embeds, and the log, which is one JetStream stream.
//
// The server half ([Server], [ParseConfig], [LockDir]) owns the server's settings, its directory, and the two in-process
// connections that a node works through.
//
// The log half ([Log]) owns the stream's settings, its identity (creation time, cluster id, epoch), appending with
// acknowledgements, and every way of reading. It does not know what an entry means, never decides that a node must fence, and
// keeps nothing on disk. It says what it saw; the caller compares that with what the node recorded.
//
// An entry goes in by [Log.Append] on "<prefix>.log.<node>" and comes back by two ways:
//
//	Append ──► stream's leader ──raft──► commit ──► PubAck ──► OnAck    how it went
//	                                       ├──────► RePublish ► Feed    fast, at most once: a hint
//	                                       └──────► store ◄─── Read     complete, in order, any replica
//	                                                     ◄─── Get       the leader's own copy
//
// Who may be believed:
//
//  1. [Log.Identity] and [Log.Get] are answered by the stream's leader. A deposed leader answers too, for up to some twenty
//     seconds, until it notices. Only an entry of one's own that comes back through the log proves that an answer was fresh.
//  2. [Log.Read] and [Log.GetDirect] are answered by any replica, which may lag: they never prove that something is absent.
//     What they return was committed.
//  3. [Log.Feed] may lose messages, and survives a stream that was deleted and made anew.
//  4. An append without an acknowledgement has an unknown outcome. The same message id makes a repetition harmless within the
//     stream's duplicate window; the state machine ignores a second copy for good.
//
// No call waits for one long API request, since a request made before the cluster has a leader may get no answer at all: tries
// of two seconds are repeated until the context ends.
//
// Goroutines: [Server.Start] starts the server's and one that watches it, and [Server.Shutdown] awaits them. A [Log] has those
// that nats.go keeps for its subscriptions: one for OnAck, one for each Feed and OnLeaderChange. A callback that blocks delays
// only its own subscription, and [Log.Close] waits for it.
package jetstream
