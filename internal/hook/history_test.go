package hook

import (
	"bytes"
	"log/slog"
	"os"
	"strings"
	"testing"

	"github.com/zkagent/zkagent/internal/files"
)

// The last runs are kept over a restart. A damaged file is reported, and the next run
// replaces it.
func TestHistory_Kept(t *testing.T) {
	dir := t.TempDir()
	var log bytes.Buffer
	process := func(stateDir string) *Engine {
		return New(Options{StateDir: stateDir, Log: slog.New(slog.NewTextHandler(&log, nil))})
	}
	first := process(dir)
	for i := range runsKept + 5 {
		first.history.add("a/b", Run{Event: "change", Code: i})
	}
	if runs := process(dir).Runs("a/b"); len(runs) != runsKept || runs[0].Code != 5 || log.Len() > 0 {
		t.Errorf("after a restart: %v, %s", runs, &log)
	}
	if runs := process("").Runs("a/b"); len(runs) > 0 {
		t.Errorf("without a state directory: %v", runs)
	}
	if err := os.WriteFile(files.StateFile(dir, "hooks", "a/b"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	damaged := process(dir)
	if runs := damaged.Runs("a/b"); len(runs) > 0 || strings.Count(log.String(), "cannot read") != 1 {
		t.Errorf("a damaged file: %v, %s", runs, &log)
	}
	damaged.history.add("a/b", Run{Event: "manual"})
	if runs := process(dir).Runs("a/b"); len(runs) != 1 {
		t.Errorf("after a damaged file: %v", runs)
	}
}
