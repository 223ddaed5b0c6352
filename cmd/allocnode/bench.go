package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/allocnode/allocnode"
	"github.com/allocnode/allocnode/client"
)

// benchFlags are the flags of a bench.
type benchFlags struct {
	connFlags
	clients     int
	connections int
	count       uint64
	duration    time.Duration
	batch       uint64
}

const (
	maxClients      = 100_000
	maxConnections  = 10_000
	defaultRequests = 100_000
	maxRequests     = 10_000_000_000
	maxDuration     = 24 * time.Hour
)

func newBench() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measure how fast ids come, and check that none comes twice",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return fmt.Errorf("unknown bench %q: reserve or next", args[0])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(
		newBenchOf("reserve", "Measure reservations through the log",
			`Each client reserves --batch ids through the log, waits for them, and asks again.

Clients that share a connection are one client of the Go package: their calls are merged into few requests.`,
			func(c *client.Client, sequence string, batch uint64) draw {
				return func(ctx context.Context) ([]allocnode.Range, error) {
					r, err := c.Reserve(ctx, sequence, batch)
					return []allocnode.Range{r}, err
				}
			}),
		newBenchOf("next", "Measure ids from the nodes' own batches",
			`Each client asks a node for --batch ids of the batch that it holds, waits for them, and asks again.`,
			func(c *client.Client, sequence string, batch uint64) draw {
				return func(ctx context.Context) ([]allocnode.Range, error) { return c.NodeNext(ctx, sequence, batch) }
			}),
	)
	return cmd
}

func newBenchOf(name, short, long string, drawOf func(c *client.Client, sequence string, batch uint64) draw) *cobra.Command {
	var f benchFlags
	cmd := &cobra.Command{
		Use:   name + " [SEQUENCE]",
		Short: short,
		Long: long + `

It ends after --count requests or after --duration, whichever comes first, and at the first error; Ctrl-C ends it too. Then
it prints what was measured, and fails when an id came twice. The ids are really used up: SEQUENCE is bench if it is not
given.`,
		Example: fmt.Sprintf("  allocnode bench %s --clients 256 --connections 1 --duration 10s", name),
		Args:    between(0, "SEQUENCE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			sequence := "bench"
			if len(args) > 0 {
				sequence = args[0]
			}
			if err := allocnode.CheckName(sequence); err != nil {
				return err
			}
			return f.bench(cmd, name, sequence, drawOf)
		},
	}
	f.add(cmd)
	fs := cmd.Flags()
	fs.Lookup("timeout").Usage = "how long a request may take, retries included"
	fs.IntVar(&f.clients, "clients", 1, fmt.Sprintf("how `MANY` clients ask at a time, at most %d", maxClients))
	fs.IntVar(&f.connections, "connections", 0, fmt.Sprintf("how `MANY` connections they share (default one each; at most %d)",
		maxConnections))
	fs.Uint64Var(&f.count, "count", 0, fmt.Sprintf(
		"how `MANY` requests in all (default %d, without limit where --duration is given)", defaultRequests))
	fs.DurationVar(&f.duration, "duration", 0, fmt.Sprintf("how long, at most %s", maxDuration))
	fs.Uint64Var(&f.batch, "batch", 1, "how `MANY` ids each request asks for")
	return cmd
}

func (f *benchFlags) check(cmd *cobra.Command) error {
	switch given := cmd.Flags().Changed; {
	case f.clients < 1 || f.clients > maxClients:
		return fmt.Errorf("--clients %d: want 1 to %d", f.clients, maxClients)
	case given("connections") && (f.connections < 1 || f.connections > f.clients):
		return fmt.Errorf("--connections %d: want 1 to the number of clients, %d", f.connections, f.clients)
	case given("count") && (f.count < 1 || f.count > maxRequests):
		return fmt.Errorf("--count %d: want 1 to %d", f.count, uint64(maxRequests))
	case given("duration") && (f.duration <= 0 || f.duration > maxDuration):
		return fmt.Errorf("--duration %s: want more than 0 and at most %s", f.duration, maxDuration)
	case f.batch < 1 || f.batch > allocnode.MaxID:
		return fmt.Errorf("--batch %d: want 1 to %d", f.batch, allocnode.MaxID)
	}
	if f.connections == 0 {
		f.connections = f.clients
	}
	if f.connections > maxConnections {
		return fmt.Errorf("%d connections: at most %d, --connections says how many the clients share", f.connections,
			maxConnections)
	}
	if f.count == 0 {
		if f.count = defaultRequests; f.duration > 0 {
			f.count = maxRequests
		}
	}
	if f.duration == 0 {
		f.duration = maxDuration
	}
	return f.connFlags.check()
}

