package fleet

import (
	"context"
	"fmt"

	"github.com/zkagent/zkagent/config"
	"github.com/zkagent/zkagent/internal/trees"
	"github.com/zkagent/zkagent/session"
)

// Rollback makes the content of an older version the one in use, as a new version:
// history only moves forward. If to is 0, it takes the version before the one in
// use. It uses the path, the description of the new version and Check from cfg. It
// does not check the bounds, because the content was in use before.
func Rollback(ctx context.Context, s *session.Session, cfg PublishConfig, to int64) (Result, error) {
	return rollback(ctx, s, cfg, to, true)
}

// PrepareRollback writes the version of a [Rollback] and does not put it into use,
// like [Prepare].
func PrepareRollback(ctx context.Context, s *session.Session, cfg PublishConfig, to int64) (Result, error) {
	return rollback(ctx, s, cfg, to, false)
}

func rollback(ctx context.Context, s *session.Session, cfg PublishConfig, to int64, flip bool) (Result, error) {
	cfg.Keys = nil
	if err := cfg.fill(); err != nil {
		return Result{}, err
	}
	if err := mustHaveConfig(ctx, s, cfg.Path); err != nil {
		return Result{}, err
	}
	var res Result
	err := withLock(ctx, s, cfg.Path, cfg.who(), cfg.Logger, func(ctx context.Context, guard session.Op) error {
		p := &publisher{s: s, cfg: &cfg, guard: guard}
		var err error
		res, err = p.rollback(ctx, to, flip)
		return err
	})
	if err != nil {
		return Result{}, fmt.Errorf("rollback: %w", err)
	}
	return res, nil
}

// rollback writes a version with the buckets of an older one. All objects of the
// older version exist, because garbage collection keeps them as long as the
// version.
func (p *publisher) rollback(ctx context.Context, to int64, flip bool) (Result, error) {
	root := p.cfg.Path
	st, err := trees.LookState(ctx, p.s, root)
	if err != nil {
		return Result{}, err
	}
	if st.Layout != config.LayoutVersioned {
		return Result{}, fmt.Errorf("config %s is flat and keeps no versions: %w", root, config.ErrNoVersion)
	}
	if p.cfg.Check != nil && *p.cfg.Check != st.Generation() {
		return Result{}, &ConflictError{Path: root, Want: *p.cfg.Check, Have: st.Generation()}
	}
	if err = p.mayPublish(ctx, flip); err != nil {
		return Result{}, err
	}
	if to == 0 {
		to = st.Ready.Previous
	}
	if to == 0 {
		return Result{}, fmt.Errorf("config %s: there is no version before %d: %w", root, st.Ready.Version, config.ErrNoVersion)
	}
	old, err := trees.Load(ctx, p.s, root, to, st.Content, 0)
	if err != nil {
		return Result{}, fmt.Errorf("config %s: %w", root, err)
	}
	res := Result{
		Layout: config.LayoutVersioned, Digest: old.Sum.String(), Count: old.Count, Size: old.Size,
		Changes: changesOf(st, old.Keys),
	}
	if st.Content != nil && old.Sum == st.Content.Sum && flip && !p.cfg.Emergency {
		res.Unchanged, res.Generation, res.Version, res.Previous = true, st.Ready.Version, st.Ready.Version, st.Ready.Previous
		return res, nil
	}
	m := old.Manifest
	m.RollbackOf = to
	return p.finish(ctx, st, &m, res, flip)
}
