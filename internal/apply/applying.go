package apply

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/zkagent/zkagent/internal/command"
	"github.com/zkagent/zkagent/internal/condition"
	"github.com/zkagent/zkagent/internal/files"
	"github.com/zkagent/zkagent/view"
)

// applying is one apply under way.
//
// Steps: render all files; stop if nothing differs; take the permit of a rolling reload;
// stage; check (check.go); swap and reload (swap.go); forget the pending reload. A failed
// step leaves the old files, or puts them back.
type applying struct {
	*Engine

	job       Job
	name      string
	tx        *files.Tx
	at        string            // when the check runs; empty: not known yet
	unseen    error             // why no preview could be made of the files; nil: none failed
	dry       bool              // nothing is written
	later     []laterFile       // in a dry run: files in directories that do not exist yet
	outputs   []*output         // all that the bundle renders now
	staged    []*output         // those that are in tx
	taken     map[string]string // destinations that the template must not take, with the reasons
	gone      []string          // destinations that are no longer wanted
	made      []string          // directories, the latest first
	empty     []string          // directories that may have lost their last file, inner ones first
	submitted bool
	changed   int
	release   func(failed *Halt) error // of the permit; nil: there is none
	failed    *Halt                    // halts a rolling reload
}

// laterFile is a file in a directory that the swap will make.
type laterFile struct {
	files.After
	*output
}

// submit reports to the reload queue that was joined, once.
func (t *applying) submit(ctx context.Context, req *reloadRequest) {
	if t.job.key != "" && !t.submitted {
		t.submitted = true
		t.reloads.submit(ctx, t.job.key, req)
	}
}

// run is the apply, step by step.
func (t *applying) run(ctx context.Context) error {
	defer func() { t.releasePermit() }()
	if err := t.finishPrevious(ctx); err != nil {
		return err
	}
	if t.failed != nil {
		t.releasePermit() // The other hosts do not start, and this one does not start again.
	}
	t.readRestored(ctx)
	for {
		if err := t.prepare(ctx); err != nil {
			return err
		}
		if !t.tx.Changed() {
			t.remember()
			err := t.tx.Discard()
			if err != nil || !t.job.pendingReload {
				return err
			}
			if _, err = t.permit(ctx, nil); err != nil {
				return err
			}
			return t.afterSwap(ctx, nil)
		}
		if t.attempts.refused(t.name, t.content) {
			return errors.Join(fail(stageReload, 0, errAttempts), t.tx.Discard())
		}
		waited, err := t.permit(ctx, nil)
		if err != nil {
			return errors.Join(err, t.tx.Discard())
		}
		if !waited || !t.job.newer() {
			break
		}
		if err := t.tx.Discard(); err != nil {
			return err
		}
	}
	if err := t.claim(); err != nil {
		return errors.Join(fail(stageStage, time.Second, err), t.tx.Discard())
	}
	return t.use(ctx)
}

// reloadPending runs a reload that was pending before the apply, when the apply failed
// before its own: the program has not read what is in place.
func (t *applying) reloadPending(ctx context.Context, err error) error {
	f, failed := errors.AsType[*failure](err)
	if err == nil || failed && (f.stage == stageReload || f.stage == stagePermit) || ctx.Err() != nil || t.job.Mode == ModeCached {
		return err
	}
	if !t.job.pendingReload || !t.pending.has(t.name) || t.job.Bundle.Config.Reload.Rolling != nil || files.Pending(t.journalDir(), files.Name(t.name)) {
		return err
	}
	t.rejoin()
	return errors.Join(err, t.reload(ctx, nil))
}

func (t *applying) prepare(ctx context.Context) error {
	if t.tx != nil { // What was rendered for the change that was given up is not in place.
		t.job.Bundle.look = true
	}
	t.outputs, t.staged, t.gone = nil, nil, nil
	if err := t.render(ctx); err != nil {
		return err
	}
	t.Conds.Set(condition.NameRefused, "template "+t.name, t.job.Bundle.Config.LeftOut(&t.job.View))
	cfg := files.TxConfig{Bundle: files.Name(t.name), FS: t.FS, Durable: t.checkAt() == atSwapped, NoBackup: t.noBackup(t.name)}
	if !t.atomic() {
		cfg.StateDir = t.journalDir()
	}
	t.tx = files.Begin(cfg)
	if err := t.stage(); err != nil {
		return errors.Join(err, t.tx.Discard())
	}
	t.closeExcept(t.job.Bundle.taken, condition.DestinationTaken, slices.Collect(maps.Keys(t.taken)))
	for dest, why := range t.taken {
		t.Conds.Open(condition.DestinationTaken, dest, fmt.Sprintf("template %s: %s", t.name, why))
		t.job.Bundle.taken[dest] = true
	}
	if !t.tx.Changed() {
		return nil
	}
	err := t.check(ctx, false)
	if err == nil {
		return nil
	}
	err = errors.Join(err, t.tx.Discard())
	if t.withoutPreview(err) {
		return t.prepare(ctx)
	}
	return err
}

