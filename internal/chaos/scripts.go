//go:build linux

package chaos

import (
	"context"
	"errors"
	"time"
)

// script is one execution that somebody has thought of, on a cluster of its own.
type script struct {
	name string
	// play returns what was seen. An error is a broken promise, or a script that did not get as far as it must.
	play func(ctx context.Context, r *rig) (seen string, err error)
}

// Scripts is the names of all scripts.
func Scripts() (names []string) {
	for _, s := range scripts {
		names = append(names, s.name)
	}
	return names
}

// runScript plays one script.
func runScript(ctx context.Context, cfg Config, binary string, s script) ScriptReport {
	cfg.Nodes = 3
	begin := time.Now()
	seen, err := func() (seen string, err error) {
		r, err := newRig(ctx, cfg, "script-"+s.name, binary, 3)
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
	return rep
}

var scripts = []script{}
