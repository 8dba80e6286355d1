package fleet

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/zkagent/zkagent/config"
	"github.com/zkagent/zkagent/internal/zktest/memzk"
	"github.com/zkagent/zkagent/internal/zktest/testhelp"
	"github.com/zkagent/zkagent/session"
)

// A znode is deleted and made again with the same version and other content, between any
// two requests of a client that has read the first one.

// swap is what a client does, and what others do in the middle of it.
type swap struct {
	prepare func(t *testing.T, z *memzk.Server, other *session.Session)
	act     func(ctx context.Context, late *session.Session) error
	happens func(t *testing.T, z *memzk.Server, other *session.Session)
	check   func(t *testing.T, z *memzk.Server, other *session.Session, err error)
}

// run lets it happen before the first request, before the second, and so on.
func (r swap) run(t *testing.T) {
	for n, met := 1, true; met; n++ {
		bubble(t, func(t *testing.T, z *memzk.Server) {
			other, late := join(t, z), join(t, z, "late:2181")
			defer other.Close()
			defer late.Close()
			r.prepare(t, z, other)
			requests, done := 0, make(chan struct{})
			met = false
			z.Hold(func(h memzk.Held) <-chan struct{} {
				if h.Addr != "late:2181" {
					return nil
				}
				if requests++; requests != n {
					return nil
				}
				met = true
				go func() { defer close(done); r.happens(t, z, other) }()
				return done
			})
			err := r.act(t.Context(), late)
			if z.Hold(nil); met {
				<-done
				r.check(t, z, other, err)
			}
			if t.Failed() {
				t.Fatalf("before request %d, which returned %v", n, err)
			}
		})
		if t.Failed() || !met && n < 3 {
			t.Fatalf("stopped at request %d", n)
		}
	}
}

func TestMadeAgain(t *testing.T) {
	t.Parallel()
	second := func(_ any, err error) error { return err }
	request := Request{Root: "/c", Base: 1, Version: 2, Digest: "x", Strategy: Strategy{Parallel: 1}}
	hosts := func(t *testing.T, z *memzk.Server, _ *session.Session) {
		known(t, z, knownHost{First: time.Now().Add(-time.Hour).UTC()})
	}
	comesBack := func(t *testing.T, z *memzk.Server, other *session.Session) {
		must(t, ignore(Forget(t.Context(), other, "h"), session.ErrNoNode))
		must(t, second(z.CreateEphemeral(other.ID(), AgentPath("h"), []byte("{}"), 0)))
		must(t, NewAnnouncer(AnnouncerConfig{ID: "h"}).remember(t.Context(), other))
	}
	gone := func(t *testing.T, z *memzk.Server, _ *session.Session) {
		long := time.Now().UTC().Add(-2 * ForgetAfter)
		known(t, z, knownHost{First: long, Stopped: long})
	}
	stops := func(t *testing.T, _ *memzk.Server, other *session.Session) {
		a := NewAnnouncer(AnnouncerConfig{ID: "h"})
		must(t, a.remember(t.Context(), other))
		a.farewell(other)
	}
	isStopped := func(t *testing.T, _ *memzk.Server, other *session.Session, _ error) {
		must(t, editKnown(t.Context(), other, "h", func(k *knownHost, found bool) bool {
			if !found || time.Since(k.Stopped) > time.Hour {
				t.Errorf("a host that has just stopped is known: %v, stopped %v", found, k.Stopped)
			}
			return false
		}))
	}
	isKnown := func(t *testing.T, _ *memzk.Server, other *session.Session, _ error) {
		err := editKnown(t.Context(), other, "h", func(k *knownHost, found bool) bool {
			if !found || !k.gone().IsZero() {
				t.Errorf("a host that runs is known: %v, gone since %v", found, k.gone())
			}
			return false
		})
		must(t, err)
	}
	for name, test := range map[string]swap{
		"a freeze by another is not lifted without a note":                 frozenAgain(nil),
		"a freeze by another, after a first, is not lifted without a note": frozenAgain([]string{"zoe"}),
		"a proposal for another version in use is refused": {
			prepare: func(t *testing.T, z *memzk.Server, other *session.Session) {
				mustPublish(t, other, "/c", "", map[string]string{"k": "1"})
				must(t, second(Prepare(t.Context(), other, PublishConfig{Path: "/c", Keys: bytesOf(map[string]string{"k": "2"})})))
				must(t, z.Create(SubscriptionPath("/c", "h"), []byte(`{"version":1}`)))
			},
			act: func(ctx context.Context, late *session.Session) error { return second(Propose(ctx, late, request)) },
			happens: func(t *testing.T, _ *memzk.Server, other *session.Session) {
				must(t, second(Delete(t.Context(), other, "/c", "ann", "")))
				mustPublish(t, other, "/c", config.LayoutVersioned, map[string]string{"k": "3"})
			},
			check: func(t *testing.T, _ *memzk.Server, _ *session.Session, err error) {
				if !errors.Is(err, ErrConflict) {
					t.Error("proposed, although version 3 is in use")
				}
			},
		},
		"a host that comes back is not lost": {
			prepare: hosts,
			act:     func(ctx context.Context, late *session.Session) error { return second(Agents(ctx, late)) },
			happens: comesBack,
			check:   isKnown,
		},
		"a host that comes back is not forgotten": {
			prepare: hosts,
			act:     func(ctx context.Context, late *session.Session) error { return Forget(ctx, late, "h") },
			happens: comesBack,
			check:   isKnown,
		},
		"a host that comes back is not swept": {
			prepare: gone,
			act:     func(ctx context.Context, late *session.Session) error { return sweep(ctx, late, "h", time.Now()) },
			happens: comesBack,
			check:   isKnown,
		},
		"a host that was back is not swept": {
			prepare: gone,
			act:     func(ctx context.Context, late *session.Session) error { return sweep(ctx, late, "h", time.Now()) },
			happens: stops,
			check:   isStopped,
		},
		"a stop is not overwritten": {
			prepare: hosts,
			act:     func(ctx context.Context, late *session.Session) error { return second(Agents(ctx, late)) },
			happens: stops,
			check:   isStopped,
		},
	} {
		if testhelp.NotToday(name, 2) {
			continue
		}
		t.Run(name, func(t *testing.T) { t.Parallel(); test.run(t) })
	}
}

