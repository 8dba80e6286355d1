package mirror

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/zkagent/zkagent/internal/zktest"
	"github.com/zkagent/zkagent/session"
)

func TestMain(m *testing.M) { zktest.RunMain(m) }

const within = 2 * time.Minute

func dial(t *testing.T, edit ...func(*session.Config)) *session.Session {
	t.Helper()
	cfg := session.Config{Servers: []string{zktest.Shared(t).Addr()}, Timeout: time.Minute}
	for _, fn := range edit {
		fn(&cfg)
	}
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	s, err := session.Dial(ctx, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// following runs Follow and keeps the newest snapshot.
type following struct {
	t    *testing.T
	stop func() error

	mu    sync.Mutex // guards what follows
	snap  *Snapshot
	count int
	news  chan struct{} // closed at the next snapshot
}

func follow(t *testing.T, s *session.Session, root string, opt Options) *following {
	t.Helper()
	f := &following{t: t, news: make(chan struct{})}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- copyTree(ctx, s, root, opt, f.emit) }()
	f.stop = sync.OnceValue(func() error { cancel(); return <-done })
	t.Cleanup(func() { _ = f.stop() })
	return f
}

func (f *following) emit(s *Snapshot) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.snap = s
	f.count++
	close(f.news)
	f.news = make(chan struct{})
}

func (f *following) await(what string, ok func(*Snapshot) bool) *Snapshot {
	f.t.Helper()
	limit := time.NewTimer(within)
	defer limit.Stop()
	for {
		f.mu.Lock()
		snap, news := f.snap, f.news
		f.mu.Unlock()
		if snap != nil && ok(snap) {
			return snap
		}
		select {
		case <-news:
		case <-limit.C:
			f.t.Fatalf("waited in vain for %s; newest: %.300s", what, fmt.Sprint(contents(snap)))
		}
	}
}

// contents are the data of a snapshot by relative path.
func contents(s *Snapshot) map[string]string {
	m := map[string]string{}
	if s != nil {
		s.Walk(func(rel string, n *Node) bool {
			m[rel] = string(n.Data)
			return true
		})
	}
	return m
}

func is(want map[string]string) func(*Snapshot) bool {
	return func(s *Snapshot) bool { return maps.Equal(contents(s), want) }
}

func create(t *testing.T, s *session.Session, path, data string) {
	t.Helper()
	if err := s.CreateParents(t.Context(), path); err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.Create(t.Context(), path, []byte(data), session.Persistent); err != nil {
		t.Fatal(err)
	}
}

func remove(t *testing.T, s *session.Session, paths ...string) {
	t.Helper()
	for _, p := range paths {
		if err := s.Delete(t.Context(), p, -1); err != nil {
			t.Fatal(err)
		}
	}
}

func TestFollow_ComesGoesAndIsRecreated(t *testing.T) {
	t.Parallel()
	s, root := dial(t), zktest.Root(t)+"/r"
	f := follow(t, s, root, Options{})
	f.await("no root", func(s *Snapshot) bool { return !s.Exists() && s.Len() == 0 })
	create(t, s, root+"/a/b", "1")
	f.await("the tree", is(map[string]string{"": "", "a": "", "a/b": "1"}))
	create(t, s, root+"/a/b/c/d", "2")
	got := f.await("what is deep", is(map[string]string{"": "", "a": "", "a/b": "1", "a/b/c": "", "a/b/c/d": "2"}))
	if n, ok := got.Get("a/b"); !ok || !slices.Equal(n.Children, []string{"c"}) || got.Last == 0 {
		t.Errorf("got %+v", n)
	}
	remove(t, s, root+"/a/b/c/d", root+"/a/b/c", root+"/a/b")
	create(t, s, root+"/a/b", "3")
	f.await("the znode that came back", is(map[string]string{"": "", "a": "", "a/b": "3"}))
	remove(t, s, root+"/a/b", root+"/a", root)
	f.await("no root", func(s *Snapshot) bool { return !s.Exists() && s.Len() == 0 })
	create(t, s, root+"/x", "4")
	f.await("the root that came back", is(map[string]string{"": "", "x": "4"}))
	if err := f.stop(); err != nil {
		t.Error(err)
	}
}

