package zktest

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/zkagent/zkagent/internal/jute"
	"github.com/zkagent/zkagent/internal/zktest/raw"
)

// shared is the one server of this test binary; mu guards it.
var shared struct {
	mu     sync.Mutex
	server *Server
	dir    string
	roots  atomic.Int64
}

// RunMain runs the tests, ends the shared server, and exits. Call it from
// TestMain of a package whose tests use [Shared].
func RunMain(m *testing.M) {
	code := m.Run()
	shared.mu.Lock()
	if shared.server != nil {
		shared.server.close()
	}
	if shared.dir != "" {
		_ = os.RemoveAll(shared.dir)
	}
	shared.mu.Unlock()
	os.Exit(code)
}

// Shared returns the server that all tests of this binary share. The first call starts
// it. Each test uses a [Root] of its own, and must not stop, kill or freeze the server.
func Shared(tb testing.TB) *Server {
	tb.Helper()
	shared.mu.Lock()
	defer shared.mu.Unlock()
	if shared.server != nil {
		record(tb)
		return shared.server
	}
	dir, err := os.MkdirTemp("", "zktest-") //nolint:usetesting // It outlives the test that asks first.
	if err != nil {
		tb.Fatalf("zktest: %v", err)
	}
	shared.dir = dir
	s := newServer(tb, dir, oneOption(nil))
	s.Start(tb)
	shared.server = s
	return s
}

// Root creates a znode on the shared server for this test alone and returns its
// path, such as "/TestX-1".
func Root(tb testing.TB) string {
	tb.Helper()
	name := strings.Map(func(r rune) rune {
		if r == '/' || r < ' ' || r > '~' {
			return '-'
		}
		return r
	}, tb.Name())
	root := fmt.Sprintf("/%s-%d", name, shared.roots.Add(1))
	c, err := raw.Dial(tb.Context(), Shared(tb).Addr())
	if err != nil {
		tb.Fatalf("zktest: make a root: %v", err)
	}
	defer c.Close()
	if code, err := c.Create(root, nil, jute.FlagPersistent); code != 0 || err != nil {
		tb.Fatalf("zktest: create %s: code %d, %v", root, code, err)
	}
	return root
}
