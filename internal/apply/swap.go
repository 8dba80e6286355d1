package apply

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/zkagent/zkagent/internal/command"
	"github.com/zkagent/zkagent/internal/condition"
	"github.com/zkagent/zkagent/internal/files"
	"github.com/zkagent/zkagent/internal/pace"
)

// From the swap to the end of the reload.
//
// Steps: put the staged files in place; run the check of swapped files; reload; verify;
// run the post-check of a rolling reload.
//
// Guaranteed: when a step fails and on_failure is restore, the old files are back in
// place and the program is reloaded again. The reload is pending from the swap on, so a
// process that dies in between does not forget it.
//
// Not guaranteed: if the second reload fails too, the program may run with the new files
// until a reload succeeds. That reload stays pending.

func (t *applying) use(ctx context.Context) error {
	if err := t.swapAndCheck(ctx); err != nil {
		return err
	}
	for _, s := range t.tx.Files() {
		if s.Changed() {
			t.changed++
			t.Log.Info("file written", "template", t.name, "file", s.Destination())
		}
	}
	return t.afterSwap(ctx, t.restore())
}

// afterSwap makes the program read the files in place, and ends the change:
// reload, and for a rolling one the pause and the post_check. When one fails
// and restore is not nil, the old files come back and the program reads them.
func (t *applying) afterSwap(ctx context.Context, restore func(failed error) error) error {
	defer t.endAttempt()
	err := t.reload(ctx, restore)
	restored, isRestored := errors.AsType[*restoredError](err)
	if err == nil {
		err = t.settled(ctx)
		if err != nil && ctx.Err() == nil && restore != nil {
			restored = t.back(ctx, err, restore)
			err, isRestored = restored, true
		}
	}
	if ctx.Err() != nil && err != nil {
		// We are stopping: the next process reads the journal and the pending list.
		t.tx.Keep()
		return err
	}
	if _, failed := errors.AsType[*failure](err); failed || isRestored {
		t.halt(err) // A full disk of this host does not halt the others.
	}
	if isRestored {
		if restored.stuck {
			t.Conds.Open(condition.RestoreFailed, t.name, err.Error())
		} else {
			t.Conds.Close(condition.RestoreFailed, t.name)
		}
		retry := time.Duration(0)
		if !restored.clean {
			retry = reloadRetry
		}
		return errors.Join(&failure{stage: stageReload, err: restored, retry: retry, reload: !restored.clean && !restored.stuck}, t.tx.Commit())
	}
	t.remember()
	err = errors.Join(err, t.tx.Commit())
	files.RemoveDirs(t.empty)
	return err
}

// settled is what follows the reload of a rolling one: the pause, then the
// post_check.
func (t *applying) settled(ctx context.Context) error {
	r := t.job.Bundle.Config.Reload
	if t.release == nil || r.Rolling == nil || t.failed != nil {
		return nil
	}
	if !pace.Sleep(ctx, r.Rolling.Pause) {
		return context.Cause(ctx)
	}
	if err := t.postCheck(ctx); err != nil {
		return fail(stageReload, 0, err)
	}
	return nil
}

func (t *applying) postCheck(ctx context.Context) error {
	r := t.job.Bundle.Config.Reload
	if r == nil || r.Rolling == nil || !r.Rolling.PostCheck.Set() {
		return nil
	}
	args, err := r.Rolling.PostCheck.Args(t.job.Bundle.vars(nil))
	if err == nil {
		c := t.trigger(command.EventPostCheck).Command(r.Rolling.PostCheck, args)
		c.Timeout = DefaultReloadTimeout
		_, err = t.Options.Run(ctx, c)
	}
	if err != nil {
		return fmt.Errorf("post_check: %w", err)
	}
	return nil
}

// back puts the old files back after a failed post_check, and has the program
// read them.
func (t *applying) back(ctx context.Context, failed error, restore func(failed error) error) *restoredError {
	if err := t.pend(false); err != nil {
		return &restoredError{err: errors.Join(failed, err), stuck: true}
	}
	if err := restore(failed); err != nil {
		return &restoredError{err: fmt.Errorf("%w; restore files of %s: %w", failed, t.name, err), stuck: true}
	}
	t.rejoin()
	if err := t.reload(ctx, nil); err != nil {
		return &restoredError{err: fmt.Errorf("%w; reload of the restored files: %w", failed, err)}
	}
	return &restoredError{err: failed, clean: true}
}

