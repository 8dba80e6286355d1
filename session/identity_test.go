package session

import (
	"errors"
	"slices"
	"testing"

	"github.com/zkagent/zkagent/internal/jute"
	"github.com/zkagent/zkagent/internal/zktest/memzk"
)

// The server says who we are, and with an ACL that is what we may do.
func TestIdentity_WhoAmIAndPermissions(t *testing.T) {
	bubbleWith(t, memzk.Options{}, func(t *testing.T, srv *memzk.Server) {
		cfg := memConfig(srv)
		cfg.Auth = []Auth{{Scheme: "digest", Data: []byte("u:p")}}
		s := dialMem(t, cfg)
		defer func() { _ = s.Close() }()
		ids, err := s.WhoAmI(t.Context())
		if err != nil || !slices.Contains(ids, Identity{"digest", "u"}) {
			t.Fatalf("who am I: %v, %v", ids, err)
		}
		for _, c := range []struct {
			acl  string
			want int32
		}{
			{"world:anyone:r", PermRead},
			{"digest:" + jute.Digest("u:p") + ":cdrwa", PermAll},
			{"digest:" + jute.Digest("u:q") + ":cdrwa", 0},
			{"digest:" + jute.Digest("v:p") + ":cdrwa", 0},
			{"sasl:u:cdrwa", 0},
			{"ip:0.0.0.0/0:r", PermRead},
			{"ip:10.1.2.3/32:r", 0},
		} {
			a, err := ParseACL(c.acl)
			if err != nil {
				t.Fatal(err)
			}
			if got := s.Permissions([]ACL{a}, append(ids, Identity{"ip", "192.0.2.1"})); got != c.want {
				t.Errorf("%s: %d, want %d", c.acl, got, c.want)
			}
		}
		hidden := []ACL{{Perms: PermRead | PermWrite, Scheme: "digest", ID: "u:" + hiddenHash}}
		if got := s.Permissions(hidden, ids); got != PermRead|PermWrite {
			t.Errorf("a hidden hash: %d", got)
		}
		if got := s.Permissions(nil, []Identity{{"super", ""}}); got != PermAll {
			t.Errorf("super: %d", got)
		}
	})
}

func TestIdentity_OldServerDoesNotKnowTheQuestion(t *testing.T) {
	bubbleWith(t, memzk.Options{Version: "3.6"}, func(t *testing.T, srv *memzk.Server) {
		s := dialMem(t, memConfig(srv))
		defer func() { _ = s.Close() }()
		if _, err := s.WhoAmI(t.Context()); !errors.Is(err, ErrUnimplemented) {
			t.Errorf("got %v", err)
		}
		if _, _, err := s.Exists(t.Context(), "/"); err != nil {
			t.Errorf("after it: %v", err)
		}
	})
}
