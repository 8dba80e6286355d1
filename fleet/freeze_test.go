package fleet

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/zkagent/zkagent/config"
	"github.com/zkagent/zkagent/internal/trees"
	"github.com/zkagent/zkagent/internal/zktest/memzk"
	"github.com/zkagent/zkagent/internal/zktest/testhelp"
	"github.com/zkagent/zkagent/session"
)

// A reason that fits into no znode is refused in words, before anything is written.
func TestFreeze_LongReason(t *testing.T) {
	t.Parallel()
	s, path := dial(t), newRoot(t)
	if err := Freeze(soon(t), s, path, "ann", strings.Repeat("x", 2<<20)); !errors.Is(err, config.ErrBounds) {
		t.Errorf("got %v", err)
	}
}

// Who froze a config, why, and who ended it stays known, in every layout and within a
// bound.
func TestFreeze_KeepsWho(t *testing.T) {
	t.Parallel()
	for _, layout := range []string{config.LayoutVersioned, config.LayoutFlat} {
		s, path := dial(t), newRoot(t)
		mustPublish(t, s, path, layout, map[string]string{"k": "1"})
		began := time.Now().Add(-time.Second)
		must(t, Freeze(soon(t), s, path, "ann", "sales day"))
		must(t, Freeze(soon(t), s, path, "ann", "sales day")) // says nothing new
		must(t, Freeze(soon(t), s, path, "bob", "night"))
		f, err := Frozen(soon(t), s, path)
		must(t, err)
		if f.By != "bob" || f.Reason != "night" || !strings.Contains(f.Error(), "is frozen by bob since ") {
			t.Errorf("%s: got %v", layout, f)
		}
		if was, err := Unfreeze(soon(t), s, path, "eve"); !was || err != nil {
			t.Fatalf("%s: got %v, %v", layout, was, err)
		}
		if was, err := Unfreeze(soon(t), s, path, "eve"); was || err != nil {
			t.Fatalf("%s: a second time: got %v, %v", layout, was, err)
		}
		past, err := PastFreezes(soon(t), s, path)
		must(t, err)
		if len(past) != 2 || past[0].By != "ann" || past[0].EndedBy != "bob" || !past[0].Replaced || past[1].Reason != "night" || past[1].EndedBy != "eve" || past[1].Replaced {
			t.Fatalf("%s: got %+v", layout, past)
		}
		for _, p := range past {
			if p.Since.Before(began) || p.Until.Before(p.Since.Add(-time.Second)) {
				t.Errorf("%s: got %+v, began %s", layout, p, began)
			}
		}
		if testhelp.NotToday(layout, 2) { // the same record in both
			continue
		}
		for i := range maxPast + 3 {
			must(t, Freeze(soon(t), s, path, "ann", fmt.Sprint(i, strings.Repeat("x", 4000))))
			_, err := Unfreeze(soon(t), s, path, "bob")
			must(t, err)
		}
		past, err = PastFreezes(soon(t), s, path)
		must(t, err)
		if len(past) != maxPast || !strings.HasPrefix(past[0].Reason, "3x") || len(past[0].Reason) > maxPastReason+4 {
			t.Errorf("%s: %d are kept, the oldest: %+v", layout, len(past), past[0])
		}
		// It is no key, and it does not stand in the way of the next version.
		if r := mustPublish(t, s, path, "", map[string]string{"k": "2"}); r.Count != 1 {
			t.Errorf("%s: got %+v", layout, r)
		}
		tree, err := config.Read(soon(t), s, path)
		must(t, err)
		if tree.Len() != 1 {
			t.Errorf("%s: got %d keys", layout, tree.Len())
		}
	}
}

// A freeze of another tool is text, and so is what that tool may have written where
// past freezes are noted.
func TestFreeze_OfAnotherTool(t *testing.T) {
	t.Parallel()
	for _, reason := range []string{"closed for today", `{"why":1}`, `"text"`, ""} {
		s, path := dial(t), newRoot(t)
		must(t, s.CreateParents(soon(t), path+"/x"))
		_, _, err := s.Create(soon(t), trees.FreezePath(path), []byte(reason), session.Persistent)
		must(t, err)
		_, _, err = s.Create(soon(t), trees.RolloutsPath(path), []byte("mine"), session.Persistent)
		must(t, err)
		f, err := Frozen(soon(t), s, path)
		must(t, err)
		if f.Reason != reason || f.By != "" {
			t.Errorf("got %+v", f)
		}
		if was, err := Unfreeze(soon(t), s, path, "bob"); !was || err != nil {
			t.Errorf("got %v, %v", was, err)
		}
		past, err := PastFreezes(soon(t), s, path)
		must(t, err)
		if len(past) != 1 || past[0].Reason != reason || past[0].EndedBy != "bob" {
			t.Errorf("got %+v", past)
		}
	}
}

// A lost reply of any request freezes and unfreezes once, and notes it once.
func TestFreeze_LostReplies(t *testing.T) {
	testhelp.InTurn(t, 2)
	t.Parallel()
	for _, beforeApply := range []bool{true, false} {
		for n := 1; ; n++ {
			done := false
			bubble(t, func(t *testing.T, z *memzk.Server) {
				s := join(t, z)
				defer s.Close()
				const path = "/config/lost"
				must(t, s.CreateParents(t.Context(), path+"/x"))
				lost := z.LoseReply(memzk.AnyOp, n, beforeApply)
				must(t, Freeze(t.Context(), s, path, "ann", "one"))
				must(t, Freeze(t.Context(), s, path, "ann", "two"))
				if was, err := Unfreeze(t.Context(), s, path, "bob"); !was || err != nil {
					t.Errorf("request %d: got %v, %v", n, was, err)
				}
				select {
				case <-lost:
				default:
					done = true
				}
				past, err := PastFreezes(t.Context(), s, path)
				must(t, err)
				if f, err := Frozen(t.Context(), s, path); f != nil || err != nil || len(past) != 2 || past[0].Reason != "one" || past[1].Reason != "two" {
					t.Errorf("request %d: frozen: %v, %v, past %+v", n, f, err, past)
				}
			})
			if done {
				break
			}
		}
	}
}

// A flat tree that is written in several steps is not put into use when a tool freezes
// it meanwhile: the readers keep the tree from before.
func TestFreeze_EndOfALongFlatPublish(t *testing.T) {
	t.Parallel()
	s, path := dial(t), newRoot(t)
	mustPublish(t, s, path, config.LayoutFlat, map[string]string{"k": "1"})
	keys := numbered(40, strings.Repeat("x", 30_000)) // more than one request
	cfg := PublishConfig{Path: path, Keys: bytesOf(keys), Force: true}
	cfg.step = func(name string) error {
		if name == "ready" {
			write(t, s, trees.FreezePath(path), `{"reason":"sales day"}`)
		}
		return nil
	}
	if _, err := Publish(soon(t), s, cfg); !errors.Is(err, ErrFrozen) && !errors.Is(err, ErrUnfinished) {
		t.Errorf("got %v", err)
	}
	if _, ok, err := s.Exists(soon(t), trees.ReadyPath(path)); err != nil || ok {
		t.Errorf("ready exists: %v, %v", ok, err)
	}
}
