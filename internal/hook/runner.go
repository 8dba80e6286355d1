package hook

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"time"

	"github.com/google/uuid"

	"github.com/zkagent/zkagent/internal/command"
	"github.com/zkagent/zkagent/internal/condition"
	"github.com/zkagent/zkagent/internal/event"
	"github.com/zkagent/zkagent/internal/pace"
	"github.com/zkagent/zkagent/internal/proc"
	"github.com/zkagent/zkagent/view"
)

// scope is where a hook runs: on every host as long as the settings live,
// or on the leader for one term.
type scope struct {
	term int64 // 0: on every host
	// newLedger opens the hook's ledger.
	newLedger func(hook string) ledger
	// run runs a command within the scope's lease.
	run command.Run
}

// runner runs one hook in one scope. Its own goroutine is the only one
// that touches it.
type runner struct {
	engine   *Engine
	cfg      Config
	schedule Schedule
	scope    scope
	log      *slog.Logger

	ledger   ledger
	rec      record
	begun    time.Time
	shown    view.View                 // the view whose changes were handled last
	lags     map[view.Source]time.Time // since when the view is behind the ledger
	contents map[view.Source]content   // of the latest states
	unknown  map[string]bool
	delayed  bool // the random delay before the run for a change is over
	// finished are runs of this process whose end the ledger does not say
	// yet, because it could not be written: run -> done or failed.
	finished map[string]string
	running  *slotRuns
}

// run handles everything that triggers the hook until ctx ends. Errors of the
// ledger are tried again with back-off: without it nothing may run.
func (r *runner) run(ctx context.Context) {
	r.begun, r.unknown, r.finished = time.Now(), map[string]bool{}, map[string]string{}
	r.lags, r.contents = map[view.Source]time.Time{}, map[view.Source]content{}
	r.ledger = r.scope.newLedger(r.cfg.Name)
	r.running = &slotRuns{wake: make(chan struct{}, 1), runs: map[string]*slotRun{}}
	defer r.running.stop()
	defer r.engine.Conditions.Close(condition.HookLedger, r.cfg.Name) // of a hook that waits for it
	defer r.engine.Conditions.Close(condition.HookClock, r.cfg.Name)
	for failures := 0; ctx.Err() == nil; {
		err := r.serve(ctx)
		if err == nil || ctx.Err() != nil || errors.Is(err, errNotLeader) {
			return
		}
		failures++
		r.engine.Conditions.Open(condition.HookLedger, r.cfg.Name, err.Error())
		r.log.Warn("cannot use the hook's ledger", "hook", r.cfg.Name, "err", err)
		if !pace.Sleep(ctx, pace.Backoff(failures, 100*time.Millisecond, 10*time.Second)) {
			return
		}
	}
}

// serve loads the ledger and then follows views and the clock.
func (r *runner) serve(ctx context.Context) error {
	var err error
	if r.rec, err = r.ledger.load(ctx); err != nil {
		return err
	}
	if err := r.makeGood(ctx); err != nil {
		return err
	}
	if err := r.elected(ctx); err != nil {
		return err
	}
	if err := r.baseline(ctx); err != nil {
		return err
	}
	r.engine.Conditions.Close(condition.HookLedger, r.cfg.Name)
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		now := r.engine.State()
		r.engine.seen.note(now.View)
		lag := clockStep
		if now.Complete && !slices.ContainsFunc(r.cfg.OnChange, func(src view.Source) bool { return !now.InPlace(src) }) {
			var err error
			if lag, err = r.changed(ctx, now.View); err != nil {
				return err
			}
		}
		if err := r.finishSlot(ctx); err != nil {
			return err
		}
		wait, err := r.slots(ctx)
		if err != nil {
			return err
		}
		timer.Reset(min(wait, lag))
		select {
		case <-ctx.Done():
			return nil
		case <-now.Next:
		case <-r.running.wake:
		case <-timer.C:
		}
	}
}

func (r *runner) elected(ctx context.Context) error {
	if !r.cfg.OnElected || r.scope.term == 0 {
		return nil
	}
	e := r.rec.Elected
	if e != nil && e.Term != r.scope.term && e.State == stateStarted {
		r.report("elected", e.Run, "on_elected of term "+strconv.FormatInt(e.Term, 10))
	}
	if e != nil && e.Term == r.scope.term {
		// A resumed term: the previous process ran it, or was about to.
		if e.State != stateStarted || !r.mayRepeat("elected", e.Run, "on_elected of this term") {
			return nil
		}
	}
	ev := command.Trigger{Event: command.EventElected}
	err := r.ledgered(ctx, ev, time.Time{}, func(rec *record, e entry) { rec.Elected = &e })
	if e := r.rec.Elected; err == nil && ctx.Err() == nil && e.State == stateStarted && r.mayRepeat("elected", e.Run, "on_elected of this term") {
		return errEndUnknown
	}
	return err
}

