package apply

import (
	"encoding/json"
	"errors"
	"log/slog"
	"maps"
	"path/filepath"
	"sync"
	"time"

	"github.com/zkagent/zkagent/internal/files"
	"github.com/zkagent/zkagent/internal/proc"
)

// Halt is a failure of this host that halts a rolling reload on all hosts.
type Halt struct {
	Reason string    `json:"reason"`
	Time   time.Time `json:"time"`
}

// halts remembers the failures for which the other hosts are not halted yet: written
// before the old files come back, removed when the halt stands in ZooKeeper. A host
// that is killed in between halts the others at its next start. It is safe for
// concurrent use.
type halts struct {
	path string // empty: memory only
	fs   func() *files.FS

	mu   sync.Mutex // mu guards list.
	list map[string]Halt
}

// newHalts reads what a former process has not told.
func newHalts(stateDir string, fs func() *files.FS, log *slog.Logger) *halts {
	h := &halts{fs: fs, list: map[string]Halt{}}
	if stateDir == "" {
		return h
	}
	h.path = filepath.Join(stateDir, "halts.json")
	if err := files.LoadJSON(h.path, &h.list); err != nil {
		log.Warn("cannot read which rolling reloads have failed: the other hosts are not halted", "err", err)
		h.list = nil
	}
	if h.list == nil {
		h.list = map[string]Halt{}
	}
	return h
}

// add notes a failure.
func (h *halts) add(bundle string, halt Halt) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.list[bundle] = halt
	return h.save()
}

// clear notes that the halt of this failure stands.
func (h *halts) clear(bundle string, halt Halt) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if noted, ok := h.list[bundle]; !ok || !noted.Time.Equal(halt.Time) {
		return nil
	}
	delete(h.list, bundle)
	return h.save()
}

// all returns the failures by bundle.
func (h *halts) all() map[string]Halt {
	h.mu.Lock()
	defer h.mu.Unlock()
	return maps.Clone(h.list)
}

// save writes the file. h.mu is held.
func (h *halts) save() error {
	if h.path == "" {
		return nil
	}
	data, err := json.Marshal(h.list)
	if err != nil {
		return err
	}
	return h.fs().Save(h.path, data)
}

// Halts returns the failures, by bundle, for which the other hosts are not halted yet.
func (e *Engine) Halts() map[string]Halt { return e.halts.all() }

// Halted notes that the other hosts are halted for a failure of [Engine.Halts].
func (e *Engine) Halted(bundle string, h Halt) {
	if err := e.halts.clear(bundle, h); err != nil {
		e.Log.Warn("cannot remove the note of a failed rolling reload", "template", bundle, "err", err)
	}
}

// halt notes that this host has failed in its turn of a rolling reload. It comes
// before the old files do: a process that is killed then still halts the others.
func (t *applying) halt(failed error) {
	if t.release == nil || t.failed != nil || failed == nil {
		return
	}
	t.failed = &Halt{Reason: public(failed).Error(), Time: time.Now().UTC()}
	if err := t.halts.add(t.name, *t.failed); err != nil {
		t.Log.Warn("cannot note that the rolling reload failed: if the agent is killed now, the other hosts go on", "template", t.name, "err", err)
	}
}

// giveBack gives the permit back, and halts the other hosts after a failure.
func (t *applying) giveBack() {
	if t.release == nil {
		return
	}
	if err := t.release(t.failed); err == nil && t.failed != nil {
		t.Halted(t.name, *t.failed)
	}
	t.release, t.failed = nil, nil
}

// public is what everybody who may read ZooKeeper may know of a failure: how a
// command ended, and not what it printed.
func public(failed error) error {
	e, ok := errors.AsType[*proc.ExitError](failed)
	if !ok {
		return failed
	}
	quiet := *e
	quiet.Result.Output = ""
	return &quiet
}
