package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"unicode"

	"github.com/zkagent/zkagent/config"
	"github.com/zkagent/zkagent/election"
	"github.com/zkagent/zkagent/fleet"
	"github.com/zkagent/zkagent/internal/apply"
	"github.com/zkagent/zkagent/internal/condition"
	"github.com/zkagent/zkagent/internal/jute"
	"github.com/zkagent/zkagent/internal/zktest/memzk"
	"github.com/zkagent/zkagent/internal/zktest/testhelp"
	"github.com/zkagent/zkagent/registry"
	"github.com/zkagent/zkagent/session"
	"github.com/zkagent/zkagent/template"
	"github.com/zkagent/zkagent/view"
)

// Random programs of somebody who may write every znode that an agent reads: members in
// each format, groups of sets, trees of each layout with ready, versions, objects and
// rollouts, elections, and the records of the fleet. The agent is a whole one. Time is
// virtual.
//
// Events: znodes with hostile names, hostile data, data of great size, many children, ACLs
// that let nobody read, and znodes of others that are overwritten or deleted.
//
// At any time: what a template prints raw has only the characters that docs/security.md
// has for it; JSON stays JSON; the number of goroutines is bounded; the text of a
// condition is, too; no template fails; lines of the log are short and printable, and so is
// the record of the agent. When everything hostile is gone, the files are as they were before,
// and no condition is open.
func TestHostile_Seeds(t *testing.T) {
	testhelp.Seeds(t, 2*time.Second, func(t *testing.T, seed uint64) {
		dir := t.TempDir()
		synctest.Test(t, func(t *testing.T) {
			w := newHostileWorld(t, dir, seed)
			defer w.stop()
			rollout, ends := w.r.IntN(2) == 0, w.r.IntN(4) > 0
			for i := range 4 + w.r.IntN(8) {
				if rollout && i == 1 {
					w.propose()
				}
				for range 1 + w.r.IntN(6) {
					w.strike()
				}
				time.Sleep(time.Duration(w.r.IntN(90)) * time.Second)
				w.look()
			}
			if ends { // Others stop in the middle.
				w.cleanUp()
			}
			if t.Failed() {
				t.Logf("seed %d: %s", seed, strings.Join(w.steps, "\n"))
			}
		})
	})
}

// TestHostile_Liar: random programs of a server that lies in its frames to a whole agent. What
// holds at any time holds here, too. Once the server is honest, the files are as they were
// before, and no condition is open.
func TestHostile_Liar(t *testing.T) {
	testhelp.InTurn(t, 2)
	testhelp.Seeds(t, time.Second, func(t *testing.T, seed uint64) {
		dir := t.TempDir()
		synctest.Test(t, func(t *testing.T) {
			w := newHostileWorld(t, dir, seed)
			defer w.stop()
			w.honest.Store(false)
			w.srv.DropConnections()
			for range 3 + w.r.IntN(10) {
				w.must(w.srv.Set("/plain/a", []byte(fmt.Sprint(w.r.Uint64()))))
				time.Sleep(time.Duration(w.r.IntN(90)) * time.Second) // virtual
				w.look()
			}
			w.honest.Store(true)
			w.srv.DropConnections()
			w.cleanUp()
		})
	})
}

// dial connects the agent to the server, which lies while it is not honest.
func (w *hostileWorld) dial(ctx context.Context, network, address string) (net.Conn, error) {
	c, err := w.srv.Dial(ctx, network, address)
	if err != nil {
		return nil, err
	}
	return &memzk.Liar{Conn: c, Rand: rand.New(rand.NewPCG(w.seed, w.dials.Add(1))), Honest: &w.honest}, nil
}

const (
	hostileBytes      = 64 << 10
	hostileGoroutines = 400 // a set of groups has at most one follower; the rest is what an agent has
)

var hostileFormats = []string{
	"nerve", "serverset", "curator", "kafka-broker", "patroni", "dubbo-url", "host-port-name", "json", "text", "auto",
	`fields:{"address":"$.host","port":"$.port","id":"$.name","labels":{"l":"$.labels.zone","n":"name","d":"data"}}`, `fields:{"address":"data","match":"^([^ ]*)$","id":"name"}`,
}