func TestFollow_CountsRequests(t *testing.T) {
	t.Parallel()
	writer, reader, root := dial(t), dial(t), zktest.Root(t)+"/g"
	want := map[string]string{"": ""}
	for i := range 200 {
		name := fmt.Sprintf("m%03d", i)
		create(t, writer, root+"/"+name, "1")
		want[name] = "1"
	}
	f := follow(t, reader, root, Options{Depth: 1})
	f.await("the members", is(want))
	steady := func(most uint64, what string, change func()) {
		t.Helper()
		before := requests(reader)
		change()
		f.await(what, is(want))
		if got := requests(reader) - before; got > most {
			t.Errorf("%s: %d requests, at most %d are wanted", what, got, most)
		}
	}
	if got := requests(reader); got > 202 {
		t.Errorf("%d requests for the first copy of 201 znodes", got)
	}
	steady(2, "a join", func() {
		create(t, writer, root+"/new", "2")
		want["new"] = "2"
	})
	steady(1, "a change", func() {
		if _, err := writer.Set(t.Context(), root+"/m007", []byte("3"), -1); err != nil {
			t.Error(err)
		}
		want["m007"] = "3"
	})
}

func requests(s *session.Session) uint64 {
	counts := s.Requests()
	return counts["getData"] + counts["getChildren"] + counts["getChildren2"] + counts["exists"] + counts["multiRead"]
}

