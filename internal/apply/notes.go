package apply

import (
	"errors"
	"fmt"
	"time"

	"github.com/zkagent/zkagent/internal/files"
	"github.com/zkagent/zkagent/internal/proc"
)

// A reload command may end the agent: it kills the agent's process, or the machine's
// supervisor does it for what the new files cause, at once or in the pause of a rolling
// reload. The next process finds the change unfinished and runs the reload again. After
// maxAttempts processes that ended between the start of the reload of one content and the
// end of its change, that content is refused: the old files come back, and the content
// is not tried again. An end after that repeats no reload, so it is not counted. The
// rollouts of a fleet count in the same way.
//
// The file is written before a reload and after the change, without a flush: a killed process
// loses nothing of it, and a machine that crashes makes one more try. A process that
// stops in good order forgets it, so the next one tries again.
const maxAttempts = 3

// restoredContent stands for the files that came back after a refusal.
const restoredContent = "restored"

// attempts counts the processes that ended between a bundle's reload and the end of its
// change.
type attempts struct{ files.Map[attempt] }

// attempt is what is known of the reloads of one bundle.
type attempt struct {
	Content string `json:"content"`           // that is reloaded
	Deaths  int    `json:"deaths,omitempty"`  // processes that ended meanwhile
	Running bool   `json:"running,omitempty"` // the reload has begun, and its change has not ended
	Refused string `json:"refused,omitempty"` // content that ended too many
}

// countDeaths notes that a reload that was running has ended its process.
func (a attempts) countDeaths() {
	_ = a.Change(func(all map[string]attempt) files.Write {
		for name, n := range all {
			if n.Running {
				n.Deaths++
				n.Running = false
				all[name] = n
			}
		}
		return files.WriteNothing // The next reload writes it.
	})
}

// begin notes that the reload of a content begins.
func (a attempts) begin(bundle, content string) error {
	return a.Change(func(all map[string]attempt) files.Write {
		n := all[bundle]
		if n.Content != content {
			n = attempt{Content: content, Refused: n.Refused}
		}
		n.Running = true
		all[bundle] = n
		return files.WriteNote
	})
}

// end notes that the change has ended, well or not, and that this process lives.
func (a attempts) end(bundle string) error {
	return a.Change(func(all map[string]attempt) files.Write {
		n := all[bundle]
		if !n.Running {
			return files.WriteNothing
		}
		delete(all, bundle)
		if n.Refused != "" && n.Content == restoredContent {
			all[bundle] = attempt{Content: n.Content, Refused: n.Refused}
		}
		return files.WriteNote
	})
}

// content is what the bundle's latest reload was for.
func (a attempts) content(bundle string) string {
	n, _ := a.Get(bundle)
	return n.Content
}

// err says that a content is not to be reloaded; nil: it may be.
func (a attempts) err(bundle, content string) error {
	if n, _ := a.Get(bundle); n.Content != content || n.Deaths < maxAttempts {
		return nil
	}
	return errAttempts
}

// refuse notes that the content of the latest reload is refused.
func (a attempts) refuse(bundle string) error {
	return a.Set(bundle, attempt{Content: restoredContent, Refused: a.content(bundle)}, files.WriteNote)
}

func (a attempts) refused(bundle string, content func() string) bool {
	n, _ := a.Get(bundle)
	return n.Refused != "" && n.Refused == content()
}

func (a attempts) forget() error {
	return a.Change(func(all map[string]attempt) files.Write {
		if len(all) == 0 {
			return files.WriteNothing
		}
		clear(all)
		return files.WriteNote
	})
}

// warnAttempt tells that a note of a reload could not be written. The reload runs all
// the same: at worst it ends one process more.
func (e *Engine) warnAttempt(err error) {
	if err != nil {
		e.Log.Warn("note of a reload not written", "err", err)
	}
}

// endAttempt notes that a change has ended after its reload.
func (t *applying) endAttempt() { t.warnAttempt(t.attempts.end(t.name)) }

// errAttempts is why a content is refused.
var errAttempts = fmt.Errorf("the agent ended %d times in the middle of this reload; "+
	"it is not run again for this content before the agent stops in good order", maxAttempts)

// content identifies what the reload makes the program read: the files, and the
// command. An apply that has not rendered ends the change of the reload before.
func (t *applying) content() string {
	if len(t.outputs) == 0 {
		return t.attempts.content(t.name)
	}
	return files.Digest([]byte(t.job.key + "\n" + filesDigest(t.outputs)))
}

// pendingReloads are the bundles whose files are in place and whose reload has not
// succeeded: written before the swap, removed after the reload, so that the next process
// makes up for one that dies in between.
type pendingReloads struct{ files.Map[pendingReload] }

type pendingReload struct {
	Since    time.Time `json:"since"`
	Restored bool      `json:"restored,omitempty"` // of old files that came back
	// File is the first destination: the settings may give its bundle another name.
	File string `json:"file,omitempty"`
}

// add notes that the bundle's reload is pending: of new files, or of restored ones.
func (p pendingReloads) add(bundle, file string, restored bool) error {
	return p.Change(func(all map[string]pendingReload) files.Write {
		r, ok := all[bundle]
		if ok && r.Restored == restored {
			return files.WriteNothing
		}
		if r.Restored, r.File = restored, file; !ok {
			r.Since = time.Now()
		}
		all[bundle] = r
		return files.WriteSave
	})
}

// clear notes that no reload of the bundle is pending any more. A crash of the host may
// bring the note back when it was the last one: that costs one reload.
func (p pendingReloads) clear(bundle string) error {
	return p.Change(func(all map[string]pendingReload) files.Write {
		if _, ok := all[bundle]; !ok {
			return files.WriteNothing
		}
		delete(all, bundle)
		if len(all) > 0 {
			return files.WriteSave
		}
		return files.WriteNote
	})
}

func (p pendingReloads) has(bundle string) bool {
	_, ok := p.Get(bundle)
	return ok
}

func (p pendingReloads) restored(bundle string) bool {
	r, _ := p.Get(bundle)
	return r.Restored
}

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
		t.Log.Warn("cannot note that the rolling reload failed: if the agent is killed now, the other hosts continue", "template", t.name, "err", err)
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
