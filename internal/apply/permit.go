package apply

import (
	"context"
	"fmt"
	"time"
)

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
		// The program has not read the old files: do not wait for long before it is told
		// again.
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
