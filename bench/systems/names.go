package systems

// Names of the rows. The ratios under the table refer to them.
const (
	Reserve       = "allocnode R3 reserve"
	ReserveMerged = "allocnode R3 reserve, merged in the client"
	ReserveMany   = "allocnode R3 reserve, 100,000 sequences"
	NodeNext      = "allocnode R3 alloc.next"
	ReserveR1     = "allocnode R1 reserve"
	Next          = "allocnode Sequence.Next"

	Echo          = "limit: core NATS echo"
	EchoInProcess = "limit: core NATS echo, responder inside"
	Publish       = "limit: JetStream R3 publish, awaited"
	Pipelined     = "limit: JetStream R3 publish, pipelined"
	AtomicAdd     = "limit: atomic.Add"
	Fsync         = "limit: write and fsync of 4 KiB"

	EtcdPut     = "etcd Put, its revision"
	EtcdCAS     = "etcd compare-and-swap"
	NATSCounter = "NATS counter R3"
	NATSCAS     = "NATS KV compare-and-swap R3"

	Nextval       = "PostgreSQL nextval, CACHE 1"
	NextvalCached = "PostgreSQL nextval, CACHE 1000"
	UpdateRow     = "PostgreSQL UPDATE … RETURNING"
	RedisIncr     = "Redis INCRBY"
	RedisPipe     = "Redis INCRBY, pipelined by the client"

	Sonyflake = "sony/sonyflake v2"
	Snowflake = "bwmarrin/snowflake"
	ULID      = "oklog/ulid v2"
	UUID      = "google/uuid v7"
)
