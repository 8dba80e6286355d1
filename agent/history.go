package agent

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/zkagent/zkagent/internal/web"
)

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
	runs map[string][]web.HookRun
}

// newHistory reads what a former process kept; what cannot be read is lost.
func newHistory(dir string) *history {
	h := &history{dir: dir, runs: map[string][]web.HookRun{}}
	if dir == "" {
		return h
	}
	files, _ := filepath.Glob(filepath.Join(dir, "*.json"))
	for _, f := range files {
		data, err := os.ReadFile(f) //nolint:gosec // below our state directory.
		if err != nil {
			continue
		}
		var kept struct {
			Name string        `json:"name"`
			Runs []web.HookRun `json:"runs"`
		}
		if json.Unmarshal(data, &kept) == nil {
			h.runs[kept.Name] = kept.Runs
		}
	}
	return h
}

// add appends a run; a state directory that cannot be written costs the
// history over a restart, nothing else.
func (h *history) add(name string, r web.HookRun) {
	if len(r.Output) > outputKept {
		r.Output = r.Output[len(r.Output)-outputKept:]
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	runs := slices.Concat(h.runs[name], []web.HookRun{r})
	runs = runs[max(len(runs)-runsKept, 0):]
	h.runs[name] = runs
	if h.dir == "" {
		return
	}
	data, err := json.Marshal(map[string]any{"name": name, "runs": runs})
	if err == nil {
		_ = writeFile(filepath.Join(h.dir, fileName(name)+".json"), data)
	}
}

// of returns the runs of one hook, oldest first.
func (h *history) of(name string) []web.HookRun {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.runs[name])
}

// fileName makes a name safe as a file name, and distinct from others.
func fileName(name string) string {
	const hex = "0123456789abcdef"
	b := make([]byte, 0, len(name))
	for i := range len(name) {
		c := name[i]
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '-', c == '_':
			b = append(b, c)
		default:
			b = append(b, '%', hex[c>>4], hex[c&15])
		}
	}
	return string(b)
}
