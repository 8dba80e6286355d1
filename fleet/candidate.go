package fleet

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"

	"github.com/zkagent/zkagent/election"
	"github.com/zkagent/zkagent/session"
)

// The election of the coordinator. A hash of the rollout and the host chooses a few
// hosts, which become candidates at once. The other hosts check now and then, and
// become candidates when too few are left.
const (
	firstCandidates = 7
	restCandidates  = 448
	fewCandidates   = 3
)

// standForCalls makes this host a candidate for the rollout of the latest call.
func (p *Participant) standForCalls(ctx context.Context, s *session.Session, calls <-chan Call) {
	var wg sync.WaitGroup
	defer wg.Wait()
	stop := func() {}
	defer func() { stop() }()
	for {
		select {
		case call := <-calls:
			stop()
			wg.Wait()
			standing, cancel := context.WithCancel(ctx)
			stop = cancel
			wg.Go(func() {
				if err := p.stand(standing, s, call); err != nil && standing.Err() == nil && s.Context().Err() == nil {
					p.log.Warn("not standing for coordinator", "rollout", call.Rollout, "err", err)
				}
			})
		case <-ctx.Done():
			return
		case <-s.Done():
			return
		}
	}
}

func (p *Participant) stand(ctx context.Context, s *session.Session, call Call) error {
	x := draw(drawCoordinate, call.Rollout, p.cfg.Agent)
	at := call.Elect > 0 && x*float64(call.Elect) < firstCandidates
	if p.cfg.NeverCoordinate || !at && x*float64(call.Proposal.Hosts) >= restCandidates {
		return nil
	}
	for phase := rand.N(s.Timeout()); !at; phase = s.Timeout() { //nolint:gosec // the phase is no secret
		if err := s.Sleep(ctx, phase); err != nil {
			return err
		}
		gate, _, err := readGate(ctx, s, p.cfg.Root, call.Rollout)
		if err != nil || gate.State == GateClosed {
			return err
		}
		names, _, err := s.Children(ctx, coordinatorPath(p.cfg.Root, call.Rollout))
		if err != nil {
			return ignore(err, session.ErrNoNode)
		}
		at = len(names) < fewCandidates
	}
	return p.campaign(ctx, s, call)
}

// campaign stays in the election until the gate is closed and this host's work is done.
func (p *Participant) campaign(ctx context.Context, s *session.Session, call Call) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	leading := make(chan struct{}, 1) // holds a value while this host leads
	candidate := election.New(election.Config{
		Name: call.Rollout, Path: coordinatorPath(p.cfg.Root, call.Rollout), ID: p.cfg.Agent, Logger: p.log,
		Lead: func(ctx context.Context, t election.Term) {
			select {
			case leading <- struct{}{}:
			case <-ctx.Done():
				return
			}
			defer func() { <-leading }()
			if err := p.coordinate(ctx, s, call.Rollout, t); errors.Is(err, session.ErrNoAuth) {
				cancel(err) // another may be permitted
			}
		},
	})
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := p.awaitClosed(ctx, s, call.Rollout); err == nil {
			select {
			case leading <- struct{}{}: // this host leads: finish the work
			case <-ctx.Done():
			}
			cancel(nil)
		}
	})
	err := candidate.Run(ctx, s, nil)
	cancel(nil)
	wg.Wait()
	if cause := context.Cause(ctx); errors.Is(cause, session.ErrNoAuth) {
		return fmt.Errorf("coordinate: %w", cause)
	}
	return err
}

func (p *Participant) awaitClosed(ctx context.Context, s *session.Session, name string) error {
	for {
		data, _, watch, err := s.GetW(ctx, gatePath(p.cfg.Root, name))
		if err != nil {
			return ignore(err, session.ErrNoNode)
		}
		if gate, err := decode[Gate](gatePath(p.cfg.Root, name), data); err != nil || gate.State == GateClosed {
			watch.Stop()
			return err
		}
		err = watch.Wait(ctx)
		watch.Stop()
		if err != nil {
			return err
		}
	}
}

// coordinate leads for the length of a term.
func (p *Participant) coordinate(ctx context.Context, s *session.Session, name string, t election.Term) error {
	for wait := firstRest; ; wait = min(2*wait, lastRest) {
		c := newCoordinator(p.cfg.Root, name, p.cfg.Agent, s, t, p.log)
		c.keep, c.observer.check = p.keep, p.cfg.BakeCheck()
		err := c.run(ctx)
		c.stop()
		if err == nil || ctx.Err() != nil || s.Context().Err() != nil || errors.Is(err, session.ErrNoAuth) || errors.Is(err, errDeposed) {
			return err
		}
		p.log.Warn("rollout duty failed", "rollout", name, "duty", "coordinate", "err", err)
		if err := s.Sleep(ctx, wait); err != nil {
			return err
		}
	}
}

func ignore(err, target error) error {
	if errors.Is(err, target) {
		return nil
	}
	return err
}
