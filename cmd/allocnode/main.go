// Command allocnode runs a node of the allocator, or asks one.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil {
		for _, line := range lines(err) {
			fmt.Fprintln(os.Stderr, "allocnode:", line)
		}
		os.Exit(1)
	}
}

// run is main without the process: args are the command line's, after the program's name.
func run(ctx context.Context, args []string) error {
	root, out := newRoot(), &output{w: os.Stdout}
	root.SetArgs(args)
	root.SetOut(out)
	err := root.ExecuteContext(ctx)
	if err == nil { // cobra does not look whether help was written
		err = out.err
	}
	return err
}

// output is where a command prints. It remembers that a write failed, so that no command ends well whose words are lost.
type output struct {
	w    io.Writer
	lost func(error) // called with the first error; may be nil
	err  error       // of the first write that failed
}

func (o *output) Write(p []byte) (int, error) {
	n, err := o.w.Write(p)
	if err != nil && o.err == nil {
		if o.err = err; o.lost != nil {
			o.lost(err)
		}
	}
	return n, err
}

// lines is what to print of err: a line for each thing that is wrong, which says how to mend it. One that stands within
// another, with its context, is not said twice.
func lines(err error) []string {
	all := strings.Split(err.Error(), "\n")
	return slices.DeleteFunc(slices.Clone(all), func(line string) bool {
		return slices.ContainsFunc(all, func(other string) bool { return len(other) > len(line) && strings.Contains(other, line) })
	})
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:           "allocnode",
		Short:         "Unique integer ids for services on NATS, never issued twice",
		SilenceErrors: true,
		SilenceUsage:  true,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return fmt.Errorf("unknown command %q: allocnode --help lists them", args[0])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() }, // without it cobra does not look at Args
	}
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return fmt.Errorf("%w: %s --help lists the flags", err, cmd.CommandPath())
	})
	root.SetHelpCommand(newHelp(root))
	root.AddCommand(newServe(), newInit(), newDev(), newReserve(), newNext(), newCreate(), newAdvance(), newInfo(), newList(),
		newStatus(), newForget(), newResume(), newRecover(), newBench(), newVersion())
	return root
}

// newHelp is cobra's help, for which a topic that does not exist is an error.
func newHelp(root *cobra.Command) *cobra.Command {
	return &cobra.Command{
		Use:   "help [COMMAND]",
		Short: "Show the help of a command",
		RunE: func(_ *cobra.Command, args []string) error {
			topic, rest, err := root.Find(args)
			if err != nil || len(rest) > 0 {
				return fmt.Errorf("no help on %q: allocnode --help lists the commands", strings.Join(args, " "))
			}
			return topic.Help()
		},
	}
}
