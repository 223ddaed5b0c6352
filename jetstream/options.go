package jetstream

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats-server/v2/conf"
	"github.com/nats-io/nats-server/v2/server"
)

// blockName is the top-level key that is ours; every other one is nats-server's.
const blockName = "alloc"

// ParseConfig reads a file in nats-server's configuration syntax that may hold one `alloc { … }` block, and returns both
// parts. The block is nil where there is none; whoever decodes it calls [Block.Err] to learn of keys that nobody asked for.
// The error joins every fault of nats-server's part, each with file:line:col. What nats-server only warns of is handed
// to each warn. Settings that would weaken the log (a sync_interval other than always, JetStream off) are faults.
func ParseConfig(path string, warn ...func(error)) (opts *server.Options, alloc *Block, err error) {
	tree, err := conf.ParseFileWithChecks(path)
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", path, err)
	}
	alloc, err = findBlock(tree, path)
	if err != nil {
		return nil, nil, err
	}

	opts = &server.Options{}
	faults := durabilityFaults(tree, path)
	if err := opts.ProcessConfigFile(path); err != nil {
		more, warnings := splitConfigErr(err)
		for _, w := range warnings {
			for _, f := range warn {
				f(w)
			}
		}
		for _, e := range more {
			// nats-server does not know our block. Only the error at its very place is ours: a key of that name
			// elsewhere is a fault.
			if alloc == nil || e.Error() != fmt.Sprintf("%s: unknown field %q", alloc.at, alloc.key) {
				faults = append(faults, e)
			}
		}
	}
	if len(faults) > 0 {
		return nil, nil, errors.Join(faults...)
	}
	return opts, alloc, nil
}

// ParseBlock is ParseConfig for text that holds nothing but the alloc block; name stands for the file in errors. It
// returns nil where there is no block, and ignores other top-level keys. Includes are read relative to the working
// directory.
func ParseBlock(name string, text []byte) (alloc *Block, err error) {
	tree, err := conf.ParseWithChecks(string(text))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return findBlock(tree, name)
}

func splitConfigErr(err error) (faults, warnings []error) {
	if list, ok := err.(interface {
		Errors() []error
		Warnings() []error
	}); ok {
		// nats-server collects them in the order of a map.
		byText := func(a, b error) int { return strings.Compare(a.Error(), b.Error()) }
		faults, warnings = slices.Clone(list.Errors()), slices.Clone(list.Warnings())
		slices.SortFunc(faults, byText)
		slices.SortFunc(warnings, byText)
		return faults, warnings
	}
	return []error{err}, nil
}

func findBlock(tree map[string]any, file string) (*Block, error) {
	var found *Block
	for _, key := range sortedKeys(tree) {
		if !strings.EqualFold(key, blockName) {
			continue
		}
		v := unwrap(tree[key], position{file: file})
		m, ok := v.raw.(map[string]any)
		if !ok {
			return nil, fmt.Errorf("%s: %s must be a block, `%s { … }`, found %s", v.at, key, key, kindOf(v.raw))
		}
		if found != nil {
			return nil, fmt.Errorf("%s: a second %s block; the other one is at %s", v.at, blockName, found.at)
		}
		found = newBlock(blockName, v.at, m, new([]error))
		found.key = key
	}
	for _, key := range sortedKeys(tree) {
		if v := unwrap(tree[key], position{file: file}); found != nil && !strings.EqualFold(key, blockName) && !v.used {
			found.beside = append(found.beside, fmt.Sprintf("%s: %q", v.at, key))
		}
	}
	return found, nil
}

// durabilityFaults finds settings that would break the promise that an acknowledged reservation is on disk.
func durabilityFaults(tree map[string]any, file string) []error {
	var faults []error
	refuse := func(v value, key, why string) {
		faults = append(faults, fmt.Errorf("%s: %s: %s; take the key out", v.at, key, why))
	}
	const needed = "allocnode keeps its log in JetStream, which must be on"
	for _, key := range sortedKeys(tree) {
		if !strings.EqualFold(key, "jetstream") {
			continue
		}
		v := unwrap(tree[key], position{file: file})
		switch raw := v.raw.(type) {
		case bool:
			if !raw {
				refuse(v, key, needed)
			}
		case string:
			if s := strings.ToLower(raw); s == "disabled" || s == "disable" {
				refuse(v, key, needed)
			}
		case map[string]any:
			for _, sub := range sortedKeys(raw) {
				v := unwrap(raw[sub], v.at)
				switch strings.ToLower(sub) {
				case "enable", "enabled":
					if on, ok := v.raw.(bool); ok && !on {
						refuse(v, key+"."+sub, needed)
					}
				case "sync", "sync_interval":
					if s, ok := v.raw.(string); !ok || !strings.EqualFold(s, "always") {
						refuse(v, key+"."+sub, "only \"always\" is allowed, or a power loss loses acknowledged reservations")
					}
				}
			}
		}
	}
	return faults
}

