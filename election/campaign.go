package election

import (
	"context"
	"errors"
	"fmt"
	"strings"
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

// enter returns our participant: one that this session owns already, or a
// new one after the delay.
func (c *Candidate) enter(ctx context.Context, s *session.Session, participants *recipe.Participants, old *keptTurn) (*recipe.Participant, error) {
	if old != nil && old.s == s {
		return old.participant, nil // Run continues where the last one ended
	}
	if s.Resumed() {
		participant, err := c.adopt(ctx, s, participants)
		if participant != nil || err != nil {
			return participant, err
		}
	}
	if c.cfg.JoinDelay > 0 {
		if err := s.Sleep(ctx, c.cfg.JoinDelay); err != nil {
			return nil, err
		}
	}
	return participants.Join(ctx, s, []byte(c.cfg.ID))
}

// adopt looks for candidates that a previous process of this session left. It keeps the
// first one with our id. It deletes all others of the session, because no process would
// ever make them leave. It returns nil when it found no candidate with our id.
func (c *Candidate) adopt(ctx context.Context, s *session.Session, participants *recipe.Participants) (*recipe.Participant, error) {
	paths, err := s.Ephemerals(ctx, c.cfg.Path)
	if errors.Is(err, session.ErrUnimplemented) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look for our candidates: %w", err)
	}
	var kept *recipe.Participant
	for _, path := range paths {
		dir, name := session.SplitPath(path)
		_, ours := recipe.ParseSequence(name, participants.Mark())
		if dir != strings.TrimSuffix(c.cfg.Path, "/") || !ours {
			continue
		}
		data, stat, err := s.Get(ctx, path)
		if errors.Is(err, session.ErrNoNode) {
			continue
		}
		if err != nil {
			return nil, err
		}
		participant, err := participants.Adopt(s, path, stat)
		switch {
		case err != nil:
			continue
		case string(data) != c.cfg.ID, kept != nil && kept.Sequence().Before(participant.Sequence()):
			participant.Abandon()
			continue
		case kept != nil:
			kept.Abandon()
		}
		kept = participant
	}
	return kept, nil
}

// state is one thing that Run has learned.
type state struct {
	mine *view.Leader // what our own candidacy knows: whether we lead
	seen *view.Leader // the first in line
}

// report turns states into updates: our own term counts first, then the observed leader.
// It sends an update only if it differs from the one before. It returns when states is
// closed.
func (c *Candidate) report(states <-chan state, up func(*view.Leader)) {
	nobody := view.Leader{Name: c.cfg.Name, Path: c.cfg.Path}
	mine, seen, observed := nobody, nobody, !c.cfg.Observe
	var last *view.Leader
	for st := range states {
		if st.mine != nil {
			mine = *st.mine
		}
		if st.seen != nil {
			seen, observed = *st.seen, true
		}
		now := seen
		if mine.Mine {
			now = mine
		}
		// Send no update while the leader is unknown.
		if !mine.Mine && !observed || last != nil && *last == now {
			continue
		}
		last = &now
		c.cfg.Metrics.Leads(c.cfg.Name, now.Mine)
		if up != nil {
			up(last)
		}
	}
	c.cfg.Metrics.Leads(c.cfg.Name, false)
}

// maxRawID bounds what is kept of an id that is no name.
const maxRawID = 256

// leaderOf returns the update for the leader. Whoever can write the election chooses
// the data of the znode, so only a name becomes the id. A leader without an id has none.
func leaderOf(name, path string, l recipe.Leader) view.Leader {
	u := view.Leader{Name: name, Path: path, ID: string(l.Data), Term: l.Stat.Czxid}
	if u.ID != "" && !view.IsName(u.ID) {
		u.RawID, u.Znode, u.ID = u.ID[:min(len(u.ID), maxRawID)], l.Path, ""
	}
	return u
}