type hostileWorld struct {
	t     *testing.T
	r     *rand.Rand
	dir   string
	srv   *memzk.Server
	agent *Agent
	steps []string
	good  map[string]memzk.Node // everything before the first strike
	file  string                // the first good file
	each  []string              // the first good files of the for_each
	log   hostileLog
	stop  func()

	honest atomic.Bool // what the server says is true
	seed   uint64
	dials  atomic.Uint64
}

func newHostileWorld(t *testing.T, dir string, seed uint64) *hostileWorld {
	w := &hostileWorld{t: t, seed: seed, r: rand.New(rand.NewPCG(seed, 35)), dir: dir, srv: memzk.New(memzk.Options{TickTime: time.Second})}
	w.honest.Store(true)
	zk := session.Config{Servers: []string{"a:2181"}, Timeout: 20 * time.Second, Dial: w.dial}
	w.must(w.srv.Create("/sets/api/m_0000000001", []byte(`{"host":"10.0.0.1","port":80,"name":"m"}`)))
	w.must(w.srv.Create("/plain/a", []byte("1")))
	w.must(w.srv.Create("/flat/a", []byte("1")))
	w.must(w.srv.Create("/flat/ready", nil))
	c := Config{
		ID: "a1", Host: "a1", OnStop: "leave", Logger: slog.New(slog.NewTextHandler(&w.log, &slog.HandlerOptions{Level: slog.LevelInfo})), ZooKeeper: zk, StateDir: filepath.Join(dir, "state"),
		Configs: []config.Config{
			{Name: "plain", Path: "/plain", Layout: config.LayoutPlain, MaxBytes: hostileBytes},
			{Name: "flat", Path: "/flat", MaxBytes: hostileBytes},
			{Name: "versioned", Path: "/versioned", MaxBytes: hostileBytes},
		},
		GroupSets: []registry.GroupConfig{{Name: "all", Path: "/sets", OnEmpty: "render", MaxMembers: 20, MaxBytes: hostileBytes, NoDamping: true, Guard: registry.GuardConfig{Off: true}}},
		Elections: []election.Config{{Name: "e", Path: "/e", Dialect: "curator"}},
	}
	members := ""
	for i, f := range hostileFormats {
		name := fmt.Sprint("f", i)
		w.must(w.srv.Create("/g/"+name, nil))
		c.Groups = append(c.Groups, registry.GroupConfig{
			Name: name, Path: "/g/" + name, Format: f, OnEmpty: "render", MaxMembers: 20, MaxBytes: hostileBytes, NoDamping: true, Guard: registry.GuardConfig{Off: true},
		})
		members += `{{ range members "` + name + `" "any" }}{{ template "m" . }}{{ else }}{{ end }}`
	}
	c.Bundles = []apply.Config{
		{Name: "raw", Templates: []apply.FileConfig{{
			Name: "raw", Contents: `{{ define "m" }}{{ .ID }} {{ .Node }} {{ .Name }} {{ .Znode }} {{ .Address }} {{ .Weight }} {{ .Status }}` +
				`{{ range $k, $v := .Labels }} {{ $k }}={{ $v }}{{ end }}{{ range $k, $v := .Ports }} {{ $k }}={{ $v }}{{ end }} {{ .LabelsLeftOut }}
{{ end }}` + members + `{{ (leader "e").ID }}
{{ range groups "all" }}{{ .Name }} {{ .Path }}
{{ range .Members }}{{ template "m" . }}{{ end }}{{ end }}`, Destination: fixedPath(dir, "raw"),
		}}},
		{Name: "json", Templates: []apply.FileConfig{{
			Name: "json", Contents: `[{{ range tree "plain" }}{{ toJSON .Path }},{{ toJSON .Value }},{{ end }}{{ range tree "flat" }}{{ toJSON .Value }},{{ end }}` +
				`{{ range tree "versioned" }}{{ toJSON .Value }},{{ end }}0]`, Destination: fixedPath(dir, "json"),
		}}},
		{Name: "each", ForEach: &view.Source{Kind: view.KindConfig, Name: "plain"}, Templates: []apply.FileConfig{{
			Name: "each", Contents: `{{ .Key }}`, Destination: func(e *template.Each) (string, error) {
				if e == nil {
					return "", os.ErrInvalid
				}
				return filepath.Join(dir, "each-"+e.Key), nil
			},
		}}},
	}
	s, err := session.Dial(t.Context(), zk)
	w.must(err)
	_, err = fleet.Publish(t.Context(), s, fleet.PublishConfig{Path: "/versioned", Keys: map[string][]byte{"a": []byte("1")}})
	w.must(err)
	w.must(s.Close())
	w.agent, err = New(c)
	w.must(err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- w.agent.Run(ctx) }()
	w.stop = func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		w.srv.Close()
	}
	<-w.agent.Ready()
	time.Sleep(2 * time.Minute) // virtual
	synctest.Wait()
	w.good, w.file, w.each = w.srv.Tree(), w.read("raw"), w.files()
	for _, c := range w.agent.conds.List() {
		t.Errorf("at first %s is open: %s", c.Name(), c.Text)
	}
	if !strings.Contains(w.file, "10.0.0.1:80") || !strings.Contains(w.file, "\na1\n") && !strings.HasPrefix(w.file, "a1\n") {
		t.Fatalf("the first file: %q", w.file)
	}
	return w
}

