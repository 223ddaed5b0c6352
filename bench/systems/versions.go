package systems

import (
	"context"
	"os/exec"
	"regexp"
	"runtime"
	"runtime/debug"
	"strings"
	"time"
)

// Version is of a program or a module.
type Version struct{ Name, Version string }

// number is the version in what a program prints of itself.
var number = regexp.MustCompile(`\d+(\.\d+)+`)

// modules are those whose version says what was compared.
var modules = []string{
	"github.com/nats-io/nats-server/v2", "github.com/nats-io/nats.go", "github.com/dgraph-io/badger/v4",
	"go.etcd.io/etcd/server/v3", "go.etcd.io/etcd/client/v3", "github.com/jackc/pgx/v5", "github.com/redis/go-redis/v9",
	"github.com/sony/sonyflake/v2", "github.com/bwmarrin/snowflake", "github.com/oklog/ulid/v2", "github.com/google/uuid",
}

// Versions asks git, the linked modules and the installed programs. What is not there is "not found".
func Versions(ctx context.Context) []Version {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	vs := []Version{
		{"allocnode", output(ctx, "git", "describe", "--always", "--dirty", "--tags")}, {"Go", runtime.Version()},
		{"PostgreSQL", programVersion(ctx, "postgres", postgresDir)}, {"Redis", programVersion(ctx, "redis-server")},
	}
	info, _ := debug.ReadBuildInfo()
	for _, m := range modules {
		v := "not found"
		if info != nil {
			for _, d := range info.Deps {
				if d.Path == m {
					v = d.Version
				}
			}
		}
		vs = append(vs, Version{m, v})
	}
	return vs
}

func programVersion(ctx context.Context, name string, dirs ...string) string {
	path, err := findProgram(name, dirs...)
	if err != nil {
		return "not found"
	}
	return number.FindString(output(ctx, path, "--version"))
}

func output(ctx context.Context, name string, args ...string) string {
	out, err := exec.CommandContext(ctx, name, args...).Output()
	if err != nil {
		return "not found"
	}
	return strings.TrimSpace(string(out))
}
