package hook

import (
	"encoding/json"
	"log/slog"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/zkagent/zkagent/internal/files"
	"github.com/zkagent/zkagent/view"
)

// Run is one run of a hook, or of a reload, as its history keeps it.
type Run struct {
	Event  string       `json:"event"`
	Began  time.Time    `json:"began"`
	Took   view.Seconds `json:"took_seconds"`
	State  string       `json:"state"` // started, done or failed
	Code   int          `json:"code"`
	Signal string       `json:"signal,omitempty"`
	Term   int64        `json:"term,omitempty"`
	Slot   time.Time    `json:"slot,omitzero"`
	Try    int          `json:"try,omitempty"`
	Error  string       `json:"error,omitempty"`
	Output string       `json:"output,omitempty"` // its end
}

// How much of the past is kept.
const (
	runsKept   = 20
	outputKept = 8 << 10
)

// history keeps the last runs of each hook, in the state directory when there
// is one. It is safe for concurrent use.
type history struct {
	dir string // empty: memory only

	mu   sync.Mutex // mu guards runs.
	runs map[string][]Run
}

// newHistory reads what a former process kept, without the files that it cannot read.
func newHistory(dir string, log *slog.Logger) *history {
	h := &history{dir: dir, runs: map[string][]Run{}}
	if dir == "" {
		return h
	}
	paths, _ := filepath.Glob(filepath.Join(dir, "*.json"))
	for _, path := range paths {
		var kept struct {
			Name string `json:"name"`
			Runs []Run  `json:"runs"`
		}
		if err := files.LoadJSON(path, &kept); err != nil {
			log.Warn("cannot read the last runs of a hook", "err", err)
			continue
		}
		h.runs[kept.Name] = kept.Runs
	}
	return h
}

// add appends a run; a state directory that cannot be written costs the
// history over a restart, nothing else.
func (h *history) add(name string, r Run) {
	if len(r.Output) > outputKept {
		r.Output = r.Output[len(r.Output)-outputKept:]
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	runs := slices.Concat(h.runs[name], []Run{r})
	runs = runs[max(len(runs)-runsKept, 0):]
	h.runs[name] = runs
	if h.dir == "" {
		return
	}
	data, err := json.Marshal(map[string]any{"name": name, "runs": runs})
	if err == nil {
		_ = files.Save(filepath.Join(h.dir, files.Name(name)+".json"), data)
	}
}

// of returns the runs of one hook, oldest first.
func (h *history) of(name string) []Run {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.runs[name])
}
