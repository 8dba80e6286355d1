package web

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zkagent/zkagent/view"
)

// pipes is a listener in memory.
type pipes chan net.Conn

func (p pipes) Accept() (net.Conn, error) {
	c, ok := <-p
	if !ok {
		return nil, net.ErrClosed
	}
	return c, nil
}

func (p pipes) Close() error { close(p); return nil }

func (p pipes) Addr() net.Addr { return &net.TCPAddr{} }

func (p pipes) client() *http.Client {
	return &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(context.Context, string, string) (net.Conn, error) {
		ours, theirs := net.Pipe()
		p <- theirs
		return ours, nil
	}}}
}

// TestGroups_LongWait: a reader who waits for longer than an answer may take still
// gets the answer.
func TestGroups_LongWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := newChanging(webUp)
		server, ln := serverOf(src).httpServer("127.0.0.1:1"), make(pipes)
		go func() { _ = server.Serve(ln) }()
		defer server.Close()
		get := func(query string) (int, groupDocument) {
			t.Helper()
			resp, err := ln.client().Get("http://localhost/v1/groups/web?" + query)
			if err != nil {
				t.Error(err)
				return 0, groupDocument{}
			}
			defer resp.Body.Close()
			var doc groupDocument
			if err := json.NewDecoder(resp.Body).Decode(&doc); err != nil {
				t.Error(err)
			}
			return resp.StatusCode, doc
		}
		_, now := get("")
		began := time.Now()
		if code, doc := get("wait=2m&index=" + now.Index); code != http.StatusOK || doc.Index != now.Index || time.Since(began) != 2*time.Minute {
			t.Errorf("after a wait without a change: %d %+v after %s", code, doc, time.Since(began))
		}
		time.AfterFunc(4*time.Minute, func() { src.set(webUp, webHeld) })
		if code, doc := get("wait=5m&index=" + now.Index); code != http.StatusOK || len(doc.Members) != 2 {
			t.Errorf("after a wait with a change: %d %+v", code, doc)
		}
	})
}

// TestGroups_ThousandReaders: a thousand readers wait for a group of a thousand
// members; one change answers all of them and is encoded once. Readers beyond the bound
// get an answer that says when to try again.
func TestGroups_ThousandReaders(t *testing.T) {
	var members []view.Member
	for i := range 1000 {
		members = append(members, view.Member{ID: fmt.Sprint("m", i), Host: "10.0.0.1", Port: i + 1, Status: view.StatusUp})
	}
	group := &view.Group{Name: "web", Members: members}
	src := newChanging()
	src.http = &HTTPConfig{Listen: "127.0.0.1:0"}
	src.group = func(string) (*view.Group, bool) {
		src.mu.Lock()
		defer src.mu.Unlock()
		return group, true
	}
	s := serverOf(src)
	if n := s.mostStreams(); n < 1000 {
		t.Skipf("this system allows %d readers", n)
	}
	h := s.Handler()
	_, body := asked(h, "/v1/groups/web")
	var doc groupDocument
	if err := json.Unmarshal([]byte(body), &doc); err != nil {
		t.Fatal(err)
	}
	const readers = 1000
	answers := make(chan int, readers)
	for range readers {
		go func() {
			code, text := asked(h, "/v1/groups/web?wait=5m&index="+doc.Index)
			answers <- code + len(text) // 200 and the length
		}()
	}
	eventually(t, "the readers", func() bool { return s.followers.Load() == readers })
	s.followers.Add(s.mostStreams() - readers)
	refused := httptest.NewRecorder()
	h.ServeHTTP(refused, httptest.NewRequest(http.MethodGet, "/v1/groups/web?wait=5m&index="+doc.Index, nil))
	if refused.Code != http.StatusServiceUnavailable || refused.Header().Get("Retry-After") == "" {
		t.Errorf("one reader too many got %d %v", refused.Code, refused.Header())
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	src.mu.Lock()
	group = &view.Group{Name: "web", Members: members[1:]}
	src.mu.Unlock()
	src.set()
	want := 0
	for range readers {
		got := <-answers
		if want == 0 {
			want = got
		}
		if got != want || got < 200+50_000 {
			t.Fatalf("a reader got %d, others %d", got, want)
		}
	}
	runtime.ReadMemStats(&after)
	// A recorder copies its answer; encoding for each reader would take ten times as much.
	if used := after.TotalAlloc - before.TotalAlloc; used > readers*uint64(want)*6 {
		t.Errorf("one change allocated %d MB", used>>20)
	}
}
