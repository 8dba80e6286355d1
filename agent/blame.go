package agent

import (
	"context"
	"fmt"

	"github.com/zkagent/zkagent/internal/apply"
	"github.com/zkagent/zkagent/internal/blame"
)

// Blame implements web.Source: it executes the templates of the files once more, on
// the present view.
func (a shown) Blame(ctx context.Context, q blame.Query) ([]*blame.File, error) {
	cfg, snap := a.cfg.Load(), a.loop.snapshot.Load()
	var bundles []*apply.Bundle
	for _, c := range cfg.Bundles {
		b := apply.Parse(c, cfg.Sources())
		if missing := snap.view.Missing(b.Sources...); b.Err == nil && len(missing) > 0 {
			b.Err = fmt.Errorf("%s waits for %s", c.Name, sourceList(missing))
		}
		bundles = append(bundles, b)
	}
	s, why := a.Session(ctx)
	return blame.Answer(ctx, bundles, snap.view, s, why, q)
}
