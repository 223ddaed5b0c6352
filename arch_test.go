package allocnode_test

import (
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/allocnode/allocnode"

type layer struct {
	pkg     string // below the module; "." is the root
	imports []string
	reason  string
}

// layers is every package of the module, from the ground up, and what it may import of the module. A package may import
// only what stands above it in this table, so that imports point down.
var layers = []layer{
	{".", nil, "the shared words: every package speaks them, so they rest on none"},
	{"internal/wire", []string{"."}, "formats are bounds and bytes, and know nothing of who reads them"},
	{"internal/mutant", nil, "constants, all false in the product: what is pure may have it too"},
	{"internal/freeport", nil, "ports for servers, in tests and for dev"},
	{"apply", []string{".", "internal/wire", "internal/mutant"}, "the state machine sees the log's bytes and nothing else"},
	{
		"internal/propose", []string{".", "internal/wire", "internal/mutant"},
		"group commit is tried against a log that is a slice",
	},
	{
		"internal/next", []string{".", "internal/wire", "internal/propose"},
		"batches are tried against a log that is a slice",
	},
	{
		"internal/service", []string{".", "internal/wire", "internal/propose", "internal/next"},
		"endpoints decode, hand to the group commit, encode; never the log, never a store",
	},
	{"client", []string{".", "internal/wire"}, "a user's program links it"},
	{"jetstream", []string{".", "internal/wire"}, "the log is bytes by seq: what they mean is not its business"},
	{"kv", []string{".", "internal/wire", "internal/mutant", "apply"}, "the catalog stores what apply gives it, as it comes"},
	{
		"internal/node",
		[]string{
			".", "internal/wire", "internal/mutant", "apply", "internal/propose", "internal/next", "internal/service", "jetstream", "kv",
		},
		"the one place where the parts meet",
	},
	{"internal/e2e", nil, "tests only: nothing of the product"},
	{"internal/model", nil, "a model that shared code with the product would share its mistakes"},
	{"internal/benchmark", nil, "tests only: nothing of the product"},
	{
		"internal/chaos/history", nil,
		"what judges the product shares no code with it: a fault would be held against itself",
	},
	{
		"internal/chaos/workload", []string{"internal/chaos/history"},
		"it reads what any client reads, not what our own decoder makes of it",
	},
	{"internal/chaos/lab", []string{"internal/wire"}, "it knows processes, disks and wires; of the product it reads a status"},
	{
		"internal/chaos",
		[]string{"internal/wire", "apply", "client", "kv", "internal/chaos/history", "internal/chaos/lab"},
		"it judges by history's checkers, and reads catalogs from the disks of dead nodes",
	},
	{
		"internal/chaos/cmd/chaosrun",
		[]string{"internal/chaos/history", "internal/chaos/workload", "internal/chaos/lab", "internal/chaos"},
		"the command is thin: it starts a campaign or one of its processes",
	},
	{
		"cmd/allocnode", []string{".", "internal/wire", "internal/freeport", "client", "internal/node"},
		"the binary is thin: it starts a node or uses the client",
	},
}

// bans are imports that a package must not have. A transitive one is not to be reached by any path.
var bans = []struct {
	pkg        string
	transitive bool
	tests      bool // the package's tests neither, directly
	banned     []string
	reason     string
}{
	{
		"apply", true, true, []string{thirdParty},
		"a state machine whose result hangs on another module's version is not a function of the log",
	},
	{"internal/propose", true, true, []string{thirdParty}, "it is proved without a network"},
	{"internal/next", true, true, []string{thirdParty}, "it is proved without a network"},
	{"internal/wire", true, true, []string{thirdParty}, "the formats are ours to the byte"},
	{".", true, true, []string{thirdParty}, "who imports the types gets nothing else"},
	{
		"client", true, false, []string{"github.com/nats-io/nats-server/v2", "github.com/dgraph-io/badger/v4"},
		"a user's binary gets no server and no store",
	},
	{
		"client", true, true, []string{module + "/kv", module + "/jetstream", module + "/apply"},
		"it knows the service's subjects, not the cluster's inside",
	},
	{
		"kv", true, true, []string{module + "/jetstream", "github.com/nats-io"},
		"catalog and log never meet: each is a witness against the other",
	},
	{
		"jetstream", true, true, []string{module + "/kv", "github.com/dgraph-io"},
		"log and catalog never meet: each is a witness against the other",
	},
	{
		"internal/service", true, true, []string{module + "/kv", module + "/jetstream", module + "/apply", "github.com/dgraph-io"},
		"an endpoint that reads a store answers beside the log",
	},
	{"apply", false, false, []string{"time"}, "no clock enters a carve"},
	{
		"apply", false, false, []string{"math/rand", "math/rand/v2", "crypto/rand", "hash/maphash"},
		"no randomness enters a carve",
	},
	{
		"apply", false, false, []string{"os", "io", "net", "log", "log/slog", "bufio"},
		"no I/O: what fails there is not a function of the log",
	},
	{
		"apply", false, false, []string{"sync", "sync/atomic", "context", "runtime"},
		"no goroutine: the order of entries is the only order",
	},
	{"apply", false, false, []string{"unsafe", "reflect"}, "names and keys outlive the entry's bytes, so they are copied"},
	{"internal/wire", false, false, []string{"time", "os", "net", "unsafe"}, "encoding is a function of its input"},
	{".", false, false, []string{"time", "os", "net", "context", "unsafe"}, "types and their arithmetic"},
	{
		"internal/chaos/history", true, false, []string{thirdParty},
		"a judge that anybody can read from end to end",
	},
	{
		"internal/chaos/workload", true, false,
		[]string{"github.com/nats-io/nats-server/v2", "github.com/dgraph-io/badger/v4"},
		"a client gets no server and no store",
	},
	{"internal/propose", false, false, []string{"os", "net"}, "it reaches the log through its interface alone"},
}

// thirdParty stands for every module but this one and the standard library.
const thirdParty = "third party"

func bannedBy(rule, path string) bool {
	if rule == thirdParty {
		host, _, _ := strings.Cut(path, "/")
		return strings.Contains(host, ".") && !under(path, module)
	}
	return path == rule || strings.Contains(rule, ".") && under(path, rule) // of the standard library the one package
}

func under(path, root string) bool { return path == root || strings.HasPrefix(path, root+"/") }

type goPackage struct {
	ImportPath                               string
	GoFiles                                  []string
	Imports, Deps, TestImports, XTestImports []string
}

// TestArchitecture holds the rules of docs/DESIGN.md on layout and imports.
// Checked: a time.Now in apply, an import of kv in jetstream's tests, of nats-server in wire, and a package that the table
// does not have, each made it fail.
func TestArchitecture(t *testing.T) {
	packages := listPackages(t)
	path := func(pkg string) string { return strings.TrimSuffix(module+"/"+pkg, "/.") }
	for i, l := range layers {
		p, ok := packages[path(l.pkg)]
		if !ok {
			t.Errorf("%s is missing", l.pkg)
			continue
		}
		delete(packages, p.ImportPath)
		for _, imported := range p.Imports {
			if !under(imported, module) {
				continue
			}
			allowed := slices.ContainsFunc(l.imports, func(pkg string) bool { return path(pkg) == imported })
			if !allowed {
				t.Errorf("%s imports %s: %s", l.pkg, imported, l.reason)
			}
		}
		for _, pkg := range l.imports {
			if j := slices.IndexFunc(layers, func(l layer) bool { return l.pkg == pkg }); j < 0 || j >= i {
				t.Errorf("the table has %s import %s, which does not stand above it", l.pkg, pkg)
			}
		}
		for _, ban := range bans {
			if ban.pkg != l.pkg {
				continue
			}
			imports := p.Imports
			if ban.transitive {
				imports = p.Deps
			}
			if ban.tests {
				imports = slices.Concat(imports, p.TestImports, p.XTestImports)
			}
			for _, imported := range imports {
				for _, rule := range ban.banned {
					if bannedBy(rule, imported) {
						t.Errorf("%s reaches %s: %s", l.pkg, imported, ban.reason)
					}
				}
			}
		}
	}
	for p := range packages {
		t.Errorf("%s is not in the table: say what it may import, and why", p)
	}
	for _, ban := range bans {
		if !slices.ContainsFunc(layers, func(l layer) bool { return l.pkg == ban.pkg }) {
			t.Errorf("a ban for %s, which is not in the table", ban.pkg)
		}
	}
}

func listPackages(t *testing.T) map[string]goPackage {
	t.Helper()
	// go test takes an old result when no file changed that the test itself has looked at.
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != "." && strings.HasPrefix(d.Name(), "."):
			return filepath.SkipDir
		case strings.HasSuffix(path, ".go"):
			_, err = os.Stat(path)
		}
		return err
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	// -e: a package that does not build at the moment is another test's failure.
	out, err := exec.CommandContext(t.Context(), "go", "list", "-e",
		"-json=ImportPath,GoFiles,Imports,Deps,TestImports,XTestImports", "./...").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	packages := map[string]goPackage{}
	for dec := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p goPackage
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return packages
		} else if err != nil {
			t.Fatalf("go list: %v", err)
		}
		packages[p.ImportPath] = p
	}
}
