package report

import (
	"bytes"
	"image/color"
	"io"
	"math"
	"slices"
	"strconv"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

// What tells concurrencies apart, from few callers to many: readable with any kind of colour vision, and in grey by shape.
var (
	colours = []color.Color{
		color.RGBA{R: 0, G: 114, B: 178, A: 255}, color.RGBA{R: 230, G: 159, B: 0, A: 255},
		color.RGBA{R: 0, G: 158, B: 115, A: 255}, color.RGBA{R: 204, G: 51, B: 102, A: 255},
		color.RGBA{R: 86, G: 86, B: 86, A: 255},
	}
	shapes = []draw.GlyphDrawer{draw.CircleGlyph{}, draw.SquareGlyph{}, draw.TriangleGlyph{}, draw.PyramidGlyph{}, draw.RingGlyph{}}
)

// WritePlot draws the rate of each row on a logarithmic axis, a mark for each concurrency, as SVG. Cells without a figure
// have no mark; a row without any keeps its line, so that its absence shows.
func (r *Report) WritePlot(w io.Writer) error {
	p := plot.New()
	p.Title.Text = "Ids or calls per second, " + r.Date.Format("2006-01-02") + ", " + strconv.Itoa(r.Machine.Cores) + " cores"
	p.X.Label.Text = "per second (logarithmic)"
	legend := plot.NewLegend()
	for _, s := range []*text.Style{&p.Title.TextStyle, &p.X.Label.TextStyle, &p.X.Tick.Label, &p.Y.Tick.Label, &legend.TextStyle} {
		s.Font.Variant = "Sans"
	}

	var systems []string
	var callers []int
	low, high := math.Inf(1), 0.0
	for _, c := range r.Cells {
		if !slices.Contains(systems, c.System) {
			systems = append(systems, c.System)
		}
		if !slices.Contains(callers, c.Callers) {
			callers = append(callers, c.Callers)
		}
		if m, ok := c.Median(); ok && m.Rate > 0 {
			low, high = min(low, m.Rate), max(high, m.Rate)
		}
	}
	slices.Sort(callers)
	slices.Reverse(systems) // the first at the top
	if high == 0 {
		low, high = 1, 10
	}
	p.X.Min, p.X.Max = math.Pow(10, math.Floor(math.Log10(low))), math.Pow(10, math.Ceil(math.Log10(high)+0.01))
	p.X.Scale, p.X.Tick.Marker = plot.LogScale{}, decades{}
	p.NominalY(systems...)
	p.Y.Min, p.Y.Max = -0.7, float64(len(systems))-0.3
	p.X.Padding, p.Y.Padding = 0, 0
	// Room for a viewer's font that is wider than the one measured with: ticks that nobody sees.
	p.Y.Tick.Length, p.Y.Tick.LineStyle = vg.Points(28), draw.LineStyle{Color: color.White, Width: vg.Points(0.1)}
	grid := plotter.NewGrid()
	grid.Vertical.Color, grid.Horizontal.Color = color.Gray{Y: 215}, color.Gray{Y: 235}
	p.Add(grid)

	for i, n := range callers {
		var points plotter.XYs
		for _, c := range r.Cells {
			if m, ok := c.Median(); ok && m.Rate > 0 && c.Callers == n {
				points = append(points, plotter.XY{X: m.Rate, Y: float64(slices.Index(systems, c.System))})
			}
		}
		if len(points) == 0 {
			continue
		}
		s, err := plotter.NewScatter(points)
		if err != nil {
			return err
		}
		s.GlyphStyle = draw.GlyphStyle{Color: colours[i%len(colours)], Shape: shapes[i%len(shapes)], Radius: vg.Points(4)}
		p.Add(s)
		legend.Add(strconv.Itoa(n)+" in flight", s)
	}
	legend.Top, legend.Left, legend.Padding = true, true, vg.Points(4)

	canvas := vgsvg.NewWith(vgsvg.UseWH(11*vg.Inch, vg.Length(len(systems))*0.26*vg.Inch+1.2*vg.Inch))
	const beside, margin = 1.4 * vg.Inch, 6 // in points; the legend has a place of its own, where no mark can be
	all := draw.New(canvas)
	p.Draw(draw.Crop(all, margin, -beside, margin, -margin))
	legend.Draw(draw.Crop(all, all.Max.X-beside-4*margin, 0, 0, -40))
	var svg bytes.Buffer
	if _, err := canvas.WriteTo(&svg); err != nil {
		return err
	}
	// Where the font that it names is missing, a viewer would take one with serifs.
	_, err := w.Write(bytes.ReplaceAll(svg.Bytes(), []byte("Liberation Sans;"), []byte("Liberation Sans,Arial,Helvetica,sans-serif;")))
	return err
}

// decades labels the powers of ten: 1k, 10k.
type decades struct{}

func (decades) Ticks(low, high float64) (ticks []plot.Tick) {
	for v := low; v <= high*1.001; v *= 10 {
		ticks = append(ticks, plot.Tick{Value: v, Label: short(v)})
		for i := 2.0; i < 10 && v*i < high; i++ {
			ticks = append(ticks, plot.Tick{Value: v * i})
		}
	}
	return ticks
}

func short(v float64) string {
	for _, u := range []struct {
		by   float64
		name string
	}{{1e9, "G"}, {1e6, "M"}, {1e3, "k"}} {
		if v >= u.by*0.999 {
			return strconv.FormatFloat(v/u.by, 'g', 3, 64) + u.name
		}
	}
	return strconv.FormatFloat(v, 'g', 3, 64)
}
