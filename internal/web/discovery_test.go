package web

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zkagent/zkagent/view"
)

// changing is an agent with one group, which tests set.
type changing struct {
	still
	mu      sync.Mutex
	members []view.Member
	changes chan struct{}
}

func newChanging(members ...view.Member) *changing {
	c := &changing{members: members, changes: make(chan struct{})}
	c.group = func(name string) (*view.Group, bool) {
		c.mu.Lock()
		defer c.mu.Unlock()
		switch name {
		case "web", "all/a", "all/b":
			return &view.Group{Name: name, Members: c.members}, true
		case "late":
			return nil, true
		}
		return nil, false
	}
	c.next = func() <-chan struct{} {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.changes
	}
	return c
}

func (c *changing) set(members ...view.Member) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.members = members
	close(c.changes)
	c.changes = make(chan struct{})
}

func asked(h http.Handler, url string, header ...string) (int, string) {
	r := httptest.NewRequest(http.MethodGet, url, nil)
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Code, w.Body.String()
}

var (
	webUp    = view.Member{ID: "a", Host: "10.0.0.1", Port: 80, Weight: 2, Status: view.StatusUp, Labels: map[string]string{"zone-1": "x"}}
	webDrain = view.Member{ID: "b", Host: "10.0.0.2", Port: 80, Weight: 1, Status: view.StatusDraining}
	webDown  = view.Member{ID: "c", Host: "10.0.0.3", Port: 80, Weight: 1, Status: view.StatusDown}
	webHeld  = view.Member{ID: "d", Host: "2001:db8::1", Port: 80, Weight: 1, Status: view.StatusUp, Held: true}
)

func TestGroups_Status(t *testing.T) {
	t.Parallel()
	h := serverOf(newChanging(webUp, webDrain, webDown, webHeld)).Handler()
	for status, want := range map[string]string{"": "a d", "up": "a d", "draining": "b", "down": "c", "maintenance": "", "any": "a b c d"} {
		code, body := asked(h, "/v1/groups/web?status="+status)
		var doc groupDocument
		if err := json.Unmarshal([]byte(body), &doc); err != nil || code != http.StatusOK {
			t.Fatalf("%q: %d %s", status, code, body)
		}
		var ids []string
		for _, m := range doc.Members {
			ids = append(ids, m.ID)
		}
		if got := strings.Join(ids, " "); got != want || doc.Index == "" || doc.Members == nil {
			t.Errorf("%q: got %q, want %q: %s", status, got, want, body)
		}
	}
	for url, code := range map[string]int{
		"/v1/groups": 200, "/v1/groups/all/a": 200, "/v1/groups/nosuch": 404, "/v1/groups/late": 503, "/v1/groups/web?status=ill": 400,
		"/v1/groups/web?wait=x": 400, "/sd/prometheus?group=nosuch": 404, "/sd/prometheus?groups=nosuch": 404, "/sd/prometheus?groups=all": 200,
	} {
		if got, body := asked(h, url); got != code {
			t.Errorf("%s: %d, want %d: %s", url, got, code, body)
		}
	}
}

func TestGroups_Prometheus(t *testing.T) {
	t.Parallel()
	h := serverOf(newChanging(webUp, webDrain, webHeld)).Handler()
	_, body := asked(h, "/sd/prometheus?group=web")
	want := `[{"targets":["10.0.0.1:80"],"labels":{"__meta_zkagent_group":"web","__meta_zkagent_held":"false","__meta_zkagent_id":"a",` +
		`"__meta_zkagent_label_zone_1":"x","__meta_zkagent_status":"up","__meta_zkagent_weight":"2"}},` +
		`{"targets":["[2001:db8::1]:80"],"labels":{"__meta_zkagent_group":"web","__meta_zkagent_held":"true","__meta_zkagent_id":"d",` +
		`"__meta_zkagent_status":"up","__meta_zkagent_weight":"1"}}]` + "\n"
	if body != want {
		t.Errorf("got  %s\nwant %s", body, want)
	}
	_, body = asked(h, "/sd/prometheus?groups=all")
	if strings.Count(body, `"targets"`) != 4 || strings.Contains(body, `"web"`) {
		t.Errorf("the groups of a set: %s", body)
	}
}

// A query with the index waits for the next change, and no longer than it
// wants to.
func TestGroups_Blocking(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		src := newChanging(webUp)
		h := serverOf(src).Handler()
		get := func(query string) groupDocument {
			code, body := asked(h, "/v1/groups/web?"+query)
			var doc groupDocument
			if err := json.Unmarshal([]byte(body), &doc); err != nil || code != http.StatusOK {
				t.Errorf("%s: %d %s", query, code, body)
			}
			return doc
		}
		first := get("")
		began := time.Now()
		if again := get("wait=30s&index=" + first.Index); again.Index != first.Index || time.Since(began) != 30*time.Second {
			t.Errorf("unchanged: after %v %+v", time.Since(began), again)
		}
		began = time.Now()
		go func() {
			time.Sleep(7 * time.Second)
			src.set(webUp, webDown) // not among those that were asked for
			time.Sleep(time.Second)
			src.set(webUp, webHeld)
		}()
		if next := get("wait=30&index=" + first.Index); len(next.Members) != 2 || time.Since(began) != 8*time.Second {
			t.Errorf("changed: after %v %+v", time.Since(began), next)
		}
		if old := get("index=0"); old.Index == first.Index {
			t.Errorf("an index of another time waits: %+v", old)
		}
	})
}

// A stream carries each change.
func TestGroups_Stream(t *testing.T) {
	t.Parallel()
	src := newChanging(webUp)
	srv := httptest.NewServer(serverOf(src).Handler())
	defer srv.Close()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, srv.URL+"/v1/groups/web?status=any", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Accept", "text/event-stream")
	resp, err := srv.Client().Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	for _, want := range [][]view.Member{{webUp}, {webUp, webDrain}, {webDrain}} {
		if len(want) != 1 || want[0].ID != "a" {
			src.set(want...)
		}
		var doc groupDocument
		for lines.Scan() {
			if data, ok := strings.CutPrefix(lines.Text(), "data: "); ok {
				if err := json.Unmarshal([]byte(data), &doc); err != nil {
					t.Fatal(err)
				}
				break
			}
		}
		if !slices.EqualFunc(doc.Members, want, view.Member.Equal) {
			t.Fatalf("got %s, want %s", fmt.Sprint(doc.Members), fmt.Sprint(want))
		}
	}
}
