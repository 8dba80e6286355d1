package fleet

import (
	"context"
	"errors"

	"github.com/zkagent/zkagent/recipe"
	"github.com/zkagent/zkagent/session"
)

// gate is what a holder of a permit looks at before it starts, each with the
// watch that tells of its change. Only holders of permits look, so that a
// change wakes at most K hosts.
type gate struct {
	closed          bool // the rollout is closed, or another is open
	halted          bool
	control         Control
	controlVersion  int32
	activity        Activity
	activityVersion int32
	watches         []*session.Watch
}

// readGate reads the gate; the caller must stop it.
func (p *Participant) readGate(ctx context.Context, s *session.Session, name string) (*gate, error) {
	g := &gate{}
	err := g.read(ctx, s, p.cfg.Root, name)
	if err != nil {
		g.stop()
		return nil, err
	}
	return g, nil
}

func (g *gate) read(ctx context.Context, s *session.Session, root, name string) error {
	_, done, watch, err := s.ExistsW(ctx, donePath(root, name))
	if err != nil {
		return err
	}
	g.closed = done
	g.watches = append(g.watches, watch)
	_, halted, watch, err := s.ExistsW(ctx, haltPath(root, name))
	if err != nil {
		return err
	}
	g.halted = halted
	g.watches = append(g.watches, watch)
	data, stat, watch, err := s.GetW(ctx, controlPath(root, name))
	if err != nil {
		return err
	}
	g.watches = append(g.watches, watch)
	g.controlVersion = stat.Version
	if g.control, err = decode[Control](controlPath(root, name), data); err != nil {
		return err
	}
	data, stat, watch, err = s.GetW(ctx, hostsPath(root, name))
	if err != nil {
		return err
	}
	g.watches = append(g.watches, watch)
	g.activityVersion = stat.Version
	g.activity, err = decode[Activity](hostsPath(root, name), data)
	return err
}

// wait waits until something of the gate changes.
func (g *gate) wait(ctx context.Context, s *session.Session, permit *recipe.Hold) error {
	select {
	case <-g.watches[0].C():
	case <-g.watches[1].C():
	case <-g.watches[2].C():
	case <-g.watches[3].C():
	case <-permit.Context().Done():
		return errors.Join(errors.New("permit lost"), context.Cause(permit.Context()))
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-s.Done():
		return context.Cause(s.Context())
	}
	return nil
}

func (g *gate) stop() {
	for _, w := range g.watches {
		w.Stop()
	}
}
