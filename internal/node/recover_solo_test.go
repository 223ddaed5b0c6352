package node

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/allocnode/allocnode/internal/wire"
)

// soloist is a node that is alone, its operator's files beside it.
type soloist struct {
	t    *testing.T
	base string
}

func (s *soloist) cfg() Config {
	cfg := config(s.t, s.base, "solo", "")
	cfg.Logger = quiet
	return cfg
}

func (s *soloist) file(name string) string { return filepath.Join(s.base, name) }

// condition is what Export says of the catalog.
func (s *soloist) condition() string {
	s.t.Helper()
	var out strings.Builder
	if err := Export(s.cfg(), s.file("floors"), &out); err != nil {
		s.t.Fatal(err)
	}
	return strings.TrimSpace(out.String())
}

func (s *soloist) recover(opts RecoveryOptions) {
	s.t.Helper()
	var out strings.Builder
	err := PlanRecovery([]string{s.file("floors")}, s.file("recovery"), opts, &out)
	if err == nil {
		err = PrepareRecovery(s.cfg(), s.file("recovery"), &out)
	}
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Log(out.String())
}

// A node that was killed, and finds its log lost when it comes back, does not become clean by being stopped in order: what it
// had applied last is not in its catalog, and nowhere else.
// Checked: with the mark made after every orderly stop the recovery was planned as if nothing were missing.
func TestRecoverUncleanStaysUnclean(t *testing.T) {
	t.Parallel()
	for name, lose := range map[string]func(n *live, dir string){
		"the log is gone": func(n *live, dir string) { n.end(); remove(t, dir, "jetstream") },
		"purged":          func(n *live, _ string) { n.api("STREAM.PURGE.ALLOC_LOG", nil); n.end() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := &soloist{t, t.TempDir()}
			n := run(t, s.cfg())
			must(t, n.connect(), "alloc.reserve.orders", `{"count":10,"key":"k"}`)
			dir := s.cfg().DataDir
			lose(n, dir)
			if c := s.condition(); !strings.HasSuffix(c, ", stopped cleanly") {
				t.Fatalf("stopped in order: %s", c)
			}
			if err := os.Remove(filepath.Join(dir, "catalog", "clean")); err != nil { // as a kill leaves it
				t.Fatal(err)
			}
			for range 2 {
				n = run(t, s.cfg())
				n.becomes(wire.StateFenced, name)
				n.end()
			}
			if c := s.condition(); !strings.HasSuffix(c, "not stopped cleanly") {
				t.Errorf("after a kill: %s", c)
			}
			refuses(t, PlanRecovery([]string{s.file("floors")}, s.file("no"), RecoveryOptions{}, &strings.Builder{}), "solo: not stopped cleanly")
			s.recover(RecoveryOptions{RaiseBy: 100, Accepted: RecoveryRisk})
			n = run(t, s.cfg())
			n.becomes(wire.StateServing, "")
			nc := n.connect()
			if r := must(t, nc, "alloc.reserve.orders", `{"count":10,"key":"k"}`); r.Start != 1 {
				t.Errorf("the key got [%d, %d)", r.Start, r.End)
			}
			if r := must(t, nc, "alloc.reserve.orders", `{"key":"later"}`); r.Start != 111 {
				t.Errorf("raised by 100, it goes on at %d", r.Start)
			}
			n.end()
			if c := s.condition(); !strings.HasSuffix(c, ", stopped cleanly") {
				t.Errorf("in the new epoch: %s", c)
			}
		})
	}
}

// A state of several parts, a log that is lost again and again, and a log of a later epoch that is lost although its recovery
// is still there: it is not made a second time.
// Checked: without the comparison in Node.pending and without the first case of rejoin.step the node waited for ever, in place
// of a fence; its own word, in rejoin.create, still forbade the log.
func TestRecoverAloneInParts(t *testing.T) {
	t.Parallel()
	s := &soloist{t, t.TempDir()}
	n := run(t, s.cfg())
	n.becomes(wire.StateServing, "")
	nc := n.connect()
	const each, lists = 1000, 9
	for l := range lists {
		var items []string
		for i := range each {
			items = append(items, fmt.Sprintf(`{"sequence":"s%d-%d","count":%d}`, l, i, i%7+1))
		}
		m, err := nc.Request("alloc.reserve", []byte(`{"requests":[`+strings.Join(items, ",")+`]}`), nats.DefaultTimeout*2)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(m.Data), `"start":1`) {
			t.Fatalf("%.300s", m.Data)
		}
	}
	for epoch := uint64(2); epoch <= 3; epoch++ {
		n.end()
		remove(t, s.cfg().DataDir, "jetstream")
		s.condition()
		s.recover(RecoveryOptions{})
		r, err := readRecovery(s.file("recovery"))
		if err != nil || len(r.parts) < 3 {
			t.Fatalf("%d parts, %v", len(r.parts), err)
		}
		n = run(t, s.cfg())
		n.becomes(wire.StateServing, "")
		if st := n.Status(); st.Epoch != epoch || st.Sequences != each*lists {
			t.Fatalf("epoch %d, %d sequences", st.Epoch, st.Sequences)
		}
		nc = n.connect()
		if r := must(t, nc, "alloc.reserve.s8-6", `{"key":"once"}`); r.Start != 8 {
			t.Errorf("s8-6 goes on at %d", r.Start)
		}
	}
	n.end()
	remove(t, s.cfg().DataDir, "jetstream")
	n = run(t, s.cfg())
	n.becomes(wire.StateFenced, "the log is gone")
	if out := n.api("STREAM.NAMES", nil); strings.Contains(out, "ALLOC_LOG") {
		t.Errorf("there is a log again: %s", out)
	}
	n.end()
	if err := PrepareRecovery(s.cfg(), s.file("recovery"), &strings.Builder{}); err != nil {
		t.Errorf("applied once more: %v", err)
	}
	if _, err := os.Stat(filepath.Join(s.cfg().DataDir, recoveryName)); errors.Is(err, os.ErrNotExist) {
		t.Error("the recovery is not kept beside the catalog")
	}
}
