package agent

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zkagent/zkagent/config"
	"github.com/zkagent/zkagent/election"
	"github.com/zkagent/zkagent/fleet"
	"github.com/zkagent/zkagent/internal/apply"
	"github.com/zkagent/zkagent/internal/command"
	"github.com/zkagent/zkagent/internal/hook"
	"github.com/zkagent/zkagent/internal/pace"
	"github.com/zkagent/zkagent/internal/proc"
	"github.com/zkagent/zkagent/internal/trees"
	"github.com/zkagent/zkagent/internal/zktest/memzk"
	"github.com/zkagent/zkagent/internal/zktest/testhelp"
	"github.com/zkagent/zkagent/registry"
	"github.com/zkagent/zkagent/session"
	"github.com/zkagent/zkagent/view"
)

// Random programs over all parts of a fleet at once: three whole agents, each with a service,
// that render a versioned config and the members of their group into a file, check it,
// and reload a program. A publisher rolls versions out. Time is virtual.
//
// Events: versions that are good, that the check refuses, and that the program refuses;
// rollouts that are canceled, orders after a halt, a freeze, and the deletion of the
// config; sessions that expire, one or all, again and again; connections that are cut;
// outages; agents that restart, with their session or without; other settings, or broken ones;
// reloads that fail for a while; maintenance; settings that cannot be read.
//
// At any time: no program reads a file that its check refuses, or without a member while any
// agent runs; no file has a version that was refused; a host whose health is ok has in
// place what was in use a while ago; a host in maintenance keeps its version; the leader's hook runs on one host at a time, with a
// fence that grows; a hook runs for what is in place or was. At rest: all have the version in use and all members,
// nothing is open, and all views say so.
func TestWorld_Seeds(t *testing.T) {
	testhelp.Seeds(t, 3*time.Second, func(t *testing.T, seed uint64) {
		inWorld(t, seed, (*world).play)
	})
}

// memoryDir is a directory in memory, where there is one: fsync costs nothing there.
func memoryDir(t *testing.T) string {
	t.Helper()
	base := ""
	if info, err := os.Stat("/dev/shm"); err == nil && info.IsDir() {
		base = "/dev/shm"
	}
	dir, err := os.MkdirTemp(base, "zkagent-world-") //nolint:usetesting // in memory
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// inWorld runs play in virtual time, with the fleet of a seed.
func inWorld(t *testing.T, seed uint64, play func(*world)) {
	t.Helper()
	dir := memoryDir(t)
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, dir, seed)
		defer w.stop()
		play(w)
	})
}

const (
	worldRoot  = "/config/site"
	worldGroup = "/services/web"
	// worldLag is how long a host whose health is ok may be behind the version in use.
	worldLag = 30 * time.Second
	// worldTurn is how long a turn that was under way may take.
	worldTurn = time.Minute
)

type world struct {
	t     *testing.T
	r     *rand.Rand
	srv   *memzk.Server
	desk  *session.Session // of the publisher
	hosts []*worldHost
	steps []string
	began time.Time

	version int
	values  map[int64]string // of each version
	used    string           // ready
	since   time.Time        // since when it is used, and no rollout is open

	out time.Time // since when the service of the last host is in maintenance, and nothing has disturbed that; zero: it is not

	mu      sync.Mutex // mu guards what commands use.
	refused map[string]bool
	fails   int    // reloads that fail
	leading string // the host whose leader's hook runs
	fence   int64
	expired time.Time // when the server last ended sessions that had time left: nobody can stop a hook before that
}

type worldHost struct {
	w      *world
	dir    string
	id     string
	at     string // when its check runs
	agent  *Agent
	done   chan error
	ok     time.Time // since when it is ok; zero: it is not
	served bool      // its program has read members; guarded by w.mu
	loaded string    // what its program has read last; guarded by w.mu

	maintained time.Time // since when it is in maintenance; zero: it is not
	kept       string    // what was in place while that was new; empty: not known yet

	settings int  // number of the settings in its files
	broken   bool // which cannot be read

	hooked int64 // version of the latest run of its hook; guarded by w.mu
}

