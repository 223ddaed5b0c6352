package wire

import (
	"bytes"

	"github.com/allocnode/allocnode"
)

// The hot path's JSON is read without reflection, as far as it is plain: objects of known fields, each at most once, with
// whole numbers, booleans and strings of printable ASCII without escapes, as every JSON library writes them. Whatever is
// not, or is out of bounds, is left to encoding/json, which reads all of JSON and words the faults. So the readers here
// never refuse: they only say that they do not know. That they never accept what encoding/json reads otherwise is held by
// FuzzPlain.

// plain reads plain JSON from the front of b. Once something is not, lost is set and stays, and what is read is worth
// nothing.
type plain struct {
	b    []byte
	lost bool
}

// next returns the first byte that is no white space, and 0 at the end.
func (p *plain) next() byte {
	for i, c := range p.b {
		if c != ' ' && c != '\n' && c != '\t' && c != '\r' {
			p.b = p.b[i:]
			return c
		}
	}
	p.b = nil
	return 0
}

// take reads c, after white space, or is lost.
func (p *plain) take(c byte) {
	if p.next() != c {
		p.lost = true
		return
	}
	p.b = p.b[1:]
}

// more goes to the next element of an object or a list that end closes; first says that none was read yet. It reads the
// comma or end, and reports whether an element follows.
func (p *plain) more(first bool, end byte) bool {
	switch c := p.next(); {
	case p.lost:
		return false
	case c == end:
		p.b = p.b[1:]
		return false
	case !first:
		p.take(',')
	}
	return !p.lost
}

// field reads a name and its colon. The result is part of b.
func (p *plain) field() []byte {
	name := p.text()
	p.take(':')
	return name
}

// text reads a string. The result is part of b.
func (p *plain) text() []byte {
	p.take('"')
	for i, c := range p.b {
		switch {
		case c == '"':
			text := p.b[:i]
			p.b = p.b[i+1:]
			return text
		case c < ' ' || c > '~' || c == '\\':
			p.lost = true
			return nil
		}
	}
	p.lost = true
	return nil
}

// number reads a whole number from 0 to [allocnode.MaxID]+1, the end of the last range.
func (p *plain) number() (n uint64) {
	p.next()
	i := 0
	for ; i < len(p.b) && i < 19 && p.b[i] >= '0' && p.b[i] <= '9'; i++ { // 19 digits cannot overflow
		n = n*10 + uint64(p.b[i]-'0')
	}
	if i == 0 || i > 1 && p.b[0] == '0' || n > allocnode.MaxID+1 {
		p.lost = true
	}
	p.b = p.b[i:] // a digit, a point or an exponent that follows is no end of an element
	return n
}

// boolean reads true or false.
func (p *plain) boolean() bool {
	p.next()
	for _, word := range []string{"true", "false"} {
		if rest, ok := bytes.CutPrefix(p.b, []byte(word)); ok {
			p.b = rest
			return word == "true"
		}
	}
	p.lost = true
	return false
}

// end is lost unless nothing but white space is left.
func (p *plain) end() {
	if p.next() != 0 || len(p.b) > 0 {
		p.lost = true
	}
}

// once is lost when bit is set in seen already, and sets it.
func (p *plain) once(seen *uint, bit uint) {
	p.lost = p.lost || *seen&bit != 0
	*seen |= bit
}

// The fields of a request, as bits.
const (
	bitCount uint = 1 << iota
	bitKey
	bitPartial
	bitSince
	bitIDs
	bitRequests
	bitSequence
)

// plainReserve is [ParseReserve] of an object that is plain and without fault.
func plainReserve(sequence string, body []byte) (q ReserveRequest, ok bool) {
	p := plain{b: body}
	var seen uint
	q.Sequence, q.Count = sequence, 1
	p.take('{')
	for first := true; p.more(first, '}'); first = false {
		switch string(p.field()) {
		case "count":
			p.once(&seen, bitCount)
			q.Count = p.count()
		case "key":
			p.once(&seen, bitKey)
			q.Key = p.key()
		case "partial":
			p.once(&seen, bitPartial)
			q.Partial = p.boolean()
		case "since":
			p.once(&seen, bitSince)
			q.Since = p.number()
		case "ids":
			p.once(&seen, bitIDs)
			ids := p.text()
			q.StringIDs = string(ids) == "string"
			p.lost = p.lost || !q.StringIDs && string(ids) != "number"
		case "requests":
			p.once(&seen, bitRequests)
			q.List = p.items(sequence)
		default:
			p.lost = true
		}
	}
	p.end()
	switch {
	case p.lost:
		return ReserveRequest{}, false
	case seen&bitRequests == 0:
		return q, sequence != ""
	}
	q.Sequence, q.Count = "", 0
	return q, seen&(bitCount|bitPartial) == 0
}

