package model

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// result is what a search found.
type result struct {
	states int        // different states that were reached
	depth  int        // steps of the longest of the shortest ways to a state
	broken invariants // by the last step of trace; 0 when none of those looked for was broken
	trace  []string   // the shortest way there
}

func (r result) String() string {
	if r.broken == 0 {
		return fmt.Sprintf("%d states, %d deep: all holds", r.states, r.depth)
	}
	return fmt.Sprintf("after %d states, broken: %s\n  %s", r.states, r.broken, strings.Join(r.trace, "\n  "))
}

// origin is how a state was first reached.
type origin struct {
	from uint32 // index of the state before
	step step
}

// search goes through all states of w, breadth first, until one step breaks any of the invariants looked for. Where it
// finds none, it has seen every state that there is. visit, if not nil, is shown every step that changes anything.
func (w *world) search(looked invariants, visit func(before *state, st step, after *state)) result {
	first := w.start()
	w.settle(&first)
	index := map[state]uint32{first: 0}
	origins := []origin{{}}
	level, next := []state{first}, []state(nil)
	var s state // here, so that not every step allocates one
	var r result
	for ; len(level) > 0; level, next = next, level[:0] {
		for i := range level {
			from := uint32(len(origins))
			w.each(&level[i], func(st step) {
				if r.broken != 0 {
					return
				}
				s = level[i]
				broken := w.do(&s, st) & looked
				if visit != nil && s != level[i] {
					visit(&level[i], st, &s)
				}
				w.settle(&s)
				if _, known := index[s]; known && broken == 0 {
					return
				}
				if from == uint32(len(origins)) {
					from = index[level[i]]
				}
				index[s] = uint32(len(origins))
				origins = append(origins, origin{from, st})
				next = append(next, s)
				if broken != 0 {
					r.broken = broken
				}
			})
			if r.broken != 0 {
				r.states = len(origins)
				r.trace = w.trace(origins)
				return r
			}
		}
		if len(next) > 0 {
			r.depth++
		}
	}
	r.states = len(origins)
	return r
}

// settle makes one of states between which no later step and no invariant can tell. It forgets what is on its way to a log
// that is full, and disks that nobody will read any more. And it renames the nodes, which are all alike, as far as a look
// at each by itself tells; any renaming is right. was has the old name of each node.
func (w *world) settle(s *state) (was [maxNodes]uint8) {
	if w.whole {
		return [maxNodes]uint8{0, 1, 2}
	}
	if s.log[w.log-1] != (entry{}) {
		s.onWay = [maxOnWay]entry{}
	}
	if s.left.crashes == 0 {
		for i := range s.nodes {
			n := &s.nodes[i]
			n.deltas, n.next, n.disk = [maxLog]delta{}, maxLog+1, disk{}
		}
	}
	var order, name [maxNodes]uint8
	for i := range order {
		order[i] = uint8(i)
	}
	slices.SortStableFunc(order[:w.nodes], func(a, b uint8) int { return compareNodes(&s.nodes[a], &s.nodes[b]) })
	if slices.IsSorted(order[:]) {
		return order
	}
	nodes := s.nodes
	for i, o := range order {
		s.nodes[i] = nodes[o]
		name[o] = uint8(i)
	}
	for i := range s.last() {
		s.log[i].node = name[s.log[i].node]
	}
	onWay := s.onWay
	s.onWay = [maxOnWay]entry{}
	for _, e := range onWay {
		if e != (entry{}) {
			e.node = name[e.node]
			s.append(e)
		}
	}
	return order
}

func compareNodes(a, b *node) int {
	if *a == *b {
		return 0
	}
	if c := cmp.Or(cmp.Compare(a.run, b.run), cmp.Compare(a.counter, b.counter), cmp.Compare(a.cursor, b.cursor),
		cmp.Compare(a.next, b.next), cmp.Compare(a.batch, b.batch), cmp.Compare(a.disk.cursor, b.disk.cursor)); c != 0 {
		return c
	}
	for i := range a.flights {
		if c := cmp.Compare(a.flights[i], b.flights[i]); c != 0 {
			return c
		}
	}
	return 0
}

// trace tells the way to the last state, with the names that the nodes had at its beginning.
func (w *world) trace(origins []origin) (lines []string) {
	var way []step
	for i := uint32(len(origins) - 1); i != 0; i = origins[i].from {
		way = append(way, origins[i].step)
	}
	slices.Reverse(way)
	s := w.start()
	names := w.settle(&s)
	for i, st := range way {
		lines = append(lines, fmt.Sprintf("%d. %s", i+1, st.describe(&s, names)))
		w.do(&s, st)
		renamed := w.settle(&s)
		for i, was := range renamed {
			renamed[i] = names[was]
		}
		names = renamed
	}
	return lines
}
