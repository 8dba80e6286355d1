package fleet

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zkagent/zkagent/config"
	"github.com/zkagent/zkagent/internal/jute"
	"github.com/zkagent/zkagent/internal/trees"
	"github.com/zkagent/zkagent/internal/zktest/memzk"
	"github.com/zkagent/zkagent/session"
)

// meanwhile keeps the transaction of a session of its own that contains the text, and
// runs something before the server gets it.
func meanwhile(t *testing.T, server *memzk.Server, text string, do func(s *session.Session) error, happens func()) error {
	t.Helper()
	s, err := session.Dial(t.Context(), session.Config{Servers: []string{"late:2181"}, Timeout: 10 * time.Second, Dial: server.Dial})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	free, held := make(chan struct{}), make(chan struct{})
	once := false
	server.Hold(func(h memzk.Held) <-chan struct{} {
		if h.Addr != "late:2181" || h.Op != jute.OpMulti || once || !bytes.Contains(h.Body, []byte(text)) {
			return nil
		}
		once = true
		close(held)
		return free
	})
	ended := make(chan error, 1)
	go func() { ended <- do(s) }()
	select {
	case <-held:
	case err := <-ended:
		t.Fatalf("it ends before: %v", err)
	}
	happens()
	close(free)
	err = <-ended
	server.Hold(nil)
	return err
}

// What changes between the reads of a proposal and its transaction makes it start over,
// or refuses it.
func TestPropose_SomethingChangesMeanwhile(t *testing.T) {
	request := Request{Root: root, Version: 4, Digest: digest, Strategy: Strategy{Parallel: 1}}
	propose := func(s *session.Session) error {
		_, err := Propose(s.Context(), s, request)
		return err
	}
	proposed := func(t *testing.T, w *world) Proposal {
		t.Helper()
		names, err := Names(t.Context(), w.desk, root)
		if err != nil || len(names) == 0 {
			return Proposal{}
		}
		p, _, err := readRecord[Proposal](t.Context(), w.desk, rolloutPath(root, names[len(names)-1]))
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	for name, test := range map[string]func(t *testing.T, w *world){
		"ready moves": func(t *testing.T, w *world) {
			err := meanwhile(t, w.server, gatePath(root, rolloutName(0)), propose, func() { w.setReady(3) })
			if p := proposed(t, w); err != nil || p.Previous != 3 {
				t.Errorf("%v: proposed is %+v", err, p)
			}
		},
		"the version is deleted": func(t *testing.T, w *world) {
			err := meanwhile(t, w.server, gatePath(root, rolloutName(0)), propose, func() { _ = w.server.Delete(trees.VersionPath(root, 4)) })
			if p := proposed(t, w); !errors.Is(err, config.ErrNoVersion) || p.Version != 0 {
				t.Errorf("%v: proposed is %+v", err, p)
			}
		},
		"it is frozen": func(t *testing.T, w *world) {
			err := meanwhile(t, w.server, gatePath(root, rolloutName(0)), propose, func() {
				if err := Freeze(t.Context(), w.desk, root, "ann", "sales day"); err != nil {
					t.Error(err)
				}
			})
			if p := proposed(t, w); !errors.Is(err, ErrFrozen) || p.Version != 0 {
				t.Errorf("%v: proposed is %+v", err, p)
			}
		},
		"another is proposed": func(t *testing.T, w *world) {
			err := meanwhile(t, w.server, gatePath(root, rolloutName(0)), propose, func() { w.propose(3, Strategy{Parallel: 1}) })
			if p := proposed(t, w); !errors.Is(err, ErrOpen) || p.Version != 3 {
				t.Errorf("%v: proposed is %+v", err, p)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, 1, func(t *testing.T, w *world) {
				w.version(4)
				test(t, w)
			})
		})
	}
}

// A proposal refers to a version. A garbage collection that read the references before
// must notice.
func TestPropose_StopsACollection(t *testing.T) {
	inBubble(t, 1, func(t *testing.T, w *world) {
		before, _, err := w.desk.Exists(t.Context(), trees.VersionsPath(root))
		if err != nil {
			t.Fatal(err)
		}
		w.propose(2, Strategy{Parallel: 1})
		after, _, err := w.desk.Exists(t.Context(), trees.VersionsPath(root))
		if err != nil || after.Version == before.Version {
			t.Errorf("versions is at %d, it was at %d, %v", after.Version, before.Version, err)
		}
	})
}

// A rollout is opened between the reads of a publish and its last transaction. The
// publish is refused, and ready stays. An emergency looks again and ends the rollout.
func TestPublish_MeetsAProposal(t *testing.T) {
	for _, emergency := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorldOf(t, rand.New(rand.NewPCG(1, 2)))
			defer w.server.Close()
			ctx := t.Context()
			w.first(ctx)
			desk, err := w.dial(ctx)
			if err != nil {
				t.Fatal(err)
			}
			defer desk.Close()
			if err := w.server.Create(SubscriptionPath(root, "h0"), nil); err != nil {
				t.Fatal(err)
			}
			cfg := w.content()
			cfg.Emergency = emergency
			name := ""
			err = meanwhile(t, w.server, trees.FreezePath(root), func(s *session.Session) error {
				_, err := Publish(ctx, s, cfg)
				return err
			}, func() {
				// The publisher holds the lock of publishers, so the version must be there.
				ready, stat, err := trees.ReadReady(ctx, desk, root)
				if err != nil || stat.Version != 0 {
					t.Fatal(err)
				}
				if name, err = Propose(ctx, desk, Request{Root: root, Version: ready.Version, Digest: ready.Digest}); err != nil {
					t.Fatal(err)
				}
			})
			state, headErr := Head(ctx, desk, root, name)
			_, stat, readErr := trees.ReadReady(ctx, desk, root)
			if headErr != nil || readErr != nil {
				t.Fatal(headErr, readErr)
			}
			if ended := !state.Open(); ended != emergency || (stat.Version == 1) != emergency || errors.Is(err, ErrOpen) == emergency {
				t.Errorf("emergency: %v: %v, ready was set %d times, gate %+v", emergency, err, stat.Version, state.Gate)
			}
		})
	}
}
