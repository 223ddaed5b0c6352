package load

import (
	"cmp"
	"fmt"
	"slices"
	"syscall"
	"unsafe"
)

// Unique looks for ids that came twice, by counter. It is not for concurrent use, and costs 16 bytes for an id. They lie outside
// Go's heap: inside, the collector would run the less often the more was measured before, in favour of what comes last.
type Unique struct {
	parts map[string][][]ID
	maps  [][]byte
}

// Add notes ids of a counter. An id that is zero is no id, and an error.
func (u *Unique) Add(counter string, ids []ID) error {
	if slices.Contains(ids, ID{}) {
		return fmt.Errorf("counter %s: an answer without an id", counter)
	}
	part, err := u.outside(len(ids))
	if err != nil {
		return err
	}
	copy(part, ids)
	if u.parts == nil {
		u.parts = map[string][][]ID{}
	}
	u.parts[counter] = append(u.parts[counter], part)
	return nil
}

// outside is room for n ids that the collector does not know of.
func (u *Unique) outside(n int) ([]ID, error) {
	if n == 0 {
		return nil, nil
	}
	m, err := syscall.Mmap(-1, 0, n*int(unsafe.Sizeof(ID{})), syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	if err != nil {
		return nil, fmt.Errorf("room for %d ids: %w", n, err)
	}
	u.maps = append(u.maps, m)
	return unsafe.Slice((*ID)(unsafe.Pointer(&m[0])), n), nil
}

// Check returns, for each counter, the first id that came twice; counters without one are absent.
func (u *Unique) Check() (found map[string]error, err error) {
	found = map[string]error{}
	for counter, parts := range u.parts {
		n := 0
		for _, p := range parts {
			n += len(p)
		}
		all, err := u.outside(n)
		if err != nil {
			return nil, err
		}
		n = 0
		for _, p := range parts {
			n += copy(all[n:], p)
		}
		slices.SortFunc(all, func(a, b ID) int { return cmp.Or(cmp.Compare(a.Hi, b.Hi), cmp.Compare(a.Lo, b.Lo)) })
		for i := 1; i < len(all); i++ {
			if all[i] == all[i-1] {
				found[counter] = fmt.Errorf("counter %s handed out id %d:%d twice", counter, all[i].Hi, all[i].Lo)
				break
			}
		}
	}
	return found, nil
}

// Close gives the memory back; u is empty then.
func (u *Unique) Close() {
	for _, m := range u.maps {
		_ = syscall.Munmap(m)
	}
	*u = Unique{}
}