func newWorld(t *testing.T, dir string, seed uint64) *world {
	w := &world{
		t: t, r: rand.New(rand.NewPCG(seed, 31)), refused: map[string]bool{}, values: map[int64]string{}, began: time.Now(),
		srv: memzk.New(memzk.Options{TickTime: time.Second}),
	}
	var err error
	if w.desk, err = session.Dial(t.Context(), w.zk("desk")); err != nil {
		t.Fatal(err)
	}
	w.must(w.publish("v0"))
	at := []string{"staged", "swapped"}[w.r.IntN(2)]
	for i := range 3 {
		h := &worldHost{w: w, id: fmt.Sprint("h", i), dir: filepath.Join(dir, fmt.Sprint("h", i)), at: at}
		w.must(os.Mkdir(h.dir, 0o700))
		w.hosts = append(w.hosts, h)
		h.start()
	}
	return w
}

func (w *world) zk(name string) session.Config {
	return session.Config{Servers: []string{name + ":2181"}, Timeout: 20 * time.Second, Dial: w.srv.Dial}
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) play() {
	w.rest()
	for range 3 + w.r.IntN(10) {
		for range 1 + w.r.IntN(3) {
			w.step()
		}
		w.pass(time.Duration(w.r.IntN(60)) * time.Second)
		if w.r.IntN(4) == 0 {
			w.rest()
		}
		if w.t.Failed() {
			break
		}
	}
	if !w.t.Failed() {
		w.rest()
	}
	if w.t.Failed() {
		w.t.Logf("steps:\n%s", strings.Join(w.steps, "\n"))
	}
}

func (w *world) stop() {
	for _, h := range w.hosts {
		h.stop(stopLeave)
	}
	w.must(w.desk.Close())
	w.srv.Close()
}

func (w *world) note(format string, args ...any) {
	w.steps = append(w.steps, fmt.Sprintf("%8s  ", time.Since(w.began))+fmt.Sprintf(format, args...))
}

func (w *world) keys(value string) fleet.PublishConfig {
	return fleet.PublishConfig{Path: worldRoot, Author: "world", Keys: map[string][]byte{"v": []byte(value)}}
}

func (w *world) publish(value string) error {
	r, err := fleet.Publish(w.t.Context(), w.desk, w.keys(value))
	w.mu.Lock()
	defer w.mu.Unlock()
	w.values[r.Version] = value
	return err
}

// rollout opens a rollout.
func (w *world) rollout(value string, replace bool) error {
	p, err := fleet.PublishByRollout(w.t.Context(), w.desk, w.keys(value), fleet.RolloutConfig{Parallel: "1", Replace: replace})
	if w.note("rollout of %s: %v", value, err); err == nil {
		w.mu.Lock()
		w.values[p.Version] = value
		w.mu.Unlock()
	}
	return err
}

// config is the settings of a host.
func (h *worldHost) config() Config {
	out := filepath.Join(h.dir, "out")
	n := h.settings
	site, group := source(view.KindConfig, "site"), []string{"web", "pool"}[n%9/8]
	return Config{
		ID: h.id, Host: h.id, OnStop: "leave", StateDir: filepath.Join(h.dir, "state"), Logger: seedLogger(), Run: h.run, ZooKeeper: h.w.zk(h.id),
		Services:  []registry.ServiceConfig{{Name: "web", Groups: []string{worldGroup}, MemberID: h.id, Address: "10.0.0.1", Port: h.port()}},
		Configs:   []config.Config{{Name: "site", Path: worldRoot, MaxBytes: []int64{0, 1 << 20}[n%4/3]}},
		Elections: []election.Config{{Name: "job", Path: "/elections/job"}},
		Groups: []registry.GroupConfig{{
			Name: group, Path: worldGroup, OnEmpty: "render", NoDamping: n%3 == 1, Guard: registry.GuardConfig{MinMembers: 1, MaxLoss: []float64{0, 0.5}[n%5/4]},
		}},
		Hooks: []hook.Config{
			{Name: "each", OnChange: []view.Source{site}, Command: argv("each", out)},
			{Name: "lead", Leader: "job", Idempotent: true, OnElected: true, OnChange: []view.Source{site}, Command: argv("lead", out, fmt.Sprint(n%2))},
		}[:2-n%6/5],
		Bundles: []apply.Config{{
			Name: []string{"out", "other"}[n%7/6],
			Templates: []apply.FileConfig{{
				Name: "out", Destination: fixedPath(h.dir, "out"),
				Contents: fmt.Sprintf(`{{ key "site/v" }} s%d{{ range members %q }} {{ .Port }}{{ else }}{{ end }}`, n, group),
			}},
			Check: &apply.CheckConfig{At: h.at, Command: command.Command{Text: "check", Args: func(v command.Vars) ([]string, error) {
				if h.at == "staged" {
					return []string{"check", filepath.Join(v.StagedDir, out)}, nil
				}
				return []string{"check", out}, nil
			}}},
			Reload: &apply.ReloadConfig{OnFailure: []string{"restore", "keep"}[n%11/10], Retry: 1, Command: argv("reload", out)},
		}},
	}
}

