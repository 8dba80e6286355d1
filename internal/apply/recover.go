package apply

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/zkagent/zkagent/internal/condition"
	"github.com/zkagent/zkagent/internal/event"
	"github.com/zkagent/zkagent/internal/files"
)

// A process that is killed between swap and reload leaves new files that no
// check may have passed, and a program that may have read them. The journal
// keeps the old files. [Engine.Recover] makes the files all new or all old. The
// first apply of the bundle then ends the change as the previous process would
// have: check, reload, and commit or restore.

// Recover puts right what a killed process left. It is called once, before the
// first job, with the bundles of the settings.
func (e *Engine) Recover(bundles []Config) {
	if e.StateDir == "" {
		return
	}
	for _, dir := range []string{"journal", "staged", "files"} {
		if err := files.MakeOwn(filepath.Join(e.StateDir, dir)); err != nil {
			e.Conds.Open(condition.StateDir, e.StateDir, err.Error())
			return
		}
	}
	// Copies for checks of a previous process are of no use to anybody.
	if left, err := filepath.Glob(filepath.Join(e.StateDir, "staged", "bundle-*")); err == nil {
		for _, dir := range left {
			_ = os.RemoveAll(dir)
		}
	}
	if dir := os.Getenv("RUNTIME_DIRECTORY"); dir != "" { // What a killed process has laid would be seen by units.
		if err := os.RemoveAll(filepath.Join(dir, laidDir)); err != nil { //nolint:gosec // systemd names it
			e.Log.Warn("cannot remove directories that were laid for checks", "err", err)
		}
	}
	unfinished, err := files.Unfinished(files.TxConfig{StateDir: e.journalDir(), FS: e.FS})
	e.Conds.Set(condition.RecoverFailed, "", err)
	var all sync.WaitGroup
	begin := func(name string, one func()) {
		ended := make(chan struct{})
		e.mu.Lock()
		e.recovering[name] = ended
		e.mu.Unlock()
		all.Go(func() { defer close(ended); one() })
	}
	for i := range bundles {
		c := &bundles[i]
		begin(c.Name, func() {
			if slices.Contains(unfinished, files.Name(c.Name)) {
				e.recoverOne(c.Name)
			}
			e.sweep(c)
		})
	}
	for _, bundle := range unfinished {
		if !slices.ContainsFunc(bundles, func(c Config) bool { return files.Name(c.Name) == bundle }) {
			begin("\x00"+bundle, func() { e.recoverDropped(bundle) })
		}
	}
	ended := make(chan struct{})
	go func() { defer close(ended); all.Wait() }()
	timer := time.NewTimer(recoverPatience)
	defer timer.Stop()
	select {
	case <-ended:
	case <-timer.C:
		e.Log.Warn("the recovery of some files takes long: their templates wait, and the start does not")
	}
	e.Retain(bundles)
}

// recoverPatience is how long a start waits for the recovery of all bundles. After that
// each bundle waits for its own.
const recoverPatience = time.Second

// recoverOne keeps a recovered change for the first apply of its bundle. With an error
// the journal stays, and the first apply tries again.
func (e *Engine) recoverOne(name string) {
	r, ok, _ := e.recoverJournal(name, files.Name(name))
	if !ok {
		return
	}
	e.Log.Warn("repaired an unfinished change of a previous process", "template", name, "new", r.New, "reload", r.Reload)
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		r.Tx.Keep()
		return
	}
	e.recovered[name] = r
}

// recoverDropped ends the change of a bundle that the settings no longer have.
func (e *Engine) recoverDropped(bundle string) {
	r, ok, _ := e.recoverJournal(bundle, bundle)
	if !ok {
		return
	}
	e.Log.Warn("repaired an unfinished change of a bundle that the settings no longer name", "bundle", bundle, "new", r.New)
	if err := r.Tx.Commit(); err != nil {
		e.Log.Warn("cannot remove the journal", "bundle", bundle, "err", err)
	}
}

// recoverJournal makes the files of one journal all new or all old. A condition has the
// error.
func (e *Engine) recoverJournal(name, bundle string) (files.Recovered, bool, error) {
	r, found, err := files.Recover(files.TxConfig{StateDir: e.journalDir(), Bundle: bundle, FS: e.FS, NoBackup: e.noBackup(name)})
	e.Conds.Set(condition.RecoverFailed, name, err)
	return r, found, err
}

