package bench

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/zkagent/zkagent/internal/zktest"
	"github.com/zkagent/zkagent/session"
)

// Config says what is measured.
type Config struct {
	// Quick measures small sizes with few repetitions, to see that it works.
	Quick bool
	// Only names the cases to run; empty: all.
	Only []string
	// Log is called with the name of each measurement; nil: no log.
	Log func(string)
}

// limit bounds every wait.
const limit = 2 * time.Minute

// env is what the cases run in: one real server, a scratch directory and a
// session that writes.
type env struct {
	cfg    Config
	tb     testing.TB // of servers that a case starts for itself
	server *zktest.Server
	others []string // addresses of more servers
	dir    string
	writer *session.Session
	rows   []Row

	coordinators int          // how many agents of a crew may coordinate; 0: all
	log          *slog.Logger // of the agents of a crew; nil: none
}

// roots numbers the trees of this process.
var roots atomic.Int64

// Run starts a server, measures, and returns the report. It returns an error if it
// could not measure a case. A slow result is not an error.
func Run(ctx context.Context, cfg Config) (Report, error) {
	r := Report{When: time.Now().UTC().Truncate(time.Second), Go: runtime.Version(), CPUs: runtime.NumCPU()}
	dir, err := os.MkdirTemp("", "zkbench-")
	if err != nil {
		return r, fmt.Errorf("bench: %w", err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	h := &harness{ctx: ctx, dir: dir}
	defer h.end()
	e := &env{cfg: cfg, tb: h, dir: dir}
	err = h.run(func() error {
		e.server = zktest.Start(h)
		if e.writer, err = e.dial(ctx, nil); err != nil {
			return err
		}
		defer func() { _ = e.writer.Close() }()
		for _, c := range cases {
			if !cfg.wants(c.name) {
				continue
			}
			if cfg.Log != nil {
				cfg.Log(c.name)
			}
			if err = c.run(ctx, e); err != nil {
				return fmt.Errorf("bench: %s: %w", c.name, err)
			}
		}
		return nil
	})
	r.Rows = e.rows
	return r, err
}

// cases are run in this order.
var cases = []struct {
	name string
	run  func(context.Context, *env) error
}{
	{"latency", latency},
	{"start", start},
	{"peers", peers},
	{"confd", confd},
	{"fanout", fanout},
	{"load", load},
	{"group", groups},
	{"groupfile", groupFiles},
	{"memory", memory},
	{"burst", burst},
	{"versioned", versioned},
	{"sessions", sessions},
	{"expiry", expiry},
	{"fleet", fleetOfHosts},
	{"agents", agents},
	{"coordinator", coordinator},
	{"history", history},
	{"idle", idle},
}

func (c Config) wants(name string) bool {
	return len(c.Only) == 0 || slices.Contains(c.Only, name)
}

// pick chooses by Quick.
func pick[T any](e *env, quick, full T) T {
	if e.cfg.Quick {
		return quick
	}
	return full
}

func (e *env) add(r Row) { e.rows = append(e.rows, r) }

// root returns the path of a znode that no other case uses.
func (e *env) root(ctx context.Context) (string, error) {
	path := "/bench-" + strconv.FormatInt(roots.Add(1), 10)
	_, _, err := e.writer.Create(ctx, path, nil, session.Persistent)
	return path, err
}

// dial opens a session; meter counts what it sends, nil: nothing.
func (e *env) dial(ctx context.Context, m *meter) (*session.Session, error) {
	c := e.zookeeper()
	if m != nil {
		c.Dial = m.dial
	}
	return session.Dial(ctx, c)
}

func (e *env) zookeeper() session.Config {
	return session.Config{Servers: append([]string{e.server.Addr()}, e.others...), Timeout: time.Minute}
}

// seed creates znodes, a few hundred with each request.
func (e *env) seed(ctx context.Context, paths []string, data []byte) error {
	const batch = 400
	for len(paths) > 0 {
		n := min(batch, len(paths))
		ops := make([]session.Op, n)
		for i, p := range paths[:n] {
			ops[i] = session.CreateOp(p, data, session.Persistent)
		}
		if _, err := e.writer.Multi(ctx, ops...); err != nil {
			return fmt.Errorf("seed: %w", err)
		}
		paths = paths[n:]
	}
	return nil
}

// keys are n paths below root.
func keys(root string, n int) []string {
	paths := make([]string, n)
	for i := range paths {
		paths[i] = fmt.Sprintf("%s/key-%05d", root, i)
	}
	return paths
}

// heap returns the bytes of live objects.
func heap() float64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc)
}

// errLate says that a wait exceeded the limit.
var errLate = errors.New("waited in vain")

// await receives from c.
func await[T any](ctx context.Context, c <-chan T) (T, error) {
	t := time.NewTimer(limit)
	defer t.Stop()
	var zero T
	select {
	case v := <-c:
		return v, nil
	case <-t.C:
		return zero, errLate
	case <-ctx.Done():
		return zero, context.Cause(ctx)
	}
}

// harness implements testing.TB outside of a test.
type harness struct {
	testing.TB // nil: provides TB's unexported method

	ctx      context.Context //nolint:containedctx // It is what Context returns.
	dir      string
	cleanups []func()
}

type fatal string

func (h *harness) run(fn func() error) (err error) {
	defer func() {
		if f, ok := recover().(fatal); ok {
			err = errors.New(string(f))
		}
	}()
	return fn()
}

func (h *harness) end() {
	for _, fn := range slices.Backward(h.cleanups) {
		fn()
	}
}

func (h *harness) Helper()                   {}
func (h *harness) Context() context.Context  { return h.ctx }
func (h *harness) Cleanup(fn func())         { h.cleanups = append(h.cleanups, fn) }
func (h *harness) Failed() bool              { return false }
func (h *harness) Logf(string, ...any)       {}
func (h *harness) Fatal(args ...any)         { panic(fatal(fmt.Sprint(args...))) }
func (h *harness) Fatalf(f string, a ...any) { panic(fatal(fmt.Sprintf(f, a...))) }
func (h *harness) Name() string              { return "zkbench" }

// TempDir returns a new directory, which Run deletes.
func (h *harness) TempDir() string {
	dir, err := os.MkdirTemp(h.dir, "")
	if err != nil {
		h.Fatal(err)
	}
	return dir
}
