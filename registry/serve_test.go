package registry

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zkagent/zkagent/internal/zktest/memzk"
	"github.com/zkagent/zkagent/session"
)

// Serve registers over sessions, with the ACL that it is given, and leaves in good
// order.
func TestServe(t *testing.T) {
	bubble(t, func(t *testing.T, srv *memzk.Server) {
		m, err := session.New(memConfig(srv))
		if err != nil {
			t.Fatal(err)
		}
		run, stop := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { defer close(ended); _ = m.Run(run) }()
		ctx, cancel := context.WithCancel(t.Context())
		r := NewRegistrar(ServiceConfig{
			Name: "web", Groups: []string{groupPath}, MemberID: "a", Address: "10.0.0.5", Port: 80, Drain: 10 * time.Second,
			ACL: []session.ACL{{Perms: session.PermRead | session.PermWrite | session.PermDelete, Scheme: "world", ID: "anyone"}},
		})
		done := make(chan error, 1)
		go func() { done <- r.Serve(ctx, m) }()
		eventually(t, time.Minute, "registered", func() bool { _, _, ok := one(srv); return ok })
		_, n, _ := one(srv)
		srv.ExpireSession(n.Stat.EphemeralOwner)
		eventually(t, time.Minute, "registered in the next session", func() bool {
			_, next, ok := one(srv)
			return ok && next.Stat.EphemeralOwner != n.Stat.EphemeralOwner
		})
		name, _, _ := one(srv)
		s, err := m.Session(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if acl, _, err := s.GetACL(t.Context(), groupPath+"/"+name); err != nil || len(acl) != 1 || acl[0].Perms&session.PermAdmin != 0 {
			t.Errorf("ACL %v, %v", acl, err)
		}
		cancel()
		synctest.Wait()
		if len(done) > 0 {
			t.Error("Serve has returned before the drain was over")
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
		if _, _, ok := one(srv); ok {
			t.Error("the member is still there")
		}
		stop()
		<-ended
	})
}

// A read that cannot happen returns why, and no members.
func TestInstances_Ended(t *testing.T) {
	bubble(t, func(t *testing.T, srv *memzk.Server) {
		s, err := session.Dial(t.Context(), memConfig(srv))
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if members, err := Instances(ctx, s, GroupConfig{Name: "web", Path: groupPath}); err == nil || members != nil {
			t.Errorf("after the end of ctx: %v, %v", members, err)
		}
		_ = s.Close()
		if members, err := Instances(t.Context(), s, GroupConfig{Name: "web", Path: groupPath}); err == nil || members != nil {
			t.Errorf("after the end of the session: %v, %v", members, err)
		}
	})
}
