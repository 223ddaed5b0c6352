package model

import (
	"fmt"
	"slices"
	"strings"
)

// invariants is a set of them: those that a step broke.
type invariants uint8

const (
	unique    invariants = 1 << iota // no id is issued twice
	ownEntry                         // a waiter gets only its own entry's range
	sameRange                        // the same key is answered with the same range
	once                             // an entry carves at most once
	monotonic                        // a hwm never decreases, in memory or on disk
	agreement                        // equal cursors have equal states, on all nodes and at all times

	all invariants = 1<<iota - 1
)

func (i invariants) String() string {
	var names []string
	for bit, name := range []string{
		"no id is issued twice", "a waiter gets its own entry's range", "the same key, the same range",
		"an entry carves once", "a hwm never decreases", "equal state at equal cursor",
	} {
		if i&(1<<bit) != 0 {
			names = append(names, name)
		}
	}
	return strings.Join(names, "; ")
}

// action is a kind of step. See the package's table for what each stands for.
type action uint8

const (
	submit action = iota
	again
	commit
	deliver
	giveUp
	persist
	take
	crash
	bind
	fail
	lateWrite
)

// step is one action, with its node and its argument: an op, a counter, a place in onWay, or a seq.
type step struct {
	action action
	node   uint8
	arg    uint8
}

// describe tells a step that is about to be taken in s, where node i has the name names[i].
func (st step) describe(s *state, names [maxNodes]uint8) string {
	n, name := &s.nodes[st.node], names[st.node]
	say := func(e entry) string {
		what := [...]string{"nothing", "a keyed reservation", "a reservation", "a refill", "an advance"}[e.op]
		return fmt.Sprintf("entry %d of node %d's run %d, %s", e.counter, names[e.node], e.run, what)
	}
	switch st.action {
	case submit:
		return fmt.Sprintf("node %d appends %s", name, say(entry{op(st.arg), st.node, n.run, n.counter + 1}))
	case again:
		return fmt.Sprintf("node %d appends once more %s", name, say(entry{n.flights[st.arg], st.node, n.run, st.arg}))
	case commit:
		return fmt.Sprintf("the log takes at seq %d %s", s.last()+1, say(s.onWay[st.arg]))
	case deliver:
		return fmt.Sprintf("node %d, at cursor %d, is brought seq %d", name, n.cursor, st.arg)
	case giveUp:
		return fmt.Sprintf("node %d gives up who waits for its entry %d", name, st.arg)
	case persist:
		return fmt.Sprintf("node %d writes to its disk, for seq %d", name, n.next)
	case take:
		return fmt.Sprintf("node %d gives away the first id of its batch", name)
	case crash:
		return fmt.Sprintf("node %d crashes, and starts at cursor %d with hwm %d", name, n.disk.cursor, n.disk.machine.hwm)
	case bind:
		return fmt.Sprintf("node %d has its hwm lifted outside the log", name)
	case fail:
		return fmt.Sprintf("node %d cannot write what seq %d changed, and carries on", name, n.next)
	case lateWrite:
		return fmt.Sprintf("node %d writes the hwm %d of an advance, by itself", name, n.disk.late)
	}
	panic(fmt.Sprintf("model: action %d", st.action))
}