func fixedPath(dir, name string) func(*template.Each) (string, error) {
	return func(*template.Each) (string, error) { return filepath.Join(dir, name), nil }
}

func (w *hostileWorld) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *hostileWorld) read(name string) string {
	w.t.Helper()
	data, err := os.ReadFile(filepath.Join(w.dir, name))
	w.must(err)
	return string(data)
}

func (w *hostileWorld) files() []string {
	list, err := filepath.Glob(filepath.Join(w.dir, "each-*"))
	w.must(err)
	return list
}

func pick[T any](r *rand.Rand, list []T) T { return list[r.IntN(len(list))] }

// propose begins a rollout, as far as what others have written allows that.
func (w *hostileWorld) propose() {
	s, err := session.Dial(w.t.Context(), session.Config{Servers: []string{"a:2181"}, Timeout: 20 * time.Second, Dial: w.srv.Dial})
	w.must(err)
	defer s.Close()
	r, err := fleet.Prepare(w.t.Context(), s, fleet.PublishConfig{Path: "/versioned", Keys: map[string][]byte{"a": []byte("2")}})
	if err == nil {
		_, err = fleet.Propose(w.t.Context(), s, fleet.Request{Root: "/versioned", Version: r.Version, Digest: r.Digest, Strategy: fleet.Strategy{Parallel: 1, MaxFailures: 1}})
	}
	w.steps = append(w.steps, fmt.Sprintf("a rollout: %v", err))
}

// strike does one hostile thing to a random znode. What the server refuses is no strike.
func (w *hostileWorld) strike() {
	tree := w.srv.Tree()
	var paths []string
	for path, node := range tree {
		if _, old := w.good[path]; !old && node.Stat.EphemeralOwner != 0 {
			continue // What it was is not known at the end.
		}
		if path != "/" && !strings.HasPrefix(path, "/zookeeper") && strings.Count(path, "/") < 8 {
			paths = append(paths, path)
		}
	}
	slices.Sort(paths)
	path, data := pick(w.r, paths), pick(w.r, testhelp.HostileData)
	if w.r.IntN(2) == 0 { // half of all below what has few znodes
		path = pick(w.r, []string{"/sets", "/plain", "/flat", "/versioned", "/e", fmt.Sprint("/g/f", w.r.IntN(len(hostileFormats)))})
	}
	what := ""
	var err error
	switch kind := w.r.IntN(30); {
	case kind < 21:
		what = "create"
		path += "/" + pick(w.r, testhelp.HostileNames)
		err = w.srv.Create(path, []byte(data))
	case kind < 27:
		what = "set"
		err = w.srv.Set(path, []byte(data))
	case kind == 27:
		what, data = "large", strings.Repeat("x", hostileBytes+w.r.IntN(800<<10))
		err = w.srv.Create(path+"/large", []byte(data))
	case kind == 28:
		what = "many"
		for i := range 100 {
			_ = w.srv.Create(fmt.Sprintf("%s/many%d", path, i), []byte(data))
		}
	default:
		what = "no ACL"
		err = w.srv.SetACL(path, []jute.ACL{{Perms: jute.PermAll, Scheme: "digest", ID: "x:y"}})
	}
	if err == nil {
		w.steps = append(w.steps, fmt.Sprintf("%s %.80q %.80q", what, path, data))
	}
}

