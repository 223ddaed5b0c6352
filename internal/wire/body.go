package wire

import (
	"bytes"
	"encoding/json"
	"errors"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/allocnode/allocnode"
)

// form is what a body looks like.
type form uint8

const (
	formEmpty  form = iota // nothing but white space
	formNumber             // digits
	formObject             // begins a JSON object
)

// readBody tells the forms apart, and reads a plain number. It allocates for errors only.
func readBody(body []byte) (n uint64, f form, err error) {
	if len(body) > MaxBody {
		return 0, 0, allocnode.Errorf(allocnode.CodeTooLarge, "the body is %d bytes long: at most %d are allowed",
			len(body), MaxBody)
	}
	b := bytes.Trim(body, " \t\r\n")
	if len(b) == 0 {
		return 0, formEmpty, nil
	}
	if b[0] == '{' {
		return 0, formObject, nil
	}
	for _, c := range b {
		if c < '0' || c > '9' {
			return 0, 0, badRequest("the body %s is neither empty, nor a whole number in digits, nor a JSON object",
				quote(string(b)))
		}
		digit := uint64(c - '0')
		if n > (1<<64-1-digit)/10 {
			return 0, 0, badRequest("the number %s is too large: at most %d", quote(string(b)), allocnode.MaxID)
		}
		n = n*10 + digit
	}
	if b[0] == '0' && len(b) > 1 {
		return 0, 0, badRequest("the number %s begins with a zero", quote(string(b)))
	}
	return n, formNumber, nil
}

// readNamed is readBody for a subject that must name a sequence.
func readNamed(sequence string, body []byte) (uint64, form, error) {
	n, f, err := readBody(body)
	if err == nil {
		err = allocnode.CheckName(sequence)
	}
	return n, f, err
}

// optionalObject decodes a body that is empty or an object.
func optionalObject(f form, body []byte, v any, fields []string) error {
	switch f {
	case formEmpty:
		return nil
	case formNumber:
		return badRequest("a plain number means nothing here: send nothing, or a JSON object")
	}
	return decodeObject(body, v, fields, nil)
}

// decodeObject decodes body, one JSON object, into v. itemFields are those of objects within it; nil allows none.
func decodeObject(body []byte, v any, fields, itemFields []string) error {
	if !utf8.Valid(body) {
		return badRequest("the body is not valid UTF-8")
	}
	if err := checkFields(body, fields, itemFields); err != nil {
		return err
	}
	err := json.Unmarshal(body, v)
	var syntax *json.SyntaxError
	var typ *json.UnmarshalTypeError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &typ):
		return badRequest("%s is a %s: %s is wanted", typ.Field, typ.Value, wanted(typ.Type.Kind()))
	case errors.As(err, &syntax):
		return badRequest("malformed JSON at byte %d: %s", syntax.Offset, syntax)
	}
	return badRequest("malformed JSON: %s", err)
}

func wanted(k reflect.Kind) string {
	switch k {
	case reflect.Uint64:
		return "a whole number in digits, neither negative nor above 9223372036854775807,"
	case reflect.String:
		return "a string"
	case reflect.Bool:
		return "true or false"
	case reflect.Slice:
		return "a list of objects"
	}
	return "an object"
}

// checkFields refuses what encoding/json lets pass: a field that is unknown, in other case, escaped or given twice, and
// null, which would leave a default. It also bounds a list before anything is allocated for its items. It relies on
// nothing about body; where it cannot follow the syntax it returns nil, and the decoder says what is wrong.
func checkFields(body []byte, fields, itemFields []string) error {
	var seen [3]uint32 // by depth: bit i is field i of the object that is open there
	depth, objects := 0, 0
	for i := 0; i < len(body); i++ {
		switch body[i] {
		case '{':
			depth++
			objects++
			if depth > 2 || depth == 2 && itemFields == nil {
				return badRequest("an object stands where a plain value is wanted")
			}
			if objects > MaxListItems+1 {
				return allocnode.Errorf(allocnode.CodeTooLarge, "the list has more than %d items: at most %d are allowed",
					MaxListItems, MaxListItems)
			}
			seen[depth] = 0
		case '}':
			if depth--; depth < 0 {
				return nil
			}
		case 'n':
			if bytes.HasPrefix(body[i:], []byte("null")) {
				return badRequest("null is not allowed: leave the field out")
			}
		case '"':
			end := i + 1
			for end < len(body) && body[end] != '"' {
				if body[end] == '\\' {
					end++
				}
				end++
			}
			if end >= len(body) || depth == 0 {
				return nil
			}
			name := body[i+1 : end]
			i = end
			if rest := bytes.TrimLeft(body[end+1:], " \t\r\n"); len(rest) == 0 || rest[0] != ':' {
				continue // a value
			}
			allowed := fields
			if depth == 2 {
				allowed = itemFields
			}
			f := slices.IndexFunc(allowed, func(s string) bool { return s == string(name) })
			if f < 0 {
				return badRequest("unknown field %s: %s", quote(string(name)), known(allowed))
			}
			if seen[depth]&(1<<f) != 0 {
				return badRequest("the field %q is given twice", name)
			}
			seen[depth] |= 1 << f
		}
	}
	return nil
}

func known(fields []string) string {
	if len(fields) == 0 {
		return "none is allowed here"
	}
	return "allowed are " + strings.Join(fields, ", ")
}

// quote quotes s for a message, shortened to what a person reads.
func quote(s string) string {
	const limit = 64
	if len(s) > limit {
		s = s[:limit] + "…"
	}
	return strconv.Quote(s)
}
