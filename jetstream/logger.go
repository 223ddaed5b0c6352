package jetstream

import (
	"context"
	"fmt"
	"log/slog"
	"strings"

	"github.com/nats-io/nats-server/v2/server"
)

// serverLogger hands nats-server's log lines to slog. The server logs from every one of its goroutines, at times with
// its lock held, so nothing here calls back into it.
type serverLogger struct {
	log   *slog.Logger
	fatal func(reason string) // told of each Fatalf; must not block

	// hidden lists lines that would mislead.
	hidden []string
}

var _ server.Logger = (*serverLogger)(nil)

func (l *serverLogger) write(level slog.Level, format string, args []any) string {
	line := strings.TrimSpace(fmt.Sprintf(format, args...))
	if line == "" || strings.HasPrefix(line, "-----") {
		return line // an ornament
	}
	for _, h := range l.hidden {
		if strings.HasPrefix(line, h) {
			return line
		}
	}
	l.log.Log(context.Background(), level, line)
	return line
}

// Noticef logs at slog's info level.
func (l *serverLogger) Noticef(format string, args ...any) { l.write(slog.LevelInfo, format, args) }

// Warnf logs at slog's warn level.
func (l *serverLogger) Warnf(format string, args ...any) { l.write(slog.LevelWarn, format, args) }

// Errorf logs at slog's error level.
func (l *serverLogger) Errorf(format string, args ...any) { l.write(slog.LevelError, format, args) }

// Debugf logs at slog's debug level.
func (l *serverLogger) Debugf(format string, args ...any) { l.write(slog.LevelDebug, format, args) }

// Tracef logs at slog's debug level, which has none below it.
func (l *serverLogger) Tracef(format string, args ...any) { l.write(slog.LevelDebug, format, args) }

// Fatalf logs at slog's error level and signals that the server will not work. nats-server expects its logger to end
// the process here; when it does not, the server stays half started and says nothing more.
func (l *serverLogger) Fatalf(format string, args ...any) {
	l.fatal(l.write(slog.LevelError, format, args))
}
