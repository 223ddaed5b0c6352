package main

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/allocnode/allocnode/internal/wire"
)

func TestHostPort(t *testing.T) {
	for _, tc := range []struct {
		listen, host string
		port         int
	}{
		{"127.0.0.1:4222", "127.0.0.1", 4222}, {":0", "", -1}, {"[::1]:4222", "::1", 4222},
		{"example.org:65535", "example.org", 65535},
	} {
		f := serveFlags{listen: tc.listen}
		if host, port, err := f.hostPort(); err != nil || host != tc.host || port != tc.port {
			t.Errorf("%q: got %q %d %v", tc.listen, host, port, err)
		}
	}
	for _, bad := range []string{"", "4222", "localhost", ":", ":-1", ":65536", ":http", "::1:4222"} {
		f := serveFlags{listen: bad}
		if _, _, err := f.hostPort(); err == nil || !strings.Contains(err.Error(), "HOST:PORT") {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

// TestFlagsWin wants a flag to win over the file, also where nats-server keeps its own copy of the setting.
func TestFlagsWin(t *testing.T) {
	file := filepath.Join(t.TempDir(), "a.conf")
	text := "server_name: file\nlisten: '127.0.0.1:1'\njetstream { store_dir: 'file' }\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	f := serveFlags{config: file}
	cfg, err := f.nodeConfig()
	if err != nil || cfg.Name != "file" || cfg.DataDir != "file" || cfg.Port != 0 || cfg.Server.Port != 1 {
		t.Errorf("from the file alone: %+v %v", cfg, err)
	}
	f = serveFlags{config: file, name: "flag", data: "flag", listen: "127.0.0.2:2"}
	cfg, err = f.nodeConfig()
	if err != nil || cfg.Name != "flag" || cfg.DataDir != "flag" || cfg.Host != "127.0.0.2" || cfg.Port != 2 {
		t.Errorf("with flags: %+v %v", cfg, err)
	}
	if cfg.Server.ServerName != "" || cfg.Server.StoreDir != "" {
		t.Errorf("the server still has name %q and directory %q", cfg.Server.ServerName, cfg.Server.StoreDir)
	}
}

// TestLogger holds what is shown of nats-server's lines, and of our own, in each format.
func TestLogger(t *testing.T) {
	t.Setenv("NO_COLOR", "")
	log := func(format, level string, terminal bool, keep func(slog.Level, string) bool) string {
		t.Helper()
		var out bytes.Buffer
		l, err := (&logFlags{format: format, level: level}).loggerTo(&out, terminal, keep)
		if err != nil {
			t.Fatal(err)
		}
		nats := l.With("node", "n1").With("part", "nats")
		l.Info("ours")
		l.Debug("our detail")
		nats.Info("Starting nats-server")
		nats.Info("Listening for client connections on 127.0.0.1:4222")
		nats.Error("Error trying to connect to route (attempt 1)")
		nats.WithGroup("g").Warn("the disk is slow")
		return out.String()
	}
	for _, tc := range []struct {
		name, level string
		keep        func(slog.Level, string) bool
		want        []string
	}{
		{"serve", "info", keepForServe, []string{"ours", "Listening for", "attempt 1", "disk"}},
		{"dev", "info", keepForDev, []string{"ours", "disk"}},
		{"dev, debug", "debug", keepForDev, []string{"ours", "our detail", "Starting", "Listening for", "attempt 1", "disk"}},
		{"serve, error", "error", keepForServe, []string{"attempt 1"}},
	} {
		for _, format := range []string{"text", "json"} {
			out := log(format, tc.level, false, tc.keep)
			for _, line := range []string{"ours", "our detail", "Starting", "Listening for", "attempt 1", "disk"} {
				if got, want := strings.Contains(out, line), slices.Contains(tc.want, line); got != want {
					t.Errorf("%s as %s: shows %q is %t, want %t", tc.name, format, line, got, want)
				}
			}
			if strings.Contains(out, "\x1b") {
				t.Errorf("%s as %s: colours away from a terminal", tc.name, format)
			}
		}
	}
	if out := log("text", "info", true, keepForDev); !strings.Contains(out, "\x1b") {
		t.Error("no colours on a terminal")
	}
	t.Setenv("NO_COLOR", "1")
	if out := log("text", "info", true, keepForDev); strings.Contains(out, "\x1b") {
		t.Error("colours with NO_COLOR")
	}
}

// TestLasting wants a reason to be told when it is still there at the next look, and once.
func TestLasting(t *testing.T) {
	status := func(state, reason string) wire.Status {
		return wire.Status{State: state, Reason: reason, Ready: state == wire.StateServing}
	}
	var l lasting
	for i, tc := range []struct {
		status wire.Status
		want   bool
	}{
		{status(wire.StateStarting, "starting"), false},
		{status(wire.StateStarting, "starting"), false}, // says nothing
		{status(wire.StateStarting, "waiting for n2"), false},
		{status(wire.StateStarting, "waiting for n2"), true},
		{status(wire.StateStarting, "waiting for n2"), false},
		{status(wire.StateChecking, "waiting for n3"), false},
		{status(wire.StateServing, ""), false},
		{status(wire.StateChecking, "waiting for n2"), false},
		{status(wire.StateChecking, "waiting for n2"), true}, // again, after it served
		{status(wire.StateFenced, "the log lost entries"), false},
		{status(wire.StateFenced, "the log lost entries"), false}, // the node said so
	} {
		if got := l.news(tc.status); got != tc.want {
			t.Errorf("look %d, %q: got %t", i, tc.status.Reason, got)
		}
	}
}

func TestLines(t *testing.T) {
	inner := errors.New("port 1 in use: configure another")
	for _, tc := range []struct {
		err  error
		want []string
	}{
		{inner, []string{"port 1 in use: configure another"}},
		{errors.Join(errors.New("a"), errors.New("b")), []string{"a", "b"}},
		{errors.Join(inner, fmt.Errorf("start n1: %w", inner)), []string{"start n1: port 1 in use: configure another"}},
	} {
		if got := lines(tc.err); !slices.Equal(got, tc.want) {
			t.Errorf("got %q, want %q", got, tc.want)
		}
	}
}