// frozenAgain lifts the freeze of ann while bob lifts it and carl sets another. Those
// before it were lifted.
func frozenAgain(before []string) swap {
	return swap{
		prepare: func(t *testing.T, _ *memzk.Server, other *session.Session) {
			for _, by := range before {
				must(t, Freeze(t.Context(), other, "/c", by, "a test"))
				_, err := Unfreeze(t.Context(), other, "/c", by)
				must(t, err)
			}
			must(t, Freeze(t.Context(), other, "/c", "ann", "sales day"))
		},
		act: func(ctx context.Context, late *session.Session) error {
			_, err := Unfreeze(ctx, late, "/c", "late")
			return err
		},
		happens: func(t *testing.T, _ *memzk.Server, other *session.Session) {
			_, err := Unfreeze(t.Context(), other, "/c", "bob")
			must(t, err)
			must(t, Freeze(t.Context(), other, "/c", "carl", "night"))
		},
		check: func(t *testing.T, _ *memzk.Server, other *session.Session, err error) {
			must(t, err)
			var all []string
			past, err := PastFreezes(t.Context(), other, "/c")
			must(t, err)
			for _, p := range past {
				all = append(all, p.By)
			}
			f, err := Frozen(t.Context(), other, "/c")
			if must(t, err); f != nil {
				all = append(all, f.By)
			}
			if !slices.Equal(all, append(slices.Clone(before), "ann", "carl")) {
				t.Errorf("freezes by %v", all)
			}
		},
	}
}

// known makes a host known without a client.
func known(t *testing.T, z *memzk.Server, k knownHost) {
	t.Helper()
	must(t, z.Create(knownAs("h"), encode(k)))
	must(t, z.Create(AgentPath("h"), nil)) // the shard
	must(t, z.Delete(AgentPath("h")))
}
