//go:build linux

package chaos

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"time"
)

// Config is one run.
type Config struct {
	Root string // the module's directory
	Dir  string // of the run: history, logs, images, report; it must exist and be empty
	Tags string // of go build for the nodes, separated by commas: a mutant's, which the run must not pass
	Self string // this program, which has the commands client and observe

	Nodes   int           // 3 or 5
	Windows int           // fault windows; 0: as many as Duration takes
	Length  time.Duration // of the fault windows together; 0: Windows counts
	Long    bool          // long faults too, such as a pause of 30 s
	Seed    uint64
	Only    []string // kinds of faults, of [Kinds]; empty: all
	Scripts []string // names, of [Scripts]; nil: none
	Control bool     // the positive control

	MinAcked   int           // acknowledged reservations below which a run is inconclusive
	MinLeaders int           // changes of the log's leader below which it is
	Recovery   time.Duration // the longest that the first acknowledgement after a healing may take
	Failover   time.Duration // the longest from kill -9 of the log's leader to the first acknowledged reservation
	Clients    int           // client processes
	KeyWindow  uint64        // keyed reservations that the cluster remembers: few, so that keys get old
	Out        io.Writer     // what happens, for people
}

// DefaultConfig is `make chaos`, but for its directories.
func DefaultConfig() Config {
	return Config{
		Nodes: 3, Seed: 1, Control: true, MinAcked: 2000, MinLeaders: 3, Recovery: 20 * time.Second, Failover: 10 * time.Second,
		Clients: 2, KeyWindow: 4096, Out: io.Discard,
	}
}

// Validate reports every fault in c.
func (c *Config) Validate() error {
	var faults []error
	want := func(ok bool, format string, args ...any) {
		if !ok {
			faults = append(faults, fmt.Errorf("chaos: "+format, args...))
		}
	}
	want(c.Root != "" && c.Dir != "" && c.Self != "", "root, dir and self must be set")
	want(c.Nodes == 3 || c.Nodes == 5, "nodes is %d: 3 or 5", c.Nodes)
	want(c.Windows >= 0 && c.Length >= 0, "windows is %d and length %s: none below 0", c.Windows, c.Length)
	want(c.Clients > 0, "clients is %d: at least 1", c.Clients)
	for _, name := range c.Only {
		want(slices.Contains(Kinds(), name), "fault %q: one of %v", name, Kinds())
	}
	for _, name := range c.Scripts {
		want(slices.Contains(Scripts(), name), "script %q: one of %v", name, Scripts())
	}
	return errors.Join(faults...)
}