func (h *worldHost) port() int { return 80 + int(h.id[1]-'0') + 100*(h.settings/2%2) }

// hook runs a hook of a host.
func (h *worldHost) hook(ctx context.Context, c proc.Command) (proc.Result, error) {
	w := h.w
	var version, fence int64
	for _, e := range c.Env {
		_, _ = fmt.Sscanf(e, "ZKAGENT_VERSION=%d", &version)
		_, _ = fmt.Sscanf(e, "ZKAGENT_FENCE=%d", &fence)
	}
	value, _ := h.file()
	w.mu.Lock()
	if want := w.values[version]; version != 0 && value != want && number(value) < number(want) {
		w.t.Errorf("%s: the hook %s of %s runs for %s, in place is %s", time.Since(w.began), c.Args[0], h.id, want, value)
	}
	if c.Args[0] == "each" {
		h.hooked = version
		w.mu.Unlock()
		return proc.Result{}, nil
	}
	if w.leading != "" && time.Since(w.expired) > time.Minute || fence < w.fence {
		w.t.Errorf("%s: the leader's hook of %s runs with fence %d, of %q with %d", time.Since(w.began), h.id, fence, w.leading, w.fence)
	}
	w.leading, w.fence = h.id, fence
	w.mu.Unlock()
	done := pace.Sleep(ctx, time.Duration(fence*37%25)*time.Second)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.leading == h.id {
		w.leading = ""
	}
	if !done {
		return proc.Result{Code: -1}, context.Cause(ctx)
	}
	return proc.Result{}, nil
}

// number is that of a value, which grows.
func number(value string) int {
	n, _ := strconv.Atoi(strings.TrimLeft(value, "abcdefghijklmnopqrstuvwxyz"))
	return n
}

// run runs the commands of a host.
func (h *worldHost) run(ctx context.Context, c proc.Command) (proc.Result, error) {
	if c.Args[0] == "each" || c.Args[0] == "lead" {
		return h.hook(ctx, c)
	}
	w := h.w
	w.mu.Lock()
	wait := time.Duration(len(w.refused)*37%1000) * time.Millisecond
	w.mu.Unlock()
	if !pace.Sleep(ctx, wait) {
		return proc.Result{Code: -1}, context.Cause(ctx)
	}
	data, err := os.ReadFile(c.Args[1])
	if err != nil {
		return proc.Result{Code: 1}, err
	}
	value, rest, _ := strings.Cut(string(data), " ")
	_, members, _ := strings.Cut(rest, " ")
	w.mu.Lock()
	defer w.mu.Unlock()
	failed := proc.Result{Code: 1}
	switch {
	case c.Args[0] == "check" && strings.HasPrefix(value, "badcheck"):
		w.refused[value] = true
		return failed, errors.New("exit status 1")
	case c.Args[0] == "check":
		return proc.Result{}, nil
	case w.fails > 0:
		w.fails--
		return failed, errors.New("exit status 1")
	case strings.HasPrefix(value, "badcheck"):
		w.t.Errorf("%s: the program of %s reads %q, which its check refuses", time.Since(w.began), h.id, data)
	case strings.HasPrefix(value, "badload"):
		w.refused[value] = true
		return failed, errors.New("exit status 1")
	case members == "" && h.served:
		w.t.Errorf("%s: the program of %s reads a file without members", time.Since(w.began), h.id)
	}
	h.served, h.loaded = h.served || members != "", string(data)
	return proc.Result{}, nil
}

