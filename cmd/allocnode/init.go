package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/allocnode/allocnode/internal/node"
)

func newInit() *cobra.Command {
	var f serveFlags
	var without []string
	cmd := &cobra.Command{
		Use:   "init",
		Short: "Make the log on an existing NATS, once",
		Long: `Make the log on an existing NATS, the one that alloc { nats { ... } } of the configuration names: the stream and its
first entry, which fixes the names of the nodes. It is run once, by an operator who knows that there never was a log.

Start the nodes first: they wait for it. It wants the word of every named node that it never had a log, and refuses where
one does not answer or remembers one, and where the log exists. It may be repeated when it broke off.

--without NODE does without the word of a node that cannot be started. If that node did have a log, the ids that were issued
from it are issued again. Less than half of the nodes can be left out.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			logger, err := f.log.logger(keepForServe)
			if err != nil {
				return err
			}
			cfg, err := f.nodeConfig()
			if err != nil {
				return err
			}
			cfg.Logger = logger
			cluster, err := node.Init(cmd.Context(), cfg, without...)
			if err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "created the log of cluster %s\n", cluster)
			if len(without) > 0 {
				fmt.Fprintf(cmd.ErrOrStderr(), "without the word of %s: if one of them ever had a log, ids that were issued from it "+
					"are issued again\n", strings.Join(without, ", "))
			}
			return nil
		},
	}
	cmd.Flags().StringVarP(&f.config, "config", "c", "", "configuration `FILE` of any one of the nodes")
	cmd.Flags().StringVar(&f.data, "data", "", "data `DIR`ectory of that node")
	cmd.Flags().StringVar(&f.name, "name", "", "`NAME` of that node")
	cmd.Flags().StringVar(&f.log.format, "log-format", "text", "`FORMAT` of the log: text or json")
	cmd.Flags().StringVar(&f.log.level, "log-level", "warn", "least `LEVEL` logged: debug, info, warn or error")
	cmd.Flags().StringSliceVar(&without, "without", nil, "do without the word of `NODE`: if it ever had a log, its ids are issued again")
	if err := cmd.MarkFlagRequired("config"); err != nil {
		panic(err) // there is no such flag
	}
	return cmd
}
