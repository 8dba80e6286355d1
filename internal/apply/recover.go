package apply

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/zkagent/zkagent/internal/command"
	"github.com/zkagent/zkagent/internal/files"
)

// A process that is killed between swap and reload leaves new files that no
// check may have passed, and a program that may have read them. The journal
// keeps the old files. [Engine.Recover] makes the files all new or all old. The
// first apply of the bundle then ends the change as the former process would
// have: check, reload, and commit or restore.

// Recover puts right what a killed process left. It is called once, before the
// first job, with the bundles of the settings.
func (e *Engine) Recover(bundles []Config) {
	if e.StateDir == "" {
		return
	}
	for _, dir := range []string{"journal", "staged", "files"} {
		if err := os.MkdirAll(filepath.Join(e.StateDir, dir), 0o700); err != nil {
			e.Conds.Open("state-dir", e.StateDir, err.Error())
			return
		}
	}
	// Copies for checks of a former process are of no use to anybody.
	if left, err := filepath.Glob(filepath.Join(e.StateDir, "staged", "bundle-*")); err == nil {
		for _, dir := range left {
			_ = os.RemoveAll(dir)
		}
	}
	list, err := files.Recover(files.TxConfig{StateDir: e.journalDir(), FS: e.FS})
	e.Conds.Set("recover-failed", "", err)
	for i := range list {
		e.take(bundles, list[i])
	}
	for i := range bundles {
		e.sweep(&bundles[i])
	}
	e.Retain(bundles)
}

// take keeps a recovered change for the first apply of its bundle. The change
// of a bundle that the settings no longer have ends here.
func (e *Engine) take(bundles []Config, r files.Recovered) {
	if r.Err != nil {
		return // The journal stays, and the first apply tries again.
	}
	for i := range bundles {
		if files.Name(bundles[i].Name) != r.Bundle {
			continue
		}
		e.Log.Warn("repaired an unfinished change of a former process", "template", bundles[i].Name, "new", r.New, "reload", r.Reload)
		e.recovered[bundles[i].Name] = r
		return
	}
	e.Log.Warn("repaired an unfinished change of a bundle that the settings no longer name", "bundle", r.Bundle, "new", r.New)
	if err := r.Tx.Commit(); err != nil {
		e.Log.Warn("cannot remove the journal", "bundle", r.Bundle, "err", err)
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
		for dest := range e.loadWritten(c.Name) {
			list = append(list, dest)
		}
	}
	if err := files.Sweep(e.FS, e.journalDir(), list...); err != nil {
		e.Log.Warn("cannot remove files of a former process", "template", c.Name, "err", err)
	}
}

// Retain forgets the owed reloads of bundles that the settings do not have, or
// that have no reload command any more; and failures for which no host waits.
func (e *Engine) Retain(bundles []Config) {
	reloads, rolling := map[string]bool{}, map[string]bool{}
	for i := range bundles {
		if r := bundles[i].Reload; r != nil && r.Command.Set() {
			reloads[bundles[i].Name], rolling[bundles[i].Name] = true, r.Rolling != nil
		}
	}
	for name, h := range e.halts.all() {
		if !rolling[name] {
			e.Halted(name, h)
		}
	}
	for _, name := range e.owed.all() {
		if reloads[name] {
			continue
		}
		if err := e.owed.clear(name); err != nil {
			e.Log.Warn("cannot remove the note of an owed reload", "template", name, "err", err)
		}
	}
}

