package report

import (
	"fmt"
	"math"
)

// Ratio is one thing that the comparison must show.
type Ratio struct {
	Name     string
	Bound    float64
	AtMost   bool // the target is Bound or less; else Bound or more
	Strict   bool // equal is not enough
	Value    float64
	Measured bool
	Why      string // why it was not measured, or what Value was computed from
}

// Met reports whether it was measured and keeps the target.
func (x Ratio) Met() bool {
	switch {
	case !x.Measured || math.IsNaN(x.Value):
		return false
	case x.Strict && x.Value == x.Bound:
		return false
	case x.AtMost:
		return x.Value <= x.Bound
	}
	return x.Value >= x.Bound
}

// Verdict is met, missed or not measured.
func (x Ratio) Verdict() string {
	switch {
	case !x.Measured:
		return "not measured"
	case x.Met():
		return "met"
	}
	return "missed"
}

// Target says what is wanted.
func (x Ratio) Target() string {
	switch {
	case x.Bound == 0:
		return "–"
	case x.AtMost:
		return fmt.Sprintf("at most %g", x.Bound)
	case x.Strict:
		return fmt.Sprintf("above %g", x.Bound)
	}
	return fmt.Sprintf("at least %g", x.Bound)
}

// Text is the value with what it was computed from.
func (x Ratio) Text() string {
	if !x.Measured {
		return x.Why
	}
	return fmt.Sprintf("%.3g (%s)", x.Value, x.Why)
}

// RateOf wants one row's rate to be so many times the best of others' at the same concurrency.
func (r *Report) RateOf(name, system string, callers int, bound float64, strict bool, others ...string) Ratio {
	x := Ratio{Name: name, Bound: bound, Strict: strict}
	ours, ok := r.find(system, callers)
	if !ok {
		x.Why = fmt.Sprintf("no figure of %s, %d in flight", system, callers)
		return x
	}
	var best float64
	var who string
	for _, other := range others {
		m, ok := r.find(other, callers)
		if !ok { // the best could be the one that is missing
			x.Why = fmt.Sprintf("no figure of %s, %d in flight", other, callers)
			return x
		}
		if m.Rate > best {
			best, who = m.Rate, other
		}
	}
	x.Value, x.Measured = ours.Rate/best, true
	x.Why = fmt.Sprintf("%s /s; %s: %s /s", Rate(ours.Rate), who, Rate(best))
	return x
}

// P50Of wants one row's median latency to be at most so many times another's at the same concurrency.
func (r *Report) P50Of(name, system string, callers int, bound float64, other string) Ratio {
	x := Ratio{Name: name, Bound: bound, AtMost: true}
	ours, ok := r.find(system, callers)
	theirs, ok2 := r.find(other, callers)
	if !ok || !ok2 {
		x.Why = fmt.Sprintf("no figures of %s and %s, %d in flight", system, other, callers)
		return x
	}
	x.Value, x.Measured = float64(ours.P50)/float64(theirs.P50), true
	x.Why = fmt.Sprintf("%s; %s: %s", Latency(ours.P50), other, Latency(theirs.P50))
	return x
}

// Worst is the one of several that is furthest from its target, under a name of its own; one that was not measured is.
func Worst(name string, xs []Ratio, of []string) Ratio {
	if len(xs) == 0 {
		return Ratio{Name: name, Why: "no figures"}
	}
	worst := 0
	for i, x := range xs {
		if !xs[worst].Measured {
			break
		}
		if !x.Measured || x.AtMost && x.Value > xs[worst].Value || !x.AtMost && x.Value < xs[worst].Value {
			worst = i
		}
	}
	x := xs[worst]
	x.Name = name
	if x.Measured {
		x.Why = of[worst] + ": " + x.Why
	}
	return x
}

// NotHere is a target that another command measures.
func NotHere(name, why string, bound float64, atMost bool) Ratio {
	return Ratio{Name: name, Bound: bound, AtMost: atMost, Why: why}
}