// swapAndCheck swaps and runs a check that needs the files in place. When it
// fails, the old files are back before anything else happens.
func (t *applying) swapAndCheck(ctx context.Context) error {
	release, err := t.lock.acquire(ctx, t.job.key, t.checkAt() == atSwapped)
	if err != nil {
		return errors.Join(fail(stageSwap, time.Second, err), t.tx.Discard())
	}
	defer release()
	was, _ := t.pending.Get(t.name)
	if err := t.pend(false); err != nil {
		// Without the note a reload could be lost: nothing is swapped.
		_ = t.withdrawPending(was) // It is in memory.
		return errors.Join(fail(stageSwap, time.Second, fmt.Errorf("note that a reload is pending: %w", err)), t.tx.Discard())
	}
	if err := t.tx.Swap(); err != nil {
		if errors.Is(err, files.ErrNotRestored) {
			t.Conds.Open(condition.RestoreFailed, t.name, err.Error())
		}
		return errors.Join(fail(stageSwap, time.Second, err), t.tx.Discard(), t.withdrawPending(was))
	}
	if err := t.check(ctx, true); err != nil {
		if ctx.Err() != nil {
			// We are stopping in the middle of the check: the next process
			// finishes it.
			t.tx.Keep()
			return err
		}
		t.halt(err)
		if back := t.putBack(err); back != nil {
			return back
		}
		t.Conds.Close(condition.RestoreFailed, t.name)
		// No program has read the new files, so no reload is pending for them.
		return errors.Join(err, t.tx.Commit(), t.withdrawPending(was))
	}
	return nil
}

// putBack puts the old files back after a failed check. An error means that they are not
// all back: the journal stays.
func (t *applying) putBack(failed error) error {
	err := t.tx.Restore()
	if err == nil {
		return nil
	}
	t.Conds.Open(condition.RestoreFailed, t.name, err.Error())
	t.tx.Keep()
	return errors.Join(failed, err)
}

// pend notes that the reload of the bundle is pending, if it has one: of new files, or of
// old ones that came back.
func (t *applying) pend(restored bool) error {
	if t.job.key == "" {
		return nil
	}
	return t.pending.add(t.name, t.job.Bundle.vars(nil).Destination, restored)
}

// withdrawPending makes the note what it was before this apply.
func (t *applying) withdrawPending(was pendingReload) error {
	if was.Since.IsZero() {
		return t.pending.clear(t.name)
	}
	return t.pending.Set(t.name, was, files.WriteSave)
}

// restore is what puts the old files back; nil when the settings say keep.
func (t *applying) restore() func(failed error) error {
	if r := t.job.Bundle.Config.Reload; r == nil || r.OnFailure == onFailureKeep {
		return nil
	}
	return func(failed error) error {
		t.halt(failed)
		if err := t.pend(true); err != nil {
			t.Log.Warn("cannot note that the reload of old files is pending", "template", t.name, "err", err)
		}
		return t.tx.Restore()
	}
}

func (t *applying) reload(ctx context.Context, restore func(failed error) error) error {
	if t.job.key == "" {
		return nil
	}
	cfg := t.job.Bundle.Config.Reload
	lists, err := t.lists(cfg.Command)
	if err != nil {
		return fail(stageReload, reloadRetry, err)
	}
	content := t.content()
	if err := t.attempts.err(t.name, content); err != nil {
		return fail(stageReload, 0, err)
	}
	req := &reloadRequest{
		bundle: t.name, content: content, cfg: cfg, lists: lists, trigger: t.trigger(command.EventReload), splay: t.job.Bundle.Config.Splay,
		restore: restore, done: make(chan error, 1),
	}
	if cfg.Leader != "" {
		// The apply repairs when it has put back what was rendered before.
		repair := t.changed > 0 && !slices.ContainsFunc(t.outputs, func(o *output) bool { return o.new })
		req.leader = command.LeaderReload{
			Election: cfg.Leader, Bundle: t.name, Zxids: zxids(t.job.View, t.job.Bundle.Sources), Digest: filesDigest(t.outputs), Repair: repair,
		}
	}
	t.submit(ctx, req)
	select {
	case err = <-req.done:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	restored, isRestored := errors.AsType[*restoredError](err)
	switch {
	case err == nil, isRestored && restored.clean:
		return errors.Join(err, t.pending.clear(t.name))
	case errors.Is(err, command.ErrNotLeading):
		return nil // pending until this agent leads, or sees that it was done.
	}
	if isRestored {
		return err
	}
	return fail(stageReload, reloadRetry, err)
}
