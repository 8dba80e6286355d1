package recipe

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zkagent/zkagent/internal/zktest/memzk"
	"github.com/zkagent/zkagent/internal/zktest/testhelp"
	"github.com/zkagent/zkagent/session"
)

// follower follows something over sessions, and knows what it was told last.
type follower struct {
	name string
	run  func(ctx context.Context, s *session.Session, up func(string)) error
	// now reads what it should know when all is calm.
	now func(ctx context.Context, s *session.Session) (string, error)

	mu   sync.Mutex // guards last
	last string
}

func (f *follower) follow(ctx context.Context, t *testing.T, w *world) {
	for ctx.Err() == nil {
		s, err := w.tryDial(ctx, "reader")
		if err != nil {
			continue
		}
		first := true
		err = f.run(ctx, s, func(now string) {
			f.mu.Lock()
			defer f.mu.Unlock()
			if !first && now == f.last {
				t.Errorf("%s: %s twice", f.name, now)
			}
			f.last, first = now, false
		})
		if ctx.Err() == nil && s.Context().Err() == nil {
			t.Errorf("%s: %v", f.name, err)
		}
	}
}

func followers() []*follower {
	leader := func(path string, czxid, mzxid int64) string { return fmt.Sprint(path, czxid, mzxid) }
	members := func(list []Member) string {
		text := ""
		for _, m := range list {
			text += fmt.Sprint(m.ID, m.Czxid, " ")
		}
		return text
	}
	return []*follower{{
		name: "value",
		run: func(ctx context.Context, s *session.Session, up func(string)) error {
			return NewValue[[]byte](s, "/f/v").Follow(ctx, func(v Versioned[[]byte]) { up(fmt.Sprint(v)) })
		},
		now: func(ctx context.Context, s *session.Session) (string, error) {
			v, err := NewValue[[]byte](s, "/f/v").Get(ctx)
			return fmt.Sprint(v), err
		},
	}, {
		name: "group",
		run: func(ctx context.Context, s *session.Session, up func(string)) error {
			return NewGroup(s, "/f/g", nil).Follow(ctx, func(list []Member) { up(members(list)) })
		},
		now: func(ctx context.Context, s *session.Session) (string, error) {
			list, err := NewGroup(s, "/f/g", nil).Members(ctx)
			return members(list), err
		},
	}, {
		name: "leader",
		run: func(ctx context.Context, s *session.Session, up func(string)) error {
			ps, err := Candidates("/f/e", "", nil)
			if err != nil {
				return err
			}
			return ps.Follow(ctx, s, func(l Leader) { up(leader(l.Path, l.Stat.Czxid, l.Stat.Mzxid)) })
		},
		now: func(ctx context.Context, s *session.Session) (string, error) {
			list, err := Contenders(ctx, s, "/f/e")
			if err != nil || len(list) == 0 {
				return leader("", 0, 0), err
			}
			stat, _, err := s.Exists(ctx, list[0].Path)
			return leader(list[0].Path, stat.Czxid, stat.Mzxid), err
		},
	}}
}

// change changes what is followed: it comes, changes, goes, or goes and comes back with the
// same name, data and version.
func change(w *world, r *rand.Rand, owner int64) {
	path := []string{"/f/v", fmt.Sprint("/f/g/", r.IntN(3)), fmt.Sprint("/f/e/_c_x-latch-000000000", r.IntN(3))}[r.IntN(3)]
	come := func(data []byte) {
		if path == "/f/v" {
			_ = w.Create(path, data)
			return
		}
		_, _ = w.CreateEphemeral(owner, path, data, 0)
	}
	switch n, err := w.Get(path); r.IntN(4) {
	case 0:
		come([]byte("new"))
	case 1:
		_ = w.Set(path, fmt.Append(nil, r.IntN(3)))
	case 2:
		_ = w.Delete(path)
	case 3:
		if _ = w.Delete(path); err == nil {
			come(n.Data)
		}
	}
}

// disturb disturbs the connection of the reader now and then. It reports whether a session
// is to expire.
func disturb(w *world, r *rand.Rand) bool {
	const reader = "reader:2181"
	switch r.IntN(14) {
	case 0:
		w.Partition(reader)
	case 1:
		w.Heal(reader)
	case 2:
		w.DropConnections(reader)
	case 3:
		w.LoseReply(memzk.AnyOp, 1+r.IntN(5), r.IntN(2) == 0)
	case 4:
		return true
	}
	return false
}

// Followers of a value, a group and a line hear of no state twice. In the end they know the
// state that is there, whatever was lost, or deleted and created again, before.
func TestFollow_Random(t *testing.T) {
	testhelp.Seeds(t, 500*time.Millisecond, func(t *testing.T, seed uint64) {
		bubble(t, func(t *testing.T, w *world) {
			r, owner := rand.New(rand.NewPCG(seed, 44)), w.dial("owner")
			for path := range strings.FieldsSeq("/f /f/g /f/e") {
				must(t, w.Create(path, nil))
			}
			ctx, cancel := context.WithCancel(t.Context())
			var wg sync.WaitGroup
			all := followers()
			for _, f := range all {
				wg.Go(func() { f.follow(ctx, t, w) })
			}
			for range 80 {
				change(w, r, owner.ID())
				if ids := w.SessionIDs(); disturb(w, r) && ids[len(ids)-1] != owner.ID() {
					w.ExpireSession(ids[len(ids)-1])
				}
				if r.IntN(2) == 0 {
					time.Sleep(time.Duration(r.IntN(4000)) * time.Millisecond)
				}
			}
			w.ClearFaults()
			w.Heal("reader:2181")
			time.Sleep(3 * time.Minute)
			synctest.Wait()
			for _, f := range all {
				now, err := f.now(ctx, owner)
				must(t, err)
				f.mu.Lock()
				if now != f.last {
					t.Errorf("%s: told %s, there is %s", f.name, f.last, now)
				}
				f.mu.Unlock()
			}
			cancel()
			wg.Wait()
		})
	})
}
