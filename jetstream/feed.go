package jetstream

import (
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/allocnode/allocnode/internal/wire"
)

const (
	// What a feed may hold while fn is busy. Beyond it messages are dropped and counted, and the reader fills the gap.
	feedPendingMsgs  = 1 << 16
	feedPendingBytes = 64 << 20

	flushTimeout = 2 * time.Second
)

// feedSubject is where the stream's leader republishes what was committed. It contains the cluster id, so that two clusters
// which come to share one subject space do not hear each other.
func feedSubject(prefix string, clusterID wire.ID) string {
	return prefix + ".feed." + clusterID.String()
}

// Feed calls fn with each message that the leader of the cluster's stream commits from now on, soon after the commit, in the
// order of arrival and from one goroutine. It is a hint: messages may be missing, and after the stream was made anew seqs begin
// again. stop returns when fn runs no more; it must not be called from fn.
func (l *Log) Feed(clusterID wire.ID, fn func(Message)) (stop func(), err error) {
	subject := feedSubject(l.cfg.Prefix, clusterID)
	stop, err = l.subscribe(subject, feedPendingMsgs, feedPendingBytes, func(m *nats.Msg) {
		msg, _, ok := l.parseMessage(m)
		if !ok {
			l.lost.Add(1)
			return
		}
		fn(msg)
	})
	if err != nil {
		return nil, fmt.Errorf("feed of cluster %s: %w", clusterID, err)
	}
	return stop, nil
}

// Dropped is the number of messages since NewLog that reached a subscription of l and no callback: because the callback was too
// slow, or because they were no messages of the log. For counters; the order of things does not depend on it.
func (l *Log) Dropped() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := l.lost.Load()
	for s := range l.subs {
		n += s.dropped()
	}
	return n
}

// OnLeaderChange calls fn, from one goroutine, after each election of a leader of the stream that the servers tell of. They do
// so at most once, so look every second as well. stop is as in [Log.Feed]. A stream on a server that is alone elects nobody.
func (l *Log) OnLeaderChange(fn func()) (stop func(), err error) {
	subject := "$JS.EVENT.ADVISORY.STREAM.LEADER_ELECTED." + l.stream
	stop, err = l.subscribe(subject, feedPendingMsgs, feedPendingBytes, func(*nats.Msg) { fn() })
	if err != nil {
		return nil, fmt.Errorf("elections of %s: %w", l.stream, err)
	}
	return stop, nil
}

// subscription is one of l's, with what it takes to await the end of its callback.
type subscription struct {
	sub   *nats.Subscription
	ended chan struct{} // closed when the callback has run for the last time
	stop  func()
}

func (s *subscription) dropped() uint64 {
	n, err := s.sub.Dropped()
	if err != nil || n < 0 {
		return 0
	}
	return uint64(n)
}

// subscribe registers fn and returns when the server has taken note, so that what is published afterwards is heard.
func (l *Log) subscribe(subject string, msgs, bytes int, fn nats.MsgHandler) (stop func(), err error) {
	sub, err := l.nc.Subscribe(subject, fn)
	if err != nil {
		return nil, err
	}
	s := &subscription{sub: sub, ended: make(chan struct{})}
	sub.SetClosedHandler(func(string) { close(s.ended) })
	s.stop = sync.OnceFunc(func() { l.unsubscribe(s) })
	err = sub.SetPendingLimits(msgs, bytes)
	if err == nil {
		err = l.nc.FlushTimeout(flushTimeout)
	}
	if err != nil {
		// Not awaited: a connection that closed in between may have ended the callback before there was a handler.
		sub.Unsubscribe()
		return nil, err
	}
	l.mu.Lock()
	closed := l.subs == nil
	if !closed {
		l.subs[s] = struct{}{}
	}
	l.mu.Unlock()
	if closed {
		s.stop()
		return nil, fmt.Errorf("log of %s is closed", l.stream)
	}
	return s.stop, nil
}

func (l *Log) unsubscribe(s *subscription) {
	l.mu.Lock()
	delete(l.subs, s)
	l.lost.Add(s.dropped())
	l.mu.Unlock()
	s.sub.Unsubscribe() // fails only where the connection is closed, which has ended it already
	<-s.ended
}
