package main

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/allocnode/allocnode"
	"github.com/allocnode/allocnode/client"
	"github.com/allocnode/allocnode/internal/wire"
)

func newForget() *cobra.Command {
	var f connFlags
	cmd := &cobra.Command{
		Use:   "forget NODE",
		Short: "Let a node come back with an empty disk, under its old name",
		Long: `Release a node's name from the catalog that it is registered with, so that a node with an empty disk may take it.

Only when that catalog is lost for good: it may remember what no other node does, and the cluster waits for it with reason.`,
		Example: "  allocnode forget n2",
		Args:    exactly("NODE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if strings.Contains(args[0], ".") || len(args[0]) > wire.MaxNodeLen || allocnode.CheckName(args[0]) != nil {
				return fmt.Errorf("NODE %q: want 1 to %d letters, digits, '_' and '-': allocnode status lists the nodes",
					args[0], wire.MaxNodeLen)
			}
			return f.ask(cmd, func(ctx context.Context, c *client.Client, out io.Writer) error {
				seq, err := c.Forget(ctx, args[0])
				switch {
				case err != nil:
				case f.json:
					_, err = fmt.Fprintf(out, "%s\n", wire.AppendForgetReply(nil, args[0], seq, clusterOf(c)))
				default:
					_, err = fmt.Fprintf(out, "%s: its name is free for a node with another catalog\n", args[0])
				}
				return err
			})
		},
	}
	f.add(cmd)
	return cmd
}
