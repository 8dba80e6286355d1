package memzk

import (
	"io"
	"maps"
	"path"
	"slices"
	"testing"

	"github.com/zkagent/zkagent/internal/jute"
	"github.com/zkagent/zkagent/internal/zktest/raw"
)

// requestBodies are the bodies of valid requests by operation; the fuzz targets
// begin with them.
func requestBodies() map[int32][]byte {
	multi := raw.Body(jute.OpCreate, false, -1)
	multi = append(multi, raw.Body("/m", []byte("x"), raw.OpenACL, 0)...)
	multi = append(multi, raw.Body(jute.OpSetData, false, -1, "/m", []byte("y"), 0)...)
	multi = append(multi, raw.Body(jute.OpCheck, false, -1, "/m", 1)...)
	multi = append(multi, raw.Body(jute.OpDelete, false, -1, "/m", -1)...)
	multi = append(multi, raw.Body(-1, true, -1)...)
	reads := raw.Body(jute.OpGetData, false, -1, "/", false)
	reads = append(reads, raw.Body(jute.OpGetChildren, false, -1, "/", false, -1, true, -1)...)
	return map[int32][]byte{
		jute.OpCreate:               raw.Body("/a", []byte("x"), raw.OpenACL, 0),
		jute.OpCreate2:              raw.Body("/s-", []byte("x"), raw.OpenACL, jute.FlagEphemeralSequential),
		jute.OpCreateContainer:      raw.Body("/c", []byte("x"), raw.OpenACL, jute.FlagContainer),
		jute.OpCreateTTL:            raw.Body("/t", []byte("x"), raw.OpenACL, jute.FlagPersistentTTL, int64(1000)),
		jute.OpDelete:               raw.Body("/a", -1),
		jute.OpExists:               raw.Body("/a", true),
		jute.OpGetData:              raw.Body("/a", true),
		jute.OpSetData:              raw.Body("/a", nil, -1),
		jute.OpGetACL:               raw.Body("/a"),
		jute.OpSetACL:               raw.Body("/a", raw.OpenACL, -1),
		jute.OpGetChildren:          raw.Body("/", true),
		jute.OpGetChildren2:         raw.Body("/", true),
		jute.OpSync:                 raw.Body("/"),
		jute.OpPing:                 nil,
		jute.OpMulti:                multi,
		jute.OpMultiRead:            reads,
		jute.OpCheckWatches:         raw.Body("/", jute.WatcherAny),
		jute.OpRemoveWatches:        raw.Body("/", jute.WatcherAny),
		jute.OpAuth:                 raw.Body(0, "digest", []byte("u:p")),
		jute.OpSetWatches:           raw.Body(int64(0), []string{"/a"}, []string{"/b"}, []string{"/"}),
		jute.OpSetWatches2:          raw.Body(int64(0), []string{"/a"}, []string{"/b"}, []string{"/"}, []string{"/p"}, []string{"/"}),
		jute.OpGetEphemerals:        raw.Body("/"),
		jute.OpGetAllChildrenNumber: raw.Body("/"),
		jute.OpAddWatch:             raw.Body("/", jute.AddWatchPersistentRecursive),
		jute.OpWhoAmI:               nil,
		jute.OpReconfig:             raw.Body("", "", "", int64(-1)),
		jute.OpClose:                nil,
		77:                          raw.Body("/"),
	}
}

// FuzzRequest sends any body for any operation, twice, to a server with some
// znodes, and wants the server to live on.
func FuzzRequest(f *testing.F) {
	for op, body := range requestBodies() {
		f.Add(op, body)
	}
	f.Fuzz(func(t *testing.T, op int32, body []byte) {
		s := New(Options{MaxFrame: 1 << 16})
		defer s.Close()
		if err := s.Create("/a/b", []byte("x")); err != nil {
			t.Fatal(err)
		}
		c := dial(t, s)
		defer c.Drop()
		for range 2 {
			if _, err := c.CallXid(7, op, body); err != nil {
				break
			}
		}
		checkAlive(t, s)
	})
}

// FuzzStream sends any bytes after a valid handshake, and without one.
func FuzzStream(f *testing.F) {
	f.Add(true, []byte("ruok"))
	f.Add(false, []byte("mntr"))
	f.Add(false, handshakeFrame())
	for op, body := range requestBodies() {
		f.Add(true, frame(append(raw.Body(1, op), body...)))
	}
	f.Fuzz(func(t *testing.T, hello bool, stream []byte) {
		s := New(Options{MaxFrame: 1 << 16})
		defer s.Close()
		nc, err := s.Dial(t.Context(), "tcp", "memzk:2181")
		if err != nil {
			t.Fatal(err)
		}
		drained := make(chan struct{})
		go func() {
			defer close(drained)
			_, _ = io.Copy(io.Discard, nc)
		}()
		if hello {
			_, _ = nc.Write(handshakeFrame())
		}
		_, _ = nc.Write(stream)
		_ = nc.Close()
		<-drained
		checkAlive(t, s)
	})
}

// checkAlive wants the server to serve a new client, and its tree to be whole.
func checkAlive(t *testing.T, s *Server) {
	t.Helper()
	c := dial(t, s)
	defer c.Drop()
	if _, _, code, err := c.Get("/", false); err != nil || code != 0 {
		t.Fatalf("a new client: code %d, %v", code, err)
	}
	for _, p := range append(slices.Collect(maps.Keys(s.Tree())), "/") {
		if names, _ := s.Children(path.Dir(p)); p != "/" && !slices.Contains(names, path.Base(p)) {
			t.Errorf("%q is not a child of its parent", p)
		}
		names, _ := s.Children(p)
		for _, name := range names {
			if !s.Exists(path.Join(p, name)) {
				t.Errorf("%q has a child %q that does not exist", p, name)
			}
		}
	}
}
