package election

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/zkagent/zkagent/recipe"
	"github.com/zkagent/zkagent/session"
)

// enter returns our place in line: one that this session owns already, or a
// new one after the delay.
func (c *Candidate) enter(ctx context.Context, s *session.Session, line *recipe.Line, old *kept) (*recipe.Place, error) {
	if old != nil && old.s == s {
		return old.place, nil // Run goes on where the last one ended
	}
	if s.Resumed() {
		place, err := c.adopt(ctx, s, line)
		if place != nil || err != nil {
			return place, err
		}
	}
	if c.cfg.JoinDelay > 0 {
		if err := s.Sleep(ctx, c.cfg.JoinDelay); err != nil {
			return nil, err
		}
	}
	return line.Join(ctx, s, []byte(c.cfg.ID))
}

// adopt looks for what a former process of this session left in the line. The
// first candidate that says our id is kept, all others of the session are
// deleted: nobody would ever make them leave. nil means that there is none.
func (c *Candidate) adopt(ctx context.Context, s *session.Session, line *recipe.Line) (*recipe.Place, error) {
	paths, err := s.Ephemerals(ctx, c.cfg.Path)
	if errors.Is(err, session.ErrUnimplemented) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look for our candidates: %w", err)
	}
	var places []*recipe.Place
	for _, path := range paths {
		dir, name := session.SplitPath(path)
		_, ours := recipe.ParseSequence(name, line.Mark())
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
		place, err := line.Adopt(s, path, stat)
		switch {
		case err != nil:
			continue
		case string(data) != c.cfg.ID:
			place.Abandon()
			continue
		}
		places = append(places, place)
	}
	return firstOf(places), nil
}

// firstOf returns the place that stands first and gives up the others.
func firstOf(places []*recipe.Place) *recipe.Place {
	slices.SortFunc(places, func(a, b *recipe.Place) int {
		if a.Sequence().Before(b.Sequence()) {
			return -1
		}
		return 1
	})
	for i, place := range places {
		if i > 0 {
			place.Abandon()
		}
	}
	if len(places) == 0 {
		return nil
	}
	return places[0]
}
