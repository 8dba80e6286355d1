package session

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/zkagent/zkagent/internal/jute"
	"github.com/zkagent/zkagent/internal/zktest/memzk"
)

// Each request is traced once, with the context of its caller and its outcome, also
// when it is sent twice.
func TestTrace(t *testing.T) {
	type key struct{}
	type span struct {
		TracedRequest
		who any
		err error
	}
	bubble(t, func(t *testing.T, srv *memzk.Server) {
		var mu sync.Mutex
		var spans []span
		cfg := memConfig(srv)
		cfg.Trace = func(ctx context.Context, r TracedRequest) func(error) {
			if r.Op == "sync" {
				return nil
			}
			return func(err error) {
				mu.Lock()
				defer mu.Unlock()
				spans = append(spans, span{r, ctx.Value(key{}), err})
			}
		}
		s := dialMem(t, cfg)
		defer s.Close()
		ctx := context.WithValue(t.Context(), key{}, "me")
		_, _, err := s.Create(ctx, "/x", []byte("data"), Persistent)
		if err != nil {
			t.Fatal(err)
		}
		_ = s.Sync(ctx, "/x")
		srv.LoseReply(jute.OpGetData, 1, false)
		_, _, err = s.Get(ctx, "/x")
		if err != nil {
			t.Fatal(err)
		}
		_, _, _ = s.Get(ctx, "/none")
		srv.LoseReply(jute.OpMultiRead, 1, false)
		if _, err := s.GetManyW(ctx, []string{"/x", "/none"}, false, 0); err != nil {
			t.Fatal(err)
		}
		want := []struct {
			op, path string
			err      error
		}{{"create2", "/x", nil}, {"getData", "/x", nil}, {"getData", "/none", ErrNoNode}, {"multiRead", "", nil}, {"multiRead", "", nil}}
		mu.Lock()
		defer mu.Unlock()
		if len(spans) != len(want) {
			t.Fatalf("got %+v", spans)
		}
		for i, w := range want {
			got := spans[i]
			if got.Op != w.op || got.Path != w.path || !errors.Is(got.err, w.err) || got.who != "me" || got.Bytes < 8 || got.Session != s.ID() || got.Server != "a:2181" {
				t.Errorf("got %+v, want %v", got, w)
			}
		}
	})
}
