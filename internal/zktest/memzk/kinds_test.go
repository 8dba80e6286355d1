package memzk

import (
	"errors"
	"testing"
	"time"

	"github.com/zkagent/zkagent/internal/jute"
	"github.com/zkagent/zkagent/internal/zktest/raw"
)

func TestContainersAndTTLAreReaped(t *testing.T) {
	inBubble(t, Options{}, func(t *testing.T, s *Server) {
		t.Helper()
		c := dial(t, s, raw.Options{Timeout: 40 * time.Second})
		for _, p := range []string{"/used", "/unused"} {
			if _, err := c.Call(jute.OpCreateContainer, raw.Body(p, nil, raw.OpenACL, jute.FlagContainer)); err != nil {
				t.Fatal(err)
			}
		}
		mustCreate(t, c, "/used/x", 0)
		for p, ttl := range map[string]int64{"/short": 30_000, "/long": 600_000} {
			if _, err := c.Call(jute.OpCreateTTL, raw.Body(p, nil, raw.OpenACL, jute.FlagPersistentTTL, ttl)); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(30 * time.Second)
		if code, err := c.Delete("/used/x", -1); code != 0 || err != nil {
			t.Fatalf("delete: code %d, %v", code, err)
		}
		c.Close()
		time.Sleep(31 * time.Second)
		for p, want := range map[string]bool{"/used": false, "/unused": true, "/short": false, "/long": true} {
			if got := s.Exists(p); got != want {
				t.Errorf("%s exists: got %v, want %v", p, got, want)
			}
		}
		time.Sleep(11 * time.Minute)
		if s.Exists("/long") {
			t.Error("a TTL znode was not reaped")
		}
	})
}

// A server repeats its last sequence number.
func TestSequenceEnds(t *testing.T) {
	inBubble(t, Options{}, func(t *testing.T, s *Server) {
		t.Helper()
		if err := s.Create("/q", nil); err != nil {
			t.Fatal(err)
		}
		if err := s.SetSequence("/q", 1<<31-1); err != nil {
			t.Fatal(err)
		}
		for _, prefix := range []string{"m-", "n-"} {
			if err := s.CreateWith("/q/"+prefix, nil, jute.FlagSequential, nil); err != nil {
				t.Fatal(err)
			}
		}
		if err := s.CreateWith("/q/n-", nil, jute.FlagSequential, nil); !errors.Is(err, Error(jute.ErrCodeNodeExists)) {
			t.Errorf("the same name again: %v", err)
		}
		names, err := s.Children("/q")
		if err != nil || len(names) != 2 || names[0] != "m-2147483647" || names[1] != "n-2147483647" {
			t.Errorf("children: got %q, %v", names, err)
		}
	})
}

func TestServerSideMethods(t *testing.T) {
	inBubble(t, Options{}, func(t *testing.T, s *Server) {
		t.Helper()
		if err := s.Create("/a/b/c", []byte("x")); err != nil {
			t.Fatal(err)
		}
		if err := s.Create("/a/b/c", nil); !errors.Is(err, Error(jute.ErrCodeNodeExists)) {
			t.Errorf("a second create: got %v", err)
		}
		if err := s.Set("/a/b/c", []byte("yy")); err != nil {
			t.Fatal(err)
		}
		n, err := s.Get("/a/b/c")
		if err != nil || string(n.Data) != "yy" || n.Stat.Version != 1 {
			t.Errorf("get: got %q version %d, %v", n.Data, n.Stat.Version, err)
		}
		if _, err = s.CreateEphemeral(77, "/e", nil, jute.FlagEphemeral); !errors.Is(err, Error(jute.ErrCodeSessionExpired)) {
			t.Errorf("an ephemeral of no session: got %v", err)
		}
		c := dial(t, s)
		path, err := s.CreateEphemeral(c.Session.SessionID, "/e-", nil, jute.FlagEphemeralSequential)
		if err != nil || path != "/e-0000000001" {
			t.Errorf("an ephemeral: got %q, %v", path, err)
		}
		if _, _, _, err := c.Get("/a", true); err != nil {
			t.Fatal(err)
		}
		if got := s.Watches(); got.Data != 1 {
			t.Errorf("watches: got %+v", got)
		}
		if got := s.Requests()["getData"]; got != 1 {
			t.Errorf("requests: got %d, want 1", got)
		}
		s.ResetRequests()
		c.Close()
		if got, want := len(s.Tree()), 3; got != want {
			t.Errorf("tree: got %d znodes, want %d", got, want)
		}
		if err := s.Delete("/a"); err != nil || len(s.Tree()) != 0 {
			t.Errorf("delete: %v, %d znodes left", err, len(s.Tree()))
		}
		if err := s.Delete("/a"); !errors.Is(err, Error(jute.ErrCodeNoNode)) {
			t.Errorf("a second delete: got %v", err)
		}
	})
}

func TestSuperUserAndSeparateWatches(t *testing.T) {
	inBubble(t, Options{SuperDigest: jute.Digest("super:secret"), Version: "3.9"}, func(t *testing.T, s *Server) {
		t.Helper()
		acl := []jute.ACL{{Perms: jute.PermAll, Scheme: "digest", ID: jute.Digest("u:p")}}
		if err := s.CreateWith("/closed", nil, 0, acl); err != nil {
			t.Fatal(err)
		}
		c := dial(t, s)
		if _, _, code, _ := c.Get("/closed", false); code != jute.ErrCodeNoAuth {
			t.Errorf("a stranger: code %d, want %d", code, jute.ErrCodeNoAuth)
		}
		if _, err := c.CallXid(jute.XidAuth, jute.OpAuth, raw.Body(0, "digest", []byte("super:secret"))); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Call(jute.OpAddWatch, raw.Body("/closed", jute.AddWatchPersistentRecursive)); err != nil {
			t.Fatal(err)
		}
		if _, _, code, _ := c.Get("/closed", true); code != 0 {
			t.Errorf("the super user: code %d, want 0", code)
		}
		for range 2 {
			if err := s.Set("/closed", nil); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := c.Call(jute.OpSync, raw.Body("/")); err != nil {
			t.Fatal(err)
		}
		if got, want := len(c.TakeEvents()), 2; got != want {
			t.Errorf("events of a recursive watch beside a one-shot one: got %d, want %d", got, want)
		}
		c.Close()
	})
}