// look checks what holds at any time.
func (w *hostileWorld) look() {
	w.t.Helper()
	synctest.Wait()
	raw := w.read("raw")
	if bad := strings.Trim(raw, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._:%+=,~*@-/[] \n"); bad != "" {
		w.t.Errorf("hostile text in the file: %q", bad)
	}
	for line := range strings.Lines(raw) {
		if strings.HasPrefix(line, "-") {
			w.t.Errorf("a line begins with an option: %q", line)
		}
	}
	if text := w.read("json"); !json.Valid([]byte(text)) {
		w.t.Errorf("no JSON: %.500q", text)
	}
	for _, name := range w.files() {
		if key := strings.TrimPrefix(filepath.Base(name), "each-"); !view.IsName(key) || key[0] == '.' {
			w.t.Errorf("a file of the name %q", name)
		}
	}
	if n := runtime.NumGoroutine(); n > hostileGoroutines {
		w.t.Errorf("%d goroutines", n)
	}
	for _, c := range w.agent.conds.List() {
		if c.Code == condition.TemplateFailed.Code {
			w.t.Errorf("%s: %s", c.Name(), c.Text)
		}
		if len(c.Text) > 8<<10 {
			w.t.Errorf("the text of %s has %d bytes", c.Name(), len(c.Text))
		}
	}
	for line := range strings.Lines(w.log.take()) {
		if text := strings.TrimSuffix(line, "\n"); len(text) > 8<<10 || strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }) {
			w.t.Errorf("a line of the log has %d bytes: %.2000q", len(text), text)
		}
	}
	record := w.srv.Tree()[fleet.AgentPath("a1")].Data
	if ours := json.Valid(record) && bytes.Contains(record, []byte(`"health"`)); ours && len(record) > 32<<10 || ours && strings.ContainsFunc(string(record), func(r rune) bool { return !unicode.IsPrint(r) }) {
		w.t.Errorf("the agent's record has %d bytes: %.2000q", len(record), record)
	}
	families, err := w.agent.metrics.reg.Gather()
	series := 0
	for _, f := range families {
		series += len(f.GetMetric())
	}
	if err != nil || series > 2000 {
		w.t.Errorf("%d time series, %v", series, err)
	}
}

// hostileLog is what the agent has logged since it was looked at.
type hostileLog struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write implements io.Writer.
func (l *hostileLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *hostileLog) take() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	defer l.text.Reset()
	return l.text.String()
}

// cleanUp takes back everything hostile, and checks that all is right again.
func (w *hostileWorld) cleanUp() {
	w.t.Helper()
	now := w.srv.Tree()
	var paths []string
	for path := range now {
		paths = append(paths, path)
	}
	slices.Sort(paths)
	slices.Reverse(paths) // children first
	for _, path := range paths {
		was, old := w.good[path]
		switch {
		case path == "/" || strings.HasPrefix(path, "/zookeeper") || !old && now[path].Stat.EphemeralOwner != 0:
		case !old:
			w.must(w.srv.Delete(path))
		default:
			if string(now[path].Data) != string(was.Data) {
				w.must(w.srv.Set(path, was.Data))
			}
			w.must(w.srv.SetACL(path, was.ACL))
		}
	}
	for range 40 {
		time.Sleep(30 * time.Second) // virtual
		synctest.Wait()
		if w.read("raw") == w.file && len(w.agent.conds.List()) == 0 && slices.Equal(w.files(), w.each) {
			break
		}
	}
	w.look()
	if got := w.read("raw"); got != w.file {
		w.t.Errorf("after all is gone the file is %q, it was %q", got, w.file)
	}
	if got := w.files(); !slices.Equal(got, w.each) {
		w.t.Errorf("after all is gone the files are %q, they were %q", got, w.each)
	}
	for _, c := range w.agent.conds.List() {
		w.t.Errorf("after all is gone %s is open: %s", c.Name(), c.Text)
	}
}
