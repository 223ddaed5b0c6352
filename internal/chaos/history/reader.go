package history

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
)

// History is what was read. All slices are in the order of time.
type History struct {
	Attempts []Attempt
	Faults   []Fault
	Statuses []Status
	Samples  []Sample
	Comments []Comment

	// Torn counts lines that were cut short: each killed process can leave one. More than that is a fault of the harness.
	Torn int
}

// Attempt is one request, sent once, and what was heard of it.
type Attempt struct {
	Process  string
	ID       uint64
	Began    int64 // [Now] before it was sent, in nanoseconds
	Action   Action
	Node     string // whose listener it was sent to; any node may have answered
	Sequence string
	Key      string
	Count    uint64
	Partial  bool
	Since    uint64
	To       uint64
	First    uint64
	Max      uint64
	MaxCount uint64
	Answers  []Answer // in the order of time; none from a client that was killed, more than one when some were late
}

// Answer is one end of an attempt.
type Answer struct {
	At      int64 // [Now] when it was read, in nanoseconds
	Outcome Outcome
	Ranges  []Range
	Seq     uint64
	Old     uint64
	HWM     uint64
	Cluster string
	Code    string
	Text    string
}

// Outcome is what is known of the attempt by now: a late answer settles it.
func (a *Attempt) Outcome() Outcome {
	outcome := Unknown
	for i := range a.Answers {
		switch a.Answers[i].Outcome {
		case OK:
			return OK
		case Failed:
			outcome = Failed
		}
	}
	return outcome
}

// ok is the attempt's first answer that is one, or nil.
func (a *Attempt) ok() *Answer {
	for i := range a.Answers {
		if a.Answers[i].Outcome == OK {
			return &a.Answers[i]
		}
	}
	return nil
}

// Fault is one fault, from its beginning to its healing.
type Fault struct {
	Process string
	ID      uint64
	Kind    string
	Target  string
	Began   int64  // nanoseconds of [Now]
	Healed  int64  // 0: never
	Proof   string // that it took effect, from the beginning and the healing; empty: none
}

// Status is what a node said of itself.
type Status struct {
	At          int64 // nanoseconds of [Now]
	Node        string
	Incarnation string
	State       string
	Cursor      uint64
	Digest      string
	Text        string // why it does not serve
}

// Sample is what a node's process used at a time.
type Sample struct {
	At         int64 // nanoseconds of [Now]
	Node       string
	Goroutines uint64
	FDs        uint64
	RSS        uint64 // bytes
}

// Comment is a word for people.
type Comment struct {
	At   int64 // nanoseconds of [Now]
	Text string
}

// ErrMalformed says that a history holds what no writer writes: records that cannot be put together.
var ErrMalformed = errors.New("history: malformed")

// ReadFile is [Read] of the file at path, as long as it is now: writers that go on are not waited for, and the last line may be
// one that is cut short.
func ReadFile(path string) (*History, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read history: %w", err)
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return nil, fmt.Errorf("read history: %w", err)
	}
	// Checked: without the limit, a reader that was slower than the writer read for ever in TestKilledWriter.
	return Read(io.LimitReader(file, info.Size()))
}

// Read reads a history, or several one after the other. A line that was cut short is counted and skipped, also when another
// process's line follows it without a break. An end without its begin, or a second begin, is [ErrMalformed].
func Read(from io.Reader) (*History, error) {
	h := &History{}
	j := joiner{h: h, attempts: map[id]int{}, faults: map[id]int{}}
	in := bufio.NewReaderSize(from, 1<<20)
	for {
		line, err := readLine(in)
		for _, piece := range pieces(line) {
			r := Record{}
			if json.Unmarshal(piece, &r) != nil || r.Kind == "" {
				h.Torn++
				continue
			}
			j.take(&r)
		}
		if errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, fmt.Errorf("read history: %w", err)
		}
	}
	return h, j.finish()
}

// readLine returns the next line without its end. It is valid until the next call.
func readLine(in *bufio.Reader) ([]byte, error) {
	line, err := in.ReadSlice('\n')
	if errors.Is(err, bufio.ErrBufferFull) {
		return nil, fmt.Errorf("%w: a line of more than %d bytes", ErrMalformed, len(line))
	}
	return bytes.TrimSpace(line), err
}

// recordStart begins every record. Within a JSON string its quotes would be escaped, so it stands nowhere else.
var recordStart = []byte(`{"k":"`)

