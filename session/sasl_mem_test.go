package session

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/zkagent/zkagent/internal/jute"
	"github.com/zkagent/zkagent/internal/zktest/memzk"
	"github.com/zkagent/zkagent/internal/zktest/testhelp"
)

var saslServer = memzk.Options{TickTime: time.Second, SASLUsers: map[string]string{"agent": "secret"}, RequireSASL: true}

// The identity is proved on each connection, and when a session begins after an
// expiry, before any request.
func TestSASLMem_EachConnectionAndSession(t *testing.T) {
	bubbleWith(t, saslServer, func(t *testing.T, srv *memzk.Server) {
		cfg := memConfig(srv)
		cfg.SASL = DigestMD5("agent", "secret")
		m, stop := manage(t, cfg)
		defer stop()
		s := mustSession(t, m)
		only := ACL{Perms: PermAll, Scheme: "sasl", ID: "agent"}
		if _, _, err := s.Create(t.Context(), "/secret", []byte("v"), Persistent, only); err != nil {
			t.Fatal(err)
		}
		for range 20 {
			s.dropForTest()
			if data, _, err := s.Get(t.Context(), "/secret"); err != nil || string(data) != "v" {
				t.Fatalf("over the next connection: %q, %v", data, err)
			}
		}
		srv.ExpireSession(s.ID())
		<-s.Done()
		if data, _, err := mustSession(t, m).Get(t.Context(), "/secret"); err != nil || string(data) != "v" {
			t.Errorf("in the next session: %q, %v", data, err)
		}
	})
}

// The session of a former process is resumed with its identity.
func TestSASLMem_Resume(t *testing.T) {
	dir := t.TempDir()
	bubbleWith(t, saslServer, func(t *testing.T, srv *memzk.Server) {
		cfg := handoffConfig(srv, dir)
		cfg.SASL = DigestMD5("agent", "secret")
		id := owner(t, cfg, func(m *Manager) { m.HandOver() })
		m, stop := manage(t, cfg)
		defer stop()
		s := mustSession(t, m)
		if own, err := s.Ephemerals(t.Context(), "/"); err != nil || len(own) != 1 || s.ID() != id || !s.Resumed() {
			t.Errorf("session %x of %x owns %v, %v", s.ID(), id, own, err)
		}
	})
}

// A refused password gives its own error, and no storm of connections. When the server
// knows the password, the session begins by itself.
func TestSASLMem_RefusalIsNoStorm(t *testing.T) {
	testhelp.InTurn(t, 2)
	users := map[string]string{"agent": "other"}
	opts := saslServer
	opts.SASLUsers = users
	bubbleWith(t, opts, func(t *testing.T, srv *memzk.Server) {
		cfg := memConfig(srv)
		cfg.SASL = DigestMD5("agent", "secret")
		m, stop := manage(t, cfg)
		defer stop()
		const wait = time.Hour
		ctx, cancel := context.WithTimeout(t.Context(), wait)
		defer cancel()
		_, err := m.Session(ctx)
		if !errors.Is(err, ErrAuthFailed) || !strings.Contains(err.Error(), "SASL DIGEST-MD5") || strings.Contains(err.Error(), "secret") {
			t.Errorf("got %v", err)
		}
		if n := srv.Requests()[jute.OpName(jute.OpCreateSession)]; n > uint64(wait/maxBackoff)+2 {
			t.Errorf("%d connections in %s", n, wait)
		}
		srv.Pause() // while it is changed
		users["agent"] = "secret"
		srv.Resume()
		if _, _, err := mustSession(t, m).Exists(t.Context(), "/"); err != nil {
			t.Error(err)
		}
	})
}

// A client without an identity gets an error that says what is missing.
func TestSASLMem_ServerInsists(t *testing.T) {
	bubbleWith(t, saslServer, func(t *testing.T, srv *memzk.Server) {
		m, stop := manage(t, memConfig(srv))
		defer stop()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if _, _, err := mustSession(t, m).Exists(ctx, "/"); !errors.Is(err, ErrAuthRequired) {
			t.Errorf("got %v", err)
		}
	})
}
