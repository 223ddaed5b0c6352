package main

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/allocnode/allocnode"
	"github.com/allocnode/allocnode/client"
	"github.com/allocnode/allocnode/internal/wire"
)

func newAdvance() *cobra.Command {
	var f connFlags
	cmd := &cobra.Command{
		Use:   "advance SEQUENCE TO",
		Short: "Raise a sequence's high-water mark: no id up to TO is issued any more",
		Long: `Raise a sequence's high-water mark to at least TO: after an import of ids, or as a floor after a restore.

It never falls: with TO at or below it the command changes nothing, and succeeds. Ids that clients have reserved stay
theirs.`,
		Example: "  allocnode advance orders 5000000",
		Args:    exactly("SEQUENCE", "TO"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := allocnode.CheckName(args[0]); err != nil {
				return err
			}
			to, err := number("TO", args[1], 0)
			if err != nil {
				return err
			}
			return f.ask(cmd, func(ctx context.Context, c *client.Client, out io.Writer) error {
				a, err := c.Advance(ctx, args[0], to)
				switch {
				case err != nil:
				case f.json:
					_, err = fmt.Fprintf(out, "%s\n", wire.AppendAdvanceReply(nil, args[0], a.Old, a.HWM, a.Seq, clusterOf(c)))
				case a.Old == a.HWM:
					_, err = fmt.Fprintf(out, "%s: the high-water mark is %d already\n", args[0], a.HWM)
				default:
					_, err = fmt.Fprintf(out, "%s: high-water mark %d, was %d\n", args[0], a.HWM, a.Old)
				}
				return err
			})
		},
	}
	f.add(cmd)
	return cmd
}
