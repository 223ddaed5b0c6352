package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/allocnode/allocnode/internal/node"
)

func newInit() *cobra.Command {
	var f serveFlags
	cmd := &cobra.Command{
		Use:   "init",
		Short: "Make the log on an existing NATS, once",
		Long: `Make the log on an existing NATS, the one that alloc { nats { ... } } of the configuration names: the stream and its
first entry, which fixes the names of the nodes. It is run once, by an operator who knows that there never was a log, and
refuses where there is a stream of that name or a node that remembers one. Nodes may run already: they wait for it.`,
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
			cluster, err := node.Init(cmd.Context(), cfg)
			if err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "created the log of cluster %s\n", cluster)
			return nil
		},
	}
	cmd.Flags().StringVarP(&f.config, "config", "c", "", "configuration `FILE` of any one of the nodes")
	cmd.Flags().StringVar(&f.data, "data", "", "data `DIR`ectory of that node")
	cmd.Flags().StringVar(&f.name, "name", "", "`NAME` of that node")
	cmd.Flags().StringVar(&f.log.format, "log-format", "text", "`FORMAT` of the log: text or json")
	cmd.Flags().StringVar(&f.log.level, "log-level", "warn", "least `LEVEL` logged: debug, info, warn or error")
	if err := cmd.MarkFlagRequired("config"); err != nil {
		panic(err) // there is no such flag
	}
	return cmd
}