// Close lets go of changes of a former process that no apply has ended. The
// next process finds them again.
func (e *Engine) Close() {
	e.Wait()
	if err := e.lives.forget(); err != nil {
		e.Log.Warn("note of ended processes not removed", "err", err)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, r := range e.recovered {
		r.Tx.Keep()
	}
	clear(e.recovered)
}

// former returns the unfinished change of the bundle, if there is one: of a
// former process, or one of this process whose restore failed.
func (t *applying) former() (files.Recovered, bool, error) {
	t.mu.Lock()
	r, ok := t.recovered[t.name]
	delete(t.recovered, t.name)
	t.mu.Unlock()
	if ok || t.job.Bundle.atomic() || !files.Pending(t.journalDir(), files.Name(t.name)) {
		return r, ok, nil
	}
	list, err := files.Recover(files.TxConfig{StateDir: t.journalDir(), Bundle: files.Name(t.name), FS: t.FS})
	if err != nil || len(list) == 0 {
		return files.Recovered{}, false, err
	}
	t.Conds.Close("restore-failed", t.name)
	return list[0], true, nil
}

// finishFormer ends a change that was left unfinished. An error means that this
// bundle has to wait: nothing else may happen to its files.
func (t *applying) finishFormer(ctx context.Context) error {
	r, ok, err := t.former()
	if err != nil {
		return fail(stageSwap, 5*time.Second, fmt.Errorf("finish a former change: %w", err))
	}
	if !ok {
		return nil
	}
	t.tx, t.job.Bundle.look = r.Tx, true
	refused, err := t.finish(ctx, r)
	t.tx, t.job.Bundle.look = nil, true
	if err != nil {
		return fmt.Errorf("finish a former change: %w", err)
	}
	if refused != nil {
		// The old files are back. The newest view decides what comes next.
		t.Log.Warn("undid the change of a former process", "template", t.name, "err", refused)
	}
	t.job.owed = t.owed.has(t.name)
	t.rejoin()
	return nil
}

// finish ends a former change. refused is why its files were not kept; err is
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
	if t.job.key != "" {
		if err := t.owed.add(t.name, !r.New); err != nil {
			return nil, again(fail(stageSwap, time.Second, err))
		}
		t.job.owed = true
	}
	var restore func(failed error) error
	if r.New {
		halted, err := t.permitFormer(ctx)
		if err != nil {
			return nil, again(err)
		}
		restore = t.restore()
		if refused = t.refuse(ctx, restore, halted); refused != nil {
			if ctx.Err() != nil {
				return nil, again(refused)
			}
			if err := t.tx.Restore(); err != nil {
				t.Conds.Open("restore-failed", t.name, err.Error())
				t.tx.Keep()
				return nil, errors.Join(refused, err)
			}
			if err := t.oweOld(); err != nil {
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

// oweOld notes that the program is to read old files that came back.
func (t *applying) oweOld() error {
	if t.job.key == "" {
		return nil
	}
	return t.owed.add(t.name, true)
}

// permitFormer takes the permit for a former change whose new files are in place. The
// program reads old files again without one: with a halt, or when the former process
// has put them back.
func (t *applying) permitFormer(ctx context.Context) (halted bool, err error) { //nolint:nonamedreturns // says what the bool is.
	wait, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	_, err = t.permit(wait, func() { cancel(errHalted) })
	if err == nil || ctx.Err() != nil || !errors.Is(context.Cause(wait), errHalted) {
		return false, err
	}
	t.rejoin()
	return true, nil
}

// refuse says why a former change whose new files are in place is taken back; nil: it
// is not.
func (t *applying) refuse(ctx context.Context, restore func(failed error) error, halted bool) error {
	err := t.refusedForLives(restore)
	switch {
	case err != nil:
	case halted:
		return errHalted
	case t.job.Back:
		return errGoesBack
	default:
		err = t.checkFormer(ctx)
	}
	if ctx.Err() == nil {
		t.halt(err)
	}
	return err
}

// readRestored makes the program read old files that came back when nothing has read
// them yet. A host with a rolling reload does not wait for a permit, or for the end of
// a halt, to go back. A failure shows as reload-failed; the newest version may mend it.
func (t *applying) readRestored(ctx context.Context) {
	r := t.job.Bundle.Config.Reload
	if r == nil || r.Rolling == nil || t.job.Mode == ModeCached || !t.owed.restored(t.name) {
		return
	}
	if err := t.reload(ctx, nil); err != nil {
		t.Log.Warn("the program has not read the old files yet", "template", t.name, "err", err)
	}
	t.lived()
	t.job.owed = t.owed.has(t.name)
	t.rejoin()
}

// rejoin announces another reload after one that has run.
func (t *applying) rejoin() {
	if t.arrived {
		t.reloads.join(t.job.key)
		t.arrived = false
	}
}

// refusedForLives says why a change whose reload ended too many processes is taken
// back; nil: it is not, or the settings say that its files stay.
func (t *applying) refusedForLives(restore func(failed error) error) error {
	refused := t.lives.err(t.name, t.content())
	if refused == nil || restore == nil {
		return nil
	}
	if err := t.lives.refuse(t.name); err != nil {
		t.Log.Warn("note of a refused reload not written", "template", t.name, "err", err)
	}
	return refused
}

// errHalted is why a former change is taken back while its rolling reload is halted: a
// host that must not start has its old files in place.
var errHalted = errors.New("the rolling reload is halted")

// errGoesBack is why a former change is taken back unchecked.
var errGoesBack = errors.New("the host goes back to the version before")

// checkFormer runs the check of files in place for a change of a former
// process: whether it has passed is not known.
func (t *applying) checkFormer(ctx context.Context) error {
	c := t.job.Bundle.Config.Check
	if c == nil || !c.Command.Set() || c.At != atSwapped {
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
	for _, e := range elements {
		var each *command.Each
		if e != nil {
			each = &command.Each{Key: e.Key, Value: e.Value}
		}
		if err := t.runCheck(ctx, t.job.Bundle.vars(each)); err != nil {
			return err
		}
	}
	return nil
}
