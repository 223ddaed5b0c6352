//go:build linux

package chaos

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/allocnode/allocnode/internal/chaos/lab"
	"github.com/allocnode/allocnode/internal/wire"
)

// script is one execution that somebody has thought of, on a cluster of its own.
type script struct {
	name string
	// play returns what was seen. An error is a broken promise, or a script that did not get as far as it must.
	play func(ctx context.Context, r *rig) (seen string, err error)
}

// scripts is all of them: the losses that were once brought about on a bare nats-server, and those beyond what can be
// recovered, which must end fenced.
var scripts = concatScripts(lossScripts, recoveryScripts, strangerScripts)

func concatScripts(lists ...[]script) (all []script) {
	for _, l := range lists {
		all = append(all, l...)
	}
	return all
}

// Scripts is the names of all scripts.
func Scripts() (names []string) {
	for _, s := range scripts {
		names = append(names, s.name)
	}
	return names
}

// runScript plays one script. What it leaves stays where it did not pass.
func runScript(ctx context.Context, cfg Config, binary string, s script) ScriptReport {
	cfg.Nodes = 3
	begin := time.Now()
	seen, err := func() (seen string, err error) {
		r, err := newRig(ctx, cfg, "script-"+s.name, binary, 2)
		if err != nil {
			return "", err
		}
		defer func() {
			err = errors.Join(err, r.close())
			if err == nil {
				err = r.removeImages()
			}
		}()
		return s.play(ctx, r)
	}()
	rep := ScriptReport{Name: s.name, Passed: err == nil, Text: seen, Took: time.Since(begin).Seconds()}
	if err != nil {
		rep.Text = err.Error()
	}
	fmt.Fprintf(cfg.Out, "%7.1fs  script %s, passed: %t: %s\n", rep.Took, rep.Name, rep.Passed, rep.Text)
	return rep
}

// answer is what a reservation got.
type answer struct {
	Start, End, Seq uint64
	Error           *struct{ Code, Message string }
}

// book is the ids that a script was given.
type book struct {
	r   *rig
	end uint64 // the largest end of a range so far
	seq uint64 // of the entry that gave it
	n   int
}

const scriptSequence = "orders"

// reserve asks once for ids under a key, through the observer: any node may answer.
func (r *rig) reserve(key string, wait time.Duration) (a answer, err error) {
	b, err := r.obs.Request("alloc.reserve."+scriptSequence, fmt.Sprintf(`{"count":10,"key":%q}`, key), wait)
	if err != nil {
		return a, err
	}
	if err := json.Unmarshal(b, &a); err != nil {
		return a, fmt.Errorf("reserve under %s: %w", key, err)
	}
	if a.Error != nil {
		return a, fmt.Errorf("reserve under %s: %s: %s", key, a.Error.Code, a.Error.Message)
	}
	return a, nil
}

// take reserves n times, one after the other, each until it is answered, and wants every range above the one before.
func (b *book) take(ctx context.Context, n int) error {
	for range n {
		b.n++
		key := fmt.Sprintf("key-%d", b.n)
		var a answer
		err := until(ctx, gateBound, "reserve", func() (err error) {
			a, err = b.r.reserve(key, 2*time.Second)
			return err
		})
		if err != nil {
			return err
		}
		if a.Start < max(b.end, 1) {
			return fmt.Errorf("ids issued twice: %s got [%d, %d), and ids up to %d had been issued", key, a.Start, a.End, b.end-1)
		}
		b.end, b.seq = a.End, a.Seq
	}
	return nil
}

// silent wants that nobody is given a range for a time.
func (r *rig) silent(ctx context.Context, key string, d time.Duration) error {
	for end := time.Now().Add(d); time.Now().Before(end); {
		a, err := r.reserve(key, time.Until(end))
		if err == nil {
			return fmt.Errorf("somebody answered with [%d, %d), who cannot know what was issued", a.Start, a.End)
		}
		if err := hold(ctx, 100*time.Millisecond); err != nil {
			return err
		}
	}
	return nil
}

// fenced waits until all of the nodes are fenced, and returns what they say.
func (r *rig) fenced(ctx context.Context, nodes ...*lab.Node) (seen string, err error) {
	err = until(ctx, gateBound, names(nodes)+" are fenced", func() error {
		all, err := r.statuses()
		if err != nil {
			return err
		}
		var said []string
		for _, n := range nodes {
			s, ok := all[n.Name]
			if !ok || s.State != wire.StateFenced {
				return fmt.Errorf("%s is %q: %s (%s)", n.Name, s.State, s.Reason, n.End())
			}
			said = append(said, n.Name+" is fenced: "+s.Reason)
		}
		seen = strings.Join(said, "; ")
		return nil
	})
	return seen, err
}

// killAll kills what runs of the nodes.
func killAll(nodes ...*lab.Node) error {
	for _, n := range nodes {
		if n.Running() {
			if _, err := n.Kill(); err != nil {
				return err
			}
		}
	}
	return nil
}

func stopAll(nodes ...*lab.Node) error {
	var faults []error
	for _, n := range nodes {
		faults = append(faults, n.Stop())
	}
	return errors.Join(faults...)
}

func startAll(nodes ...*lab.Node) error {
	for _, n := range nodes {
		if err := n.Start(); err != nil {
			return err
		}
	}
	return nil
}
