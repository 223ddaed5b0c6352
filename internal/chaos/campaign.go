//go:build linux

package chaos

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/allocnode/allocnode/internal/chaos/history"
	"github.com/allocnode/allocnode/internal/chaos/lab"
)

// Run is one run. The report is complete also beside an error, which says what of the harness failed; the verdict is then
// not [Passed].
func Run(ctx context.Context, cfg Config) (*Report, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg.Out = &lines{to: cfg.Out}
	rep := newReport(cfg)
	if missing := lab.Missing(); len(missing) > 0 {
		rep.Missing = missing
		rep.finish()
		return rep, rep.write(cfg.Dir)
	}
	err := run(ctx, cfg, rep)
	if err != nil {
		rep.Harness = append(rep.Harness, err.Error())
	}
	rep.finish()
	return rep, errors.Join(err, rep.write(cfg.Dir))
}

// lines lets several goroutines write whole lines.
type lines struct {
	mu sync.Mutex // guards to
	to io.Writer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.to.Write(p)
}

func run(ctx context.Context, cfg Config, rep *Report) error {
	if err := lab.Sweep(ctx); err != nil {
		return err
	}
	binary := filepath.Join(cfg.Dir, "allocnode")
	err := lab.BuildNode(ctx, cfg.Root, cfg.Dir, binary, cfg.Tags, false)
	if err != nil {
		return err
	}
	if rep.NATSServer, err = natsServer(binary); err != nil {
		return err
	}
	// The scripts and the control are mostly waits for elections: beside the campaign they cost it little.
	var lane sync.WaitGroup
	var aside error
	lane.Go(func() { aside = scriptsAndControl(ctx, cfg, binary, &rep.Scripts, &rep.Control) })
	if err = campaign(ctx, cfg, binary, rep); err != nil {
		err = fmt.Errorf("campaign: %w", err)
	}
	lane.Wait()
	return errors.Join(err, aside)
}

func scriptsAndControl(ctx context.Context, cfg Config, binary string, played *[]ScriptReport, flagged *string) error {
	var err error
	if cfg.Control {
		if *flagged, err = control(ctx, cfg); err != nil {
			err = fmt.Errorf("positive control: %w", err)
		}
	}
	for _, s := range scripts {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if contains(cfg.Scripts, s.name) {
			*played = append(*played, runScript(ctx, cfg, binary, s))
		}
	}
	return err
}

// campaign is the fault windows, their end, and the verdict on them.
func campaign(ctx context.Context, cfg Config, binary string, rep *Report) (err error) {
	r, err := newRig(ctx, cfg, "campaign", binary, 1)
	if err != nil {
		return err
	}
	judged := false
	defer func() {
		if !judged {
			rep.Violations = append(rep.Violations, r.salvage()...)
		}
		err = errors.Join(err, r.close())
		if err == nil && len(rep.Violations) == 0 && len(rep.Harness) == 0 {
			err = r.removeImages()
		}
	}()
	if err := r.startNodes(ctx); err != nil {
		return err
	}
	for range cfg.Clients {
		if err := r.startClient(false); err != nil {
			return err
		}
	}
	if err := hold(ctx, 2*time.Second); err != nil { // pools and caches fill before the baseline is taken
		return err
	}
	if err := r.samples(ctx, "baseline"); err != nil {
		return err
	}
	watchCtx, stop := context.WithCancel(ctx)
	var watching sync.WaitGroup
	watching.Go(func() { r.watch(watchCtx) })
	defer func() { stop(); watching.Wait() }()
	leader := ""
	var elections atomic.Int64
	err = r.obs.Elections(func(now string) {
		if now != leader {
			leader = now
			elections.Add(1)
		}
	})
	if err != nil {
		return err
	}

	begin := time.Now()
	for i, w := range Schedule(cfg) {
		if cfg.Length > 0 && time.Since(begin) > cfg.Length {
			break
		}
		if err := r.window(ctx, i, w, rep); err != nil {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			// The run goes on: what is safe must stay so. It can no longer pass.
			rep.Harness = append(rep.Harness, fmt.Sprintf("window %d, %s: %v", i, w.Kind, err))
			r.say("window %d, %s: %v", i, w.Kind, err)
			if err := r.healAll(ctx); err != nil {
				return err
			}
		}
	}
	if err := r.healAll(ctx); err != nil {
		return err
	}
	if _, err := r.healthy(ctx, gateBound); err != nil {
		rep.Violations = append(rep.Violations, "liveness: after everything was healed: "+err.Error())
	}
	healed := history.Now()
	r.say("everything is healed; the load goes on")
	if err := hold(ctx, settle); err != nil {
		return err
	}
	if err := r.stopClients(); err != nil {
		return err
	}
	stop()
	watching.Wait()
	e, err := r.collect(ctx)
	if err != nil {
		return err
	}
	judged = true
	found, err := r.judge(e, healed)
	for _, v := range found {
		rep.Violations = append(rep.Violations, v.String())
	}
	for _, seq := range r.holes {
		rep.Notes = append(rep.Notes, fmt.Sprintf("a replica of the log no longer has the message at seq %d, another has it", seq))
	}
	for _, line := range e.dropped {
		rep.Notes = append(rep.Notes, "a catalog was no state, and was made anew from the log: "+line)
	}
	rep.LeaderChanges = int(elections.Load())
	rep.measure(e)
	return err
}

// window is one part of the schedule: gate, fault, hold, healing, gate.
func (r *rig) window(ctx context.Context, i int, w Window, rep *Report) error {
	if _, err := r.healthy(ctx, gateBound); err != nil {
		return fmt.Errorf("gate before: %w", err)
	}
	if w.Kind == "" {
		return hold(ctx, w.Hold)
	}
	k := kinds[slices.IndexFunc(kinds, func(k kind) bool { return k.name == w.Kind })]
	f, err := k.plan(ctx, r, rand.New(rand.NewPCG(w.Seed, 3)))
	if err != nil {
		return err
	}
	id, err := r.hist.Fault(w.Kind, f.target, "")
	if err != nil {
		return err
	}
	begun, err := f.begin(ctx)
	if err == nil {
		err = hold(ctx, w.Hold)
	}
	if err != nil {
		return errors.Join(err, r.hist.Healed(id, ""))
	}
	healed, err := f.heal(ctx)
	if begun != "" && healed != "" {
		begun += "; "
	}
	if err := errors.Join(err, r.hist.Healed(id, begun+healed)); err != nil {
		return err
	}
	mark := r.fileSize()
	took, err := r.healthy(ctx, gateBound)
	if err == nil {
		// Else the next fault would fall into the recovery from this one.
		err = r.answered(ctx, mark)
	}
	r.say("window %d: %s of %s for %s; all serve after %s; %s", i, w.Kind, f.target, round(w.Hold), round(took), begun+healed)
	rep.serving(w.Kind, took)
	if err != nil {
		rep.Violations = append(rep.Violations, fmt.Sprintf("liveness: after %s of %s: %v", w.Kind, f.target, err))
	}
	return err
}

// watch notes what the nodes say of themselves, once a second.
func (r *rig) watch(ctx context.Context) {
	for hold(ctx, time.Second) == nil {
		_, _ = r.statuses() // who does not answer is seen by the gates
	}
}

// removeImages removes what nobody needs after a run that passed.
func (r *rig) removeImages() error {
	images, err := filepath.Glob(filepath.Join(r.dir, "*", "disk.img"))
	for _, path := range images {
		err = errors.Join(err, os.Remove(path))
	}
	return err
}
