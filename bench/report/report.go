// Package report turns what was measured into a table, ratios, a plot and a file for programs.
//
// A [Report] holds cells, one for each row and concurrency, and each cell its rounds. What is shown is the median of the
// rounds that succeeded; a round that failed is an error that is shown too, and makes [Report.Failed] true. Nothing here
// measures, or knows how a figure came about.
package report

import (
	"encoding/json"
	"io"
	"slices"
	"time"
)

// Round is one measurement.
type Round struct {
	Rate    float64       `json:"rate"` // calls answered, per second
	P50     time.Duration `json:"p50_ns"`
	P99     time.Duration `json:"p99_ns"`
	P999    time.Duration `json:"p999_ns"`
	Calls   int           `json:"calls"`
	Cut     int           `json:"cut,omitempty"`     // still unanswered when the grace after the window was over
	Checked int           `json:"checked,omitempty"` // ids that were held against each other
	Error   string        `json:"error,omitempty"`   // then the figures do not count
}

// Cell is one row of the table.
type Cell struct {
	System     string  `json:"system"`
	Callers    int     `json:"callers"`     // requests in flight
	Conns      int     `json:"connections"` // 0: in this process
	Durability string  `json:"durability"`
	Copies     int     `json:"copies"`
	NoIDs      bool    `json:"no_ids,omitempty"` // a yardstick
	Rounds     []Round `json:"rounds"`
}

// Report is a whole run.
type Report struct {
	Date     time.Time     `json:"date"`
	Duration time.Duration `json:"duration_ns"` // of a round, without its warm-up
	Rounds   int           `json:"rounds"`
	Machine  Machine       `json:"machine"`
	Versions []Version     `json:"versions"`
	Cells    []*Cell       `json:"cells"`
}

// Median is the median of each figure over the rounds without an error; ok is false if there is none. Of an even number it
// is the mean of the middle two.
func (c *Cell) Median() (m Round, ok bool) {
	var good []Round
	for _, r := range c.Rounds {
		if r.Error == "" {
			good = append(good, r)
			m.Cut += r.Cut
			m.Checked += r.Checked
			m.Calls += r.Calls
		}
	}
	if len(good) == 0 {
		return Round{}, false
	}
	m.Rate = median(good, func(r Round) float64 { return r.Rate })
	m.P50 = time.Duration(median(good, func(r Round) float64 { return float64(r.P50) }))
	m.P99 = time.Duration(median(good, func(r Round) float64 { return float64(r.P99) }))
	m.P999 = time.Duration(median(good, func(r Round) float64 { return float64(r.P999) }))
	return m, true
}

func median(rounds []Round, of func(Round) float64) float64 {
	vs := make([]float64, len(rounds))
	for i, r := range rounds {
		vs[i] = of(r)
	}
	slices.Sort(vs)
	mid := len(vs) / 2
	if len(vs)%2 == 1 {
		return vs[mid]
	}
	return (vs[mid-1] + vs[mid]) / 2
}

// Failure is the first error of the cell's rounds and how many of them failed; a cell without a round has failed.
func (c *Cell) Failure() (text string, failed int) {
	for _, r := range c.Rounds {
		if r.Error != "" {
			if failed++; text == "" {
				text = r.Error
			}
		}
	}
	if len(c.Rounds) == 0 {
		return "not measured", 1
	}
	return text, failed
}

// Failed reports whether any round of any cell failed, or there is nothing at all.
func (r *Report) Failed() bool {
	return len(r.Cells) == 0 || slices.ContainsFunc(r.Cells, func(c *Cell) bool { _, n := c.Failure(); return n > 0 })
}

// find is the median of a row at a concurrency.
func (r *Report) find(system string, callers int) (Round, bool) {
	for _, c := range r.Cells {
		if c.System == system && c.Callers == callers {
			return c.Median()
		}
	}
	return Round{}, false
}

// WriteJSON writes everything, every round too.
func (r *Report) WriteJSON(w io.Writer) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "\t")
	return enc.Encode(r)
}
