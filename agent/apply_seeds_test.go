package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zkagent/zkagent/config"
	"github.com/zkagent/zkagent/internal/apply"
	"github.com/zkagent/zkagent/internal/command"
	"github.com/zkagent/zkagent/internal/files"
	"github.com/zkagent/zkagent/internal/pace"
	"github.com/zkagent/zkagent/internal/proc"
	"github.com/zkagent/zkagent/internal/zktest/filestest"
	"github.com/zkagent/zkagent/internal/zktest/testhelp"
	"github.com/zkagent/zkagent/session"
	"github.com/zkagent/zkagent/template"
	"github.com/zkagent/zkagent/view"
)

// Random programs for applies: the loop and the engine of an agent, a disk that
// fails, is cut off and loses power, and a program that reads the files when it
// is reloaded. Time is virtual.
//
// Events: views that are good, that the check refuses, and that the program
// refuses; other settings; edits by hand; reloads that fail; full disks; kills
// between any two calls; power losses; votes. In every second program the reload is a
// rolling one: a failure halts it, until somebody lifts the halt.
//
// At every reload: the files that the program reads passed their check and are
// of one version. At rest: the files are of one version, which was not refused;
// the program has read what is in place; nothing is pending, and nothing is left. While a
// rolling reload is halted, too, the program has read what is in place. A version that
// was refused in place has halted it, whatever was killed meanwhile.

func TestApply_Seeds(t *testing.T) { testhelp.Seeds(t, 2*time.Second, runApplySeed) }

func runApplySeed(t *testing.T, seed uint64) {
	t.Helper()
	dir := memoryDir(t)
	synctest.Test(t, func(t *testing.T) {
		w := newApplyWorld(t, dir, seed)
		defer w.stop()
		for range 10 + w.r.IntN(15) {
			w.step()
			if t.Failed() {
				break
			}
		}
		w.rest("v9999")
		if t.Failed() {
			t.Logf("seed %d: %s", seed, strings.Join(w.steps, ", "))
		}
	})
}

// applyWorld is one random program.
type applyWorld struct {
	t     *testing.T
	r     *rand.Rand
	dir   string
	disk  *filestest.Disk
	swap  bool // the check runs with the files in place
	keep  bool // the bundle keeps refused files
	alone bool // one file instead of two
	place bool // written in place
	roll  bool // the reload is a rolling one
	steps []string

	agent *Agent
	end   context.CancelFunc
	done  chan struct{}

	version  int
	value    string // of the newest view
	settings int    // of the newest settings
	applied  bool   // the first view was given
	edited   bool   // a hand has edited a file that the agent has not written since
	torn     bool   // power was lost after an edit by hand
	edits    bool   // a hand has edited a file at all
	faulty   bool   // the disk has refused calls of this process: it may leave files

	mu    sync.Mutex    // mu guards the rest: what the program and the disk's faults are.
	takes *rand.Rand    // how long commands take
	read  string        // what the program has read last
	fails int           // reloads that fail before it reads
	doubt bool          // a good version may have been refused
	lifts chan struct{} // closed when the halt that stands is lifted; nil: none stands
	bad   string        // what was refused in place, and has halted nothing yet
}

// seedFleet is the fleet of one host.
type seedFleet struct {
	apply.Fleet
	*applyWorld
}

// Permit implements apply.Fleet.
func (f seedFleet) Permit(ctx context.Context, _ string, _ *apply.RollingConfig, halted func()) (func(*apply.Halt) error, error) {
	for {
		f.mu.Lock()
		lifts := f.lifts
		f.mu.Unlock()
		if lifts == nil {
			break
		}
		if halted != nil {
			halted()
		}
		select {
		case <-lifts:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	return func(failed *apply.Halt) error {
		if f.disk.Killed() {
			return filestest.ErrKilled
		}
		if failed != nil {
			f.halt()
		}
		return nil
	}, nil
}

// halt halts the rolling reload.
func (w *applyWorld) halt() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.bad = ""; w.lifts == nil {
		w.lifts = make(chan struct{})
	}
}

// lift lifts the halt, if there is one, when everything is at rest.
func (w *applyWorld) lift() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.bad != "" {
		w.t.Errorf("%q was refused in place, and the others know nothing of it", w.bad)
	}
	if w.lifts == nil {
		return
	}
	text := w.files("")
	if !w.edited && !w.doubt && !w.keep && (strings.Contains(text, "bad") || w.read != text) {
		w.t.Errorf("halted: %q is in place, the program has read %q", text, w.read)
	}
	close(w.lifts)
	w.lifts = nil
}

