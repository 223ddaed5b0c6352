package history

import (
	"fmt"
	"strings"
)

// Rule names what was broken.
type Rule string

// The rules, one for each checker.
const (
	RuleUnique     Rule = "unique"
	RuleIdempotent Rule = "idempotent"
	RuleLogTruth   Rule = "log truth"
	RuleOrder      Rule = "order"
	RuleDigest     Rule = "digest"
	RuleDrained    Rule = "drained"
	RuleLiveness   Rule = "liveness"
	RuleHygiene    Rule = "hygiene"
	RuleRecovery   Rule = "recovery"
)

// Violation is one breach of a rule.
type Violation struct {
	Rule     Rule
	Text     string    // what is wrong, with the numbers
	Attempts []Attempt // those concerned, in the order of the text; none where it is about the log or nodes alone
}

// maxViolations bounds what one checker reports: the first ones tell it, and a broken run has a million.
const maxViolations = 100

// found collects the violations of one rule.
type found struct {
	rule Rule
	all  []Violation
}

func (f *found) full() bool { return len(f.all) >= maxViolations }

func (f *found) add(attempts []*Attempt, format string, args ...any) {
	if f.full() {
		return
	}
	v := Violation{Rule: f.rule, Text: fmt.Sprintf(format, args...)}
	for _, a := range attempts {
		if a != nil {
			v.Attempts = append(v.Attempts, *a)
		}
	}
	f.all = append(f.all, v)
}

// String is the rule, the text, and a line for each attempt.
func (v Violation) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s", v.Rule, v.Text)
	for i := range v.Attempts {
		fmt.Fprintf(&b, "\n  %s", &v.Attempts[i])
	}
	return b.String()
}

// String is the attempt on one line, with times in milliseconds of [Now].
func (a *Attempt) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%.3f %s/%d %s %s at %s", ms(a.Began), a.Process, a.ID, a.Action, a.Sequence, a.Node)
	if a.Key != "" {
		fmt.Fprintf(&b, " key %s since %d", a.Key, a.Since)
	}
	if a.Action == Advance {
		fmt.Fprintf(&b, " to %d", a.To)
	} else if a.Count > 0 {
		fmt.Fprintf(&b, " count %d", a.Count)
	}
	if len(a.Answers) == 0 {
		b.WriteString(": no answer")
	}
	for i := range a.Answers {
		n := &a.Answers[i]
		fmt.Fprintf(&b, "; %.3f %s", ms(n.At), n.Outcome)
		for _, r := range n.Ranges {
			fmt.Fprintf(&b, " [%d, %d)", r.Start(), r.End())
		}
		if n.HWM > 0 {
			fmt.Fprintf(&b, " hwm %d", n.HWM)
		}
		if n.Seq > 0 {
			fmt.Fprintf(&b, " seq %d", n.Seq)
		}
		if n.Code != "" {
			fmt.Fprintf(&b, " %s", n.Code)
		}
		if n.Text != "" {
			fmt.Fprintf(&b, " (%s)", n.Text)
		}
	}
	return b.String()
}

func ms(ns int64) float64 { return float64(ns) / 1e6 }
