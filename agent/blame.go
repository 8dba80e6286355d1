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
	snap := a.loop.snapshot.Load()
	var bundles []*apply.Bundle
	for _, shown := range snap.bundles {
		b := shown.Bundle
		if missing := snap.view.Missing(b.Sources...); b.Err == nil && len(missing) > 0 {
			b = b.Failed(fmt.Errorf("%s waits for %s", b.Config.Name, sourceList(missing)))
		}
		bundles = append(bundles, b)
	}
	s, why := a.Session(ctx)
	return blame.Answer(ctx, bundles, snap.view, s, why, q)
}
