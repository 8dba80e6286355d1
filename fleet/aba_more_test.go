package fleet

import (
	"context"
	"testing"

	"github.com/zkagent/zkagent/config"
	"github.com/zkagent/zkagent/internal/zktest/memzk"
	"github.com/zkagent/zkagent/internal/zktest/testhelp"
	"github.com/zkagent/zkagent/session"
)

// The config that an edit, a rollback or a restore relies on is deleted and made again, with
// the same versions of its znodes and other content, between any two of its requests. Where
// the others wait for the publishers' lock, they are late.
func TestMadeAgain_Configs(t *testing.T) {
	testhelp.InTurn(t, 2)
	value := func(t *testing.T, s *session.Session) string {
		t.Helper()
		tree, err := config.Read(t.Context(), s, "/c")
		if err != nil {
			return "nothing"
		}
		k, _ := tree.Keys().Get("k")
		return string(k.Value)
	}
	published := func(t *testing.T, s *session.Session, k string) int64 {
		t.Helper()
		return mustPublish(t, s, "/c", config.LayoutVersioned, map[string]string{"k": k}).Version
	}
	inUse := func(t *testing.T, _ *memzk.Server, other *session.Session) { published(t, other, "a") }
	var late bool // the others came after it
	again := func(t *testing.T, _ *memzk.Server, other *session.Session) {
		_, err := Delete(t.Context(), other, "/c", "ann", "")
		must(t, err)
		late = published(t, other, "b") > 2
	}
	for name, test := range map[string]struct {
		swap

		want string // when the others were in time, and it succeeds
	}{
		"an edit": {swap{
			prepare: inUse,
			act: func(ctx context.Context, s *session.Session) error {
				_, err := Edit(ctx, s, PublishConfig{Path: "/c", Author: "late", Force: true}, func(keys map[string][]byte) error {
					keys["k"] = append(keys["k"], "+"...)
					return nil
				})
				return err
			},
			happens: again,
		}, "b+"},
		"a publish on top of a version": {swap{
			prepare: inUse,
			act: func(ctx context.Context, s *session.Session) error {
				base := int64(1)
				_, err := Publish(ctx, s, PublishConfig{Path: "/c", Author: "late", Force: true, Check: &base, Keys: bytesOf(map[string]string{"k": "a+"})})
				return err
			},
			happens: again,
		}, "never"},
		"a restore": {swap{
			prepare: func(t *testing.T, _ *memzk.Server, other *session.Session) {
				published(t, other, "a")
				_, err := Delete(t.Context(), other, "/c", "ann", "")
				must(t, err)
			},
			act: func(ctx context.Context, s *session.Session) error {
				_, err := Restore(ctx, s, "/c", "late")
				return err
			},
			happens: func(t *testing.T, _ *memzk.Server, other *session.Session) {
				if _, err := Restore(t.Context(), other, "/c", "bob"); err != nil {
					late = true
					return
				}
				late = false
				published(t, other, "b")
				_, err := Delete(t.Context(), other, "/c", "bob", "")
				must(t, err)
			},
		}, "b"},
	} {
		if testhelp.NotToday(name, 2) {
			continue
		}
		t.Run(name, func(t *testing.T) {
			test.check = func(t *testing.T, _ *memzk.Server, other *session.Session, err error) {
				switch got := value(t, other); {
				case late:
				case err == nil && got != test.want:
					t.Errorf("%q is in use, want %q", got, test.want)
				case err != nil && got != "b" && got != "nothing":
					t.Errorf("%q is in use after %v", got, err)
				}
			}
			test.run(t)
		})
	}
}