// trigger is what the bundle's commands learn of their cause.
func (t *applying) trigger(event string) command.Trigger {
	b := t.job.Bundle
	return command.Trigger{
		Event: event, Agent: t.AgentID, Name: t.name, Destination: b.vars(nil).Destination,
		Version: command.ConfigVersion(t.job.View, b.Sources), Changes: command.Changes(t.job.Old, t.job.View, b.Sources),
	}
}

// filesDigest identifies the contents of the bundle's files, wherever a host keeps
// the files.
func filesDigest(outputs []*output) string {
	var list strings.Builder
	for _, o := range outputs {
		fmt.Fprintf(&list, "%q %s\n", o.eachKey(), files.Digest(o.Data))
	}
	return files.Digest([]byte(list.String()))
}

// zxids are the changes that a leader-only reload accounts for.
func zxids(v view.View, sources []view.Source) map[string]int64 {
	z := map[string]int64{}
	for _, s := range sources {
		if u := v.Get(s); u != nil && s.Kind != view.KindElection {
			z[s.String()] = u.Zxid()
		}
	}
	if len(z) == 0 {
		z["files"] = 0 // It stands for the sources of a bundle that has none.
	}
	return z
}

// The permit of a rolling reload: a host that must not start keeps its old file.
//
// A machine that has just started, and has no file of the bundle, needs no permit. What
// reads the files cannot run without them, so nothing in use changes, and the host must
// not wait for the others, for the end of a halt, or for ZooKeeper. It is part of no
// rolling reload then: it keeps no pause, runs no post_check, and halts nothing.

// permit takes the permit of a rolling reload before anything in use changes. It reports
// whether it waited for one. The other bundles of the same command do not wait for this one.
func (t *applying) permit(ctx context.Context, halted func()) (bool, error) {
	r := t.job.Bundle.Config.Reload
	if t.job.granted() {
		if t.release != nil {
			t.releasePermit()
		}
		return false, nil
	}
	if t.job.key == "" || r.Rolling == nil || t.Fleet == nil || t.release != nil || t.Booted && len(t.staged) > 0 && !t.job.Bundle.seen {
		return false, nil
	}
	t.submit(ctx, nil)
	wait, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if t.job.Replaced != nil {
		stop := context.AfterFunc(t.job.Replaced, func() { cancel(errReplaced) })
		defer stop()
	}
	if t.job.Granted != nil {
		stop := context.AfterFunc(t.job.Granted, func() { cancel(errGranted) })
		defer stop()
	}
	if t.pending.restored(t.name) {
		// The program has not read the old files yet. This wait is short, because the
		// program must be told again.
		var end context.CancelFunc
		wait, end = context.WithTimeoutCause(wait, reloadRetry, errUnread)
		defer end()
	}
	release, err := t.Fleet.Permit(wait, t.name, r.Rolling, halted)
	switch {
	case t.job.granted() && ctx.Err() == nil:
		if err == nil {
			_ = release(nil)
		}
	case err != nil:
		return false, fail(stagePermit, 5*time.Second, fmt.Errorf("wait for a permit: %w", err))
	default:
		t.release = release
	}
	t.rejoin()
	return true, nil
}

// granted reports whether the host has a turn of a rollout for the bundle.
func (j *Job) granted() bool { return j.Granted != nil && j.Granted.Err() != nil }

// newer takes the latest view; it reports whether that concerns the bundle.
func (j *Job) newer() bool {
	if j.Newest == nil {
		return false
	}
	v := j.Newest()
	if !v.Has(j.Bundle.Sources...) || !j.Bundle.Concerns(j.View, v) {
		return false
	}
	j.View = v
	return true
}