func (f *benchFlags) bench(
	cmd *cobra.Command, name, sequence string, drawOf func(c *client.Client, sequence string, batch uint64) draw,
) error {
	if err := f.check(cmd); err != nil {
		return err
	}
	ctx, fail := context.WithCancelCause(cmd.Context())
	defer fail(nil)
	clients := make([]*client.Client, f.connections)
	for i := range clients {
		nc, err := f.connect(ctx, fail)
		if err != nil {
			return err
		}
		defer nc.Close()
		c, err := client.New(nc, client.WithPrefix(f.prefix))
		if err != nil {
			return err
		}
		defer c.Close()
		clients[i] = c
	}
	r := trial{batch: f.batch, count: f.count, duration: f.duration, timeout: f.timeout, draws: make([]draw, f.clients)}
	for i := range r.draws {
		r.draws[i] = drawOf(clients[i%len(clients)], sequence, f.batch)
	}
	progress := bar{count: f.count, duration: f.duration}
	if file, ok := cmd.ErrOrStderr().(*os.File); ok && isTerminal(file) {
		progress.out, progress.columns = file, func() int { return columnsOf(file) }
	}
	m, err := r.do(ctx, progress.draw)
	progress.clear()
	if err == nil && ctx.Err() != nil && !errors.Is(context.Cause(ctx), context.Canceled) {
		err = context.Cause(ctx) // not a Ctrl-C
	}
	switch {
	case err != nil || m.requests > 0:
	case m.interrupted:
		err = errNothing
	default:
		err = fmt.Errorf("nothing was measured: --duration %s was over before the first request", f.duration)
	}
	var retries uint64
	for _, c := range clients {
		retries += c.Stats().Retries
	}
	var text bytes.Buffer
	if f.json {
		f.printJSON(&text, name, sequence, m, retries, clients[0].Cluster())
	} else if m.requests > 0 {
		f.print(&text, name, sequence, m, retries)
	}
	_, unwritten := text.WriteTo(cmd.OutOrStdout())
	return errors.Join(m.verdict(), err, unwritten) // above all: an id came twice
}

func (f *benchFlags) print(out *bytes.Buffer, name, sequence string, m *measured, retries uint64) {
	fmt.Fprintf(out, "%s %s: %d clients, %d connections, %d ids a request\n", name, sequence, f.clients, f.connections, f.batch)
	early := ""
	if m.interrupted {
		early = ", interrupted"
	}
	fmt.Fprintf(out, "%d requests in %s%s: %.0f requests/s, %.0f ids/s, %d retries\n", m.requests,
		m.took.Round(time.Millisecond), early, m.rate(m.requests), m.rate(m.ids), retries)
	l := &m.latencies
	fmt.Fprintf(out, "latency: p50 %s, p90 %s, p99 %s, p99.9 %s, max %s\n", short(l.quantile(0.5)), short(l.quantile(0.9)),
		short(l.quantile(0.99)), short(l.quantile(0.999)), short(l.max))
	if m.twice == 0 {
		fmt.Fprintf(out, "%d ids, none twice\n", m.ids)
	} else {
		fmt.Fprintf(out, "%d ids, %d CAME TWICE\n", m.ids, m.twice)
	}
}

// short keeps three digits or so.
func short(d time.Duration) time.Duration {
	unit := time.Duration(math.Pow10(max(len(fmt.Sprint(int64(d)))-3, 0)))
	return d.Round(unit)
}

func (f *benchFlags) printJSON(out *bytes.Buffer, name, sequence string, m *measured, retries uint64, cluster string) {
	us := func(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }
	l := &m.latencies
	b, err := json.Marshal(struct {
		Bench       string             `json:"bench"`
		Sequence    string             `json:"sequence"`
		Clients     int                `json:"clients"`
		Connections int                `json:"connections"`
		Batch       uint64             `json:"batch"`
		Requests    uint64             `json:"requests"`
		IDs         uint64             `json:"ids"`
		Twice       uint64             `json:"twice"`
		Retries     uint64             `json:"retries"`
		Interrupted bool               `json:"interrupted"`
		Seconds     float64            `json:"seconds"`
		RequestRate float64            `json:"requests_per_second"`
		IDRate      float64            `json:"ids_per_second"`
		Latency     map[string]float64 `json:"latency_us"`
		Cluster     string             `json:"cluster,omitempty"`
	}{
		name, sequence, f.clients, f.connections, f.batch, m.requests, m.ids, m.twice, retries, m.interrupted, m.took.Seconds(),
		m.rate(m.requests), m.rate(m.ids), map[string]float64{
			"p50": us(l.quantile(0.5)), "p90": us(l.quantile(0.9)), "p99": us(l.quantile(0.99)), "p99.9": us(l.quantile(0.999)),
			"max": us(l.max),
		}, cluster,
	})
	if err != nil {
		panic(err) // numbers and strings
	}
	fmt.Fprintf(out, "%s\n", b)
}
