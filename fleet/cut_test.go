package fleet

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/zkagent/zkagent/config"
	"github.com/zkagent/zkagent/internal/trees"
	"github.com/zkagent/zkagent/internal/zktest/memzk"
	"github.com/zkagent/zkagent/internal/zktest/testhelp"
	"github.com/zkagent/zkagent/session"
)

// cut is what an operator does, and does again after the first attempt was cut short.
type cut struct {
	prepare func(t *testing.T, z *memzk.Server, s *session.Session)
	act     func(ctx context.Context, s *session.Session) error
	done    []error // what the second attempt may return when the first has done all
	check   func(t *testing.T, z *memzk.Server, s *session.Session)
}

// The ways to cut.
const (
	diesBefore = iota // the process is killed before its nth request
	diesAfter         // after its nth write, whose answer it does not hear
	lostBefore        // the connection is lost before the nth request was applied
	lostAfter         // after it was
)

// run cuts at each request in each way.
func (c cut) run(t *testing.T) {
	first, stride := testhelp.Steps()
	for way := diesBefore; way <= lostAfter; way++ {
		for n, struck := first, true; struck && !t.Failed(); n += stride {
			bubble(t, func(t *testing.T, z *memzk.Server) { struck = c.once(t, z, way, n) })
			if t.Failed() {
				t.Logf("cut in way %d at request %d", way, n)
			}
		}
	}
}

// once reports whether the fault has struck.
func (c cut) once(t *testing.T, z *memzk.Server, way, n int) bool {
	s := join(t, z)
	defer s.Close()
	c.prepare(t, z, s)
	life, end := context.WithCancel(t.Context())
	defer end()
	m := &mortal{server: z, killed: end}
	switch way {
	case diesBefore:
		m.before = n + 1 // the first is the handshake
	case diesAfter:
		m.after = n
	}
	victim, err := session.Dial(life, session.Config{Servers: []string{"victim:2181"}, Timeout: 5 * time.Second, Dial: m.dial})
	must(t, err)
	var lost <-chan struct{}
	if way >= lostBefore {
		lost = z.LoseReply(memzk.AnyOp, n, way == lostBefore)
	}
	err = c.act(life, victim)
	struck := m.isDead()
	select {
	case <-lost:
		struck, err = true, ignore(err, session.ErrUnknown)
	default:
	}
	if !m.isDead() {
		must(t, err)
	}
	z.ClearFaults()
	_ = victim.Close()
	err = c.act(t.Context(), s)
	for _, e := range c.done {
		err = ignore(err, e)
	}
	if err != nil {
		t.Errorf("again: %v", err)
	}
	c.check(t, z, s)
	return struck
}

