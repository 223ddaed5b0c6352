package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/lmittmann/tint"
)

// logFlags say how the log looks and how much of it there is.
type logFlags struct {
	format string
	level  string
}

// logger writes to stderr: in colour on a terminal, plain elsewhere, or as JSON. keep picks, of nats-server's lines, those
// that are shown; at --log-level debug all are.
func (f *logFlags) logger(keep func(slog.Level, string) bool) (*slog.Logger, error) {
	return f.loggerTo(os.Stderr, isTerminal(os.Stderr), keep)
}

func (f *logFlags) loggerTo(w io.Writer, terminal bool, keep func(slog.Level, string) bool) (*slog.Logger, error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(f.level)); err != nil {
		return nil, fmt.Errorf("--log-level %q: want debug, info, warn or error", f.level)
	}
	var h slog.Handler
	switch f.format {
	case "json":
		h = slog.NewJSONHandler(w, &slog.HandlerOptions{Level: level})
	case "text":
		o := &tint.Options{Level: level, TimeFormat: time.TimeOnly, NoColor: !terminal || os.Getenv("NO_COLOR") != ""}
		if !terminal {
			o.TimeFormat = "2006-01-02T15:04:05.000Z07:00" // a file is read days later
		}
		h = tint.NewTextHandler(w, o)
	default:
		return nil, fmt.Errorf("--log-format %q: want text or json", f.format)
	}
	if level > slog.LevelDebug {
		h = &natsFilter{Handler: h, keep: keep}
	}
	return slog.New(h), nil
}

func isTerminal(f *os.File) bool {
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// natsFilter is a handler that drops lines of the embedded nats-server, which carry part=nats.
type natsFilter struct {
	slog.Handler
	nats bool // what comes through here is nats-server's
	keep func(slog.Level, string) bool
}

// Handle passes r on, unless it is nats-server's and not to be kept.
func (h *natsFilter) Handle(ctx context.Context, r slog.Record) error {
	if h.nats && !h.keep(r.Level, r.Message) {
		return nil
	}
	return h.Handler.Handle(ctx, r)
}

// WithAttrs notes whether attrs make the lines nats-server's.
func (h *natsFilter) WithAttrs(attrs []slog.Attr) slog.Handler {
	nats := h.nats
	for _, a := range attrs {
		nats = nats || a.Key == "part" && a.Value.String() == "nats"
	}
	return &natsFilter{Handler: h.Handler.WithAttrs(attrs), nats: nats, keep: h.keep}
}

// WithGroup keeps what is known of the lines.
func (h *natsFilter) WithGroup(name string) slog.Handler {
	return &natsFilter{Handler: h.Handler.WithGroup(name), nats: h.nats, keep: h.keep}
}

// keepForServe is every warning, and of the rest what an operator looks for: where the server listens, and who leads.
func keepForServe(level slog.Level, line string) bool {
	if level >= slog.LevelWarn {
		return true
	}
	for _, part := range []string{
		"Listening for", "TLS required", "JetStream cluster new", "JetStream cluster no", "Entering lame duck mode",
	} {
		if strings.Contains(line, part) {
			return true
		}
	}
	return false
}

// keepForDev is warnings, without those that every start and end of a whole cluster brings.
func keepForDev(level slog.Level, line string) bool {
	if level < slog.LevelWarn {
		return false
	}
	for _, usual := range []string{
		"Error trying to connect to route", "Waiting for routing to be established",
		"JetStream has not established contact with a meta leader", "Metalayer blocking snapshot", "Error flushing",
	} {
		if strings.Contains(line, usual) {
			return false
		}
	}
	return true
}
