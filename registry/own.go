package registry

import (
	"context"

	"github.com/zkagent/zkagent/session"
)

// Own returns the path of the znode that a registrar of this service takes over in
// session s from a previous process, or "" if the session owns none. It returns a
// fixed name even if the znode does not exist.
func (c ServiceConfig) Own(ctx context.Context, s *session.Session) (string, error) {
	m, err := newMembership(NewRegistrar(c), s)
	if err == nil {
		err = m.identify()
	}
	if err != nil {
		return "", err
	}
	return m.node(0).Find(ctx, s)
}
