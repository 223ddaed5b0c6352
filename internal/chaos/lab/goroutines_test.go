//go:build linux

package lab

import (
	"bytes"
	"encoding/json"
	"fmt"
	"runtime"
	"runtime/pprof"
	"testing"
)

// TestReadGoroutines reads a profile as this Go writes it. Checked: without the comparison of names, or the bound on the total,
// a bad answer counted.
func TestReadGoroutines(t *testing.T) {
	var profile bytes.Buffer
	if err := pprof.Lookup("goroutine").WriteTo(&profile, 1); err != nil {
		t.Fatal(err)
	}
	answer := func(name, fault string, profile []byte) []byte {
		text, err := json.Marshal(profile)
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Appendf(nil, `{"server":{"name":%q},"data":{"profile":%s,"error":%q}}`, name, text, fault)
	}
	total, text, err := readGoroutines("n1", answer("n1", "", profile.Bytes()))
	if err != nil || total < 1 || total > runtime.NumGoroutine()+10 || !bytes.Equal(text, profile.Bytes()) {
		t.Errorf("%d goroutines, error %v: this process has %d", total, err, runtime.NumGoroutine())
	}
	for name, bad := range map[string][]byte{
		"another node": answer("n2", "", profile.Bytes()),
		"an error":     answer("n1", "Profile \"goroutine\" not found", profile.Bytes()),
		"no profile":   answer("n1", "", nil),
		"no total":     answer("n1", "", []byte("goroutine profile: total 0\n")),
		"no JSON":      []byte("-ERR"),
	} {
		if total, _, err := readGoroutines("n1", bad); err == nil {
			t.Errorf("%s: %d goroutines", name, total)
		}
	}
}
