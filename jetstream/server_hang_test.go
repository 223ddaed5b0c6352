package jetstream

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"
)

// A nats-server that does not come out of its start is told of, and does not keep the node from ending.
// Checked: without the ticker nothing was told; with a plain wait for started, Start never returned.
func TestStartHangs(t *testing.T) {
	told := make(chan struct{}, 64)
	cfg, _ := testConfig(t, "")
	cfg.Logger = slog.New(slog.NewTextHandler(writerFunc(func(line string) {
		if strings.Contains(line, "still reading its store") {
			told <- struct{}{}
		}
	}), nil))
	s, err := NewServer(cfg)
	if err != nil {
		t.Fatal(err)
	}
	hang := make(chan struct{})
	defer close(hang)
	s.start, s.patience = func() { <-hang }, time.Millisecond
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Start(ctx) }()
	for range 2 {
		select {
		case <-told:
		case <-within(t, 30*time.Second).Done():
			t.Fatal("nothing was told")
		}
	}
	cancel()
	select {
	case err := <-done:
		if err == nil || !strings.Contains(err.Error(), "still hangs in its start") {
			t.Errorf("start: %v", err)
		}
	case <-within(t, 30*time.Second).Done():
		t.Fatal("Start did not return")
	}
}
