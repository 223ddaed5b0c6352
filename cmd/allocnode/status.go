package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/allocnode/allocnode/client"
)

func newStatus() *cobra.Command {
	var f connFlags
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show every node that answers, and why one does not serve",
		Long: `Ask every node on the prefix what it does, and print a line for each that answers. A node that is fenced or halted
answers too, with its reason. How many there should be is not known here: a node that is down is missing.

DIGEST is the beginning of the running hash over everything that was applied: nodes at the same CURSOR must show the same.`,
		Args: exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return f.ask(cmd, func(ctx context.Context, c *client.Client, out io.Writer) error {
				nodes, err := c.Status(ctx)
				if err != nil {
					return err
				}
				if f.json {
					all := make([]json.RawMessage, len(nodes))
					for i := range nodes {
						all[i] = nodes[i].Raw
					}
					return printArray(out, all)
				}
				return printStatus(out, nodes)
			})
		},
	}
	f.add(cmd)
	return cmd
}

func printStatus(out io.Writer, nodes []client.NodeStatus) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "NODE\tROLE\tSTATE\tCURSOR\tLAG\tDIGEST\tSEQUENCES\tVERSION\tREADY")
	for i := range nodes {
		n := &nodes[i]
		ready := "yes"
		if !n.Ready {
			ready = "no: " + n.Reason
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%d\t%s\t%d\t%s\t%s\n",
			n.Name, n.Role, n.State, n.Cursor, n.Lag, n.Digest[:min(len(n.Digest), 8)], n.Sequences, n.Version, ready)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for i := 1; i < len(nodes); i++ {
		if a, b := nodes[i-1].Cluster, nodes[i].Cluster; a != "" && a != b {
			_, err := fmt.Fprintf(out, "two clusters answer on this prefix, %s and %s: give each a prefix of its own\n", a, b)
			return err
		}
	}
	return nil
}
