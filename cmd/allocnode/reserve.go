package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/allocnode/allocnode"
	"github.com/allocnode/allocnode/client"
	"github.com/allocnode/allocnode/internal/wire"
)

func newReserve() *cobra.Command {
	var f connFlags
	var count, key string
	var partial bool
	cmd := &cobra.Command{
		Use:   "reserve SEQUENCE [COUNT]",
		Short: "Reserve a range of ids",
		Long: `Reserve COUNT ids of a sequence through the log, 1 if it is not given. They are nobody else's from then on.

With --key, repeating the command gives the same range again, from any node, for as long as the cluster remembers the key:
by default the last 131,072 reservations that had one. After that it reserves a new one. When a command ends without an
answer, its error names a key to repeat it with, which once forgotten is refused.`,
		Example: "  allocnode reserve orders 1000\n  allocnode reserve orders --count 1000 --key import-7 --json",
		Args:    between(1, "SEQUENCE", "COUNT"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := allocnode.CheckName(args[0]); err != nil {
				return err
			}
			if len(args) > 1 {
				if cmd.Flags().Changed("count") {
					return errors.New("the count is given twice: as an argument, and as --count")
				}
				count = args[1]
			}
			n, err := number("count", count, 1)
			if err != nil {
				return err
			}
			if cmd.Flags().Changed("key") && (key == "" || len(key) > allocnode.MaxKeyLen) {
				return fmt.Errorf("--key of %d bytes: want 1 to %d", len(key), allocnode.MaxKeyLen)
			}
			return f.ask(cmd, func(ctx context.Context, c *client.Client, out io.Writer) error {
				var receipt client.Receipt
				opts := []client.ReserveOption{client.WithKey(key), client.WithReceipt(&receipt)}
				if partial {
					opts = append(opts, client.WithPartial())
				}
				r, err := c.Reserve(ctx, args[0], n, opts...)
				if err != nil {
					return mendReserve(err, partial)
				}
				if f.json {
					_, err = fmt.Fprintf(out, "%s\n", wire.AppendReserveReply(nil, args[0], r, receipt.Seq,
						clusterOf(c), false))
					return err
				}
				_, err = fmt.Fprintf(out, "%s: %d to %d, %d ids\n", args[0], r.Start, r.End-1, r.Count())
				return err
			})
		},
	}
	f.add(cmd)
	cmd.Flags().StringVar(&count, "count", "1", "how `MANY` ids")
	cmd.Flags().StringVar(&key, "key", "", "`NAME` the reservation, so that it can be repeated: at most 128 bytes")
	cmd.Flags().BoolVar(&partial, "partial", false, "take what is left when it is fewer than COUNT")
	return cmd
}

// mendReserve adds to a refusal what can be done about it.
func mendReserve(err error, partial bool) error {
	var refusal *allocnode.Error
	var unknown *client.UnknownOutcomeError
	switch {
	case errors.As(err, &unknown) && unknown.Key != "":
		return fmt.Errorf("%w: the same command with --key %s gives the range that was reserved, if one was", err, unknown.Key)
	case errors.As(err, &refusal) && refusal.Code == allocnode.CodeExhausted && refusal.Remaining > 0 && !partial:
		return fmt.Errorf("%w: --partial takes what is left", err)
	}
	return err
}
