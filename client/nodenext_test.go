package client_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/allocnode/allocnode"
	"github.com/allocnode/allocnode/client"
)

func TestNodeNext(t *testing.T) {
	f := newFake(t)
	c := f.client()
	for _, tc := range []struct {
		count uint64
		want  string
	}{{1, "[[1, 2)]"}, {3, "[[2, 5)]"}, {5, "[[5, 8) [11, 13)]"}} {
		if got, err := c.NodeNext(deadline(t), "orders", tc.count); err != nil || fmt.Sprint(got) != tc.want {
			t.Errorf("%d ids: %v, %v, want %s", tc.count, got, err, tc.want)
		}
	}
	if c.Cluster() != f.cluster.String() {
		t.Errorf("pinned %s", c.Cluster())
	}
	if _, err := c.Create(deadline(t), "tiny", client.Settings{Max: 5, MaxCount: 5}); err != nil {
		t.Fatal(err)
	}
	if got, err := c.NodeNext(deadline(t), "tiny", 2); err != nil || fmt.Sprint(got) != "[[1, 3)]" {
		t.Errorf("%v, %v", got, err)
	}
	var e *allocnode.Error
	if _, err := c.NodeNext(deadline(t), "tiny", 4); !errors.As(err, &e) || e.Code != allocnode.CodeExhausted || e.Remaining != 3 {
		t.Errorf("exhausted: %v", err)
	}
}

// What is wrong for sure is not sent.
func TestNodeNextRefusedHere(t *testing.T) {
	f := newFake(t)
	c := f.client()
	if _, err := c.Create(deadline(t), "small", client.Settings{MaxCount: 7}); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		sequence string
		count    uint64
	}{{"orders", 0}, {"orders", allocnode.MaxID + 1}, {"or ders", 1}, {"", 1}, {"orders.", 1}, {"small", 8}} {
		if got, err := c.NodeNext(deadline(t), tc.sequence, tc.count); !errors.Is(err, allocnode.ErrBadRequest) {
			t.Errorf("%q, %d: %v, %v", tc.sequence, tc.count, got, err)
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.nexts != 0 {
		t.Errorf("%d requests were sent", f.nexts)
	}
}

// An answer that got lost is a gap: asking again gives other ids.
func TestNodeNextLostAnswer(t *testing.T) {
	f := newFake(t)
	c := f.client(client.WithRetryAfter(10 * time.Millisecond))
	f.mu.Lock()
	f.loseNext = 2
	f.mu.Unlock()
	if got, err := c.NodeNext(deadline(t), "orders", 2); err != nil || fmt.Sprint(got) != "[[5, 7)]" {
		t.Errorf("%v, %v", got, err)
	}
	f.mu.Lock()
	f.loseNext = 1 << 20
	f.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	var unknown *client.UnknownOutcomeError
	if _, err := c.NodeNext(ctx, "orders", 2); !errors.As(err, &unknown) || unknown.Key != "" ||
		!errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("no answer at all: %v", err)
	}
}

// Strangers' answers, and answers about something else, are none. Checked: without match the second body was taken; without
// the count given to DecodeNext the third was.
func TestNodeNextStrangersAnswer(t *testing.T) {
	for _, body := range []string{
		`{"stream":"S","seq":1}`, `{"sequence":"users","id":9,"cluster":"CLUSTER"}`,
		`{"sequence":"orders","count":2,"ranges":[{"start":9,"end":11}],"cluster":"CLUSTER"}`,
	} {
		f := newFake(t)
		f.mu.Lock()
		f.stranger = strings.ReplaceAll(body, "CLUSTER", f.cluster.String())
		f.mu.Unlock()
		if got, err := f.client().NodeNext(deadline(t), "orders", 1); err != nil || fmt.Sprint(got) != "[[1, 2)]" {
			t.Errorf("beside %s: %v, %v", body, got, err)
		}
	}
}
