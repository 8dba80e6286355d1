package registry

import (
	"context"

	"github.com/zkagent/zkagent/session"
)

// Own returns the path of the znode that a registrar of this service takes
// over in session s, which a former process used before; empty when the session
// owns none. A fixed name is returned whether or not it is there.
func (c ServiceConfig) Own(ctx context.Context, s *session.Session) (string, error) {
	m := &membership{r: NewRegistrar(c), s: s}
	if err := m.identify(ctx); err != nil {
		return "", err
	}
	if !m.sequential() {
		return m.path, nil
	}
	return m.findOwn(ctx)
}