// position is where a key stands; its String is what nats-server prints.
type position struct {
	file string
	line int
	col  int
}

func (p position) String() string { return fmt.Sprintf("%s:%d:%d", p.file, p.line, p.col) }

// value is one value of the tree without its token.
type value struct {
	raw  any // string, bool, int64, float64, time.Time, []any or map[string]any
	at   position
	used bool // a variable that something refers to
}

// unwrap takes v out of its token. What an environment variable holds comes without one; it stands where parent stands.
func unwrap(v any, parent position) value {
	tk, ok := v.(interface {
		Value() any
		Line() int
		Position() int
		SourceFile() string
		IsUsedVariable() bool
	})
	if !ok {
		return value{raw: v, at: parent}
	}
	at := position{file: tk.SourceFile(), line: tk.Line(), col: tk.Position()}
	if at.file == "" {
		at.file = parent.file
	}
	return value{raw: tk.Value(), at: at, used: tk.IsUsedVariable()}
}

// Block is a `name { … }` block of the configuration, not yet typed. A decoder asks for each key that it knows; keys
// are case-insensitive, as nats-server's are. A getter leaves its destination alone where the key is missing, so that
// defaults are set beforehand, and keeps a fault for Err where the value has another type. All methods work on a nil
// Block, which has no keys. A Block is not safe for concurrent use.
type Block struct {
	name    string // for messages: "alloc", "alloc.defaults"
	key     string // as written in the file
	at      position
	entries map[string]value // by lower-case key
	asked   map[string]bool  // keys that a getter has asked for
	nested  []*Block
	beside  []string // of the outermost: the other top-level keys, each with its place
	faults  *[]error // shared with the blocks around it
}

func newBlock(name string, at position, m map[string]any, faults *[]error) *Block {
	b := &Block{name: name, at: at, entries: map[string]value{}, asked: map[string]bool{}, faults: faults}
	for _, key := range sortedKeys(m) {
		v, low := unwrap(m[key], at), strings.ToLower(key)
		if first, ok := b.entries[low]; ok {
			if v.at.line < first.at.line {
				v, first = first, v
			}
			*faults = append(*faults, fmt.Errorf("%s: %q in %s {} was given already, at %s", v.at, low, name, first.at))
			continue
		}
		b.entries[low] = v
	}
	return b
}

// String stores the value of key, a string, in dst. A number or a boolean must be put in quotes to be one.
func (b *Block) String(key string, dst *string) { get(b, key, "a string", dst) }

// Bool stores the value of key, true or false (also yes, no, on, off), in dst.
func (b *Block) Bool(key string, dst *bool) { get(b, key, "true or false", dst) }

// Uint stores the value of key, a whole number from 0 to 2^63-1, in dst. The suffixes of nats-server work: 10k is
// 10,000, 10KB is 10,240.
func (b *Block) Uint(key string, dst *uint64) {
	var n int64
	if !get(b, key, "a whole number", &n) {
		return
	}
	if n < 0 {
		b.Fault(key, "must not be negative, found %d", n)
		return
	}
	*dst = uint64(n)
}

// Duration stores the value of key, a string such as "4s" or "500ms", in dst. A negative one is a fault.
func (b *Block) Duration(key string, dst *time.Duration) {
	var s string
	if !get(b, key, `a duration such as "4s"`, &s) {
		return
	}
	d, err := time.ParseDuration(s)
	if err != nil || d < 0 {
		b.Fault(key, `must be a duration such as "4s", found %q`, s)
		return
	}
	*dst = d
}