// reload loads the settings. The agent was started without this function, and so watches no files.
func (h *worldHost) reload() error {
	synctest.Wait()
	h.agent.first.Load = func() (Config, error) {
		if h.broken {
			return Config{}, errors.New("the settings cannot be read")
		}
		return h.config(), nil
	}
	return h.agent.Reload(h.w.t.Context())
}

// maintain switches the maintenance of the host.
func (h *worldHost) maintain(on bool) {
	h.w.must(h.agent.hostMaint.Set(registry.Maintenance{On: on, Reason: "world"}))
	if h.maintained, h.kept = time.Now(), ""; !on {
		h.maintained = time.Time{}
	}
}

func (h *worldHost) start() {
	a, err := New(h.config())
	h.w.must(err)
	h.agent, h.done = a, make(chan error, 1)
	go func() { h.done <- a.Run(h.w.t.Context()) }()
}

func (h *worldHost) stop(how stopMode) {
	h.agent.stop(how)
	if err := <-h.done; err != nil {
		h.w.t.Errorf("%s: %v", h.id, err)
	}
}

func (w *world) host() *worldHost { return w.hosts[w.r.IntN(len(w.hosts))] }

// takeOut switches the maintenance of the last host's service.
func (w *world) takeOut(on bool) {
	synctest.Wait()
	r, ok := kindService.of(w.hosts[len(w.hosts)-1].agent.sup, "web")
	if !ok {
		w.t.Fatal("no service")
	}
	w.must(r.SetMaintenance(registry.Maintenance{On: on, Reason: "world"}))
	if w.out = time.Now(); !on {
		w.out = time.Time{}
	}
}

// step is one event.
func (w *world) step() {
	if !w.out.IsZero() {
		w.out = time.Now()
	}
	ctx := w.t.Context()
	switch n := w.r.IntN(27); {
	case n == 26:
		on := w.r.IntN(3) > 0
		w.note("the service of the last host in maintenance: %t", on)
		w.takeOut(on)
	case n < 7:
		w.version++
		value := fmt.Sprintf("%s%d", []string{"v", "v", "badcheck", "badload"}[w.r.IntN(4)], w.version)
		_ = w.rollout(value, w.r.IntN(2) == 0)
	case n == 7:
		w.order()
	case n == 8:
		err := fleet.Freeze(ctx, w.desk, worldRoot, "world", "holidays")
		w.note("freeze: %v", err)
	case n == 9:
		_, err := fleet.Unfreeze(ctx, w.desk, worldRoot, "world")
		w.note("unfreeze: %v", err)
	case n == 10:
		_, err := fleet.Delete(ctx, w.desk, worldRoot, "world", "cleaning")
		w.note("delete: %v", err)
		for _, h := range w.hosts {
			h.kept = "" // what is published then has the numbers of versions that are gone
		}
	case n == 11:
		_, err := fleet.Restore(ctx, w.desk, worldRoot, "world")
		w.note("restore: %v", err)
	case n < 15:
		w.expire()
	case n == 15:
		h := w.host()
		w.note("the connection of %s is cut", h.id)
		w.srv.DropConnections(h.id + ":2181")
	case n == 16:
		took := time.Duration(1+w.r.IntN(60)) * time.Second
		w.note("outage of %s", took)
		w.srv.Stop()
		w.pass(took)
		if w.r.IntN(3) == 0 {
			h := w.host()
			w.note("%s restarts in it", h.id)
			h.stop(stopHandOver)
			h.start()
			w.pass(time.Duration(w.r.IntN(30)) * time.Second)
		}
		if w.r.IntN(2) == 0 {
			w.expire()
		}
		w.srv.Start()
		if !w.out.IsZero() {
			w.out = time.Now()
		}
	case n < 19:
		h, how := w.host(), []stopMode{stopLeave, stopHandOver}[w.r.IntN(2)]
		w.note("%s restarts, mode %v", h.id, how)
		h.stop(how)
		w.pass(time.Duration(w.r.IntN(30)) * time.Second)
		h.start()
		if !w.out.IsZero() {
			w.out = time.Now()
		}
	case n >= 22:
		h := w.host()
		h.settings, h.broken = h.settings+1+w.r.IntN(4), w.r.IntN(5) == 0
		w.note("settings %d of %s: %v", h.settings, h.id, h.reload())
	case n == 19:
		w.mu.Lock()
		w.fails = 1 + w.r.IntN(4)
		w.note("%d reloads fail", w.fails)
		w.mu.Unlock()
	default:
		h, on := w.host(), w.r.IntN(2) == 0
		w.note("%s in maintenance: %t", h.id, on)
		h.maintain(on)
	}
}

