package recipe

import (
	"context"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zkagent/zkagent/internal/zktest/memzk"
	"github.com/zkagent/zkagent/session"
)

// memTimeout is the session timeout in bubbles, in virtual time.
const memTimeout = 12 * time.Second

// world is a ZooKeeper in memory inside a bubble of virtual time.
type world struct {
	*memzk.Server
	t *testing.T

	mu       sync.Mutex // mu guards sessions
	sessions []*session.Session
}

// opened makes sure that s is closed at the end.
func (w *world) opened(s *session.Session) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.sessions = append(w.sessions, s)
}

// bubble runs f with an in-memory ZooKeeper in virtual time, and ends all
// sessions afterwards.
func bubble(t *testing.T, f func(t *testing.T, w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &world{Server: memzk.New(memzk.Options{TickTime: time.Second}), t: t}
		defer func() {
			w.ClearFaults()
			for _, s := range w.sessions {
				_ = s.Close()
			}
			w.Close()
		}()
		f(t, w)
	})
}

// dial opens a session over an address of its own, by which its network can be
// cut.
func (w *world) dial(name string) *session.Session {
	w.t.Helper()
	s, err := w.tryDial(w.t.Context(), name)
	must(w.t, err)
	return s
}

func (w *world) tryDial(ctx context.Context, name string) (*session.Session, error) {
	s, err := session.Dial(ctx, session.Config{
		Servers: []string{name + ":2181"}, Timeout: memTimeout, Dial: w.Dial,
	})
	if err == nil {
		w.opened(s)
	}
	return s, err
}

// leftovers returns the znodes below root that are not persistent parents:
// whatever a recipe should have taken away. Markers end with their session.
func (w *world) leftovers(root string) []string {
	var left []string
	for path, n := range w.Tree() {
		if strings.HasPrefix(path, root+"/") && n.Stat.EphemeralOwner != 0 && !strings.Contains(path, "-ops/") {
			left = append(left, path)
		}
	}
	slices.Sort(left)
	return left
}

// expireOne ends one session.
func (w *world) expireOne(r *rand.Rand) {
	if ids := w.SessionIDs(); len(ids) > 0 {
		w.ExpireSession(ids[r.IntN(len(ids))])
	}
}

// deleteOne deletes one ephemeral znode below root, and returns its czxid; 0: there is none.
func (w *world) deleteOne(r *rand.Rand, root string) int64 {
	all := w.leftovers(root)
	if len(all) == 0 {
		return 0
	}
	path := all[r.IntN(len(all))]
	n, _ := w.Get(path)
	_ = w.Delete(path)
	return n.Stat.Czxid
}

// settle lets virtual time pass until clean-ups in the background are done.
func settle() { time.Sleep(3 * memTimeout) }
