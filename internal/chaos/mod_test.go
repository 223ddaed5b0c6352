package chaos

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"
)

// The other nats-server's go.mod is the product's but for that version.
func TestVariantsOfGoMod(t *testing.T) {
	server := regexp.MustCompile(`(nats-io/nats-server/v2) v\S+`)
	want, err := os.ReadFile("../../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	variants, err := filepath.Glob("nats-*.mod")
	if err != nil || len(variants) == 0 {
		t.Fatalf("variants %v, %v", variants, err)
	}
	for _, name := range variants {
		got, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if string(server.ReplaceAll(got, []byte("$1"))) != string(server.ReplaceAll(want, []byte("$1"))) {
			t.Errorf("%s differs from go.mod in more than the version of nats-server", name)
		}
	}
}
