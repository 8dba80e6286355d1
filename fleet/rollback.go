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

// rollback writes a version with the buckets of an older one. All objects of the
// older version exist, because garbage collection keeps them as long as the
// version.
func rollback(ctx context.Context, s *session.Session, cfg PublishConfig, to int64, flip bool) (Result, error) {
	root := cfg.Path
	return change(ctx, s, cfg, "rollback", func(ctx context.Context, p *publisher) (Result, error) {
		st, err := p.begin(ctx, flip)
		if err != nil {
			return Result{}, err
		}
		if st.Layout != config.LayoutVersioned {
			return Result{}, fmt.Errorf("config %s is flat and keeps no versions: %w", root, config.ErrNoVersion)
		}
		if to == 0 {
			to = st.Ready.Previous
		}
		if to == 0 {
			return Result{}, fmt.Errorf("config %s: there is no version before %d: %w", root, st.Ready.Version, config.ErrNoVersion)
		}
		old, err := trees.Load(ctx, s, root, to, st.Content, 0)
		if err != nil {
			return Result{}, fmt.Errorf("config %s: %w", root, err)
		}
		m := old.Manifest
		m.RollbackOf = to
		return p.put(ctx, st, &m, nil, changesOf(st, old.Keys), flip)
	})
}
