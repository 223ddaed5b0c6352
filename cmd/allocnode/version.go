package main

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/spf13/cobra"
)

// version is the release, in SemVer's syntax. A release build sets it with -ldflags "-X main.version=…".
var version = "0.1.0-dev"

func newVersion() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version, and that of the embedded nats-server",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "allocnode %s%s, nats-server %s, %s\n", version, revision(),
				server.VERSION, runtime.Version())
			return err
		},
	}
}

// revision is the commit that the binary was built from, where the build recorded it.
func revision() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" && len(s.Value) >= 12 {
			return " (" + s.Value[:12] + ")"
		}
	}
	return ""
}
