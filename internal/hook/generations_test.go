package hook

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zkagent/zkagent/config"
	"github.com/zkagent/zkagent/internal/zktest/memzk"
	"github.com/zkagent/zkagent/session"
	"github.com/zkagent/zkagent/view"
)

// A hook that watches a flat tree runs once for each generation, however many
// keys a generation changes, how slowly they are written, and how often the
// connection is lost meanwhile.
func TestHook_HookRunsOncePerGeneration(t *testing.T) {
	const generations, keys = 12, 20
	synctest.Test(t, func(t *testing.T) {
		srv := memzk.New(memzk.Options{TickTime: time.Second})
		defer srv.Close()
		s, err := session.Dial(t.Context(), session.Config{Servers: []string{"a:2181"}, Timeout: 12 * time.Second, Dial: srv.Dial})
		if err != nil {
			t.Fatal(err)
		}
		b := newHookBed(t, Config{OnChange: onWeb})
		ctx, cancel := context.WithCancel(t.Context())
		followed := make(chan error, 1)
		go func() {
			followed <- config.NewWatcher(config.Config{Name: "web", Path: "/web", Layout: config.LayoutFlat}).
				Run(ctx, s, func(u view.Update) { b.update(u) })
		}()
		b.during(func() {
			for n := range generations {
				writeGeneration(t, srv, n, keys)
				time.Sleep(20 * time.Second) // virtual: a lost connection is back
				synctest.Wait()
				b.count(n+1, fmt.Sprintf("generation %d", n))
			}
		})
		cancel()
		if err := <-followed; err != nil {
			t.Error(err)
		}
		_ = s.Close()
	})
}

// writeGeneration writes a generation key by key, as a writer that takes its
// time. In every third one the readers lose their connections in the middle.
func writeGeneration(t *testing.T, srv *memzk.Server, n, keys int) {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	if n > 0 {
		must(srv.Delete("/web/ready"))
	}
	for k := range keys {
		path := fmt.Sprintf("/web/k%d", k)
		if n == 0 {
			must(srv.Create(path, nil))
		}
		must(srv.Set(path, fmt.Append(nil, n)))
		time.Sleep(200 * time.Millisecond)
		if n%3 == 2 && k == keys/2 {
			srv.DropConnections()
		}
	}
	must(srv.Create("/web/ready", nil))
}
