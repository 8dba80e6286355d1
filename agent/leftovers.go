package agent

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/zkagent/zkagent/config"
	"github.com/zkagent/zkagent/internal/pace"
	"github.com/zkagent/zkagent/registry"
	"github.com/zkagent/zkagent/session"
	"github.com/zkagent/zkagent/view"
)

// leftovers deletes what units of former settings could not delete when they
// left, because ZooKeeper was not to be reached: without it a member, a candidate
// or a subscription would stay for as long as the session lives. It is a unit of
// its own; add may be called from any goroutine.
type leftovers struct {
	agent *Agent
	wake  chan struct{} // size 1: there is something to look for

	mu     sync.Mutex // mu guards former.
	former []*Config
}

func newLeftovers(a *Agent) *leftovers {
	return &leftovers{agent: a, wake: make(chan struct{}, 1)}
}

// add notes settings whose units have been stopped, unless everything that they
// registered is wanted by the present ones, too.
func (l *leftovers) add(old, now *Config) {
	if !registersMore(old, now) {
		return
	}
	l.mu.Lock()
	l.former = append(l.former, old)
	l.mu.Unlock()
	pace.Poke(l.wake)
}

// registersMore reports whether old has a service, an election or a config tree
// that now has not.
func registersMore(old, now *Config) bool {
	for _, o := range old.Services {
		if !slices.ContainsFunc(now.Services, func(n registry.ServiceConfig) bool {
			return n.Name == o.Name && n.Group == o.Group && n.Format == o.Format && n.MemberID == o.MemberID
		}) {
			return true
		}
	}
	for _, o := range old.Elections {
		if !slices.ContainsFunc(now.Elections, func(n ElectionConfig) bool { return n.Path == o.Path && n.Dialect == o.Dialect }) {
			return true
		}
	}
	for _, o := range old.Configs {
		if !slices.ContainsFunc(now.Configs, func(n config.Config) bool { return n.Path == o.Path }) {
			return true
		}
	}
	return false
}

// Run implements Unit. While ZooKeeper is not to be reached its requests wait, so
// that what was left goes as soon as it is.
func (l *leftovers) Run(ctx context.Context, s *session.Session, _ func(view.Update)) error {
	for failures := 1; ; {
		err := l.sweep(ctx, s)
		switch {
		case ctx.Err() != nil:
			return nil //nolint:nilerr // a unit that is told to end has no error.
		case s.Context().Err() != nil:
			return context.Cause(s.Context())
		case err != nil:
			l.agent.log.Warn("what former settings registered is not yet deleted", "err", err)
			pace.Poke(l.wake)
			if !pace.Sleep(ctx, pace.Backoff(failures, 200*time.Millisecond, 5*time.Second)) {
				return nil
			}
			failures++
		default:
			failures = 1
		}
		select {
		case <-ctx.Done():
			return nil
		case <-s.Done():
			return context.Cause(s.Context())
		case <-l.wake:
		}
	}
}

// sweep deletes what the session owns, former settings wanted and the present
// ones do not want.
func (l *leftovers) sweep(ctx context.Context, s *session.Session) error {
	l.mu.Lock()
	former := slices.Clone(l.former)
	l.mu.Unlock()
	if len(former) == 0 {
		return nil
	}
	err := l.delete(ctx, s, former)
	if err != nil && !session.IsPermanent(err) && !errors.Is(err, session.ErrUnimplemented) {
		return err
	}
	if err != nil {
		l.agent.log.Warn("what former settings registered stays until the session ends", "err", err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.former = l.former[len(former):]
	return nil
}

func (l *leftovers) delete(ctx context.Context, s *session.Session, former []*Config) error {
	paths, err := owned(ctx, s)
	if err != nil {
		return err
	}
	wanted, err := wantedOf(ctx, s, l.agent.cfg.Load(), l.agent.log)
	if err != nil {
		return err
	}
	var orphans []string
	for _, old := range former {
		w, err := wantedOf(ctx, s, old, l.agent.log)
		if err != nil {
			return err
		}
		w.dirs = nil // what cannot be told apart is nobody's
		for _, path := range paths {
			if w.has(path) && !wanted.has(path) {
				orphans = append(orphans, path)
			}
		}
	}
	return l.agent.deleteAll(ctx, s, orphans)
}