// each calls fn with every step that is possible in s.
func (w *world) each(s *state, fn func(step)) {
	last := s.last()
	if last < w.log {
		for i, e := range s.onWay {
			if e != (entry{}) && (i == 0 || e != s.onWay[i-1]) {
				fn(step{commit, e.node, uint8(i)})
			}
		}
	}
	for i := range w.nodes {
		n := &s.nodes[i]
		for o := keyed; o < kinds; o++ {
			if s.left.ops[o] > 0 && (o != refill || !n.waits(refill)) {
				fn(step{submit, i, uint8(o)})
			}
		}
		for c, o := range n.flights {
			if o == none {
				continue
			}
			if s.left.copies > 0 {
				fn(step{again, i, uint8(c)})
			}
			if s.left.giveUps > 0 {
				fn(step{giveUp, i, uint8(c)})
			}
		}
		for seq := uint8(1); seq <= last; seq++ { // any, and any number of times: what the guards refuse changes nothing
			fn(step{deliver, i, seq})
		}
		if n.next <= n.cursor {
			fn(step{persist, i, 0})
			if !w.on(retryDelta) && s.left.faults > 0 {
				fn(step{fail, i, 0})
			}
		}
		if n.batch != 0 {
			fn(step{take, i, 0})
		}
		if s.left.crashes > 0 {
			fn(step{crash, i, 0})
		}
		if !w.on(logOnly) && s.left.binds > 0 {
			fn(step{bind, i, 0})
		}
		if n.disk.late != 0 {
			fn(step{lateWrite, i, 0})
		}
	}
}

// waits reports whether one who wants o waits at n.
func (n *node) waits(o op) bool {
	for _, flight := range n.flights {
		if flight == o {
			return true
		}
	}
	return false
}

// do takes one step, and returns the invariants that it broke.
func (w *world) do(s *state, st step) (broken invariants) {
	n := &s.nodes[st.node]
	switch st.action {
	case submit:
		n.counter++
		n.flights[n.counter] = op(st.arg)
		s.left.ops[st.arg]--
		s.append(entry{op(st.arg), st.node, n.run, n.counter})
	case again:
		s.left.copies--
		s.append(entry{n.flights[st.arg], st.node, n.run, st.arg})
	case commit:
		s.log[s.last()] = s.onWay[st.arg]
		copy(s.onWay[st.arg:], s.onWay[st.arg+1:])
		s.onWay[maxOnWay-1] = entry{}
	case deliver:
		return w.deliver(s, st.node, st.arg)
	case giveUp:
		s.left.giveUps--
		n.flights[st.arg] = none
	case persist:
		return w.persist(n)
	case take:
		id := n.batch.lowest()
		n.batch &^= id
		return s.issue(false, id)
	case crash:
		s.left.crashes--
		*n = node{run: n.run + 1, cursor: n.disk.cursor, machine: n.disk.machine, next: n.disk.cursor + 1, disk: n.disk}
		n.disk.torn, n.disk.late = false, 0
		n.batch = n.disk.batch
		return s.compare(n)
	case bind:
		s.left.binds--
		n.machine.hwm = max(n.machine.hwm, 1)
		return s.compare(n)
	case fail:
		s.left.faults--
		n.stored()
	case lateWrite:
		late := n.disk.late
		n.disk.late = 0
		return n.disk.setHWM(late)
	}
	return 0
}

// append puts e among what is on its way to the log, in its place.
func (s *state) append(e entry) {
	at := maxOnWay - 1
	if s.onWay[at] != (entry{}) {
		panic("model: more is on its way than the arrays hold")
	}
	for ; at > 0 && (s.onWay[at-1] == (entry{}) || e.less(s.onWay[at-1])); at-- {
		s.onWay[at] = s.onWay[at-1]
	}
	s.onWay[at] = e
}

func (e entry) less(o entry) bool {
	switch {
	case e.node != o.node:
		return e.node < o.node
	case e.run != o.run:
		return e.run < o.run
	}
	return e.counter < o.counter
}

