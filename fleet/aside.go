package fleet

import (
	"context"
	"errors"
	"fmt"

	"github.com/zkagent/zkagent/session"
)

// errMaintenance is why a wait for one's turn ends when maintenance begins.
var errMaintenance = errors.New("maintenance has begun, or ended")

// maintenanceWords is what a record says of a host in maintenance.
func maintenanceWords(reason string) string { return clip("maintenance: " + reason) }

// inMaintenance reports whether the host is in maintenance now.
func (p *Participant) inMaintenance() bool {
	reason, _ := p.cfg.Maintenance()
	return reason != ""
}

// untilMaintenance returns a context that ends with errMaintenance when
// maintenance begins. The function that it returns must be called.
func (p *Participant) untilMaintenance(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	reason, changed := p.cfg.Maintenance()
	if reason != "" {
		cancel(errMaintenance)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		select {
		case <-changed:
			cancel(errMaintenance)
		case <-ctx.Done():
		}
	}()
	return ctx, func() {
		cancel(nil)
		<-done
	}
}

// standAside notes that this host is in maintenance, so that nobody waits for
// it, and waits until that changes. A rollout that is closed needs no note.
func (p *Participant) standAside(ctx context.Context, s *session.Session, name string, noted, open bool) error {
	reason, changed := p.cfg.Maintenance()
	if reason == "" {
		return nil
	}
	if open && !noted {
		record := HostRecord{State: HostSkipped, Error: maintenanceWords(reason)}
		p.log.Info("rollout passes this host by", "rollout", name, "reason", record.Error)
		return p.note(ctx, s, name, session.CreateOp(p.record(name), encode(record), session.Persistent))
	}
	select {
	case <-changed:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-s.Done():
		return context.Cause(s.Context())
	}
}

// comeBack takes the note of standAside away: the host waits for its turn.
func (p *Participant) comeBack(ctx context.Context, s *session.Session, name string) error {
	p.log.Info("maintenance is over, rollout is joined", "rollout", name)
	return p.note(ctx, s, name, session.DeleteOp(p.record(name), -1))
}

// note changes our record in a rollout that is open, and tells the coordinator,
// who watches the parent. A lost race is no error: the caller looks again.
func (p *Participant) note(ctx context.Context, s *session.Session, name string, change session.Op) error {
	data, stat, err := s.Get(ctx, hostsPath(p.cfg.Root, name))
	if err != nil {
		return fmt.Errorf("note maintenance: %w", err)
	}
	_, err = s.Multi(ctx,
		session.CreateOp(donePath(p.cfg.Root, name), nil, session.Persistent),
		session.DeleteOp(donePath(p.cfg.Root, name), -1),
		session.SetOp(hostsPath(p.cfg.Root, name), data, stat.Version),
		change)
	switch {
	case errors.Is(err, session.ErrUnknown):
		return s.Sync(ctx, hostsPath(p.cfg.Root, name))
	case errors.Is(err, session.ErrBadVersion), errors.Is(err, session.ErrNodeExists), errors.Is(err, session.ErrNoNode):
		return nil
	case err != nil:
		return fmt.Errorf("note maintenance: %w", err)
	}
	return nil
}
