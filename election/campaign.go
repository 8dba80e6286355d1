package election

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/zkagent/zkagent/recipe"
	"github.com/zkagent/zkagent/session"
	"github.com/zkagent/zkagent/view"
)

// campaign runs one candidacy after another. It returns the cause when ctx or the
// session has ended, and an error that the server returned.
func (c *Candidate) campaign(ctx context.Context, s *session.Session, participants *recipe.Participants, notify func(view.Leader)) error {
	notify(view.Leader{Name: c.cfg.Name, Path: c.cfg.Path})
	for {
		err := c.candidacy(ctx, s, participants, notify)
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case s.Context().Err() != nil:
			return context.Cause(s.Context())
		case c.cfg.Once && c.led.Load():
			return nil
		case !errors.Is(err, ErrResigned) && !errors.Is(err, recipe.ErrNotHeld):
			return err
		}
		c.cfg.Logger.Info("candidacy ended", "path", c.cfg.Path, "err", err)
		if err := s.Sleep(ctx, s.Timeout()/3); err != nil {
			return err
		}
	}
}

// candidacy joins, waits, leads and leaves. It returns why it ended.
func (c *Candidate) candidacy(ctx context.Context, s *session.Session, participants *recipe.Participants, notify func(view.Leader)) error {
	own, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	cur := &candidacy{cancel: cancel, done: make(chan struct{})}
	old := c.begin(cur)
	defer c.end(cur)

	participant, err := c.enter(own, s, participants, old)
	if err != nil {
		return reason(own, err)
	}
	c.cfg.Logger.Debug("candidate joined", "path", participant.Path(), "czxid", participant.Fence())
	for {
		if err = participant.Wait(own); err == nil {
			err = c.lead(own, s, participant, notify)
		}
		// After a suspension that the session survived, our znode still exists.
		if !errors.Is(err, session.ErrSuspended) || own.Err() != nil || s.Context().Err() != nil {
			break
		}
	}
	err = reason(own, err)
	cur.err = c.leave(ctx, s, participant, err)
	return err
}

// reason returns why ctx ended, or err while it has not.
func reason(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

func (c *Candidate) begin(cur *candidacy) *keptTurn {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cur = cur
	c.led.Store(false)
	old := c.old
	c.old = nil
	return old
}

func (c *Candidate) end(cur *candidacy) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cur = nil
	close(cur.done)
}

// leaveWait is how long a candidate waits for the delete of its znode. After that the
// delete continues in the background, as long as the session lives.
const leaveWait = 5 * time.Second

// leave deletes the znode, or keeps it for a successor.
func (c *Candidate) leave(ctx context.Context, s *session.Session, participant *recipe.Participant, why error) error {
	switch {
	case s.Context().Err() != nil, errors.Is(why, recipe.ErrLost):
		return nil // it is gone
	case ctx.Err() != nil && c.cfg.Keep && !errors.Is(why, ErrResigned):
		c.mu.Lock()
		c.old = &keptTurn{s, participant}
		c.mu.Unlock()
		return nil
	}
	bounded, cancel := context.WithTimeout(s.Context(), min(s.Timeout(), leaveWait))
	defer cancel()
	if err := participant.Leave(bounded); err != nil {
		participant.Abandon()
		return fmt.Errorf("leave election %s: %w", c.cfg.Name, err)
	}
	return nil
}

// lead holds one term, from the proof that our znode exists until Lead has returned. It
// returns why the term ended.
func (c *Candidate) lead(ctx context.Context, s *session.Session, participant *recipe.Participant, notify func(view.Leader)) error {
	hold, err := participant.Hold(ctx)
	if err != nil {
		return err
	}
	term, cancel := context.WithCancelCause(hold.Context())
	stop := context.AfterFunc(ctx, func() { cancel(context.Cause(ctx)) })
	leader := view.Leader{Name: c.cfg.Name, Path: c.cfg.Path, ID: c.cfg.ID, Term: participant.Fence(), Mine: true}
	c.led.Store(true)
	c.cfg.Metrics.Elected(c.cfg.Name)
	c.cfg.Logger.Info("term began", "path", participant.Path(), "term", participant.Fence())
	notify(leader)
	deposed := make(chan struct{})
	go func() { // report the end at once, however long Lead takes to return
		defer close(deposed)
		<-term.Done()
		notify(view.Leader{Name: c.cfg.Name, Path: c.cfg.Path})
	}()
	if c.cfg.Lead != nil {
		c.cfg.Lead(term, Term{ID: participant.Fence(), Path: participant.Path(), Session: s})
	} else {
		<-term.Done()
	}
	cancel(ErrResigned) // when Lead returned by itself
	<-deposed
	stop()
	hold.Keep()
	why := context.Cause(term)
	c.cfg.Logger.Info("term ended", "path", participant.Path(), "term", participant.Fence(), "err", why)
	return why
}
