package report

import (
	"bufio"
	"fmt"
	"io"
	"strings"
	"time"
	"unicode/utf8"
)

var heading = []string{
	"system", "in flight", "connections", "rate /s", "p50", "p99", "p999", "durability", "copies", "ids/s",
}

// WriteTable writes the report as Markdown whose columns are also aligned for a terminal: machine, table, errors, ratios.
func (r *Report) WriteTable(w io.Writer, ratios []Ratio, plot string) error {
	b := bufio.NewWriter(w)
	fmt.Fprintf(b, "# allocnode beside other systems, %s\n\n", r.Date.Format("2006-01-02 15:04 MST"))
	fmt.Fprintf(b, "One run of `make bench-compare`. Rounds: %d, of %v for each row, all rows in turn; medians. Servers, clients and what\n"+
		"measures share the machine. Reading the clock takes some 30 ns: a latency below 100 ns is mostly that.\n\n", r.Rounds, r.Duration)
	r.Machine.write(b)
	for _, v := range r.Versions {
		fmt.Fprintf(b, "- %s %s\n", v.Name, v.Version)
	}
	b.WriteByte('\n')
	if plot != "" {
		fmt.Fprintf(b, "![rate by system](%s)\n\n", plot)
	}
	rows := [][]string{heading}
	var errs []string
	for _, c := range r.Cells {
		text, failed := c.Failure()
		row := []string{c.System, fmt.Sprint(c.Callers), connections(c.Conns), "", "", "", "", c.Durability, fmt.Sprint(c.Copies), ""}
		m, ok := c.Median()
		switch {
		case !ok:
			row[3] = "ERROR: " + cellText(text)
		case failed > 0:
			row[0] += " †"
			errs = append(errs, fmt.Sprintf("- † %s, %d in flight: %d of %d rounds failed: %s",
				c.System, c.Callers, failed, len(c.Rounds), cellText(text)))
			fallthrough
		default:
			row[3], row[4], row[5], row[6] = Rate(m.Rate), Latency(m.P50), Latency(m.P99), Latency(m.P999)
			row[9] = row[3]
			if c.NoIDs {
				row[9] = "–"
			}
			if m.Cut > 0 {
				errs = append(errs, fmt.Sprintf("- %s, %d in flight: %d calls had no answer when the grace after the window was over; "+
					"they count in the percentiles with the time until then", c.System, c.Callers, m.Cut))
			}
		}
		rows = append(rows, row)
	}
	writeAligned(b, rows)
	if len(errs) > 0 {
		fmt.Fprintf(b, "\n%s\n", strings.Join(errs, "\n"))
	}
	if len(ratios) > 0 {
		b.WriteString("\n## What it must show\n\n")
		rows = [][]string{{"ratio", "measured", "target", ""}}
		for _, x := range ratios {
			rows = append(rows, []string{x.Name, x.Text(), x.Target(), x.Verdict()})
		}
		writeAligned(b, rows)
	}
	return b.Flush()
}

func connections(n int) string {
	if n == 0 {
		return "–"
	}
	return fmt.Sprint(n)
}

// cellText keeps an error within its cell.
func cellText(s string) string {
	s = strings.ReplaceAll(strings.Join(strings.Fields(s), " "), "|", `\|`)
	if len(s) > 300 {
		s = strings.ToValidUTF8(s[:300], "") + "…"
	}
	return s
}

// writeAligned pads cells to their column's width. An error would make its whole column wide, so it is left out of the count.
func writeAligned(b *bufio.Writer, rows [][]string) {
	width := make([]int, len(rows[0]))
	for _, row := range rows {
		for i, s := range row {
			if !strings.HasPrefix(s, "ERROR") {
				width[i] = max(width[i], utf8.RuneCountInString(s))
			}
		}
	}
	for n, row := range rows {
		for i, s := range row {
			b.WriteString("| " + s + strings.Repeat(" ", max(0, width[i]-utf8.RuneCountInString(s))) + " ")
		}
		b.WriteString("|\n")
		if n == 0 {
			for _, w := range width {
				b.WriteString("| " + strings.Repeat("-", max(3, w)) + " ")
			}
			b.WriteString("|\n")
		}
	}
}

// Rate writes three digits that count, and thousands apart: 97,500.
func Rate(v float64) string {
	if v < 100 {
		return fmt.Sprintf("%.3g", v)
	}
	scale := 1.0
	for v/scale >= 1000 {
		scale *= 10
	}
	digits := fmt.Sprintf("%.0f", float64(int64(v/scale+0.5))*scale)
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}

// Latency writes three digits that count, in ns, µs, ms or s.
func Latency(d time.Duration) string {
	unit, name := time.Nanosecond, "ns"
	switch {
	case d >= time.Second:
		unit, name = time.Second, "s"
	case d >= time.Millisecond:
		unit, name = time.Millisecond, "ms"
	case d >= time.Microsecond:
		unit, name = time.Microsecond, "µs"
	}
	v := float64(d) / float64(unit)
	switch {
	case unit == time.Nanosecond || v >= 99.95:
		return fmt.Sprintf("%.0f %s", v, name)
	case v >= 9.995:
		return fmt.Sprintf("%.1f %s", v, name)
	}
	return fmt.Sprintf("%.2f %s", v, name)
}
