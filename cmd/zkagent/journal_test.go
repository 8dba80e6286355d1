package main

import (
	"bytes"
	"errors"
	"log/slog"
	"maps"
	"strings"
	"testing"

	"github.com/coreos/go-systemd/v22/journal"

	"github.com/zkagent/zkagent/internal/term"
)

func TestFieldHandler(t *testing.T) {
	var out bytes.Buffer
	var got string
	var level journal.Priority
	var fields map[string]string
	var refused error
	h := journalHandler{out: &out, level: slog.LevelInfo, send: func(message string, p journal.Priority, f map[string]string) error {
		got, level, fields = message, p, f
		return refused
	}}
	log := slog.New(h).With("template", "web")
	log.Debug("not shown")
	log.WithGroup("zk").Error("apply <failed>", "err", errors.New("line 1\nline 2"), "took", 3, slog.Group("at", "line", 7))
	want := map[string]string{
		"SYSLOG_IDENTIFIER": "zkagent", "ZKAGENT_EVENT": "apply <failed>", "ZKAGENT_TEMPLATE": "web",
		"ZKAGENT_ZK_ERR": "line 1\nline 2", "ZKAGENT_ZK_TOOK": "3", "ZKAGENT_ZK_AT_LINE": "7",
	}
	if level != 3 || !maps.Equal(fields, want) {
		t.Errorf("level %d, fields %q", level, fields)
	}
	if !strings.HasPrefix(got, "apply <failed> template=web zk.err=") || strings.HasSuffix(got, "\n") || out.Len() > 0 {
		t.Errorf("message %q, and standard error got %q", got, &out)
	}
	refused = errors.New("no journal")
	log.Info("later")
	if !strings.HasPrefix(out.String(), "<6>later") {
		t.Errorf("without the journal, standard error got %q", out.String())
	}
}

// TestLog_GiantTexts: one text of ZooKeeper fills no disk, in any format of the log, and
// forges no line.
func TestLog_GiantTexts(t *testing.T) {
	giant := strings.Repeat("x\n\x1b", 300_000)
	var out bytes.Buffer
	fields := 0
	console := &term.Console{Err: &out}
	for name, h := range map[string]slog.Handler{
		"text": logHandler(console, "text", slog.LevelInfo), "json": logHandler(console, "json", slog.LevelInfo),
		"journal": journalHandler{out: &out, level: slog.LevelInfo, send: func(_ string, _ journal.Priority, f map[string]string) error {
			for _, text := range f {
				fields += len(text)
			}
			return errors.New("no journal")
		}},
	} {
		out.Reset()
		slog.New(h).With("path", giant).Error(giant, "err", errors.New(giant)) //nolint:sloglint // A library may log any text.
		if n := out.Len(); n > 200_000 || n < 1000 || bytes.Count(out.Bytes(), []byte("\n")) != 1 || bytes.Contains(out.Bytes(), []byte("\x1b")) {
			t.Errorf("%s: %d bytes: %.200q", name, n, out.Bytes())
		}
	}
	if fields > 100_000 {
		t.Errorf("%d bytes in fields", fields)
	}
}

func TestFieldName(t *testing.T) {
	for name, want := range map[string]string{"took": "ZKAGENT_TOOK", "a.b-c": "ZKAGENT_A_B_C", "": ""} {
		if got := fieldName(name); got != want {
			t.Errorf("%q: got %q, want %q", name, got, want)
		}
	}
	if got := fieldName(strings.Repeat("x", 100)); len(got) != 64 {
		t.Errorf("got %d characters", len(got))
	}
}
