package allocnode_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/allocnode/allocnode"
)

func TestRange(t *testing.T) {
	for _, c := range []struct {
		r     allocnode.Range
		count uint64
		empty bool
		text  string
	}{
		{allocnode.Range{}, 0, true, "[0, 0)"},
		{allocnode.Range{Start: 1, End: 2}, 1, false, "[1, 2)"},
		{allocnode.Range{Start: 5, End: 5}, 0, true, "[5, 5)"},
		{allocnode.Range{Start: 1, End: allocnode.MaxID + 1}, allocnode.MaxID, false, "[1, 9223372036854775808)"},
		{allocnode.Range{Start: allocnode.MaxID, End: allocnode.MaxID + 1}, 1, false, "[9223372036854775807, 9223372036854775808)"},
	} {
		if c.r.Count() != c.count || c.r.Empty() != c.empty || c.r.String() != c.text {
			t.Errorf("%v: %d ids, empty %v, %q", c.r, c.r.Count(), c.r.Empty(), c.r.String())
		}
	}
}

func TestRangeOverlaps(t *testing.T) {
	r := func(start, end uint64) allocnode.Range { return allocnode.Range{Start: start, End: end} }
	for _, c := range []struct {
		a, b allocnode.Range
		want bool
	}{
		{r(1, 11), r(11, 21), false}, // adjacent: the end is not part of a range
		{r(1, 11), r(10, 20), true},
		{r(1, 11), r(1, 11), true},
		{r(1, 11), r(5, 6), true},
		{r(1, 2), r(3, 4), false},
		{r(0, 0), r(0, 0), false},
		{r(allocnode.MaxID, allocnode.MaxID+1), r(1, allocnode.MaxID), false},
	} {
		if got := c.a.Overlaps(c.b); got != c.want {
			t.Errorf("%v overlaps %v: %v", c.a, c.b, got)
		}
		if got := c.b.Overlaps(c.a); got != c.want {
			t.Errorf("%v overlaps %v: %v", c.b, c.a, got)
		}
	}
}

func TestBounds(t *testing.T) {
	if allocnode.MaxID != 1<<63-1 || allocnode.DefaultMax != 1<<53-1 || allocnode.DefaultMaxCount != 1_000_000 ||
		allocnode.MaxNameLen != 128 || allocnode.MaxKeyLen != 128 {
		t.Error("a bound of the formats changed")
	}
	if float64(allocnode.DefaultMax) == float64(allocnode.DefaultMax-1) {
		t.Error("DefaultMax is not exact in a float64")
	}
}

func TestCheckName(t *testing.T) {
	for _, good := range []string{
		"a", "orders", "orders.eu", "A-Z_a-z.0-9", "-", "_", "0", "a.b.c.d", strings.Repeat("n", 128), strings.Repeat("a.", 63) + "ab",
	} {
		if err := allocnode.CheckName(good); err != nil {
			t.Errorf("%q: %v", good, err)
		}
	}
	for bad, says := range map[string]string{
		"":                        "is empty",
		".":                       "empty token",
		"a.":                      "empty token",
		".a":                      "empty token",
		"a..b":                    "empty token",
		"a b":                     "character",
		"a*":                      "character",
		">":                       "character",
		"$SYS":                    "character",
		"a/b":                     "character",
		"a\x00":                   "character",
		"orders\n":                "character",
		"größe":                   "character",
		"\xff":                    "character",
		strings.Repeat("n", 129):  "129 bytes long",
		strings.Repeat("a.", 100): "200 bytes long",
	} {
		err := allocnode.CheckName(bad)
		if !errors.Is(err, allocnode.ErrBadRequest) || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v, want one that says %q", bad, err, says)
		}
	}
}