// expire ends the sessions of all hosts.
func (w *world) expire() {
	w.note("all sessions of the hosts expire")
	w.mu.Lock()
	w.expired = time.Now()
	w.mu.Unlock()
	for _, id := range w.srv.SessionIDs() {
		if id != w.desk.ID() {
			w.srv.ExpireSession(id)
		}
	}
}

// order is an operator's order for the open rollout.
func (w *world) order() {
	ctx := w.t.Context()
	state, err := fleet.Opened(ctx, w.desk, worldRoot)
	if err != nil || state == nil {
		return
	}
	name, o := state.Name, fleet.Order{By: "world"}
	switch w.r.IntN(3) {
	case 0:
		err = fleet.Abort(ctx, w.desk, worldRoot, name, o)
		w.note("abort %s (%s): %v", name, state.Phase(), err)
	case 1:
		err = fleet.Resume(ctx, w.desk, worldRoot, name, o)
		w.note("resume %s (%s): %v", name, state.Phase(), err)
	default:
		err = fleet.Pause(ctx, w.desk, worldRoot, name, o)
		w.note("pause %s (%s): %v", name, state.Phase(), err)
	}
}

// pass lets time pass and looks at each second.
func (w *world) pass(d time.Duration) {
	for end := time.Now().Add(d); ; time.Sleep(time.Second) {
		synctest.Wait()
		w.look()
		if w.t.Failed() || !time.Now().Before(end) {
			return
		}
	}
}

// file is what is in place: the value, the number of the settings and the members.
func (h *worldHost) file() (string, []string) {
	data, err := os.ReadFile(filepath.Join(h.dir, "out"))
	if err != nil {
		return "", nil
	}
	words := strings.Split(string(data), " ")
	return words[0], words[2:]
}

// look checks what holds at any time.
func (w *world) look() {
	ready, err := w.srv.Get(worldRoot + "/ready")
	if text := string(ready.Data); err != nil || text != w.used || w.srv.Exists(worldRoot+"/rollouts/current") {
		w.used, w.since = text, time.Now()
	}
	var inUse string
	if r, _, err := trees.ParseReady(ready.Data); err == nil && time.Since(w.since) > worldLag {
		inUse = w.values[r.Version]
	}
	for _, h := range w.hosts {
		value, members := h.file()
		w.mu.Lock()
		served := h.served
		w.mu.Unlock()
		if served && len(members) == 0 {
			w.t.Errorf("%s: the file of %s has no members any more", time.Since(w.began), h.id)
		}
		if port := strconv.Itoa(w.hosts[len(w.hosts)-1].port()); !w.out.IsZero() && time.Since(w.out) > worldTurn && slices.Contains(members, port) && !h.broken {
			w.t.Errorf("%s: the file of %s has %q, and %s is in maintenance", time.Since(w.began), h.id, members, port)
		}
		switch ok := h.agent.record().Health == fleet.OK; {
		case !ok:
			h.ok = time.Time{}
		case h.ok.IsZero():
			h.ok = time.Now()
		case inUse != "" && value != inUse && time.Since(h.ok) > worldLag:
			w.t.Errorf("%s: %s is ok and has %q, but %q is in use since %s", time.Since(w.began), h.id, value, inUse, w.since.Sub(w.began))
		}
		switch {
		case h.maintained.IsZero() || time.Since(h.maintained) < worldTurn:
		case h.kept == "":
			h.kept = value
		case value != h.kept:
			w.t.Errorf("%s: %s is in maintenance and had %q, now it has %q", time.Since(w.began), h.id, h.kept, value)
		}
		if h.at == "staged" && strings.HasPrefix(value, "badcheck") {
			w.t.Errorf("%s: %s has %q, which its check refuses", time.Since(w.began), h.id, value)
		}
	}
}