func newApplyWorld(t *testing.T, dir string, seed uint64) *applyWorld {
	r := rand.New(rand.NewPCG(seed, 17))
	w := &applyWorld{t: t, r: r, dir: dir, swap: r.IntN(2) == 0, keep: r.IntN(4) == 0, alone: r.IntN(3) == 0, place: r.IntN(5) == 0, takes: rand.New(rand.NewPCG(seed, 18)), roll: seed%8 >= 4}
	for _, name := range []string{"shadow", "out"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	w.disk = filestest.New(filepath.Join(dir, "shadow"))
	w.start()
	w.view("v0")
	return w
}

func (w *applyWorld) names() []string {
	if w.alone {
		return []string{"one"}
	}
	return []string{"one", "two"}
}

// config is the newest settings.
func (w *applyWorld) config() Config {
	b := apply.Config{Name: "site"}
	for _, name := range w.names() {
		dest := filepath.Join(w.dir, "out", name)
		b.Templates = append(b.Templates, apply.FileConfig{
			Name: name, Contents: fmt.Sprintf(`{{ key "web/v" }} s%d;`, w.settings), File: files.File{InPlace: w.place},
			Destination: func(*template.Each) (string, error) { return dest, nil },
		})
	}
	b.Check = &apply.CheckConfig{At: "staged", Command: command.Command{Text: "check", Args: func(v command.Vars) ([]string, error) {
		return []string{"check", v.StagedDir}, nil
	}}}
	if w.swap {
		b.Check.At = "swapped"
	}
	b.Reload = &apply.ReloadConfig{OnFailure: "restore", Retry: 1, Command: argv("reload")}
	if w.keep {
		b.Reload.OnFailure = "keep"
	}
	if w.roll {
		b.Reload.Rolling = &apply.RollingConfig{Permits: "1", Pause: time.Second}
	}
	return Config{
		ID: "a1", StateDir: filepath.Join(w.dir, "state"), Logger: seedLogger(), Run: w.run,
		ZooKeeper: session.Config{Servers: []string{"127.0.0.1:1"}}, Bundles: []apply.Config{b}, Configs: []config.Config{{Name: "web", Path: "/config/web"}},
	}
}

// start starts a process.
func (w *applyWorld) start() {
	cfg := w.config()
	a, err := New(cfg)
	if err != nil {
		w.t.Fatal(err)
	}
	a.engine.FS, a.engine.Fleet = w.disk.FS(), seedFleet{applyWorld: w}
	a.engine.Recover(cfg.Bundles)
	for bundle, h := range a.engine.Halts() {
		w.halt()
		a.engine.Halted(bundle, h)
	}
	ctx, cancel := context.WithCancel(w.t.Context())
	w.agent, w.end, w.done = a, cancel, make(chan struct{})
	done := w.done
	go func() {
		defer close(done)
		a.loop.run(ctx)
	}()
	a.setLoop(ctx, &cfg)
	if w.applied {
		w.send()
	}
}

// stop ends the process, as a kill does when the disk is cut off before.
func (w *applyWorld) stop() {
	w.end()
	<-w.done
	w.agent.engine.Close()
}

func (w *applyWorld) tree() *view.Tree {
	u := view.TreeOf("web", "/config/web", map[string]string{"v": w.value})
	u.Last, u.Generation = int64(w.version), int64(w.version)
	return u
}

func (w *applyWorld) send() { w.agent.loop.send(w.tree()) }

// view is a new state of the tree.
func (w *applyWorld) view(value string) {
	w.version++
	w.value, w.applied = value, true
	w.send()
}

// files is what is in place, or below the directory of a staged check.
func (w *applyWorld) files(below string) string {
	var text strings.Builder
	for _, name := range w.names() {
		data, err := os.ReadFile(filepath.Join(below, w.dir, "out", name))
		if err != nil && !os.IsNotExist(err) {
			w.t.Error(err)
		}
		text.Write(data)
	}
	return text.String()
}

// mixed reports whether files are of several versions.
func mixed(text string) bool {
	parts := strings.Split(strings.TrimSuffix(text, ";"), ";")
	for _, p := range parts {
		if p != parts[0] {
			return true
		}
	}
	return false
}

// run runs the commands of the bundle.
func (w *applyWorld) run(ctx context.Context, c proc.Command) (proc.Result, error) {
	refused := errors.New("exit status 1")
	w.mu.Lock()
	wait := time.Duration(w.takes.IntN(2000)) * time.Millisecond
	w.mu.Unlock()
	if !pace.Sleep(ctx, wait) {
		return proc.Result{Code: -1}, context.Cause(ctx)
	}
	if w.disk.Killed() {
		return proc.Result{Code: -1}, filestest.ErrKilled
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if c.Args[0] == "check" {
		if text := w.files(c.Args[1]); strings.Contains(text, "badcheck") {
			w.refuse(text, w.swap)
			return proc.Result{Code: 1}, refused
		}
		return proc.Result{}, nil
	}
	if w.fails > 0 {
		w.fails--
		w.doubt = true
		return proc.Result{Code: 1}, refused
	}
	text := w.files("")
	if !w.edited && (mixed(text) || strings.Contains(text, "badcheck")) {
		w.t.Errorf("the program reads %q, which no check has passed", text)
	}
	if strings.Contains(text, "badload") {
		w.refuse(text, true)
		return proc.Result{Code: 1}, refused
	}
	if w.read = text; w.edited {
		w.bad = "" // The retry of a refused version has read what a hand wrote, and succeeded.
	}
	return proc.Result{}, nil
}

// refuse notes a version that is refused in place.
func (w *applyWorld) refuse(text string, inPlace bool) {
	if w.roll && inPlace && !w.edited {
		w.bad = text
	}
}

// step is one event, and some time.
func (w *applyWorld) step() {
	var what string
	switch n := w.r.IntN(20); {
	case n < 7:
		kind := []string{"v", "v", "badcheck", "badload"}[w.r.IntN(4)]
		what = fmt.Sprintf("%s%d", kind, w.version)
		w.view(what)
	case n < 9:
		w.settings++
		what = fmt.Sprintf("settings %d", w.settings)
		cfg := w.config()
		bundles, err := parseBundles(&cfg)
		if err != nil {
			w.t.Fatal(err)
		}
		w.agent.cfg.Store(&cfg)
		w.agent.loop.do(w.t.Context(), func() { w.agent.loop.set(cfg.Sources(), bundles) })
	case n == 9:
		what = "edit"
		w.mu.Lock()
		w.edited, w.edits = true, true
		if err := os.WriteFile(filepath.Join(w.dir, "out", "one"), []byte("hand;"), 0o600); err != nil {
			w.t.Fatal(err)
		}
		w.mu.Unlock()
	case n == 10:
		what = "reloads fail"
		w.mu.Lock()
		w.fails = 1 + w.r.IntN(5)
		w.mu.Unlock()
	case n == 11:
		left := 1 + w.r.IntN(6)
		w.faulty = true
		fault := []error{syscall.ENOSPC, syscall.EROFS, syscall.EACCES}[w.r.IntN(3)]
		what = fmt.Sprintf("%v, %d calls", fault, left)
		w.disk.Fail(func(string, string) error {
			if left--; left < 0 {
				return nil
			}
			return fault
		})
	case n < 15:
		calls := 1 + w.r.IntN(40)
		what = fmt.Sprintf("kill at call %d", calls)
		w.disk.KillAt(calls)
		w.view(fmt.Sprintf("v%d", w.version))
		w.sleep(5 * time.Second)
		w.restart(false)
	case n == 15:
		what = "power loss"
		w.view(fmt.Sprintf("v%d", w.version))
		w.sleep(time.Second)
		w.restart(true)
	case n == 16:
		what = "vote"
		b := apply.Parse(w.config().Bundles[0], w.agent.cfg.Load().Sources())
		v := view.View{}.With(view.TreeOf("web", "/config/web", map[string]string{"v": "v-vote"}))
		w.disk.Fail(nil)
		if err := w.agent.engine.Try(w.t.Context(), b, v); err != nil && !errors.Is(err, apply.ErrCheckNotRun) {
			w.t.Errorf("a vote on a good version: %v", err)
		}
	default:
		what = "rest"
		w.steps = append(w.steps, what)
		w.rest("")
		return
	}
	w.steps = append(w.steps, what)
	w.sleep(time.Duration(w.r.IntN(8)) * time.Second / 2)
}

func (w *applyWorld) sleep(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
	if tree, ok := w.agent.loop.snapshot.Load().good.Tree("web"); ok {
		if v, _ := tree.Get("v"); strings.Contains(string(v.Value), "bad") {
			w.t.Errorf("%s counts as good", v.Value)
		}
	}
}

// restart is the next process. After a power loss the program starts anew, too.
func (w *applyWorld) restart(power bool) {
	if power {
		w.disk.KillAt(1)
		_ = w.disk.FS().Before("write", filepath.Join(w.dir, "out", "one"))
	}
	w.stop()
	w.faulty = false
	w.disk.Fail(nil)
	if power {
		w.torn = w.torn || w.edits
		w.bad = "" // What was to be noted may be lost with the power.
		w.disk.PowerOff(w.r)
	} else {
		w.disk.Restart()
	}
	w.start()
	if power {
		w.mu.Lock()
		w.read = w.files("")
		w.mu.Unlock()
	}
}

// rest lets everything come to an end, with a last view if there is one.
func (w *applyWorld) rest(last string) {
	w.disk.Fail(nil)
	w.disk.KillAt(0)
	if w.disk.Killed() {
		w.restart(false)
	}
	if last != "" {
		w.mu.Lock()
		w.fails = 0
		w.mu.Unlock()
		w.sleep(12 * time.Minute)
		w.mu.Lock()
		w.doubt = false
		w.mu.Unlock()
		w.view(last)
	}
	w.sleep(12 * time.Minute)
	w.lift()
	w.sleep(time.Second)
	for w.agent.loop.snapshot.Load().busy[view.Source{Kind: view.KindConfig, Name: "web"}] {
		w.sleep(time.Minute) // a refused version is tried now and then
		w.lift()
		w.sleep(time.Second)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.fails = 0
	text := w.files("")
	state := w.agent.loop.snapshot.Load().report("site")
	if state.State == "ok" {
		w.edited, w.doubt = false, false
	}
	if w.edited || w.doubt {
		return // The next good version puts it right.
	}
	if mixed(text) {
		w.t.Errorf("at rest the files are mixed: %q", text)
	}
	bad := strings.Contains(w.value, "bad")
	if good := strings.Repeat(fmt.Sprintf("%s s%d;", w.value, w.settings), len(w.names())); !bad && (text != good || state.State != "ok") {
		w.t.Errorf("at rest %q is in place, want %q; %s: %v", text, good, state.State, state.Err)
	}
	if s := w.agent.loop.snapshot.Load(); !bad && s.good.Get(w.tree().Source()) != s.view.Get(w.tree().Source()) {
		w.t.Errorf("at rest %s is in place, and does not count as good", w.value)
	}
	if bad && state.State != "failed" {
		w.t.Errorf("%s is %s", w.value, state.State)
	}
	if strings.Contains(text, "badcheck") || strings.Contains(text, "badload") && !w.keep {
		w.t.Errorf("at rest a refused version is in place: %q", text)
	}
	pending := !w.agent.engine.PendingSince("site").IsZero()
	refused := strings.Contains(text, "badload") // kept, and never read
	// A process that was killed just before its swap has a pending reload of what was read
	// already. In a rolling reload that waits for the permit of the next good version.
	if bad && w.roll && w.read == text {
		pending = refused
	}
	if pending != refused || w.read != text && !refused {
		w.t.Errorf("at rest %q is in place, the program has read %q, pending: %v", text, w.read, pending)
	}
	if !w.faulty {
		w.clean()
	}
}

// clean looks for files that nothing needs any more.
func (w *applyWorld) clean() {
	for _, dir := range []string{"out", "state/journal", "state/staged"} {
		entries, err := os.ReadDir(filepath.Join(w.dir, dir))
		if err != nil {
			w.t.Error(err)
		}
		for _, e := range entries {
			if strings.HasSuffix(e.Name(), ".damaged") {
				continue // A power loss cut a journal that needed no sync.
			}
			if w.torn && strings.Contains(e.Name(), ".zkagent-old-") {
				continue // The edit was lost in one of two names: recovery leaves what it does not know to the sweep of the next start.
			}
			if dir != "out" || strings.HasPrefix(e.Name(), ".") {
				w.t.Errorf("at rest %s is left in %s", e.Name(), dir)
			}
		}
	}
}

// seedLogger shows what a program does that is repeated.
func seedLogger() *slog.Logger {
	if os.Getenv("SEED") == "" {
		return slog.New(slog.DiscardHandler)
	}
	return slog.New(slog.NewTextHandler(os.Stderr, nil))
}