// errEndUnknown makes an idempotent hook run again, after a while.
var errEndUnknown = errors.New("the lease ran out while the hook ran")

// behindLimit is how long a leader's view may be older than the ledger before
// that counts as a way back. A view that only lags has caught up by then: the
// lease ends long before when the connection does.
const behindLimit = time.Minute

// changed runs the hook for the sources whose content is another one than the
// ledger's, and returns how long to wait for those whose view lags.
func (r *runner) changed(ctx context.Context, v view.View) (time.Duration, error) {
	var fresh []view.Source
	wait := clockStep
	for _, s := range r.cfg.OnChange {
		u := v.Get(s)
		if u == nil {
			continue
		}
		known, was := r.rec.Changes[s.String()]
		at := changed
		if was {
			at = known.compare(u.Zxid(), r.contentOf(u), r.engine.seen.of(s.String()), r.ledger.ordered())
		}
		if at != behind {
			delete(r.lags, s)
		}
		if at == behind {
			since, lags := r.lags[s]
			if !lags {
				since = time.Now()
				r.lags[s] = since
			}
			if left := behindLimit - time.Since(since); left > 0 {
				wait = min(wait, left)
				continue
			}
		}
		switch {
		case at != current:
			if known.State == stateStarted {
				// The run for the other content takes its place. Report how
				// this one ended.
				r.report(s.String(), known.Run, "change of "+s.String())
			}
			fresh = append(fresh, s)
		case known.State == stateStarted:
			if r.mayRepeat(s.String(), known.Run, "change of "+s.String()) {
				fresh = append(fresh, s)
			}
		}
	}
	if len(fresh) == 0 {
		r.shown, r.delayed = v, false
		return wait, nil
	}
	if r.cfg.Jitter > 0 && !r.delayed {
		r.delayed = true
		pace.Sleep(ctx, pace.Jitter(r.cfg.Jitter))
		return 0, nil // The run is for the state of then.
	}
	r.delayed = false
	ev := command.Trigger{Event: command.EventChange, Changes: r.changeList(v, fresh), Version: command.ConfigVersion(v, fresh)}
	err := r.ledgered(ctx, ev, time.Time{}, func(rec *record, e entry) {
		for _, s := range fresh {
			u := v.Get(s)
			e.Zxid, e.Digest = u.Zxid(), r.contentOf(u)
			rec.Changes[s.String()] = e
		}
	})
	r.shown = v
	return wait, err
}

// contentOf is contentOf, computed once for each state.
func (r *runner) contentOf(u view.Update) string {
	c := r.contents[u.Source()]
	if c.of != u {
		c = content{u, contentOf(u)}
		r.contents[u.Source()] = c
	}
	return c.digest
}

type content struct {
	of     view.Update
	digest string
}

// changeList lists old and new versions: from the view this process saw, else
// from what the ledger remembers.
func (r *runner) changeList(v view.View, fresh []view.Source) []command.Change {
	list := make([]command.Change, 0, len(fresh))
	for _, s := range fresh {
		c := command.Change{Kind: string(s.Kind), Name: s.Name, To: command.Version(v.Get(s))}
		if o := r.shown.Get(s); o != nil {
			c.From = command.Version(o)
		} else if e, ok := r.rec.Changes[s.String()]; ok && s.Kind != view.KindConfig {
			c.From = strconv.FormatInt(e.Zxid, 10)
		}
		list = append(list, c)
	}
	return list
}

// mayRepeat decides about a run that was started and whose end is unknown.
// It is reported once; only an idempotent hook runs again. The condition stays
// until the hook has run well again.
func (r *runner) mayRepeat(what, run, text string) bool {
	if r.cfg.Idempotent {
		return true
	}
	if r.report(what, run, text) {
		r.engine.Conditions.Open(condition.HookUnknown, r.cfg.Name, text+" was started and its end is not known; not run again")
	}
	return false
}

// report reports a run whose end is unknown, once; false: it did so before.
func (r *runner) report(what, run, text string) bool {
	key := what + run
	if r.unknown[key] {
		return false
	}
	r.unknown[key] = true
	r.engine.Events.Add(event.Event{Kind: "hook-unknown", Subject: r.cfg.Name, Text: text, Warn: true})
	r.engine.Count(r.cfg.Name, "unknown")
	r.log.Warn("hook outcome unknown", "hook", r.cfg.Name, "what", what, "run", run)
	return true
}

