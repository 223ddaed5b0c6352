package client_test

import (
	"go/ast"
	"go/doc"
	"go/parser"
	"go/token"
	"path/filepath"
	"strings"
	"testing"
)

// Each exported function and method has an Example with its output. Options stand in those of what they configure, and the
// methods of errors are the errors package's.
// Checked: with ExampleClient_Forget renamed it fails, and with its Output comment taken out.
func TestEntryPointsHaveExamples(t *testing.T) {
	paths, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	fset := token.NewFileSet()
	var tests []*ast.File
	points := make(map[string]bool) // to whether there is an example
	for _, path := range paths {
		file, err := parser.ParseFile(fset, path, nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(path, "_test.go") {
			tests = append(tests, file)
			continue
		}
		for _, d := range file.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok || !f.Name.IsExported() {
				continue
			}
			name := f.Name.Name
			if f.Recv != nil {
				star, ok := f.Recv.List[0].Type.(*ast.StarExpr)
				if !ok {
					t.Fatalf("%s: an exported method without a pointer receiver", fset.Position(f.Pos()))
				}
				name = star.X.(*ast.Ident).Name + "_" + name
			}
			if !strings.HasPrefix(name, "With") && name != "Consistent" && !strings.Contains(name, "Error_") {
				points[name] = false
			}
		}
	}
	for _, e := range doc.Examples(tests...) {
		if e.Output == "" {
			t.Errorf("Example%s has no output", e.Name)
		}
		points[e.Name] = true
	}
	if len(points) < 15 {
		t.Errorf("only %d entry points found", len(points))
	}
	for name, ok := range points {
		if !ok {
			t.Errorf("%s has no example", name)
		}
	}
}