// Strings stores the value of key, a list of strings or a single one, in dst. An empty list becomes an empty slice.
func (b *Block) Strings(key string, dst *[]string) {
	v, ok := b.lookup(key)
	if !ok {
		return
	}
	list := []string{}
	items, isList := v.raw.([]any)
	if !isList {
		items = []any{v.raw}
	}
	for _, item := range items {
		el := unwrap(item, v.at)
		s, ok := el.raw.(string)
		if !ok {
			b.faultAt(el.at, key, "must be a list of strings, found %s", kindOf(el.raw))
			return
		}
		list = append(list, s)
	}
	*dst = list
}

// Block returns the block under key, or nil where there is none. Its faults are reported by the outermost Err.
func (b *Block) Block(key string) *Block {
	var m map[string]any
	if !get(b, key, "a block, `{ … }`", &m) {
		return nil
	}
	for _, n := range b.nested {
		if strings.EqualFold(n.key, key) {
			return n
		}
	}
	sub := newBlock(b.name+"."+strings.ToLower(key), b.entries[strings.ToLower(key)].at, m, b.faults)
	sub.key = key
	b.nested = append(b.nested, sub)
	return sub
}

// Has reports whether key was given, with whatever value. It does not count as asking for it.
func (b *Block) Has(key string) bool {
	if b == nil {
		return false
	}
	_, ok := b.entries[strings.ToLower(key)]
	return ok
}

// Beside is the keys that stand beside the outermost block, each with its place: nats-server's settings.
func (b *Block) Beside() []string {
	if b == nil {
		return nil
	}
	return b.beside
}

// Position is where key stands, as "file:line:col", or where the block starts if key is missing. A nil Block has "".
func (b *Block) Position(key string) string {
	if b == nil {
		return ""
	}
	if v, ok := b.entries[strings.ToLower(key)]; ok {
		return v.at.String()
	}
	return b.at.String()
}

// Fault adds an error about key, at its place, to those that Err returns: for bounds that the decoder knows.
func (b *Block) Fault(key, format string, args ...any) {
	if b == nil {
		return
	}
	at := b.at
	if v, ok := b.entries[strings.ToLower(key)]; ok {
		at = v.at
	}
	b.faultAt(at, key, format, args...)
}

func (b *Block) faultAt(at position, key, format string, args ...any) {
	*b.faults = append(*b.faults, fmt.Errorf("%s: %q in %s {} %s", at, key, b.name, fmt.Sprintf(format, args...)))
}

// Err joins every fault of b and the blocks within it: values of the wrong type, and keys that no getter has asked for.
// Call it on the outermost block when decoding is done.
func (b *Block) Err() error {
	if b == nil {
		return nil
	}
	return errors.Join(append(slices.Clone(*b.faults), b.unknownKeys()...)...)
}

func (b *Block) unknownKeys() []error {
	var faults []error
	for _, key := range sortedKeys(b.entries) {
		// A key that only serves as a variable, `$key`, is nobody's setting.
		if v := b.entries[key]; !b.asked[key] && !v.used {
			faults = append(faults, fmt.Errorf("%s: unknown key %q in %s {}", v.at, key, b.name))
		}
	}
	for _, n := range b.nested {
		faults = append(faults, n.unknownKeys()...)
	}
	return faults
}

func (b *Block) lookup(key string) (value, bool) {
	if b == nil {
		return value{}, false
	}
	low := strings.ToLower(key)
	b.asked[low] = true
	v, ok := b.entries[low]
	return v, ok
}

// get stores the value of key in dst. It reports whether it did; another type than T is a fault that names want.
func get[T any](b *Block, key, want string, dst *T) bool {
	v, ok := b.lookup(key)
	if !ok {
		return false
	}
	t, ok := v.raw.(T)
	if !ok {
		hint := ""
		if _, isString := any(t).(string); isString {
			switch v.raw.(type) {
			case int64, float64, bool, time.Time:
				hint = ": put it in quotes"
			}
		}
		b.Fault(key, "must be %s, found %s%s", want, kindOf(v.raw), hint)
		return false
	}
	*dst = t
	return true
}

func kindOf(raw any) string {
	switch raw := raw.(type) {
	case string:
		return fmt.Sprintf("the string %q", raw)
	case bool, int64, float64:
		return fmt.Sprint(raw)
	case time.Time:
		return "a date"
	case []any:
		return "a list"
	case map[string]any:
		return "a block"
	}
	return "nothing"
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
