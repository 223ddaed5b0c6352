package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/allocnode/allocnode/internal/node"
)

func newRecover() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "recover",
		Short: "Begin a new log, after the old one was lost or rolled back",
		Long: `Begin a new log from what the nodes' catalogs remember, after the old one was lost, rolled back or rewritten.

Stop every node in order (SIGTERM), keep a copy of each data directory, and then:

  on each node     allocnode recover export --config n1.conf -o n1.floors
  anywhere, once   allocnode recover plan n1.floors n2.floors n3.floors -o recovery
  on each node     allocnode recover apply --config n1.conf recovery
  on each node     allocnode serve --config n1.conf

Each step may be repeated. docs/OPERATIONS.md goes through it.`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return fmt.Errorf("unknown command %q: allocnode recover --help lists them", args[0])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newRecoverExport(), newRecoverPlan(), newRecoverApply(), newRecoverUnfence())
	return cmd
}

// stoppedFlags are the flags of a command that works on the directory of a stopped node.
func stoppedFlags(cmd *cobra.Command, f *serveFlags) {
	cmd.Flags().StringVarP(&f.config, "config", "c", "", "configuration `FILE` of the node, which must not run")
	cmd.Flags().StringVar(&f.data, "data", "", "its data `DIR`ectory (default the file's, or ./allocnode-data)")
	cmd.Flags().StringVar(&f.name, "name", "", "its `NAME`")
	cmd.Flags().StringVar(&f.log.format, "log-format", "text", "`FORMAT` of the log: text or json")
	cmd.Flags().StringVar(&f.log.level, "log-level", "warn", "least `LEVEL` logged: debug, info, warn or error")
}

// stoppedConfig is the configuration of a node that does not run.
func stoppedConfig(f *serveFlags) (node.Config, error) {
	logger, err := f.log.logger(keepForServe)
	if err != nil {
		return node.Config{}, err
	}
	cfg, err := f.nodeConfig()
	if err != nil {
		return cfg, err
	}
	cfg.Logger = logger
	if f.config == "" && cfg.DataDir == "" {
		cfg.DataDir = "allocnode-data"
	}
	return cfg, nil
}

func newRecoverExport() *cobra.Command {
	var f serveFlags
	var to string
	cmd := &cobra.Command{
		Use:   "export",
		Short: "Write what a stopped node's catalog holds to a file",
		Args:  exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := stoppedConfig(&f)
			if err != nil {
				return err
			}
			if to == "" {
				to = cfg.Name + ".floors"
			}
			return node.Export(cfg, to, cmd.OutOrStdout())
		},
	}
	stoppedFlags(cmd, &f)
	cmd.Flags().StringVarP(&to, "output", "o", "", "`FILE` to write (default NAME.floors)")
	return cmd
}

func newRecoverPlan() *cobra.Command {
	var opts node.RecoveryOptions
	var to string
	cmd := &cobra.Command{
		Use:   "plan FLOORS...",
		Short: "Make one recovery out of the floors of every node",
		Long: `Make one recovery out of the floors of every node: all settings, the highest id that any of them has carved of each
sequence, and the keys. It refuses where a node is missing or was not stopped cleanly, since an id that only that one
remembers would be issued again.

With --raise-by N, for nodes that are gone for good, each sequence goes on N ids further up, and so do those that nobody
remembers. That is safe where no sequence has issued more than N ids that the given floors do not hold, and only there.`,
		Example: "  allocnode recover plan n1.floors n2.floors n3.floors -o recovery",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return errors.New("want the FLOORS files, one of each node: allocnode recover export writes them")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return node.PlanRecovery(args, to, opts, cmd.OutOrStdout())
		},
	}
	cmd.Flags().StringVarP(&to, "output", "o", "recovery", "`FILE` to write")
	cmd.Flags().Uint64Var(&opts.RaiseBy, "raise-by", 0, "without every node's word: raise each sequence by `N` ids")
	cmd.Flags().StringVar(&opts.Accepted, "i-know", "", "with --raise-by: the exact `WORDS` that the refusal asks for")
	cmd.Flags().Uint64Var(&opts.Epoch, "epoch", 0, "`EPOCH` of the new log (default one above the catalogs')")
	return cmd
}

func newRecoverApply() *cobra.Command {
	var f serveFlags
	cmd := &cobra.Command{
		Use:     "apply RECOVERY",
		Short:   "Prepare a stopped node for a recovery",
		Example: "  allocnode recover apply --config n1.conf recovery",
		Args:    exactly("RECOVERY"),
		RunE: func(cmd *cobra.Command, args []string) error {
			cfg, err := stoppedConfig(&f)
			if err != nil {
				return err
			}
			return node.PrepareRecovery(cfg, args[0], cmd.OutOrStdout())
		},
	}
	stoppedFlags(cmd, &f)
	return cmd
}

func newRecoverUnfence() *cobra.Command {
	var f serveFlags
	var accepted string
	cmd := &cobra.Command{
		Use:   "unfence",
		Short: "Lift the fence of a stopped node whose log is whole",
		Long: `Lift the fence that a stopped node has stored, where its reason lay outside the log and is over: a copy of the node
was stopped, a route to another cluster was taken out. At its next start the node compares what it remembers with the log,
and fences again where the two differ. A proof that stands in the log itself is not lifted.`,
		Args: exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := stoppedConfig(&f)
			if err != nil {
				return err
			}
			return node.Unfence(cfg, accepted, cmd.OutOrStdout())
		},
	}
	stoppedFlags(cmd, &f)
	cmd.Flags().StringVar(&accepted, "i-know", "", "the exact `WORDS` that the refusal asks for")
	return cmd
}
