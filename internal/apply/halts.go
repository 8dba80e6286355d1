package apply

import (
	"errors"
	"time"

	"github.com/zkagent/zkagent/internal/files"
	"github.com/zkagent/zkagent/internal/proc"
)

// Halt is a failure of this host that halts a rolling reload on all hosts.
type Halt struct {
	Reason string    `json:"reason"`
	Time   time.Time `json:"time"`
}

// Halts returns the failures, by bundle, for which the other hosts are not halted yet.
//
// A failure is written before the old files come back, and removed when the halt stands in
// ZooKeeper: a host that is killed in between halts the others at its next start.
func (e *Engine) Halts() map[string]Halt { return e.halts.All() }

// Halted notes that the other hosts are halted for a failure of [Engine.Halts].
func (e *Engine) Halted(bundle string, h Halt) {
	err := e.halts.Change(func(all map[string]Halt) files.Write {
		if noted, ok := all[bundle]; !ok || !noted.Time.Equal(h.Time) {
			return files.WriteNothing
		}
		delete(all, bundle)
		return files.WriteSave
	})
	if err != nil {
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
	if err := t.halts.Set(t.name, *t.failed, files.WriteSave); err != nil {
		t.Log.Warn("cannot note that the rolling reload failed: if the agent is killed now, the other hosts go on", "template", t.name, "err", err)
	}
}

// releasePermit returns the permit, and halts the other hosts after a failure.
func (t *applying) releasePermit() {
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
