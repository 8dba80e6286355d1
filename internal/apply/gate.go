package apply

import (
	"context"

	"github.com/zkagent/zkagent/view"
)

// Gate is asked before a bundle's files are put in use and told how that
// ended: a rollout lets hosts go a few at a time.
type Gate interface {
	// Enter waits for permission to put in use what was rendered from v. The
	// returned function is called once with the result, after the reload. An
	// error keeps the present files; the bundle is tried again later.
	Enter(ctx context.Context, bundle string, v view.View) (leave func(error), err error)
}

// open is the gate that is always open.
type open struct{}

// Enter implements Gate.
func (open) Enter(context.Context, string, view.View) (func(error), error) {
	return func(error) {}, nil
}
