package session

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zkagent/zkagent/internal/zktest/memzk"
)

// Every wait ends with what is waited for, with its context and with the session.
func TestWait_Ends(t *testing.T) {
	why := errors.New("why")
	waits := map[string]func(ctx context.Context, s *Session, w *Watch) error{
		"Wait":    func(ctx context.Context, _ *Session, w *Watch) error { return w.Wait(ctx) },
		"WaitAny": func(ctx context.Context, s *Session, w *Watch) error { return s.WaitAny(ctx, nil, w) },
		"Sleep": func(ctx context.Context, s *Session, w *Watch) error {
			if w.Fired() {
				return nil
			}
			return s.Sleep(ctx, time.Hour)
		},
	}
	for name, wait := range waits {
		for _, end := range []error{nil, why, ErrClosed} {
			bubble(t, func(t *testing.T, srv *memzk.Server) {
				s := dialMem(t, memConfig(srv))
				_, _, w, err := s.ExistsW(t.Context(), "/a")
				if err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithCancelCause(t.Context())
				defer cancel(nil)
				switch {
				case end == nil:
					if err := srv.Create("/a", nil); err != nil {
						t.Fatal(err)
					}
					synctest.Wait()
				case errors.Is(end, why):
					time.AfterFunc(time.Second, func() { cancel(why) })
				default:
					time.AfterFunc(time.Second, func() { _ = s.Close() })
				}
				start := time.Now()
				if err := wait(ctx, s, w); !errors.Is(err, end) {
					t.Errorf("%s: %v, want %v", name, err, end)
				}
				if took := time.Since(start); took > time.Second {
					t.Errorf("%s ended after %s", name, took)
				}
				_ = s.Close()
			})
		}
	}
}

func TestWatch_WaitForIsLimited(t *testing.T) {
	bubble(t, func(t *testing.T, srv *memzk.Server) {
		s := dialMem(t, memConfig(srv))
		defer s.Close()
		_, _, w, err := s.ExistsW(t.Context(), "/a")
		if err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		if fired, err := w.WaitFor(t.Context(), time.Minute); fired || err != nil || time.Since(start) != time.Minute {
			t.Errorf("%v, %v after %s", fired, err, time.Since(start))
		}
	})
}

// ListW lists a znode, or reports that it does not exist. The watch fires in both cases.
func TestListW(t *testing.T) {
	bubble(t, func(t *testing.T, srv *memzk.Server) {
		s := dialMem(t, memConfig(srv))
		defer s.Close()
		none, w, err := s.ListW(t.Context(), "/a")
		if err != nil || none.Exists {
			t.Fatalf("%+v, %v", none, err)
		}
		for _, path := range []string{"/a", "/a/x", "/a/y"} {
			if err := srv.Create(path, []byte(path)); err != nil {
				t.Fatal(err)
			}
			if path == "/a" {
				if err := w.Wait(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
		}
		list, w, err := s.ListW(t.Context(), "/a")
		slices.Sort(list.Names)
		if err != nil || !list.Exists || !slices.Equal(list.Names, []string{"x", "y"}) || list.Stat.NumChildren != 2 {
			t.Fatalf("%+v, %v", list, err)
		}
		if err := srv.Delete("/a/x"); err != nil {
			t.Fatal(err)
		}
		if err := w.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
		children, err := s.GetChildren(t.Context(), "/a")
		if err != nil || len(children) != 1 || children[0].Name != "y" || string(children[0].Data) != "/a/y" {
			t.Errorf("%+v, %v", children, err)
		}
		if _, err := s.GetChildren(t.Context(), "/none"); !errors.Is(err, ErrNoNode) {
			t.Errorf("children of what does not exist: %v", err)
		}
	})
}
