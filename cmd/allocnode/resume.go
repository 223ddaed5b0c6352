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

func newResume() *cobra.Command {
	var f connFlags
	cmd := &cobra.Command{
		Use:     "resume SEQUENCE",
		Short:   "Lift the halt of a sequence that a request beyond its max halted",
		Example: "  allocnode resume orders",
		Args:    exactly("SEQUENCE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := allocnode.CheckName(args[0]); err != nil {
				return err
			}
			return f.ask(cmd, func(ctx context.Context, c *client.Client, out io.Writer) error {
				seq, err := c.Resume(ctx, args[0])
				switch {
				case err != nil:
				case f.json:
					_, err = fmt.Fprintf(out, "%s\n", wire.AppendResumeReply(nil, args[0], seq, clusterOf(c)))
				default:
					_, err = fmt.Fprintf(out, "%s: open\n", args[0])
				}
				return err
			})
		},
	}
	f.add(cmd)
	return cmd
}