// A znode that changes many times in a burst is read far fewer times.
func TestFollow_HotNodeIsCoalesced(t *testing.T) {
	t.Parallel()
	writer, reader, root := dial(t), dial(t), zktest.Root(t)
	create(t, writer, root+"/hot", "")
	f := follow(t, reader, root, Options{})
	f.await("the start", is(map[string]string{"": "", "hot": ""}))
	var wg sync.WaitGroup
	for lane := range 8 {
		wg.Go(func() {
			for i := range 125 {
				if _, err := writer.Set(t.Context(), root+"/hot", fmt.Append(nil, lane, i), -1); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if _, err := writer.Set(t.Context(), root+"/hot", []byte("end"), -1); err != nil {
		t.Fatal(err)
	}
	f.await("the end", is(map[string]string{"": "", "hot": "end"}))
	if got := requests(reader); got > 1005 {
		t.Errorf("%d requests for 1,001 changes", got)
	}
}

func TestFollow_UnreadableIsTold(t *testing.T) {
	t.Parallel()
	root := zktest.Root(t)
	owner := dial(t, func(c *session.Config) {
		c.Auth = []session.Auth{{Scheme: "digest", Data: []byte("owner:secret")}}
	})
	closed, err := session.ParseACL("auth::cdrwa")
	if err != nil {
		t.Fatal(err)
	}
	create(t, owner, root+"/open", "1")
	if _, _, err := owner.Create(t.Context(), root+"/closed", []byte("2"), session.Persistent, closed); err != nil {
		t.Fatal(err)
	}
	f := follow(t, dial(t), root, Options{})
	got := f.await("the error", func(s *Snapshot) bool { return len(s.Errors()) == 1 })
	if !errors.Is(got.Errors()["closed"], session.ErrNoAuth) || contents(got)["open"] != "1" {
		t.Errorf("got %v, %v", got.Errors(), contents(got))
	}
	remove(t, owner, root+"/closed")
	f.await("the end of the error", func(s *Snapshot) bool { return len(s.Errors()) == 0 })
}

func TestFollow_SessionEnds(t *testing.T) {
	t.Parallel()
	s, root := dial(t), zktest.Root(t)
	done := make(chan error, 1)
	first := make(chan struct{}, 1)
	go func() {
		done <- copyTree(context.Background(), s, root, Options{}, func(*Snapshot) { first <- struct{}{} })
	}()
	<-first
	_ = s.Close()
	if err := <-done; !errors.Is(err, session.ErrClosed) {
		t.Errorf("got %v", err)
	}
}

// 3,000 watches over a cut connection: changes of that time arrive, and what did
// not change is not read again.
func TestFollow_Reconnect(t *testing.T) {
	t.Parallel()
	writer, root := dial(t), zktest.Root(t)
	proxy := zktest.NewProxy(t, zktest.Shared(t).Addr())
	reader := dial(t, func(c *session.Config) { c.Servers = []string{proxy.Addr()} })
	want := map[string]string{"": ""}
	var ops []session.Op
	for i := range 3000 {
		name := fmt.Sprintf("k%04d", i)
		ops = append(ops, session.CreateOp(root+"/"+name, []byte("1"), session.Persistent))
		want[name] = "1"
	}
	for chunk := range slices.Chunk(ops, 500) {
		if _, err := writer.Multi(t.Context(), chunk...); err != nil {
			t.Fatal(err)
		}
	}
	f := follow(t, reader, root, Options{Depth: 1})
	f.await("the start", is(want))
	before := requests(reader)
	proxy.Cut()
	for i := 0; i < 3000; i += 100 {
		name := fmt.Sprintf("k%04d", i)
		if _, err := writer.Set(t.Context(), root+"/"+name, []byte("2"), -1); err != nil {
			t.Fatal(err)
		}
		want[name] = "2"
	}
	proxy.Heal()
	f.await("the changes", is(want))
	if got := requests(reader) - before; got > 35 {
		t.Errorf("%d requests for 30 changes", got)
	}
}

// A large tree is covered with one watch: what changes arrives as otherwise, also
// over a cut connection, and nothing of it is left when nobody follows.
func TestFollow_LargeTree(t *testing.T) {
	t.Parallel()
	writer, root := dial(t), zktest.Root(t)
	proxy := zktest.NewProxy(t, zktest.Shared(t).Addr())
	reader := dial(t, func(c *session.Config) { c.Servers = []string{proxy.Addr()} })
	want := map[string]string{"": ""}
	var ops []session.Op
	for i := range 1000 {
		if i%100 == 0 {
			ops = append(ops, session.CreateOp(root+"/d"+strconv.Itoa(i/100), nil, session.Persistent))
			want["d"+strconv.Itoa(i/100)] = ""
		}
		name := fmt.Sprintf("d%d/k%04d", i/100, i)
		ops = append(ops, session.CreateOp(root+"/"+name, []byte("1"), session.Persistent))
		want[name] = "1"
	}
	if _, err := writer.Multi(t.Context(), ops...); err != nil {
		t.Fatal(err)
	}
	f := follow(t, reader, root, Options{})
	f.await("the start", is(want))
	if got := reader.Requests(); got["addWatch"] == 0 {
		t.Errorf("got requests %v", got)
	}
	change := func(what, value string) {
		t.Helper()
		for _, name := range []string{"", "d1", "d1/k0100", "d9/k0999"} {
			if _, err := writer.Set(t.Context(), strings.TrimSuffix(root+"/"+name, "/"), []byte(value), -1); err != nil {
				t.Fatal(err)
			}
			want[name] = value
		}
		for _, name := range []string{"new", "d2/new", "d2/k0200/" + value, "d2/k0200/" + value + "/x"} {
			name += value
			create(t, writer, root+"/"+name, value)
			for dir := name; dir != "."; dir = path.Dir(dir) {
				if _, ok := want[dir]; !ok {
					want[dir] = ""
				}
			}
			want[name] = value
		}
		gone := "d3/k03" + value + "0"
		remove(t, writer, root+"/"+gone)
		delete(want, gone)
		f.await(what, is(want))
	}
	change("the changes", "2")
	change("more changes", "3")
	proxy.Cut()
	for _, name := range []string{"d4/k0400", "d5/k0500"} {
		if _, err := writer.Set(t.Context(), root+"/"+name, []byte("4"), -1); err != nil {
			t.Fatal(err)
		}
		want[name] = "4"
	}
	proxy.Heal()
	f.await("the changes of an outage", is(want))
	change("changes after it", "5")
}