// noBackup tells that the old text of a file is not kept: another user can put a directory
// at the name of a backup, and the new text is in use.
func (e *Engine) noBackup(bundle string) func(err error) {
	return func(err error) {
		e.Events.Add(event.Event{Kind: "backup-failed", Subject: bundle, Text: err.Error(), Warn: true})
		e.Log.Warn("cannot keep a backup", "template", bundle, "err", err)
	}
}

// recovery waits until the recovery of a bundle has ended.
func (e *Engine) recovery(ctx context.Context, bundle string) error {
	e.mu.Lock()
	ended := e.recovering[bundle]
	e.mu.Unlock()
	if ended == nil {
		return nil
	}
	select {
	case <-ended:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// sweep removes what a process that was killed before its journal was written
// has left beside the files of a bundle. This is done before the first job
// only: later on, votes and applies have staged files there.
func (e *Engine) sweep(c *Config) {
	var list []string
	for i := range c.Templates {
		if c.ForEach == nil && c.Templates[i].Destination != nil {
			if dest, err := c.Templates[i].Path(nil); err == nil {
				list = append(list, dest)
			}
		}
	}
	if c.ForEach != nil {
		for dest := range e.loadWritten(e.StateDir, c.Name) {
			list = append(list, dest)
		}
	}
	if err := files.Sweep(e.FS, e.journalDir(), list...); err != nil {
		e.Log.Warn("cannot remove files of a previous process", "template", c.Name, "err", err)
	}
}

// Retain forgets the pending reloads of bundles that the settings do not have, or
// that have no reload command any more; and failures for which no host waits. A bundle that
// has another name now has the reload of its first file.
func (e *Engine) Retain(bundles []Config) {
	reloads, rolling, of := map[string]bool{}, map[string]bool{}, map[string]string{}
	for i := range bundles {
		if r := bundles[i].Reload; r != nil && r.Command.Set() {
			reloads[bundles[i].Name], rolling[bundles[i].Name] = true, r.Rolling != nil
			of[(&parsed{Config: bundles[i]}).vars(nil).Destination] = bundles[i].Name
		}
	}
	for name, h := range e.halts.All() {
		if !rolling[name] {
			e.Halted(name, h)
		}
	}
	for name, r := range e.pending.All() {
		if reloads[name] {
			continue
		}
		err := e.pending.clear(name)
		if heir := of[r.File]; heir != "" && r.File != "" {
			err = errors.Join(e.pending.add(heir, r.File, r.Restored), err)
		}
		if err != nil {
			e.Log.Warn("cannot change the note of a pending reload", "template", name, "err", err)
		}
	}
}

// Close lets go of changes of a previous process that no apply has ended. The
// next process finds them again.
func (e *Engine) Close() {
	e.Wait()
	if err := e.attempts.forget(); err != nil {
		e.Log.Warn("note of ended processes not removed", "err", err)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.closed = true
	for _, r := range e.recovered {
		r.Tx.Keep()
	}
	clear(e.recovered)
}

// former returns the unfinished change of the bundle, if there is one: of a
// previous process, or one of this process whose restore failed.
func (t *applying) former(ctx context.Context) (files.Recovered, bool, error) {
	if err := t.recovery(ctx, t.name); err != nil {
		return files.Recovered{}, false, err
	}
	t.mu.Lock()
	r, ok := t.recovered[t.name]
	delete(t.recovered, t.name)
	t.mu.Unlock()
	if ok || t.atomic() || !files.Pending(t.journalDir(), files.Name(t.name)) {
		return r, ok, nil
	}
	r, ok, err := t.recoverJournal(t.name, files.Name(t.name))
	if ok {
		t.Conds.Close(condition.RestoreFailed, t.name)
	}
	return r, ok, err
}

// finishPrevious ends a change that was left unfinished. An error means that this
// bundle has to wait: nothing else may happen to its files.
func (t *applying) finishPrevious(ctx context.Context) error {
	r, ok, err := t.former(ctx)
	if err != nil {
		return fail(stageSwap, 5*time.Second, fmt.Errorf("finish a previous change: %w", err))
	}
	if !ok {
		return nil
	}
	t.tx, t.job.Bundle.look = r.Tx, true
	refused, err := t.finish(ctx, r)
	t.tx, t.job.Bundle.look = nil, true
	if err != nil {
		return fmt.Errorf("finish a previous change: %w", err)
	}
	if refused != nil {
		// The old files are back. The latest view decides what comes next.
		t.Log.Warn("undid the change of a previous process", "template", t.name, "err", refused)
	}
	t.job.pendingReload = t.pending.has(t.name)
	t.rejoin()
	return nil
}

// finish ends a previous change. refused is why its files were not kept; err is
// why it has not ended.
func (t *applying) finish(ctx context.Context, r files.Recovered) (refused, err error) { //nolint:nonamedreturns // two errors need names.
	again := func(err error) error {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.recovered[t.name] = r
		return err
	}
	if !r.New && !r.Reload || t.job.key == "" && !r.New {
		return nil, t.tx.Commit()
	}
	if err := t.pend(!r.New); err != nil {
		return nil, again(fail(stageSwap, time.Second, err))
	}
	t.job.pendingReload = t.job.pendingReload || t.job.key != ""
	var restore func(failed error) error
	if r.New {
		halted, err := t.permitPrevious(ctx)
		if err != nil {
			return nil, again(err)
		}
		restore = t.restore()
		if refused = t.refuse(ctx, restore, halted); refused != nil {
			if ctx.Err() != nil {
				return nil, again(refused)
			}
			if err := t.putBack(refused); err != nil {
				return nil, err
			}
			if err := t.pend(true); err != nil {
				return nil, again(err)
			}
			restore = nil
		}
	}
	err = t.afterSwap(ctx, restore)
	if ctx.Err() != nil || errors.Is(err, files.ErrNotRestored) {
		return refused, err
	}
	return errors.Join(refused, err), nil
}

// permitPrevious takes the permit for a previous change whose new files are in place. The
// program reads old files again without one: with a halt, or when the previous process
// has put them back.
func (t *applying) permitPrevious(ctx context.Context) (halted bool, err error) { //nolint:nonamedreturns // says what the bool is.
	wait, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	_, err = t.permit(wait, func() { cancel(errHalted) })
	if err == nil || ctx.Err() != nil || !errors.Is(context.Cause(wait), errHalted) {
		return false, err
	}
	t.rejoin()
	return true, nil
}

// refuse says why a previous change whose new files are in place is taken back; nil: it
// is not.
func (t *applying) refuse(ctx context.Context, restore func(failed error) error, halted bool) error {
	err := t.attempts.err(t.name, t.content())
	switch {
	case err != nil && restore != nil: // Otherwise the settings say that its files stay.
		t.warnAttempt(t.attempts.refuse(t.name))
	case halted:
		return errHalted
	case t.job.Back:
		return errGoesBack
	default:
		err = t.checkPrevious(ctx)
	}
	if ctx.Err() == nil {
		t.halt(err)
	}
	return err
}

// readRestored makes the program read old files that came back when nothing has read
// them yet. A host with a rolling reload does not wait for a permit, or for the end of
// a halt, to go back. A failure shows as reload-failed; the latest version may mend it.
func (t *applying) readRestored(ctx context.Context) {
	r := t.job.Bundle.Config.Reload
	if r == nil || r.Rolling == nil || t.job.Mode == ModeCached || !t.pending.restored(t.name) {
		return
	}
	if err := t.reload(ctx, nil); err != nil {
		t.Log.Warn("the program has not read the old files yet", "template", t.name, "err", err)
	}
	t.endAttempt()
	t.job.pendingReload = t.pending.has(t.name)
	t.rejoin()
}

// rejoin announces another reload after one that has run.
func (t *applying) rejoin() {
	if t.submitted {
		t.reloads.join(t.job.key)
		t.submitted = false
	}
}

// errHalted is why a previous change is taken back while its rolling reload is halted: a
// host that must not start has its old files in place.
var errHalted = errors.New("the rolling reload is halted")

// errGoesBack is why a previous change is taken back unchecked.
var errGoesBack = errors.New("the host goes back to the version before")

// checkPrevious runs the check of files in place for a change of a previous
// process: whether it has passed is not known.
func (t *applying) checkPrevious(ctx context.Context) error {
	if t.checkAt() != atSwapped {
		return nil
	}
	release, err := t.lock.acquire(ctx, t.job.key, true)
	if err != nil {
		return fail(stageCheck, time.Second, err)
	}
	defer release()
	elements, err := t.job.elements()
	if err != nil {
		return fail(stageCheck, 5*time.Second, err)
	}
	return t.checkEach(ctx, t.job.Bundle.allVars(elements), nil)
}
