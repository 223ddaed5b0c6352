package jetstream_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/allocnode/allocnode/internal/wire"
	"github.com/allocnode/allocnode/jetstream"
)

func ExampleLog() {
	dir, err := os.MkdirTemp("", "")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	s, err := server.NewServer(&server.Options{
		Host: "127.0.0.1", Port: server.RANDOM_PORT, JetStream: true, StoreDir: dir, SyncAlways: true, NoLog: true, NoSigs: true,
	})
	if err != nil {
		log.Fatal(err)
	}
	go s.Start()
	defer s.WaitForShutdown()
	defer s.Shutdown()
	if !s.ReadyForConnections(10 * time.Second) {
		log.Fatal("server is not ready")
	}
	nc, err := nats.Connect("", nats.InProcessServer(s))
	if err != nil {
		log.Fatal(err)
	}
	defer nc.Close()

	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	l, err := jetstream.NewLog(nc, jetstream.DefaultLogConfig(), "n1")
	if err != nil {
		log.Fatal(err)
	}
	defer l.Close()
	id, err := l.Create(ctx, wire.ID{15: 1}, 1)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("cluster", id.ClusterID, "epoch", id.Epoch, "last seq", id.LastSeq)
	if err := l.AppendFirst(ctx, "genesis", []byte("genesis")); err != nil {
		log.Fatal(err)
	}

	acked := make(chan jetstream.Ack, 1)
	l.OnAck(func(_ uint64, a jetstream.Ack) { acked <- a })
	if err := l.Append(1, "incarnation-1", []byte("an entry")); err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%+v\n", <-acked)

	last, err := l.Read(ctx, 1, func(m jetstream.Message) error {
		fmt.Printf("%d %s %s\n", m.Seq, m.Subject, m.Data)
		return nil
	})
	fmt.Println("read to", last, err)
	// Output:
	// cluster 00000000000000000000000000000001 epoch 1 last seq 0
	// {Seq:2 Duplicate:false Err:<nil>}
	// 1 alloc.log.n1 genesis
	// 2 alloc.log.n1 an entry
	// read to 2 <nil>
}
