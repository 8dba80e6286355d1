package registry

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zkagent/zkagent/internal/jute"
	"github.com/zkagent/zkagent/internal/zktest/memzk"
	"github.com/zkagent/zkagent/session"
)

// A service without checks that ZooKeeper refuses says so.
func TestRegistrar_RefusedWithoutChecks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := memzk.New(memzk.Options{TickTime: time.Second})
		defer srv.Close()
		read := []jute.ACL{{Perms: jute.PermRead, Scheme: "world", ID: "anyone"}}
		if err := srv.CreateWith("/closed", nil, 0, read); err != nil {
			t.Fatal(err)
		}
		m, err := session.New(session.Config{Servers: []string{"a:2181"}, Dial: srv.Dial})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); _ = m.Run(ctx) }()
		s, err := m.Session(ctx)
		if err != nil {
			t.Fatal(err)
		}
		r := NewRegistrar(ServiceConfig{Name: "web", Groups: []string{"/closed/web"}, Address: "10.0.0.1", Port: 80})
		ran := make(chan error, 1)
		go func() { ran <- r.Run(ctx, s) }()
		go func() { _ = r.RunChecks(ctx) }()
		time.Sleep(time.Minute) // virtual
		synctest.Wait()
		st := r.Status()
		if st.Registered || !strings.Contains(st.Error, session.ErrNoAuth.Error()) {
			t.Errorf("registered %v, state %s, error %q", st.Registered, st.State, st.Error)
		}
		cancel()
		<-done
		<-ran
	})
}