// pieces are the records in a line: one, unless a process was killed in the middle of its line and another one went on.
// Checked: without this the record after a torn one was lost, and TestTornLines failed.
func pieces(line []byte) (all [][]byte) {
	for len(line) > 0 {
		next := -1
		if len(line) > 1 {
			next = bytes.Index(line[1:], recordStart)
		}
		if next < 0 {
			return append(all, line)
		}
		all, line = append(all, line[:next+1]), line[next+1:]
	}
	return all
}

// id is an attempt's or fault's name.
type id struct {
	process string
	id      uint64
}

// joiner puts ends to their begins. With several files in a row an end may only follow its begin within its own file.
type joiner struct {
	h        *History
	attempts map[id]int
	faults   map[id]int
	names    map[string]string
	err      error // the first
}

func (j *joiner) fail(r *Record, why string) {
	if j.err == nil {
		j.err = fmt.Errorf("%w: %s of %s %d: %s", ErrMalformed, r.Kind, r.Process, r.ID, why)
	}
}

// intern keeps one copy of each name: a million attempts speak of a few nodes, sequences and codes.
func (j *joiner) intern(s string) string {
	if j.names == nil {
		j.names = map[string]string{}
	}
	if kept, ok := j.names[s]; ok {
		return kept
	}
	j.names[s] = s
	return s
}

func (j *joiner) take(r *Record) {
	h, at := j.h, id{r.Process, r.ID}
	switch r.Kind {
	case KindBegin:
		if _, twice := j.attempts[at]; twice {
			j.fail(r, "it began twice")
			return
		}
		j.attempts[id{j.intern(r.Process), r.ID}] = len(h.Attempts)
		h.Attempts = append(h.Attempts, Attempt{
			Process: j.intern(r.Process), ID: r.ID, Began: r.At, Action: Action(j.intern(string(r.Action))),
			Node: j.intern(r.Node), Sequence: j.intern(r.Sequence), Key: r.Key, Count: r.Count, Partial: r.Partial,
			Since: r.Since, To: r.To, First: r.First, Max: r.Max, MaxCount: r.MaxCount,
		})
	case KindEnd:
		i, ok := j.attempts[at]
		if !ok {
			j.fail(r, "it never began")
			return
		}
		h.Attempts[i].Answers = append(h.Attempts[i].Answers, Answer{
			At: r.At, Outcome: Outcome(j.intern(string(r.Outcome))), Ranges: r.Ranges, Seq: r.Seq, Old: r.Old, HWM: r.HWM,
			Cluster: j.intern(r.Cluster), Code: j.intern(r.Code), Text: r.Text,
		})
	case KindFault:
		if _, twice := j.faults[at]; twice {
			j.fail(r, "it began twice")
			return
		}
		j.faults[at] = len(h.Faults)
		h.Faults = append(h.Faults, Fault{
			Process: r.Process, ID: r.ID, Kind: r.Fault, Target: r.Target, Began: r.At, Proof: r.Proof,
		})
	case KindHealed:
		i, ok := j.faults[at]
		if !ok || h.Faults[i].Healed != 0 {
			j.fail(r, "it never began, or was healed before")
			return
		}
		f := &h.Faults[i]
		f.Healed = r.At
		if f.Proof != "" && r.Proof != "" {
			f.Proof += "; "
		}
		f.Proof += r.Proof
	case KindStatus:
		h.Statuses = append(h.Statuses, Status{r.At, r.Node, r.Incarnation, r.State, r.Cursor, r.Digest, r.Text})
	case KindSample:
		h.Samples = append(h.Samples, Sample{r.At, r.Node, r.Goroutines, r.FDs, r.RSS})
	case KindComment:
		h.Comments = append(h.Comments, Comment{r.At, r.Text})
	default:
		j.fail(r, "of an unknown kind")
	}
}

// finish puts all in the order of time. Lines of several processes are nearly in order, not quite: each took its time
// before it wrote.
func (j *joiner) finish() error {
	h := j.h
	slices.SortStableFunc(h.Attempts, func(a, b Attempt) int { return cmp.Compare(a.Began, b.Began) })
	slices.SortStableFunc(h.Faults, func(a, b Fault) int { return cmp.Compare(a.Began, b.Began) })
	slices.SortStableFunc(h.Statuses, func(a, b Status) int { return cmp.Compare(a.At, b.At) })
	slices.SortStableFunc(h.Samples, func(a, b Sample) int { return cmp.Compare(a.At, b.At) })
	slices.SortStableFunc(h.Comments, func(a, b Comment) int { return cmp.Compare(a.At, b.At) })
	for i := range h.Attempts {
		slices.SortStableFunc(h.Attempts[i].Answers, func(a, b Answer) int { return cmp.Compare(a.At, b.At) })
	}
	return j.err
}
