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

func newCreate() *cobra.Command {
	var f connFlags
	var first, most, maxCount string
	cmd := &cobra.Command{
		Use:   "create SEQUENCE",
		Short: "Make a sequence with settings of its own, or check those that it has",
		Long: `Make a sequence. A sequence also comes into being on first use, with the cluster's defaults; create is for other
settings.

Settings never change. Where the sequence is there already, those that are given must be the ones it has.`,
		Example: "  allocnode create invoices --first 1000 --max 4294967295",
		Args:    exactly("SEQUENCE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := allocnode.CheckName(args[0]); err != nil {
				return err
			}
			var s client.Settings
			for _, g := range []struct {
				flag, text string
				dst        *uint64
			}{{"first", first, &s.First}, {"max", most, &s.Max}, {"max-count", maxCount, &s.MaxCount}} {
				if !cmd.Flags().Changed(g.flag) {
					continue
				}
				var err error
				if *g.dst, err = number("--"+g.flag, g.text, 1); err != nil {
					return err
				}
			}
			return f.ask(cmd, func(ctx context.Context, c *client.Client, out io.Writer) error {
				got, err := c.Create(ctx, args[0], s)
				if err != nil {
					return err
				}
				if f.json {
					_, err = fmt.Fprintf(out, "%s\n", wire.AppendCreateReply(nil, args[0], wire.Settings(got.Settings),
						got.Seq, clusterOf(c)))
					return err
				}
				_, err = fmt.Fprintf(out, "%s: first %d, max %d, max_count %d\n", args[0], got.First, got.Max, got.MaxCount)
				return err
			})
		},
	}
	f.add(cmd)
	cmd.Flags().StringVar(&first, "first", "", "first `ID`")
	cmd.Flags().StringVar(&most, "max", "", "last `ID` that may be issued: 4294967295 for 32 bits, at most 9223372036854775807")
	cmd.Flags().StringVar(&maxCount, "max-count", "", "how `MANY` ids one reservation may ask for")
	return cmd
}
