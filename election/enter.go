package election

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/zkagent/zkagent/recipe"
	"github.com/zkagent/zkagent/session"
)

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