// rest heals everything and waits until the fleet has what is in use.
func (w *world) rest() {
	ctx := w.t.Context()
	w.note("rest")
	w.mu.Lock()
	w.fails = 0
	w.mu.Unlock()
	w.takeOut(false)
	for _, h := range w.hosts {
		h.maintain(false)
		h.broken = false
		if err := h.reload(); err != nil {
			w.t.Errorf("%s: settings of %s: %v", time.Since(w.began), h.id, err)
		}
	}
	if _, err := fleet.Unfreeze(ctx, w.desk, worldRoot, "world"); err != nil {
		w.t.Errorf("unfreeze: %v", err)
	}
	if _, err := fleet.Restore(ctx, w.desk, worldRoot, "world"); err != nil && !errors.Is(err, fleet.ErrNotDeleted) {
		w.t.Errorf("restore: %v", err)
	}
	w.pass(3 * time.Minute)
	if state, err := fleet.Opened(ctx, w.desk, worldRoot); err == nil && state != nil && state.Gate.Paused {
		err = fleet.Abort(ctx, w.desk, worldRoot, state.Name, fleet.Order{By: "world"})
		w.note("abort %s, which is paused: %v", state.Name, err)
		w.pass(time.Minute)
	}
	w.version++
	want := fmt.Sprint("v", w.version)
	if err := w.rollout(want, true); err != nil {
		w.t.Errorf("%s: publish: %v", time.Since(w.began), err)
	}
	w.pass(15 * time.Minute)
	var ports []string
	for _, h := range w.hosts {
		ports = append(ports, strconv.Itoa(h.port()))
	}
	slices.Sort(ports)
	for _, h := range w.hosts {
		value, members := h.file()
		slices.Sort(members)
		settings := fmt.Sprintf(" s%d ", h.settings)
		if value != want || !slices.Equal(members, ports) || !strings.Contains(read(w.t, filepath.Join(h.dir, "out")), settings) {
			w.t.Errorf("%s: %s has %q of %q, want %s of settings%sand %q", time.Since(w.began), h.id, value, members, want, settings, ports)
		}
		w.mu.Lock()
		if data := read(w.t, filepath.Join(h.dir, "out")); h.loaded != data {
			w.t.Errorf("%s: the program of %s has read %q, and %q is in place", time.Since(w.began), h.id, h.loaded, data)
		}
		if got := w.values[h.hooked]; got != want {
			w.t.Errorf("%s: the hook of %s has run for %q, want %s", time.Since(w.began), h.id, got, want)
		}
		w.mu.Unlock()
		if st := h.agent.Status(); st.Health != fleet.OK {
			w.t.Errorf("%s: %s is %s: %+v", time.Since(w.began), h.id, st.Health, st.Conditions)
		}
	}
	if state, err := fleet.Opened(ctx, w.desk, worldRoot); err != nil || state != nil {
		w.t.Errorf("%s: the open rollout is %+v, %v", time.Since(w.began), state, err)
	}
	hosts, err := fleet.Agents(ctx, w.desk)
	if err != nil || len(hosts) != len(w.hosts) {
		w.t.Errorf("%s: the fleet has %+v, %v", time.Since(w.began), hosts, err)
	}
	for _, h := range hosts {
		if h.Health != fleet.OK || h.Configs["site"].Newer() != 0 {
			w.t.Errorf("%s: the fleet says %+v", time.Since(w.began), h)
		}
	}
}
