package registry

import (
	"context"

	"github.com/zkagent/zkagent/session"
	"github.com/zkagent/zkagent/view"
)

// Instances reads the members of a group once, as [Group.Run] would show them first. A
// group that does not exist has none. The error is that of the read, or the cause of ctx
// or of the end of the session. [Group] follows a group instead.
func Instances(ctx context.Context, s *session.Session, cfg GroupConfig) ([]view.Member, error) {
	run, stop := context.WithCancel(ctx)
	defer stop()
	var read *view.Group
	err := NewGroup(cfg).Run(run, s, func(g *view.Group) {
		read = g
		stop()
	})
	switch {
	case read != nil:
		return read.Members, nil
	case err == nil:
		err = context.Cause(ctx)
	}
	return nil, err
}
