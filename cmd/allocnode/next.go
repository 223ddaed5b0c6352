package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/allocnode/allocnode"
	"github.com/allocnode/allocnode/client"
	"github.com/allocnode/allocnode/internal/wire"
)

func newNext() *cobra.Command {
	var f connFlags
	var count string
	cmd := &cobra.Command{
		Use:   "next SEQUENCE",
		Short: "Take ids from a node's own batch",
		Long: `Take single ids of a sequence from the batch that a node holds: quicker than reserve, since the log is not asked
each time. They are nobody else's from then on. They have no order between nodes, and may come in several ranges.

The command has no key: one that ended without an answer may have taken ids, and they become a gap. Repeat it.`,
		Example: "  allocnode next orders\n  allocnode next orders --count 10 --json",
		Args:    exactly("SEQUENCE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := allocnode.CheckName(args[0]); err != nil {
				return err
			}
			n, err := number("--count", count, 1)
			if err != nil {
				return err
			}
			return f.ask(cmd, func(ctx context.Context, c *client.Client, out io.Writer) error {
				ranges, err := c.NodeNext(ctx, args[0], n)
				switch {
				case errors.Is(err, allocnode.ErrUnknownOutcome):
					return fmt.Errorf("%w: ids that were taken are a gap now", err)
				case err != nil:
					return err
				case f.json:
					_, err = fmt.Fprintf(out, "%s\n", wire.AppendNextReply(nil, args[0], ranges, n, clusterOf(c), false))
					return err
				}
				_, err = fmt.Fprintf(out, "%s: %s\n", args[0], spell(ranges))
				return err
			})
		},
	}
	f.add(cmd)
	cmd.Flags().StringVar(&count, "count", "1", "how `MANY` ids")
	return cmd
}

// spell writes ranges as people do, both ends within: 17, 20 to 29.
func spell(ranges []allocnode.Range) string {
	parts := make([]string, len(ranges))
	for i, r := range ranges {
		if parts[i] = fmt.Sprint(r.Start); r.Count() > 1 {
			parts[i] += fmt.Sprintf(" to %d", r.End-1)
		}
	}
	return strings.Join(parts, ", ")
}
