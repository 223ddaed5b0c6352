package next

import "testing"

// Advances against refills. Checked: without the floor in install the case "within" gives 1; without dropping in advance
// the case "after" gives 2; with the floor set to the last advance instead of the highest, "lower" gives 11.
func TestAdvance(t *testing.T) {
	t.Run("before", func(t *testing.T) {
		bubble(t, nil, func(g *rig) {
			g.advance("a", 500)
			g.want(g.fill("a", 1), 501)
		})
	})
	t.Run("after", func(t *testing.T) {
		bubble(t, nil, func(g *rig) {
			g.want(g.fill("a", 1), 1)
			g.advanced("a", 40) // at or below the hwm, which is 100: still, 40 may be somebody else's
			g.want(g.take("a", 1), 41)
			g.advance("a", 1000)
			a := g.take("a", 1)
			g.waits(a)
			g.apply()
			g.want(a, 1001)
		})
	})
	t.Run("within", func(t *testing.T) { // the refill is applied, and its answer held, when the advance comes
		bubble(t, nil, func(g *rig) {
			a := g.take("a", 1)
			refill := g.log.take()
			o := g.log.carve(refill)
			g.advance("a", 60)
			g.waits(a)
			g.log.answer(refill, o)
			g.want(a, 61)
			b := g.take("a", 1)
			g.want(b, 62)
			refill = g.log.take() // the one that 39 ids left made due
			o = g.log.carve(refill)
			g.advance("a", 100000)
			g.log.answer(refill, o) // nothing of it is left
			c := g.take("a", 1)
			g.waits(c)
			g.apply()
			g.want(c, 100001)
		})
	})
	t.Run("lower", func(t *testing.T) {
		bubble(t, nil, func(g *rig) {
			a := g.take("a", 1)
			refill := g.log.take()
			o := g.log.carve(refill)
			g.advance("a", 60)
			g.advance("a", 10)
			g.log.answer(refill, o)
			g.want(a, 61)
		})
	})
	t.Run("while waiting", func(t *testing.T) {
		bubble(t, func(c *Config) { c.Least = 4 }, func(g *rig) {
			g.want(g.fill("a", 1), 1)
			a := g.take("a", 8) // 2 to 4 are there for it, not enough
			g.waits(a)
			g.advance("a", 3)
			g.apply()
			g.waits(a)
			g.apply()
			g.want(a, 4, 5, 6, 7, 8, 9, 10, 11)
		})
	})
	t.Run("another sequence", func(t *testing.T) {
		bubble(t, nil, func(g *rig) {
			g.want(g.fill("a", 1), 1)
			g.advance("b", 1000)
			g.want(g.take("a", 1), 2)
		})
	})
}

// An answer that came twice, or late, would carry ids that were held before: nothing of it is installed.
func TestNothingIsInstalledTwice(t *testing.T) {
	bubble(t, nil, func(g *rig) {
		a := g.take("a", 1)
		refill := g.log.take()
		o := g.log.carve(refill)
		g.log.answer(refill, o)
		g.want(a, 1)
		g.log.answer(refill, o) // Checked: without the floor that install sets, id 1 is held again
		g.want(g.take("a", 1), 2)
		for id := uint64(3); id <= 100; id++ {
			g.want(g.take("a", 1), id)
		}
	})
}
