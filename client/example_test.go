package client_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/allocnode/allocnode"
	"github.com/allocnode/allocnode/client"
)

// exampleServer runs a stand-in for a cluster, and connects to it. stop ends both.
func exampleServer() (nc *nats.Conn, stop func()) {
	tb := &exampleTB{}
	return connect(tb, newFake(tb).url), tb.end
}

// exampleTB is as much of a testing.TB as the stand-in wants: examples have none.
type exampleTB struct {
	testing.TB
	cleanups []func()
}

func (tb *exampleTB) Helper()           {}
func (tb *exampleTB) Cleanup(f func())  { tb.cleanups = append(tb.cleanups, f) }
func (tb *exampleTB) Fatal(args ...any) { log.Fatal(args...) }
func (tb *exampleTB) end() {
	for _, f := range slices.Backward(tb.cleanups) {
		f()
	}
}

// An application connects as it always does, and hands the connection over.
func ExampleNew() {
	nc, stop := exampleServer() // nats.Connect("nats://127.0.0.1:4222")
	defer stop()
	c, err := client.New(nc, client.WithPrefix("alloc"), client.WithRetryAfter(time.Second))
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	r, err := c.Reserve(ctx, "orders", 1000)
	fmt.Println(r, r.Count(), err)
	// Output: [1, 1001) 1000 <nil>
}

// A key is stored before the first attempt; whoever finds it later gets the same range.
func ExampleClient_Reserve() {
	nc, stop := exampleServer()
	defer stop()
	c, _ := client.New(nc)
	defer c.Close()
	ctx := context.Background()

	key := c.NewKey()
	r, err := c.Reserve(ctx, "orders", 10, client.WithKey(key))
	fmt.Println(r, err)
	r, err = c.Reserve(ctx, "orders", 10, client.WithKey(key))
	fmt.Println(r, err)
	// Output:
	// [1, 11) <nil>
	// [1, 11) <nil>
}

// At the end of a sequence, what is left may be taken.
func ExampleWithPartial() {
	nc, stop := exampleServer()
	defer stop()
	c, _ := client.New(nc)
	defer c.Close()
	ctx := context.Background()

	c.Create(ctx, "tickets", client.Settings{Max: 25})
	c.Reserve(ctx, "tickets", 20)
	_, err := c.Reserve(ctx, "tickets", 10)
	var refusal *allocnode.Error
	fmt.Println(errors.Is(err, allocnode.ErrExhausted), errors.As(err, &refusal) && refusal.Remaining == 5)
	r, err := c.Reserve(ctx, "tickets", 10, client.WithPartial())
	fmt.Println(r, err)
	// Output:
	// true true
	// [21, 26) <nil>
}

// Where no answer came, the error has the key to ask again with.
func ExampleUnknownOutcomeError() {
	ask := func() error { return &client.UnknownOutcomeError{Key: "5f1d…", Err: context.DeadlineExceeded} }
	err := ask()
	var unknown *client.UnknownOutcomeError
	if errors.As(err, &unknown) {
		fmt.Println("again with", unknown.Key)
	}
	fmt.Println(errors.Is(err, allocnode.ErrUnknownOutcome), errors.Is(err, context.DeadlineExceeded))
	// Output:
	// again with 5f1d…
	// true true
}

// Single ids come from memory.
func ExampleSequence_Next() {
	nc, stop := exampleServer()
	defer stop()
	c, _ := client.New(nc)
	defer c.Close()
	ids, err := c.Sequence("orders", client.WithBatch(100, 1_000_000))
	if err != nil {
		log.Fatal(err)
	}
	defer ids.Close()
	for range 3 {
		fmt.Println(ids.Next(context.Background()))
	}
	// Output:
	// 1 <nil>
	// 2 <nil>
	// 3 <nil>
}

func ExampleSequence_All() {
	nc, stop := exampleServer()
	defer stop()
	c, _ := client.New(nc)
	defer c.Close()
	c.Create(context.Background(), "seats", client.Settings{Max: 3})
	ids, _ := c.Sequence("seats")
	for id, err := range ids.All(context.Background()) {
		fmt.Println(id, errors.Is(err, allocnode.ErrExhausted))
	}
	// Output:
	// 1 false
	// 2 false
	// 3 false
	// 0 true
}

func ExampleSequence_Take() {
	nc, stop := exampleServer()
	defer stop()
	c, _ := client.New(nc)
	defer c.Close()
	ids, _ := c.Sequence("orders", client.WithBatch(100, 100))
	fmt.Println(ids.Next(context.Background()))
	fmt.Println(ids.Take(context.Background(), 10))
	fmt.Println(ids.Stats().Remaining)
	// Output:
	// 1 <nil>
	// [2, 12) <nil>
	// 89
}

// An import brought ids up to 5,000: none of them is issued again.
func ExampleClient_Advance() {
	nc, stop := exampleServer()
	defer stop()
	c, _ := client.New(nc)
	defer c.Close()
	ctx := context.Background()
	a, err := c.Advance(ctx, "orders", 5000)
	fmt.Println(a.Old, a.HWM, err)
	fmt.Println(c.Reserve(ctx, "orders", 1))
	// Output:
	// 0 5000 <nil>
	// [5001, 5002) <nil>
}

// A caller that needs an id now and then asks a node for one of those that the node holds.
func ExampleClient_NodeNext() {
	nc, stop := exampleServer()
	defer stop()
	c, _ := client.New(nc)
	defer c.Close()
	ranges, err := c.NodeNext(context.Background(), "orders", 1)
	fmt.Println(ranges[0].Start, err)
	// Output: 1 <nil>
}

func ExampleClient_Create() {
	nc, stop := exampleServer()
	defer stop()
	c, _ := client.New(nc)
	defer c.Close()
	s, err := c.Create(context.Background(), "short", client.Settings{Max: 1<<32 - 1})
	fmt.Printf("%+v %v\n", s.Settings, err)
	// Output: {First:1 Max:4294967295 MaxCount:1000000} <nil>
}

func ExampleClient_List() {
	nc, stop := exampleServer()
	defer stop()
	c, _ := client.New(nc)
	defer c.Close()
	ctx := context.Background()
	c.Reserve(ctx, "orders", 10)
	c.Reserve(ctx, "users", 3)
	for s, err := range c.List(ctx, client.Consistent()) {
		fmt.Println(s.Sequence, s.HWM, err)
	}
	info, err := c.Info(ctx, "users")
	fmt.Println(info.Sequence, info.Remaining, err)
	// Output:
	// orders 10 <nil>
	// users 3 <nil>
	// users 9007199254740988 <nil>
}

func ExampleClient_Status() {
	nc, stop := exampleServer()
	defer stop()
	c, _ := client.New(nc)
	defer c.Close()
	nodes, err := c.Status(context.Background())
	for _, n := range nodes {
		fmt.Println(n.Name, n.State, n.Ready, err)
	}
	// Output: n1 serving true <nil>
}

// After an exhaustion halted a sequence, or a node's disk was lost, an operator says that it goes on.
func ExampleClient_Resume() {
	nc, stop := exampleServer()
	defer stop()
	c, _ := client.New(nc)
	defer c.Close()
	_, err := c.Resume(context.Background(), "orders")
	fmt.Println(err)
	_, err = c.Forget(context.Background(), "n1")
	fmt.Println(err)
	_, err = c.Forget(context.Background(), "stranger")
	fmt.Println(errors.Is(err, allocnode.ErrNotFound))
	// Output:
	// <nil>
	// <nil>
	// true
}
