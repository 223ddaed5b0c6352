// Command allocnode runs a node of the allocator, or asks one.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil {
		// One line each: what is wrong, and how to mend it.
		for _, line := range strings.Split(err.Error(), "\n") {
			fmt.Fprintln(os.Stderr, "allocnode:", line)
		}
		os.Exit(1)
	}
}

// run is main without the process: args are the command line's, after the program's name.
func run(ctx context.Context, args []string) error {
	root := newRoot()
	root.SetArgs(args)
	return root.ExecuteContext(ctx)
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:           "allocnode",
		Short:         "Unique integer ids for services on NATS, never issued twice",
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          cobra.NoArgs,
	}
	root.AddCommand(newServe(), newDev(), newVersion())
	return root
}
