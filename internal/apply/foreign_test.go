package apply

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/zkagent/zkagent/internal/condition"
	"github.com/zkagent/zkagent/internal/files"
	"github.com/zkagent/zkagent/internal/proc"
	"github.com/zkagent/zkagent/view"
)

// A stop in the middle of a reload leaves the journal: the next process must know that
// nobody has said that the new files are good.
func TestRun_StopInAReloadKeepsTheJournal(t *testing.T) {
	t.Parallel()
	b := newApplyBed(t)
	ctx, stop := context.WithCancel(t.Context())
	b.Options.Run = func(ctx context.Context, _ proc.Command) (proc.Result, error) {
		stop()
		<-ctx.Done()
		return proc.Result{}, context.Cause(ctx)
	}
	b.keys(map[string]string{"v": "1"})
	c := b.file("web", `{{ key "web/v" }}`)
	c.Reload = &ReloadConfig{Command: argv("reload"), OnFailure: "restore"}
	job := Job{Bundle: b.bundle(c).Bundle, View: b.view, First: true}
	b.Join(&job)
	if r := b.Run(ctx, job); r.Err == nil {
		t.Error("no error")
	}
	if !files.Pending(b.journalDir(), "web") || !b.pending.has("web") {
		t.Error("the unfinished change is forgotten")
	}
	r, found, err := files.Recover(files.TxConfig{StateDir: b.journalDir(), Bundle: "web"})
	if err != nil || !found || !r.New || !r.Reload {
		t.Errorf("the next process finds %+v, %v", r, err)
	}
}

// A bundle that waits for a permit does not hold up the reload of another bundle with
// the same command.
func TestPermit_WaitHoldsUpNoOtherReload(t *testing.T) {
	t.Parallel()
	b, p, f, rolling := rollingBed(t)
	b.keys(map[string]string{"v": "1"})
	plain := b.file("other", `{{ key "web/v" }}`)
	plain.Reload = &ReloadConfig{Command: rolling.Reload.Command}
	waits := make(chan struct{})
	f.wait = func(ctx context.Context) error {
		close(waits)
		<-ctx.Done()
		return context.Cause(ctx)
	}
	ctx, stop := context.WithCancel(t.Context())
	jobs := []*Job{{Bundle: b.bundle(rolling).Bundle, View: b.view, First: true}, {Bundle: b.bundle(plain).Bundle, View: b.view, First: true}}
	b.Join(jobs...)
	ended := make(chan Result, 1)
	go func() { ended <- b.Run(ctx, *jobs[0]) }()
	<-waits
	if r := b.Run(ctx, *jobs[1]); r.Err != nil {
		t.Error(r.Err)
	}
	if ran := p.took(); len(ran) != 1 {
		t.Errorf("ran %v, want the reload of the other bundle", ran)
	}
	stop()
	<-ended
}

// Old files that a killed process was putting back owe a reload: the program may have
// read the new ones.
func TestRecover_InARestoreTheReloadIsPending(t *testing.T) {
	t.Parallel()
	b, p := newPlayBed(t)
	b.keys(map[string]string{"v": "1"})
	c := b.file("web", `{{ key "web/v" }}`)
	c.Reload = &ReloadConfig{Command: argv("reload"), OnFailure: "restore"}
	b.good(b.bundle(c))
	tx := files.Begin(files.TxConfig{Bundle: "web", StateDir: b.journalDir(), Durable: true})
	_, err := tx.StageAll([]files.Content{{File: files.File{Destination: b.path("web")}, Data: []byte("2")}})
	if err = errors.Join(err, tx.Swap(), tx.Restore()); err != nil {
		t.Fatal(err)
	}
	tx.Keep()
	p.took()
	b.Recover([]Config{c})
	b.good(b.bundle(c))
	if ran := p.took(); len(ran) != 1 || ran[0] != "reload" {
		t.Errorf("ran %v, want one reload", ran)
	}
}

// What stands at the destination of a key is somebody else's, whatever it is.
func TestAdopt_Obstacles(t *testing.T) {
	t.Parallel()
	for name, put := range map[string]func(path string) error{
		"pipe":   func(path string) error { return syscall.Mkfifo(path, 0o666) },
		"sparse": func(path string) error { return errors.Join(os.WriteFile(path, nil, 0o644), os.Truncate(path, 8<<40)) },
		"zeros":  func(path string) error { return os.Symlink("/dev/zero", path) },
	} {
		conds := &condition.Set{}
		e := New(Options{Conds: conds, StateDir: filepath.Join(t.TempDir(), "state")})
		dest := filepath.Join(t.TempDir(), "dest")
		if err := put(dest); err != nil {
			t.Fatal(err)
		}
		x := &applying{Engine: e, taken: map[string]string{}, job: Job{Bundle: &Bundle{parsed: &parsed{Config: Config{ForEach: &view.Source{Kind: view.KindConfig, Name: "web"}}}}}}
		if !x.foreign(&output{Output: Output{Config: &FileConfig{}, Destination: dest}}, false) || len(x.taken) != 1 {
			t.Errorf("%s: taken for a file of the agent", name)
		}
	}
}