// items reads the list of a request whose subject names sequence, or "".
func (p *plain) items(sequence string) (list []ReserveItem) {
	p.take('[')
	if n := bytes.Count(p.b, []byte{'{'}); n > MaxListItems {
		p.lost = true
	} else {
		list = make([]ReserveItem, 0, n)
	}
	last := sequence // most often many items in a row name the same
	for first := true; p.more(first, ']'); first = false {
		item := ReserveItem{Sequence: sequence, Count: 1}
		var seen uint
		p.take('{')
		for first := true; p.more(first, '}'); first = false {
			switch string(p.field()) {
			case "sequence":
				p.once(&seen, bitSequence)
				if name := p.text(); string(name) != last {
					last = string(name)
					p.lost = p.lost || sequence != "" || allocnode.CheckName(last) != nil
				}
				item.Sequence = last
			case "count":
				p.once(&seen, bitCount)
				item.Count = p.count()
			case "key":
				p.once(&seen, bitKey)
				item.Key = p.key()
			case "partial":
				p.once(&seen, bitPartial)
				item.Partial = p.boolean()
			default:
				p.lost = true
			}
		}
		p.lost = p.lost || item.Sequence == ""
		list = append(list, item)
	}
	p.lost = p.lost || len(list) == 0
	return list
}

func (p *plain) count() uint64 {
	n := p.number()
	p.lost = p.lost || checkCount(n) != nil
	return n
}

func (p *plain) key() string {
	key := p.text()
	p.lost = p.lost || len(key) == 0 || len(key) > maxKey
	if p.lost {
		return ""
	}
	return string(key)
}

// plainList is [DecodeReserveList] of an answer that is plain and holds nothing but n ranges.
func plainList(body []byte, n int) (reply ReserveListReply, ok bool) {
	p := plain{b: body}
	var results, seq, cluster bool
	p.take('{')
	for first := true; p.more(first, '}'); first = false {
		switch name := string(p.field()); {
		case name == "results" && !results:
			results = true
			reply.Results = p.results(n)
		case name == "seq" && !seq:
			seq = true
			reply.Seq = p.number()
		case name == "cluster" && !cluster:
			cluster = true
			err := reply.Cluster.UnmarshalText(p.text())
			p.lost = p.lost || err != nil
		default:
			p.lost = true
		}
	}
	p.end()
	if p.lost || !results || !seq || reply.Cluster.IsZero() {
		return ReserveListReply{}, false
	}
	return reply, true
}

// results reads n ranges, each {"sequence":…,"start":…,"end":…,"count":…}.
func (p *plain) results(n int) []ReserveResult {
	list := make([]ReserveResult, 0, n)
	last := ""
	p.take('[')
	for first := true; p.more(first, ']'); first = false {
		var r allocnode.Range
		var count uint64
		var seen [4]bool
		p.take('{')
		for first := true; p.more(first, '}'); first = false {
			field := 0
			switch string(p.field()) {
			case "sequence":
				if name := p.text(); string(name) != last {
					last = string(name)
				}
			case "start":
				field, r.Start = 1, p.number()
			case "end":
				field, r.End = 2, p.number()
			case "count":
				field, count = 3, p.number()
			default:
				p.lost = true
			}
			p.lost = p.lost || seen[field]
			seen[field] = true
		}
		whole := seen == [4]bool{true, true, true, true} && last != "" && r.Start > 0 && !r.Empty() && r.Count() == count
		if p.lost = p.lost || !whole || len(list) == n; p.lost {
			return nil
		}
		list = append(list, ReserveResult{Sequence: last, Range: r})
	}
	p.lost = p.lost || len(list) != n
	return list
}