// makeGood writes the ends that could not be written before.
func (r *runner) makeGood(ctx context.Context) error {
	if len(r.finished) == 0 {
		return nil
	}
	next, ended := r.rec.clone(), false
	end := func(e entry) entry {
		if state := r.finished[e.Run]; state != "" && e.State == stateStarted {
			e.State, e.Time, ended = state, time.Now().UTC(), true
		}
		return e
	}
	for source, e := range next.Changes {
		next.Changes[source] = end(e)
	}
	for _, at := range []**entry{&next.Slot, &next.Elected} {
		if *at != nil {
			e := end(**at)
			*at = &e
		}
	}
	if ended {
		if err := r.ledger.store(ctx, next); err != nil {
			return err
		}
		r.rec = next
	}
	clear(r.finished)
	return nil
}

// ledgered runs the hook between two writes of the ledger: started before,
// done or failed after.
func (r *runner) ledgered(ctx context.Context, ev command.Trigger, slot time.Time, put func(*record, entry)) error {
	e := entry{State: stateStarted, Term: r.scope.term, Time: time.Now().UTC(), Run: uuid.NewString()}
	if !slot.IsZero() {
		e.Slot = slot.UTC()
	}
	if r.cfg.Jitter > 0 && ev.Event != command.EventChange && !pace.Sleep(ctx, pace.Jitter(r.cfg.Jitter)) {
		return nil
	}
	if err := r.write(ctx, e, put); err != nil {
		return err
	}
	if e.State = endOf(ctx, r.attempts(ctx, ev, slot)); e.State == "" {
		return nil // the ledger still says that it was started.
	}
	e.Time = time.Now().UTC()
	r.finished[e.Run] = e.State
	// The command has finished; its end is recorded although the term may
	// end at this moment: the write is refused in ZooKeeper if it did.
	final, cancel := context.WithTimeout(context.WithoutCancel(ctx), ledgerGrace)
	defer cancel()
	if err := r.write(final, e, put); err != nil {
		return err // finished remembers it for makeGood.
	}
	delete(r.finished, e.Run)
	return nil
}

// endOf is the state of a run that ended with err; empty when it was ended from
// outside, so that its effect is unknown.
func endOf(ctx context.Context, err error) string {
	switch {
	case err == nil:
		return stateDone
	case ctx.Err() != nil, errors.Is(err, proc.ErrLease), errors.Is(err, command.ErrNotLeading):
		return ""
	}
	return stateFailed
}

// ledgerGrace bounds the write that records the end of a run.
const ledgerGrace = 2 * time.Second

func (r *runner) write(ctx context.Context, e entry, put func(*record, entry)) error {
	next := r.rec.clone()
	put(&next, e)
	if err := r.ledger.store(ctx, next); err != nil {
		return err
	}
	r.rec = next
	return nil
}

// attempts runs the command, again after a failure as often as it may.
func (r *runner) attempts(ctx context.Context, ev command.Trigger, slot time.Time) error {
	var err error
	for try := 1; try <= 1+r.cfg.Retries; try++ {
		if try > 1 && !pace.Sleep(ctx, pace.Backoff(try-1, time.Second, time.Minute)) {
			return context.Cause(ctx)
		}
		if err = r.once(ctx, ev, slot, try); err == nil {
			return nil
		}
		if endOf(ctx, err) == "" {
			return err
		}
	}
	r.engine.Conditions.Open(condition.HookFailed, r.cfg.Name, err.Error())
	return err
}

func (r *runner) once(ctx context.Context, ev command.Trigger, slot time.Time, try int) error {
	ev.Agent, ev.Name, ev.Term, ev.Hook = r.engine.Agent, r.cfg.Name, r.scope.term, true
	args, err := r.cfg.Command.Args(command.Vars{})
	if err != nil {
		return fmt.Errorf("hook %s: %w", r.cfg.Name, err)
	}
	c := ev.Command(r.cfg.Command, args)
	c.Timeout = cmp.Or(max(r.cfg.Timeout, 0), DefaultTimeout)
	run := Run{Event: ev.Event, Began: time.Now(), Term: ev.Term, Slot: slot, Try: try, State: stateDone}
	res, err := r.scope.run(ctx, c)
	run.Took, run.Code, run.Signal, run.Output = view.Seconds(res.Took), res.Code, res.Signal, res.Output
	result, text := "ok", ev.Event
	if err != nil {
		run.State, run.Error, result = stateFailed, err.Error(), "failed"
		text += ": " + run.Error
	}
	r.engine.history.add(r.cfg.Name, run)
	r.engine.Count(r.cfg.Name, result)
	r.engine.Events.Add(event.Event{Kind: "hook-" + run.State, Subject: r.cfg.Name, Text: text, Warn: err != nil})
	if err == nil {
		r.engine.Conditions.Close(condition.HookFailed, r.cfg.Name)
		r.engine.Conditions.Close(condition.HookUnknown, r.cfg.Name)
	}
	r.log.Info("hook finished", "hook", r.cfg.Name, "event", ev.Event, "term", ev.Term, "code", res.Code, "took", res.Took, "err", err)
	if err != nil {
		return fmt.Errorf("hook %s: %w", r.cfg.Name, err)
	}
	return nil
}
