//go:build mutant_batchdisk

package next

import (
	"encoding/json"
	"os"
	"path/filepath"

	"github.com/allocnode/allocnode"
)

// disk keeps each batch as it was when it was last refilled, in a file of its sequence.
type disk struct{ dir string }

// KeepIn has the batches stored in dir.
func (p *Pool) KeepIn(dir string) { p.disk.dir = dir }

func (d disk) file(b *batch) string { return filepath.Join(d.dir, "batch."+b.name) }

func (d disk) save(b *batch) {
	if d.dir == "" {
		return
	}
	data, err := json.Marshal(b.ranges)
	if err == nil {
		err = os.WriteFile(d.file(b), data, 0o600)
	}
	if err != nil {
		panic(err)
	}
}

func (d disk) resume(b *batch) {
	data, err := os.ReadFile(d.file(b))
	if d.dir == "" || err != nil {
		return
	}
	var ranges []allocnode.Range
	if err := json.Unmarshal(data, &ranges); err != nil {
		panic(err)
	}
	for _, r := range ranges {
		b.install(r)
	}
}
