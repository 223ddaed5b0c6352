package client_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/allocnode/allocnode"
	"github.com/allocnode/allocnode/client"
)

// The cluster is known from its first answer on; answers of another are refused from then on.
func ExampleClient_Cluster() {
	nc, stop := exampleServer()
	defer stop()
	c, _ := client.New(nc)
	defer c.Close()
	before := len(c.Cluster())
	c.Reserve(context.Background(), "orders", 1)
	fmt.Println(before, len(c.Cluster()))
	// Output: 0 32
}

// After Close nothing of the client is left, and the connection still works.
func ExampleClient_Close() {
	nc, stop := exampleServer()
	defer stop()
	c, _ := client.New(nc)
	fmt.Println(c.Close(), nc.IsConnected())
	_, err := c.Reserve(context.Background(), "orders", 1)
	fmt.Println(errors.Is(err, client.ErrClosed))
	// Output:
	// <nil> true
	// true
}

// A key is made and stored before the first attempt. The new process after a crash asks with it again.
func ExampleClient_NewKey() {
	nc, stop := exampleServer()
	defer stop()
	before, _ := client.New(nc)
	key := before.NewKey()
	first, _ := before.Reserve(context.Background(), "orders", 10, client.WithKey(key))
	before.Close()

	after, _ := client.New(nc)
	defer after.Close()
	again, err := after.Reserve(context.Background(), "orders", 10, client.WithKey(key))
	fmt.Println(first == again, err)
	// Output: true <nil>
}

// A service that takes ids one by one opens a sequence once, and closes it at its end.
func ExampleClient_Sequence() {
	nc, stop := exampleServer()
	defer stop()
	c, _ := client.New(nc)
	defer c.Close()
	orders, err := c.Sequence("orders", client.WithBatch(1000, 1_000_000))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer orders.Close()
	id, err := orders.Next(context.Background())
	fmt.Println(id, err)
	_, err = c.Sequence("no spaces")
	fmt.Println(errors.Is(err, allocnode.ErrBadRequest))
	// Output:
	// 1 <nil>
	// true
}

func ExampleClient_Info() {
	nc, stop := exampleServer()
	defer stop()
	c, _ := client.New(nc)
	defer c.Close()
	ctx := context.Background()
	c.Reserve(ctx, "orders", 10)
	info, err := c.Info(ctx, "orders", client.Consistent())
	fmt.Println(info.HWM, info.MaxCount, err)
	_, err = c.Info(ctx, "users")
	fmt.Println(errors.Is(err, allocnode.ErrNotFound))
	// Output:
	// 10 1000000 <nil>
	// true
}

// A node's disk was lost for good: its name is free again.
func ExampleClient_Forget() {
	nc, stop := exampleServer()
	defer stop()
	c, _ := client.New(nc)
	defer c.Close()
	_, err := c.Forget(context.Background(), "n1")
	fmt.Println(err)
	// Output: <nil>
}

func ExampleClient_Stats() {
	nc, stop := exampleServer()
	defer stop()
	c, _ := client.New(nc)
	defer c.Close()
	c.Reserve(context.Background(), "orders", 10)
	fmt.Printf("%+v\n", c.Stats())
	// Output: {Calls:1 Requests:1 Retries:0 Sequences:0}
}

func ExampleSequence_Stats() {
	nc, stop := exampleServer()
	defer stop()
	c, _ := client.New(nc)
	defer c.Close()
	orders, _ := c.Sequence("orders", client.WithBatch(100, 100))
	orders.Next(context.Background())
	st := orders.Stats()
	fmt.Println(st.BatchSize, st.Remaining >= 99, st.Waits)
	// Output: 100 true 1
}

// What a sequence still holds when it is closed is a gap.
func ExampleSequence_Close() {
	nc, stop := exampleServer()
	defer stop()
	c, _ := client.New(nc)
	defer c.Close()
	orders, _ := c.Sequence("orders")
	orders.Next(context.Background())
	fmt.Println(orders.Close())
	_, err := orders.Next(context.Background())
	fmt.Println(errors.Is(err, client.ErrClosed), orders.Stats().Dropped >= 99)
	// Output:
	// <nil>
	// true true
}
