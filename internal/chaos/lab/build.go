//go:build linux

package lab

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// clockVariable names the file whose first 8 bytes are the wall clock's offset in seconds, in the machine's byte order.
const clockVariable = "ALLOCNODE_CHAOS_CLOCK"

// clockSource goes into package time. What measures durations stays right: only the wall clock jumps, as it does when
// somebody sets it.
const clockSource = `package time

import (
	"sync/atomic"
	"syscall"
	"unsafe"
)

var chaosClock = func() *atomic.Int64 {
	name, ok := syscall.Getenv("` + clockVariable + `")
	if !ok {
		return nil
	}
	fd, err := syscall.Open(name, syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
	if err != nil {
		panic("chaos clock: " + err.Error())
	}
	defer syscall.Close(fd)
	page, err := syscall.Mmap(fd, 0, 8, syscall.PROT_READ, syscall.MAP_SHARED)
	if err != nil {
		panic("chaos clock: " + err.Error())
	}
	return (*atomic.Int64)(unsafe.Pointer(&page[0]))
}()

func chaosOffset() int64 {
	if chaosClock == nil {
		return 0
	}
	return chaosClock.Load()
}
`

// edit is one replacement in a source file.
type edit struct{ file, old, new string }

// apply makes it. What is replaced must stand there exactly once, else the source is not the one that was meant.
func (e edit) apply(source string) (string, error) {
	if n := strings.Count(source, e.old); n != 1 {
		return "", fmt.Errorf("%s has %q %d times, want once", e.file, e.old, n)
	}
	return strings.Replace(source, e.old, e.new, 1), nil
}

// editsOf is what [BuildNode] changes.
func editsOf(ctx context.Context, root string, control bool) ([]edit, error) {
	goroot, err := run(ctx, "go", "env", "GOROOT")
	if err != nil {
		return nil, err
	}
	edits := []edit{{
		filepath.Join(strings.TrimSpace(goroot), "src", "time", "time.go"),
		"func Now() Time {\n\tsec, nsec, mono := runtimeNow()\n",
		"func Now() Time {\n\tsec, nsec, mono := runtimeNow()\n\tsec += chaosOffset()\n",
	}}
	if control {
		edits = append(edits, edit{
			filepath.Join(root, "jetstream", "server.go"), "\topts.SyncAlways = true\n", "\topts.SyncAlways = false\n",
		})
	}
	return edits, nil
}

// BuildNode builds the product's binary from the module at root into out, with a wall clock that [Node.SetClock] moves; dir
// takes the overlay's files. With control it also loses sync_interval always, for the positive control: a binary that must
// fail the test. tags are of go build, separated by commas.
func BuildNode(ctx context.Context, root, dir, out, tags string, control bool) error {
	edits, err := editsOf(ctx, root, control)
	if err != nil {
		return fmt.Errorf("build the node: %w", err)
	}
	overlay := struct{ Replace map[string]string }{map[string]string{}}
	put := func(of, text string) error {
		path := filepath.Join(dir, fmt.Sprintf("%s-overlay%d.go", filepath.Base(out), len(overlay.Replace)))
		overlay.Replace[of] = path
		return os.WriteFile(path, []byte(text), 0o600)
	}
	for _, e := range edits {
		source, err := os.ReadFile(e.file)
		if err != nil {
			return fmt.Errorf("build the node: %w", err)
		}
		edited, err := e.apply(string(source))
		if err == nil {
			err = put(e.file, edited)
		}
		if err != nil {
			return fmt.Errorf("build the node: %w", err)
		}
	}
	if err := put(filepath.Join(filepath.Dir(edits[0].file), "chaosclock.go"), clockSource); err != nil {
		return fmt.Errorf("build the node: %w", err)
	}
	list, err := json.Marshal(overlay)
	if err != nil {
		return fmt.Errorf("build the node: %w", err)
	}
	path := filepath.Join(dir, filepath.Base(out)+"-overlay.json")
	if err := os.WriteFile(path, list, 0o600); err != nil {
		return fmt.Errorf("build the node: %w", err)
	}
	_, err = run(ctx, "go", "build", "-C", root, "-tags", tags, "-overlay", path, "-o", out, "./cmd/allocnode")
	return err
}

// SetClock moves the node's wall clock by offset, whole seconds, at once and for every later start, against the machine's.
func (n *Node) SetClock(offset time.Duration) error {
	f, err := os.OpenFile(n.clock, os.O_CREATE|os.O_WRONLY, 0o600) // never truncated: the node has it in its memory
	if err != nil {
		return fmt.Errorf("set the clock of %s: %w", n.Name, err)
	}
	defer f.Close()
	if _, err := f.WriteAt(binary.NativeEndian.AppendUint64(nil, uint64(int64(offset/time.Second))), 0); err != nil {
		return fmt.Errorf("set the clock of %s: %w", n.Name, err)
	}
	return nil
}
