package hook

import (
	"log/slog"
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
	stateDir string // empty: memory only
	log      *slog.Logger

	mu    sync.Mutex // mu guards hooks.
	hooks map[string]*files.Store[hookRuns]
}

// hookRuns are the last runs of one hook, oldest first.
type hookRuns struct {
	Name string `json:"name"`
	Runs []Run  `json:"runs"`
}

// hook is where the runs of one hook are kept. Its first use reads what a previous
// process kept.
func (h *history) hook(name string) *files.Store[hookRuns] {
	h.mu.Lock()
	defer h.mu.Unlock()
	kept := h.hooks[name]
	if kept == nil {
		var err error
		if kept, err = files.OpenStore[hookRuns](h.stateDir, files.StateFile("", "hooks", name), nil); err != nil {
			h.log.Warn("cannot read the last runs of a hook", "hook", name, "err", err)
		}
		h.hooks[name] = kept
	}
	return kept
}

// add appends a run; a state directory that cannot be written costs the
// history over a restart, nothing else.
func (h *history) add(name string, r Run) {
	if len(r.Output) > outputKept {
		r.Output = r.Output[len(r.Output)-outputKept:]
	}
	_ = h.hook(name).Change(func(k *hookRuns) files.Write {
		runs := slices.Concat(k.Runs, []Run{r})
		k.Name, k.Runs = name, runs[max(len(runs)-runsKept, 0):]
		return files.WriteSave
	})
}