// deliver brings the entry at seq to node i: it is applied, its delta handed to the catalog, its outcome to who waits.
func (w *world) deliver(s *state, i, seq uint8) (broken invariants) {
	n := &s.nodes[i]
	if seq <= n.cursor || seq != n.cursor+1 && w.on(noGap) {
		return 0
	}
	e, before := s.log[seq-1], n.machine
	carves := !w.seen(s, before.seen, e) || !w.on(dedupe)
	var start, count uint8 // the outcome
	var d delta
	switch m := &n.machine; {
	case !carves:
	case e.op == advance:
		m.hwm = max(m.hwm, advanceTo)
		if m.hwm != before.hwm {
			d.hwm = m.hwm
		}
		if d.hwm != 0 && !w.on(advanceInDelta) {
			n.disk.late, d.hwm = d.hwm, 0
		}
		n.batch &^= span(0, advanceTo+1)
	case e.op == keyed && m.key != 0:
		start, count, carves = m.key, keyedIDs, false
	default:
		start, count = m.hwm+1, [kinds]uint8{keyed: keyedIDs, plain: 1, refill: batchIDs}[e.op]
		m.hwm += count
		d.hwm = m.hwm
		if e.op == keyed {
			m.key, d.key = start, start
		}
	}
	n.machine.seen |= 1 << (seq - 1)
	n.cursor, n.deltas[seq-1] = seq, d

	if n.machine.hwm < before.hwm {
		broken |= monotonic
	}
	if carves && e.op != advance && slices.Contains(s.log[:seq-1], e) {
		broken |= once
	}
	return broken | w.answer(s, i, e, start, count) | s.compare(n)
}

// answer gives the outcome of e to who waits for it at node i, if anybody does.
func (w *world) answer(s *state, i uint8, e entry, start, count uint8) (broken invariants) {
	n := &s.nodes[i]
	mine := entry{e.op, i, n.run, e.counter}
	wants := n.flights[e.counter]
	if !w.same(e, mine) || wants == none || count == 0 && e.op != advance {
		return 0
	}
	n.flights[e.counter] = none
	if e != mine {
		broken |= ownEntry
	}
	got := span(start, count)
	switch wants {
	case refill:
		n.batch |= got
		if !w.on(forgetBatch) {
			n.disk.batch = n.batch
		}
	case keyed:
		broken |= s.issue(true, got)
		if s.answered == 0 {
			s.answered = start
		}
		if s.answered != start {
			broken |= sameRange
		}
	case plain:
		broken |= s.issue(false, got)
	}
	return broken
}

// issue hands ids to a user, for good.
func (s *state) issue(toKey bool, got ids) (broken invariants) {
	twice := s.toOthers & got
	if toKey {
		s.toKey |= got
	} else {
		twice |= s.toKey & got
		s.toOthers |= got
	}
	if twice != 0 {
		return unique
	}
	return 0
}

// compare holds the node's state against the one that was first at its cursor.
func (s *state) compare(n *node) (broken invariants) {
	if bit := uint8(1) << n.cursor; s.known&bit == 0 {
		s.known |= bit
		s.at[n.cursor] = n.machine
	}
	if s.at[n.cursor] != n.machine {
		return agreement
	}
	return 0
}

// persist stores the next delta: records and cursor in one transaction.
func (w *world) persist(n *node) (broken invariants) {
	n.skipMissing()
	if !w.on(atomicCommit) && !n.disk.torn {
		n.disk.cursor, n.disk.torn = n.next, true
		return 0
	}
	d := n.deltas[n.next-1]
	if d.hwm != 0 {
		broken = n.disk.setHWM(d.hwm)
	}
	if d.key != 0 {
		n.disk.machine.key = d.key
	}
	n.disk.machine.seen |= 1 << (n.next - 1)
	n.disk.cursor, n.disk.torn = n.next, false
	n.stored()
	return broken
}

// skipMissing passes over the entries that were never applied (noGap off).
func (n *node) skipMissing() {
	for n.machine.seen&(1<<(n.next-1)) == 0 {
		n.next++
	}
}

// stored leaves the next delta behind.
func (n *node) stored() {
	n.deltas[n.next-1] = delta{}
	n.next++
}

func (d *disk) setHWM(hwm uint8) (broken invariants) {
	if hwm < d.machine.hwm {
		broken = monotonic
	}
	d.machine.hwm = hwm
	return broken
}
