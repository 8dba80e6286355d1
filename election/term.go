package election

import (
	"context"
	"fmt"

	"github.com/zkagent/zkagent/recipe"
	"github.com/zkagent/zkagent/session"
	"github.com/zkagent/zkagent/view"
)

// Term is one period of leadership.
type Term struct {
	// ID numbers the term: the czxid of the leader's znode. It grows from
	// leader to leader and is the fencing token.
	ID      int64
	Path    string           // of the leader's znode
	Session *session.Session // whose znode leads
}

// Guard returns an operation that makes a multi fail when the term is over. The path
// contains a GUID, so it never belongs to another candidate.
func (t Term) Guard() session.Op { return session.CheckOp(t.Path, -1) }

// Held reports whether the lease of the term's session runs. Check it before each act, in
// addition to the context of the term.
func (t Term) Held() bool { return t.Session.Held() }

// Observe follows the leader of the election at path, without being a candidate. It ends
// with ctx or the session, and returns the cause. It calls up at once and on each change
// of the leader. The ID is empty while there is no leader.
func Observe(ctx context.Context, s *session.Session, path, dialect string, up func(view.Leader)) error {
	participants, err := recipe.Candidates(path, dialect, nil)
	if err != nil {
		return fmt.Errorf("observe election: %w", err)
	}
	err = participants.Follow(ctx, s, func(l recipe.Leader) { up(leaderOf("", path, l)) })
	return fmt.Errorf("observe election %s: %w", path, err)
}

// Metrics counts the events of the candidates of a process. Package prom has one for
// Prometheus. Its methods may be called from any goroutine.
type Metrics interface {
	// Leads gets whether this process leads the election of that name.
	Leads(election string, mine bool)
	// Elected counts a term.
	Elected(election string)
}

// noMetrics counts nothing.
type noMetrics struct{}

func (noMetrics) Leads(string, bool) {}
func (noMetrics) Elected(string)     {}
