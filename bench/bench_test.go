package bench

import (
	"context"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/zkagent/zkagent/internal/mirror"
	"github.com/zkagent/zkagent/internal/zktest"
	"github.com/zkagent/zkagent/session"
)

func TestMain(m *testing.M) {
	if child, err := Coordinate(context.Background()); child {
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	zktest.RunMain(m)
}

func newEnv(tb testing.TB) *env {
	tb.Helper()
	e := &env{cfg: Config{Quick: true}, tb: tb, server: zktest.Shared(tb), dir: tb.TempDir()}
	var err error
	if e.writer, err = e.dial(tb.Context(), nil); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = e.writer.Close() })
	return e
}

// What must never grow is counted, for counts are the same on every machine.
func TestCounts_LoadAndResync(t *testing.T) {
	e := newEnv(t)
	const n = 2000
	root, leaves, err := e.forest(t.Context(), n)
	if err != nil {
		t.Fatal(err)
	}
	// A session whose connection is lost asks again: the best of three counts.
	used := int64(math.MaxInt64)
	for range 3 {
		_, c, err := e.loadOurs(t.Context(), root, n)
		if err != nil {
			t.Fatal(err)
		}
		used = min(used, c.requests)
	}
	// The list and data of the root: 2. Its 20 directories: 4 and then about twice as many
	// with each request, for data and for lists. The recursive watch: 2, because it takes
	// the place of the watch of the root's list. The leaves: 7 steps, and then 512 with
	// each request.
	if want := int64(21 + n/512); used > want {
		t.Errorf("first load of %d znodes: %d requests, at most %d are wanted", n, used, want)
	}
	// A znode, its name, path, data and watch: five, and parts of the buffers.
	if got := allocations(t, e, root) / n; got > 8 {
		t.Errorf("first load: %.1f allocations for each znode, at most 8 are wanted", got)
	}
	if err := e.resync(t.Context(), root, leaves); err != nil {
		t.Fatal(err)
	}
	// What changed arrives in a few parts, each read by three requests; however
	// they arrive, what did not change is not read.
	r, _ := Report{Rows: e.rows}.Find("resync: requests", n)
	if r.Ours > 150 {
		t.Errorf("resync of 100 changes: %v requests, at most 150 are wanted", r.Ours)
	}
}

