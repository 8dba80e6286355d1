package session_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/zkagent/zkagent/internal/jute"
	"github.com/zkagent/zkagent/internal/zktest/memzk"
	"github.com/zkagent/zkagent/session"
)

func ExampleSession_DeleteTree() {
	cfg, stop := server()
	defer stop()
	ctx := context.Background()
	s, err := session.Dial(ctx, cfg)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer s.Close()
	_ = s.CreateParents(ctx, "/app/old/a/b/x")
	fmt.Println(s.DeleteTree(ctx, "/app/old", nil))
	_, there, _ := s.Exists(ctx, "/app/old")
	fmt.Println("there:", there)
	// Output:
	// <nil>
	// there: false
}

// A subtree is deleted although replies are lost, before and after the delete was
// applied. What check refuses stays whole.
func TestDeleteTree(t *testing.T) {
	srv := memzk.New(memzk.Options{})
	defer srv.Close()
	s, err := session.Dial(t.Context(), session.Config{Servers: []string{"zk1:2181"}, Dial: srv.Dial})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for _, path := range []string{"/a/b/c/x", "/a/d/x"} {
		if err := s.CreateParents(t.Context(), path); err != nil {
			t.Fatal(err)
		}
	}
	own := errors.New("no")
	refuse := func(path string) error {
		if path == "/a/b/c" {
			return own
		}
		return nil
	}
	if err := s.DeleteTree(t.Context(), "/a", refuse); !errors.Is(err, own) || !srv.Exists("/a/d") {
		t.Errorf("error %v, or what stands beside the refused is gone", err)
	}
	for n, applied := range []bool{true, false} {
		srv.LoseReply(jute.OpDelete, n+1, !applied)
	}
	if err := s.DeleteTree(t.Context(), "/a", nil); err != nil || srv.Exists("/a") {
		t.Errorf("error %v, there %v", err, srv.Exists("/a"))
	}
	if err := s.DeleteTree(t.Context(), "/a", nil); err != nil {
		t.Errorf("of what is gone: %v", err)
	}
	if err := s.DeleteTree(t.Context(), "/", nil); !errors.Is(err, session.ErrBadPath) {
		t.Errorf("of the root: %v", err)
	}
}