func TestCutShort(t *testing.T) {
	t.Parallel()
	second := func(_ any, err error) error { return err }
	two := func(t *testing.T, _ *memzk.Server, s *session.Session) {
		mustPublish(t, s, "/c", "", map[string]string{"k": "1"})
		mustPublish(t, s, "/c", "", map[string]string{"k": "2"})
	}
	holds := func(value string) func(*testing.T, *memzk.Server, *session.Session) {
		return func(t *testing.T, _ *memzk.Server, s *session.Session) {
			tree, err := config.Read(t.Context(), s, "/c")
			must(t, err)
			if key, _ := tree.Keys().Get("k"); string(key.Value) != value {
				t.Errorf("the key is %q, want %q", key.Value, value)
			}
		}
	}
	gone := func(t *testing.T, s *session.Session, paths ...string) {
		for _, path := range paths {
			if _, ok, err := s.Exists(t.Context(), path); ok || err != nil {
				t.Errorf("%s is left: %v", path, err)
			}
		}
	}
	const dry = "dry-0000000002"
	for name, c := range map[string]cut{
		"delete": {
			prepare: two,
			act:     func(ctx context.Context, s *session.Session) error { return second(Delete(ctx, s, "/c", "ann", "")) },
			done:    []error{config.ErrNotReady},
			check: func(t *testing.T, z *memzk.Server, s *session.Session) {
				gone(t, s, "/c/ready", currentPath("/c"))
				must(t, second(Restore(t.Context(), s, "/c", "ann")))
				holds("2")(t, z, s)
			},
		},
		"restore": {
			prepare: func(t *testing.T, z *memzk.Server, s *session.Session) {
				two(t, z, s)
				must(t, second(Delete(t.Context(), s, "/c", "ann", "")))
			},
			act:  func(ctx context.Context, s *session.Session) error { return second(Restore(ctx, s, "/c", "ann")) },
			done: []error{ErrNotDeleted},
			check: func(t *testing.T, z *memzk.Server, s *session.Session) {
				gone(t, s, trashPath("/c"))
				holds("2")(t, z, s)
			},
		},
		"convert": {
			prepare: func(t *testing.T, _ *memzk.Server, s *session.Session) {
				mustPublish(t, s, "/c", config.LayoutFlat, map[string]string{"k": "1", "d/e/f": "x", "d/g": ""})
			},
			act: func(ctx context.Context, s *session.Session) error {
				return second(Convert(ctx, s, PublishConfig{Path: "/c"}, false))
			},
			done: []error{ErrUnchanged},
			check: func(t *testing.T, z *memzk.Server, s *session.Session) {
				gone(t, s, "/c/k", "/c/d")
				holds("1")(t, z, s)
			},
		},
		"end of a dry run": {
			prepare: func(t *testing.T, z *memzk.Server, s *session.Session) {
				mustPublish(t, s, "/c", "", map[string]string{"k": "1"})
				must(t, z.Create(SubscriptionPath("/c", "h"), []byte(`{"version":1}`)))
				r, err := Prepare(t.Context(), s, PublishConfig{Path: "/c", Keys: map[string][]byte{"k": []byte("2")}, Dry: true})
				must(t, err)
				must(t, second(Propose(t.Context(), s, Request{Root: "/c", Version: r.Version, Digest: r.Digest, Base: 1, Strategy: Strategy{Parallel: 1}, Dry: true})))
			},
			act: func(ctx context.Context, s *session.Session) error { return EndDry(ctx, s, "/c", dry, "ann") },
			check: func(t *testing.T, z *memzk.Server, s *session.Session) {
				gone(t, s, rolloutPath("/c", dry), trees.VersionPath("/c", 2), currentPath("/c"))
				holds("1")(t, z, s)
			},
		},
		"freeze": {
			prepare: two,
			act:     func(ctx context.Context, s *session.Session) error { return Freeze(ctx, s, "/c", "ann", "sales day") },
			check: func(t *testing.T, _ *memzk.Server, s *session.Session) {
				past, err := PastFreezes(t.Context(), s, "/c")
				if f, err2 := Frozen(t.Context(), s, "/c"); errors.Join(err, err2) != nil || f == nil || len(past) != 0 {
					t.Errorf("frozen %v, past %v, %v, %v", f, past, err, err2)
				}
			},
		},
		"unfreeze": {
			prepare: func(t *testing.T, z *memzk.Server, s *session.Session) {
				two(t, z, s)
				must(t, Freeze(t.Context(), s, "/c", "ann", "sales day"))
			},
			act: func(ctx context.Context, s *session.Session) error { return second(Unfreeze(ctx, s, "/c", "bob")) },
			check: func(t *testing.T, _ *memzk.Server, s *session.Session) {
				past, err := PastFreezes(t.Context(), s, "/c")
				if f, err2 := Frozen(t.Context(), s, "/c"); errors.Join(err, err2) != nil || f != nil || len(past) != 1 {
					t.Errorf("frozen %v, past %v, %v, %v", f, past, err, err2)
				}
			},
		},
		"forget": {
			prepare: func(t *testing.T, z *memzk.Server, _ *session.Session) {
				known(t, z, knownHost{First: time.Now().Add(-time.Hour).UTC()})
			},
			act:  func(ctx context.Context, s *session.Session) error { return Forget(ctx, s, "h") },
			done: []error{session.ErrNoNode},
			check: func(t *testing.T, _ *memzk.Server, s *session.Session) {
				gone(t, s, knownAs("h"))
			},
		},
		"rollback in place of a rollout": {
			prepare: func(t *testing.T, z *memzk.Server, s *session.Session) {
				two(t, z, s)
				must(t, z.Create(SubscriptionPath("/c", "h"), []byte(`{"version":2}`)))
				r, err := Prepare(t.Context(), s, PublishConfig{Path: "/c", Keys: map[string][]byte{"k": []byte("3")}})
				must(t, err)
				name, err := Propose(t.Context(), s, Request{Root: "/c", Version: r.Version, Digest: r.Digest, Base: 2, Strategy: Strategy{Parallel: 1}})
				must(t, err)
				must(t, second(s.Set(t.Context(), gatePath("/c", name), []byte(`{"state":"open","wave":"all"}`), -1)))
			},
			act: func(ctx context.Context, s *session.Session) error {
				return second(RollbackByRollout(ctx, s, PublishConfig{Path: "/c", Author: "ann"}, 0, RolloutConfig{}))
			},
			check: func(t *testing.T, _ *memzk.Server, s *session.Session) {
				open, err := Opened(t.Context(), s, "/c")
				must(t, err)
				if open == nil || open.Proposal.Previous != 2 || len(open.Proposal.Replaces) == 0 || open.Proposal.Replaces[len(open.Proposal.Replaces)-1] != "r-0000000000" {
					t.Errorf("open is %s", encode(open))
				}
				tree, err := config.ReadVersion(t.Context(), s, "/c", open.Proposal.Version)
				must(t, err)
				if key, _ := tree.Keys().Get("k"); string(key.Value) != "2" {
					t.Errorf("it goes back to %q", key.Value)
				}
			},
		},
	} {
		t.Run(name, func(t *testing.T) { t.Parallel(); c.run(t) })
	}
}
