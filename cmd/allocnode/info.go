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

func newInfo() *cobra.Command {
	var f connFlags
	var consistent bool
	cmd := &cobra.Command{
		Use:     "info SEQUENCE",
		Short:   "Show the state of a sequence",
		Example: "  allocnode info orders --consistent",
		Args:    exactly("SEQUENCE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := allocnode.CheckName(args[0]); err != nil {
				return err
			}
			return f.ask(cmd, func(ctx context.Context, c *client.Client, out io.Writer) error {
				i, err := c.Info(ctx, args[0], reading(consistent)...)
				if err != nil {
					return err
				}
				if f.json {
					info := infoOf(&i)
					_, err = fmt.Fprintf(out, "%s\n", wire.AppendInfoReply(nil, &info, i.Seq, clusterOf(c), false))
					return err
				}
				halted := ""
				if i.Halted {
					halted = ", HALTED by an exhaustion: allocnode resume lifts that"
				}
				_, err = fmt.Fprintf(out, "%s: high-water mark %d, %d ids remain, first %d, max %d, max_count %d%s\n",
					i.Sequence, i.HWM, i.Remaining, i.First, i.Max, i.MaxCount, halted)
				return err
			})
		},
	}
	f.add(cmd)
	addConsistent(cmd, &consistent)
	return cmd
}

func addConsistent(cmd *cobra.Command, consistent *bool) {
	cmd.Flags().BoolVar(consistent, "consistent", false,
		"see everything that was acknowledged before: read behind a barrier in the log")
}

func reading(consistent bool) []client.ReadOption {
	if consistent {
		return []client.ReadOption{client.Consistent()}
	}
	return nil
}

// infoOf is i as it stood in the reply.
func infoOf(i *client.SequenceInfo) wire.SequenceInfo {
	return wire.SequenceInfo{Name: i.Sequence, Settings: wire.Settings(i.Settings), HWM: i.HWM, Halted: i.Halted}
}
