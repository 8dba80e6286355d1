package session

import (
	"strings"
	"testing"

	"github.com/zkagent/zkagent/internal/jute"
	"github.com/zkagent/zkagent/internal/memzk"
)

// The reply of a create is lost, and the server that is asked next has not heard
// of the znode yet: it is made to catch up, and nothing is created twice.
func TestCreateProtected_LaggingServer(t *testing.T) {
	bubble(t, func(t *testing.T, srv *memzk.Server) {
		cfg := memConfig(srv)
		cfg.Servers = []string{"a:2181", "b:2181"}
		s := dialMem(t, cfg)
		defer s.Close()
		other := "a:2181"
		if s.Server() == other {
			other = "b:2181"
		}
		srv.Lag(other)
		srv.LoseReply(jute.OpCreate2, 1, false)
		path, _, err := s.CreateProtected(t.Context(), "/", "x-", nil, EphemeralSequential)
		if err != nil {
			t.Fatal(err)
		}
		if s.Server() != other {
			t.Fatalf("connected to %s, want the server that lags", s.Server())
		}
		var made []string
		for p := range srv.Tree() {
			if strings.Contains(p, "x-") {
				made = append(made, p)
			}
		}
		if len(made) != 1 || made[0] != path {
			t.Errorf("there are %v, want %s alone", made, path)
		}
	})
}