// allocations counts those of a first load in a session that stands.
func allocations(t *testing.T, e *env, root string) float64 {
	t.Helper()
	s, err := e.dial(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	return testing.AllocsPerRun(3, func() {
		m := mirror.New(s, root, mirror.Options{})
		defer m.Close()
		if _, _, err := m.Refresh(t.Context()); err != nil {
			t.Fatal(err)
		}
	})
}

// What a key that is held costs in memory, paths and watches included.
func TestCounts_Memory(t *testing.T) {
	e := newEnv(t)
	e.cfg.Quick = false
	if err := memory(t.Context(), e); err != nil {
		t.Fatal(err)
	}
	if r := e.rows[0]; !r.Within() {
		t.Errorf("%s: %.0f bytes, at most %.0f are wanted", r.Case, r.Ours, r.Limit)
	}
}

func TestCounts_Changes(t *testing.T) {
	e := newEnv(t)
	for _, c := range []struct {
		name string
		run  func() error
	}{
		{"latency", func() error { return latency(t.Context(), e) }},
		{"group", func() error { return groups(t.Context(), e) }},
		{"burst", func() error { return burst(t.Context(), e) }},
		{"versioned", func() error { return versioned(t.Context(), e) }},
		{"fleet", func() error { return fleetOfHosts(t.Context(), e) }},
		{"agents", func() error { return agents(t.Context(), e) }},
		{"coordinator", func() error { return coordinator(t.Context(), e) }},
	} {
		if err := c.run(); err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
	}
	for _, want := range []struct {
		name string
		size int
		most float64
	}{
		// An agent asks for a thing or two once, after its first file.
		{"requests per change", 1, 1.25},
		{"requests per change", 100, 1.25},
		{"burst: renders, final file exact", 100, 20},
		{"versioned: requests per version", 500, 5},
		{"versioned: watches on the server", 500, 1},
		// As the model says, and some room for a connection that is lost.
		{"fleet: watches held", 20, 20},
		{"fleet: requests, one version", 20, 100},
		// Whole agents, with what they tell of themselves.
		{"agents: requests a host, one version", 10, 12},
		{"agents: allocations a host, one version", 10, 800},
		{"agents: bytes allocated a host, one version", 10, 200e3},
		// Three reads of each record and one grant and one deletion, in batches.
		{"coordinator: requests of a rollout", 200, 200 + 5*200},
	} {
		row, ok := Report{Rows: e.rows}.Find(want.name, want.size)
		t.Logf("%s, %d: %.2f", want.name, want.size, row.Ours)
		if !ok || row.Ours > want.most {
			t.Errorf("%s, %d: got %v, at most %v is wanted", want.name, want.size, row.Ours, want.most)
		}
	}
}

// TestExpiry_AllComeBack: sessions that expired together come back by themselves, also
// to a server that turns most of them away, and no host asks twice at one time.
func TestExpiry_AllComeBack(t *testing.T) {
	t.Parallel()
	e := &env{cfg: Config{Quick: true}, tb: t}
	if err := expiry(t.Context(), e); err != nil { // fails when a host stays away
		t.Fatal(err)
	}
	checked := 0
	for _, row := range e.rows {
		if strings.HasSuffix(row.Case, "attempts at once, of a host") {
			checked++
			if row.Ours != 1 {
				t.Errorf("%s, %d: got %v, want 1", row.Case, row.Size, row.Ours)
			}
		}
	}
	if checked != 2 {
		t.Errorf("%d cases were measured, want 2", checked)
	}
}

// A peer that cannot be fetched leaves a row that says why, and no error.
func TestConfd_NotMeasured(t *testing.T) {
	t.Setenv("GOPROXY", "off")
	t.Setenv("GOMODCACHE", t.TempDir())
	e := &env{cfg: Config{Quick: true}, tb: t, dir: t.TempDir()}
	if err := confd(t.Context(), e); err != nil {
		t.Fatal(err)
	}
	if len(e.rows) != 1 || !strings.HasPrefix(e.rows[0].Note, "not measured: go mod: ") || e.rows[0].Verdict() != "" {
		t.Errorf("got %+v", e.rows)
	}
}

func TestReport_TableAndPicture(t *testing.T) {
	r := Report{Rows: []Row{
		compare("good <case>", 1, "ms", 1.1, 1, 1.2, "note"),
		compare("bad", 10, "ms", 3, 1, 1.2, ""),
		{Case: "count", Size: 5, Unit: "requests", Ours: 2, Limit: 2},
	}}
	var table, picture, stat strings.Builder
	for _, err := range []error{r.Table(&table), r.SVG(&picture), r.Benchstat(&stat)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	if got := table.String(); strings.Count(got, " missed ") != 1 || strings.Count(got, " met ") != 2 {
		t.Errorf("got table\n%s", got)
	}
	if got := picture.String(); !strings.Contains(got, "good &lt;case&gt;, 1") || strings.Count(got, "<rect") != 3 {
		t.Errorf("got picture\n%s", got)
	}
	if got := stat.String(); !strings.Contains(got, "BenchmarkZkbench/bad/10 1 3 ms\n") {
		t.Errorf("got %q", got)
	}
	former := Report{Rows: []Row{compare("bad", 10, "ms", 1, 1, 1.2, "")}}
	if got := r.Against(former); !slices.Equal(got, []string{"bad, 10: 3, was 1"}) {
		t.Errorf("got %q", got)
	}
}

// The model grows with hosts where it must and nowhere else.
func TestModel(t *testing.T) {
	f := Fleets[1]
	small, large := f, f
	large.Hosts *= 10
	a, b := small.Costs(), large.Costs()
	if got, want := b[0].Requests, 10*a[0].Requests; got != want {
		t.Errorf("a version: got %v requests, want %v", got, want)
	}
	if a[1].Requests != b[1].Requests {
		t.Errorf("a join costs %v requests with more hosts that do not follow, was %v", b[1].Requests, a[1].Requests)
	}
}

func BenchmarkLoad(b *testing.B) {
	e := newEnv(b)
	root, _, err := e.forest(b.Context(), 20000)
	if err != nil {
		b.Fatal(err)
	}
	s, err := e.dial(b.Context(), nil)
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	b.Run("zkagent", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			m := mirror.New(s, root, mirror.Options{})
			if _, _, err := m.Refresh(b.Context()); err != nil {
				b.Fatal(err)
			}
			m.Close()
		}
	})
	b.Run("floor", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, _, err := e.loadFloor(b.Context(), root, false); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func BenchmarkJoin(b *testing.B) {
	e := newEnv(b)
	const n = 10000
	path, err := e.crowd(b.Context(), n)
	if err != nil {
		b.Fatal(err)
	}
	f, err := e.follow(b.Context(), path, n)
	if err != nil {
		b.Fatal(err)
	}
	defer f.stop()
	b.ReportAllocs()
	for b.Loop() {
		if _, _, err := e.writer.Create(b.Context(), path+"/member_9999999999", member(1<<20), session.Persistent); err != nil {
			b.Fatal(err)
		}
		if err := awaitCount(b.Context(), f.news, n+1); err != nil {
			b.Fatal(err)
		}
		if err := e.writer.Delete(b.Context(), path+"/member_9999999999", -1); err != nil {
			b.Fatal(err)
		}
		if err := awaitCount(b.Context(), f.news, n); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkChange is one change of a tree of 10,000 keys until its file is in
// place, the file system's part included.
func BenchmarkChange(b *testing.B) {
	e := newEnv(b)
	l, _, stop, err := e.ourLane(b.Context(), "bench", 10000)
	if err != nil {
		b.Fatal(err)
	}
	defer stop()
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		if err := e.change(b.Context(), l, i); err != nil {
			b.Fatal(err)
		}
	}
}
