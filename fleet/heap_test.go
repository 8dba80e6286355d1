package fleet

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/zkagent/zkagent/config"
	"github.com/zkagent/zkagent/internal/zktest"
	"github.com/zkagent/zkagent/internal/zktest/testhelp"
	"github.com/zkagent/zkagent/registry"
	"github.com/zkagent/zkagent/session"
	"github.com/zkagent/zkagent/view"
)

// A real server with 256 MB of heap that holds a tree of 40 MB and a group of 20 MB, in
// znodes of 0.8 MB, and ten agents that start at once: the server survives, and each
// agent says what it left out. With room for all, each of four gets all.
func TestReal_LargeTreeAndGroupHarmNoServer(t *testing.T) {
	testhelp.OnlyAll(t, "it moves half a gigabyte")
	const agents, keys, members, size = 10, 50, 25, 800_000
	srv := zktest.Start(t, zktest.Options{JVMFlags: []string{"-Xmx256m"}, MaxSessionTimeout: time.Minute})
	dial := func() *session.Session {
		s, err := session.Dial(soon(t), session.Config{Servers: []string{srv.Addr()}, Timeout: time.Minute})
		must(t, err)
		t.Cleanup(func() { _ = s.Close() })
		return s
	}
	s := dial()
	large := strings.Repeat("x", size)
	for i := range keys {
		write(t, s, fmt.Sprintf("/tree/k%03d", i), large)
	}
	for i := range members {
		write(t, s, fmt.Sprintf("/group/m%03d", i), fmt.Sprintf(`{"host":"10.0.0.%d","port":80,"name":"%s"}`, i+1, large))
	}
	write(t, s, "/tree/ready", "")
	// A server keeps its last 500 requests: they are small again, as they are mostly.
	write(t, s, "/small", "")
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 80 {
				if _, err := s.Set(soon(t), "/small", nil, -1); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()

	patient, cancel := context.WithTimeout(t.Context(), 10*time.Minute) // on a machine that does much else
	defer cancel()
	start := func(agents int, limit int64) {
		t.Helper()
		var wg sync.WaitGroup
		for i := range agents {
			wg.Go(func() {
				s := dial()
				defer s.Close()
				reported, got := make(chan error, 10), make(chan view.Update, 10)
				problem := func(err error) { reported <- err }
				w := config.NewWatcher(config.Config{Name: "tree", Path: "/tree", MaxBytes: limit, Problem: problem})
				g := registry.NewGroup(registry.GroupConfig{Name: "group", Path: "/group", Format: "nerve", MaxBytes: limit, Problem: func(_ string, err error) { problem(err) }})
				var running sync.WaitGroup
				running.Go(func() { _ = w.Run(patient, s, func(u view.Update) { got <- u }) })
				running.Go(func() { _ = g.Run(patient, s, func(u *view.Group) { got <- u }) })
				for range 2 {
					select {
					case err := <-reported:
						if limit < 0 || !errors.Is(err, config.ErrBounds) && !errors.Is(err, registry.ErrTooLarge) {
							t.Errorf("agent %d: %v", i, err)
						}
					case u := <-got:
						if limit > 0 {
							t.Errorf("agent %d: passed on %T", i, u)
						}
					case <-patient.Done():
						t.Errorf("agent %d: nothing told; tree %+v, group error %q", i, w.Status(), g.Status().Error)
					}
				}
				must(t, s.Close())
				running.Wait()
			})
		}
		wg.Wait()
	}
	start(agents, 16<<20)
	start(4, -1)
	if st, ok, err := s.Exists(soon(t), "/tree/ready"); err != nil || !ok || s.Connection() != 1 {
		t.Errorf("the server is not as it was: %v, %v, %v; %d connections", st, ok, err, s.Connection())
	}
}
