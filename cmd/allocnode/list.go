package main

import (
	"context"
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/allocnode/allocnode/client"
	"github.com/allocnode/allocnode/internal/wire"
)

func newList() *cobra.Command {
	var f connFlags
	var consistent bool
	cmd := &cobra.Command{
		Use:   "list",
		Short: "Show the state of every sequence, in the order of their creation",
		Args:  exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return f.ask(cmd, func(ctx context.Context, c *client.Client, out io.Writer) error {
				var all []wire.SequenceInfo
				var seq uint64
				for i, err := range c.List(ctx, reading(consistent)...) {
					if err != nil {
						return err
					}
					all, seq = append(all, infoOf(&i)), i.Seq
				}
				if f.json {
					_, err := fmt.Fprintf(out, "%s\n", wire.AppendListReply(nil, all, 0, len(all), seq, clusterOf(c), false))
					return err
				}
				w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
				fmt.Fprintln(w, "SEQUENCE\tHIGH-WATER MARK\tREMAINING\tFIRST\tMAX\tMAX_COUNT\tSTATE")
				for i := range all {
					s, state := &all[i], "open"
					switch {
					case s.Halted:
						state = "halted"
					case s.Remaining() == 0:
						state = "exhausted"
					}
					fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%d\t%d\t%s\n", s.Name, s.HWM, s.Remaining(), s.First, s.Max,
						s.MaxCount, state)
				}
				return w.Flush()
			})
		},
	}
	f.add(cmd)
	addConsistent(cmd, &consistent)
	return cmd
}
