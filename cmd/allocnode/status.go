package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/allocnode/allocnode/client"
)

func newStatus() *cobra.Command {
	var f connFlags
	var check bool
	var node string
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show every node that answers, and why one does not serve",
		Long: `Ask every node on the prefix what it does, and print a line for each that answers. A node that is fenced or halted
answers too, with its reason. How many there should be is not known here: a node that is down is missing.

DIGEST is the beginning of the running hash over everything that was applied: nodes at the same CURSOR must show the same.

With --check the command fails unless every node that answered is ready, and with --node too unless that one answered: a health
check for whatever restarts or watches nodes. A fenced node is not mended by a restart.`,
		Example: "  allocnode status\n  allocnode status --node n1 --check",
		Args:    exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return f.ask(cmd, func(ctx context.Context, c *client.Client, out io.Writer) error {
				nodes, err := c.Status(ctx)
				if err != nil {
					return err
				}
				if node != "" {
					nodes = slices.DeleteFunc(nodes, func(n client.NodeStatus) bool { return n.Name != node })
				}
				print := printStatus
				if f.json {
					print = printStatusJSON
				}
				if err := print(out, nodes); err != nil {
					return err
				}
				if node != "" && len(nodes) == 0 {
					return fmt.Errorf("node %s does not answer", node)
				}
				if check {
					return notReady(nodes)
				}
				return nil
			})
		},
	}
	cmd.Flags().BoolVar(&check, "check", false, "fail unless every node that answered is ready")
	cmd.Flags().StringVar(&node, "node", "", "show this node only, and fail unless it answers")
	f.add(cmd)
	return cmd
}

// notReady names the nodes that do not serve, if any.
func notReady(nodes []client.NodeStatus) error {
	var faults []string
	for i := range nodes {
		if n := &nodes[i]; !n.Ready {
			faults = append(faults, fmt.Sprintf("node %s is %s: %s", n.Name, n.State, n.Reason))
		}
	}
	if len(faults) == 0 {
		return nil
	}
	return errors.New(strings.Join(faults, "; "))
}

func printStatusJSON(out io.Writer, nodes []client.NodeStatus) error {
	all := make([]json.RawMessage, len(nodes))
	for i := range nodes {
		all[i] = nodes[i].Raw
	}
	return printArray(out, all)
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
