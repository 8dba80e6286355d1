package hook

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/zkagent/zkagent/internal/command"
	"github.com/zkagent/zkagent/internal/condition"
	"github.com/zkagent/zkagent/internal/event"
	"github.com/zkagent/zkagent/internal/pace"
	"github.com/zkagent/zkagent/internal/proc"
	"github.com/zkagent/zkagent/view"
)

// ledgered runs the hook between two writes of the ledger: started before,
// done or failed after.
func (r *runner) ledgered(ctx context.Context, ev command.Trigger, slot time.Time, put func(*record, entry)) error {
	e := entry{State: stateStarted, Term: r.scope.term, Time: time.Now().UTC(), Run: newRunID()}
	if !slot.IsZero() {
		e.Slot = slot.UTC()
	}
	if r.cfg.Jitter > 0 && !pace.Sleep(ctx, pace.Jitter(r.cfg.Jitter)) {
		return nil
	}
	if err := r.write(ctx, e, put); err != nil {
		return err
	}
	if e.State = endOf(ctx, r.attempts(ctx, ev, slot)); e.State == "" {
		return nil // the ledger goes on saying that it was started.
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
	case ctx.Err() != nil, errors.Is(err, proc.ErrLease):
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
