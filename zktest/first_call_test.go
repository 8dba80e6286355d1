package zktest_test

import (
	"context"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zkagent/zkagent/config"
	"github.com/zkagent/zkagent/election"
	"github.com/zkagent/zkagent/fleet"
	"github.com/zkagent/zkagent/recipe"
	"github.com/zkagent/zkagent/registry"
	"github.com/zkagent/zkagent/session"
	"github.com/zkagent/zkagent/view"
	"github.com/zkagent/zkagent/zktest"
)

func second[T any](_ T, err error) error { return err }

// firstCalls are the first calls of what the packages construct at a path, by constructor.
func firstCalls() map[string]func(ctx context.Context, s *session.Session, p string) error {
	return map[string]func(ctx context.Context, s *session.Session, p string) error{
		"recipe.NewLock": func(ctx context.Context, s *session.Session, p string) error {
			return second(recipe.NewLock(s, recipe.LockConfig{Path: p}).Acquire(ctx))
		},
		"trylock": func(ctx context.Context, s *session.Session, p string) error {
			return second(recipe.NewLock(s, recipe.LockConfig{Path: p}).TryAcquire(ctx))
		},
		"revoke": func(ctx context.Context, s *session.Session, p string) error {
			return recipe.NewLock(s, recipe.LockConfig{Path: p}).Revoke(ctx)
		},
		"recipe.NewRWLock": func(ctx context.Context, s *session.Session, p string) error {
			return second(recipe.NewRWLock(s, recipe.LockConfig{Path: p}).RLock(ctx))
		},
		"rwrevoke": func(ctx context.Context, s *session.Session, p string) error {
			return recipe.NewRWLock(s, recipe.LockConfig{Path: p}).Revoke(ctx)
		},
		"recipe.NewMultiLock": func(ctx context.Context, s *session.Session, p string) error {
			return second(recipe.NewMultiLock(recipe.NewLock(s, recipe.LockConfig{Path: p})).Acquire(ctx))
		},
		"recipe.NewSemaphore": func(ctx context.Context, s *session.Session, p string) error {
			return second(recipe.NewSemaphore(s, recipe.SemaphoreConfig{Path: p, K: 1}).Acquire(ctx))
		},
		"semaphoreN": func(ctx context.Context, s *session.Session, p string) error {
			return second(recipe.NewSemaphore(s, recipe.SemaphoreConfig{Path: p, K: 1}).AcquireN(ctx, 1))
		},
		"sem participants": func(ctx context.Context, s *session.Session, p string) error {
			return second(recipe.NewSemaphore(s, recipe.SemaphoreConfig{Path: p, K: 1}).Participants(ctx))
		},
		"recipe.NewBarrier": func(ctx context.Context, s *session.Session, p string) error {
			return recipe.NewBarrier(s, p).Close(ctx)
		},
		"open": func(ctx context.Context, s *session.Session, p string) error {
			return recipe.NewBarrier(s, p).Open(ctx)
		},
		"bwait": func(ctx context.Context, s *session.Session, p string) error {
			return recipe.NewBarrier(s, p).Wait(ctx)
		},
		"recipe.NewDoubleBarrier": func(ctx context.Context, s *session.Session, p string) error {
			return second(recipe.NewDoubleBarrier(s, recipe.DoubleBarrierConfig{Path: p, N: 1}).Enter(ctx))
		},
		"recipe.NewGroup": func(ctx context.Context, s *session.Session, p string) error {
			return recipe.NewGroup(s, p, nil).Join(ctx, "me", nil)
		},
		"group members": func(ctx context.Context, s *session.Session, p string) error {
			return second(recipe.NewGroup(s, p, nil).Members(ctx))
		},
		"group follow": func(ctx context.Context, s *session.Session, p string) error {
			return recipe.NewGroup(s, p, nil).Follow(ctx, func([]recipe.Member) {})
		},
		"recipe.NewPartitioner": func(ctx context.Context, s *session.Session, p string) error {
			return recipe.NewPartitioner(recipe.PartitionerConfig{Path: p, ID: "a", Shards: []string{"1"}, Work: func(context.Context, string, *recipe.Hold) {}}).Run(ctx, s)
		},
		"recipe.NewNode": func(ctx context.Context, s *session.Session, p string) error {
			return recipe.NewNode(recipe.NodeConfig{Path: p}).Run(ctx, s)
		},
		"recipe.NewQueue": func(ctx context.Context, s *session.Session, p string) error {
			return recipe.NewQueue(s, recipe.QueueConfig{Path: p}).Put(ctx, nil)
		},
		"queue take": func(ctx context.Context, s *session.Session, p string) error {
			return second(recipe.NewQueue(s, recipe.QueueConfig{Path: p}).Take(ctx))
		},
		"queue reserve": func(ctx context.Context, s *session.Session, p string) error {
			return second(recipe.NewQueue(s, recipe.QueueConfig{Path: p}).Reserve(ctx))
		},
		"queue items": func(ctx context.Context, s *session.Session, p string) error {
			return second(recipe.NewQueue(s, recipe.QueueConfig{Path: p}).Items(ctx, 10))
		},
		"queue len": func(ctx context.Context, s *session.Session, p string) error {
			return second(recipe.NewQueue(s, recipe.QueueConfig{Path: p}).Len(ctx))
		},
		"queue purge": func(ctx context.Context, s *session.Session, p string) error {
			return second(recipe.NewQueue(s, recipe.QueueConfig{Path: p}).Purge(ctx))
		},
		"recipe.NewPriorityQueue": func(ctx context.Context, s *session.Session, p string) error {
			return recipe.NewPriorityQueue(s, recipe.PriorityQueueConfig{Path: p}).Put(ctx, nil, 1)
		},
		"recipe.NewIDQueue": func(ctx context.Context, s *session.Session, p string) error {
			return recipe.NewIDQueue(s, recipe.QueueConfig{Path: p}).Put(ctx, "x", nil)
		},
		"idq remove": func(ctx context.Context, s *session.Session, p string) error {
			return second(recipe.NewIDQueue(s, recipe.QueueConfig{Path: p}).Remove(ctx, "x"))
		},
		"recipe.NewDelayQueue": func(ctx context.Context, s *session.Session, p string) error {
			return recipe.NewDelayQueue(s, recipe.QueueConfig{Path: p}).Put(ctx, nil, time.Time{})
		},
		"delay take": func(ctx context.Context, s *session.Session, p string) error {
			return second(recipe.NewDelayQueue(s, recipe.QueueConfig{Path: p}).Take(ctx))
		},
		"recipe.NewTree": func(ctx context.Context, s *session.Session, p string) error {
			return recipe.NewTree(recipe.TreeConfig{Path: p}).Run(ctx, s, func(recipe.TreeUpdate) {})
		},
		"recipe.NewTxn": func(ctx context.Context, s *session.Session, p string) error {
			return recipe.NewTxn(s, p).Propose(ctx, recipe.Proposal{Sites: []string{"a"}})
		},
		"txn vote": func(ctx context.Context, s *session.Session, p string) error {
			return second(recipe.NewTxn(s, p).Vote(ctx, "a", recipe.Commit))
		},
		"txn await": func(ctx context.Context, s *session.Session, p string) error {
			return second(recipe.NewTxn(s, p).Await(ctx))
		},
		"txn remove": func(ctx context.Context, s *session.Session, p string) error {
			return recipe.NewTxn(s, p).Remove(ctx)
		},
		"txn coordinate": func(ctx context.Context, s *session.Session, p string) error {
			return second(recipe.NewTxn(s, p).Coordinate(ctx))
		},
		"recipe.NewValue": func(ctx context.Context, s *session.Session, p string) error {
			return second(recipe.NewValue[string](s, p).Get(ctx))
		},
		"value update": func(ctx context.Context, s *session.Session, p string) error {
			return second(recipe.NewValue[string](s, p).Update(ctx, func(string) (string, error) { return "x", nil }))
		},
		"value follow": func(ctx context.Context, s *session.Session, p string) error {
			return recipe.NewValue[string](s, p).Follow(ctx, func(recipe.Versioned[string]) {})
		},
		"recipe.NewCounter": func(ctx context.Context, s *session.Session, p string) error {
			return second(recipe.NewCounter(s, recipe.CounterConfig{Path: p}).Add(ctx, 1))
		},
		"counter value": func(ctx context.Context, s *session.Session, p string) error {
			return second(recipe.NewCounter(s, recipe.CounterConfig{Path: p}).Value(ctx))
		},
		"counter follow": func(ctx context.Context, s *session.Session, p string) error {
			return recipe.NewCounter(s, recipe.CounterConfig{Path: p}).Follow(ctx, func(int64) {})
		},
		"recipe.NewLease": func(ctx context.Context, s *session.Session, p string) error {
			return second(recipe.NewLease(s, recipe.LeaseConfig{Path: p, Holder: "a", Duration: time.Minute}).TryAcquire(ctx))
		},
		"lease holder": func(ctx context.Context, s *session.Session, p string) error {
			return second(recipe.NewLease(s, recipe.LeaseConfig{Path: p, Holder: "a", Duration: time.Minute}).Holder(ctx))
		},
		"recipe.Contenders": func(ctx context.Context, s *session.Session, p string) error {
			return second(recipe.Contenders(ctx, s, p))
		},
		"recipe.WhileLocked": func(ctx context.Context, _ *session.Session, p string) error {
			return recipe.WhileLocked(ctx, nil, recipe.LockConfig{Path: p}, nil)
		},
		"recipe.Candidates": func(ctx context.Context, s *session.Session, p string) error {
			line, err := recipe.Candidates(p, "", nil)
			if err != nil {
				return err
			}
			return second(line.Join(ctx, s, nil))
		},
		"follow candidates": func(ctx context.Context, s *session.Session, p string) error {
			line, err := recipe.Candidates(p, "", nil)
			if err != nil {
				return err
			}
			return line.Follow(ctx, s, func(recipe.Leader) {})
		},
		"election.New": func(ctx context.Context, s *session.Session, p string) error {
			return election.New(election.Config{Path: p, ID: "a"}).Run(ctx, s, nil)
		},
		"serve election": func(ctx context.Context, _ *session.Session, p string) error {
			return election.New(election.Config{Path: p, ID: "a"}).Serve(ctx, nil)
		},
		"election.Observe": func(ctx context.Context, s *session.Session, p string) error {
			return election.Observe(ctx, s, p, "", func(view.Leader) {})
		},
		"registry.NewGroup": func(ctx context.Context, s *session.Session, p string) error {
			return registry.NewGroup(registry.GroupConfig{Path: p}).Run(ctx, s, nil)
		},
		"registry.NewGroups": func(ctx context.Context, s *session.Session, p string) error {
			return registry.NewGroups(registry.GroupConfig{Path: p}).Run(ctx, s, nil)
		},
		"registry.Instances": func(ctx context.Context, s *session.Session, p string) error {
			return second(registry.Instances(ctx, s, registry.GroupConfig{Path: p}))
		},
		"registry.InstancesOf": func(ctx context.Context, s *session.Session, p string) error {
			return second(registry.InstancesOf[string](ctx, s, registry.GroupConfig{Path: p}))
		},
		"registry.NewRegistrar": func(ctx context.Context, s *session.Session, p string) error {
			return registry.NewRegistrar(registry.ServiceConfig{Name: "web", MemberID: "a", Address: "10.0.0.1", Port: 80, Groups: []string{p}}).Run(ctx, s)
		},
		"serve": func(ctx context.Context, _ *session.Session, p string) error {
			return registry.NewRegistrar(registry.ServiceConfig{Name: "web", MemberID: "a", Address: "10.0.0.1", Port: 80, Groups: []string{p}}).Serve(ctx, nil)
		},
		"config.NewWatcher": func(ctx context.Context, s *session.Session, p string) error {
			return config.NewWatcher(config.Config{Path: p}).Run(ctx, s, func(view.Update) {})
		},
		"read version in use": func(ctx context.Context, s *session.Session, p string) error {
			return second(config.NewWatcher(config.Config{Path: p}).ReadVersion(ctx, s, 1))
		},
		"config.Follow": func(ctx context.Context, _ *session.Session, p string) error {
			return config.Follow(ctx, nil, config.Config{Path: p}, func(*view.Tree) {})
		},
		"config.In": func(ctx context.Context, s *session.Session, p string) error {
			return config.Follow(ctx, config.In(s), config.Config{Path: p}, func(*view.Tree) {})
		},
		"config.Read": func(ctx context.Context, s *session.Session, p string) error { return second(config.Read(ctx, s, p)) },
		"config.ReadPlain": func(ctx context.Context, s *session.Session, p string) error {
			return second(config.ReadPlain(ctx, s, p))
		},
		"config.ReadVersion": func(ctx context.Context, s *session.Session, p string) error {
			return second(config.ReadVersion(ctx, s, p, 1))
		},
		"config.Lookup": func(ctx context.Context, s *session.Session, p string) error {
			_, _, err := config.Lookup(ctx, s, p, "key")
			return err
		},
		"config.History": func(ctx context.Context, s *session.Session, p string) error {
			return second(config.History(ctx, s, p))
		},
		"config.Origins": func(ctx context.Context, s *session.Session, p string) error {
			return second(config.Origins(ctx, s, p, 1, []string{"key"}))
		},
	}
}

// A path that cannot be one and a session that is nil are an error of the first call,
// whatever was constructed with them: at once, in words that say what to do, and without
// a znode that was created.
func TestFirstCall_SaysWhatIsWrong(t *testing.T) {
	calls := firstCalls()
	for _, name := range constructors(t) {
		if calls[name] == nil {
			t.Errorf("%s has no first call in this test", name)
		}
	}
	synctest.Test(t, func(t *testing.T) {
		zk := zktest.NewServer(t)
		s := zk.Session(t, "a")
		ctx, stop := context.WithTimeout(t.Context(), time.Minute)
		defer stop()
		for name, call := range calls {
			for path, fix := range map[string]string{"": "begins with a slash", "r": "begin with a slash", "/r/": "leave that out", "/r//x": "empty element"} {
				began := time.Now()
				err := call(ctx, s, path)
				noManager := errors.Is(err, session.ErrNoSession)
				if !noManager && (!errors.Is(err, session.ErrBadPath) || !strings.Contains(err.Error(), fix)) || time.Since(began) > 0 {
					t.Errorf("%s at %q after %s: got %v, want ErrBadPath and %q", name, path, time.Since(began), err, fix)
				}
			}
			if err := call(ctx, nil, "/r"); !errors.Is(err, session.ErrNoSession) {
				t.Errorf("%s without a session: got %v", name, err)
			}
		}
		if got := zk.List("/"); len(got) != 1 {
			t.Errorf("created: %v", got)
		}
	})
}

// At the end of its context, a call that only its caller ends returns nil, and a call that
// waits for something returns the cause.
func TestFirstCall_EndOfContext(t *testing.T) {
	waits := map[string]bool{"delay take": true, "queue reserve": true, "queue take": true}
	own := errors.New("own")
	synctest.Test(t, func(t *testing.T) {
		zk := zktest.NewServer(t)
		s := zk.Session(t, "a")
		ended := func(name string, call func(ctx context.Context) error) {
			ctx, stop := context.WithTimeoutCause(t.Context(), time.Second, own)
			defer stop()
			err := call(ctx)
			if ctx.Err() != nil && (waits[name] && !errors.Is(err, own) || !waits[name] && err != nil) {
				t.Errorf("%s: got %v", name, err)
			}
		}
		for name, call := range firstCalls() {
			ended(name, func(ctx context.Context) error { return call(ctx, s, "/"+strings.ReplaceAll(name, " ", "-")) })
		}
		zk.Partition("cut off")
		m, err := session.New(zk.Config("cut off"))
		if err != nil {
			t.Fatal(err)
		}
		go func() { _ = m.Run(t.Context()) }()
		ended("serve election", func(ctx context.Context) error {
			return election.New(election.Config{Path: "/e", ID: "a"}).Serve(ctx, m)
		})
		waits["session"] = true
		ended("session", func(ctx context.Context) error { return second(m.Session(ctx)) })
	})
}

// A function that needs a callback refuses a nil one, before it takes or changes anything.
func TestFirstCall_NilCallback(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		zk := zktest.NewServer(t)
		s := zk.Session(t, "a")
		m, err := session.New(zk.Config("b"))
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithTimeout(t.Context(), time.Minute)
		ended := make(chan error, 1)
		go func() { ended <- m.Run(ctx) }()
		observe := func() error { return election.Observe(ctx, s, "/r", "", nil) }
		for name, call := range map[string]func() error{
			"Each":          func() error { return session.Each(ctx, zk.Config("c"), nil) },
			"Manager.Each":  func() error { return m.Each(ctx, nil) },
			"WhileLocked":   func() error { return recipe.WhileLocked(ctx, m, recipe.LockConfig{Path: "/r"}, nil) },
			"Value.Update":  func() error { return second(recipe.NewValue[int](s, "/r").Update(ctx, nil)) },
			"Value.Follow":  func() error { return recipe.NewValue[int](s, "/r").Follow(ctx, nil) },
			"Counter":       func() error { return recipe.NewCounter(s, recipe.CounterConfig{Path: "/r"}).Follow(ctx, nil) },
			"recipe.Group":  func() error { return recipe.NewGroup(s, "/r", nil).Follow(ctx, nil) },
			"Observe":       observe,
			"Groups":        func() error { return registry.NewGroups(registry.GroupConfig{Path: "/r"}).Run(ctx, s, nil) },
			"Watcher":       func() error { return config.NewWatcher(config.Config{Path: "/r"}).Run(ctx, s, nil) },
			"config.Follow": func() error { return config.Follow(ctx, m, config.Config{Path: "/r"}, nil) },
			"Announcer":     func() error { return fleet.NewAnnouncer(fleet.AnnouncerConfig{ID: "a"}).Run(ctx, s) },
			"fleet.Watch":   func() error { return fleet.Watch(ctx, s, "/r", "1", nil) },
			"fleet.Edit":    func() error { return second(fleet.Edit(ctx, s, fleet.PublishConfig{Path: "/r"}, nil)) },
		} {
			began := time.Now()
			if err := call(); !errors.Is(err, session.ErrNoCallback) || session.ActionFor(err) != session.GiveUp || time.Since(began) > time.Second {
				t.Errorf("%s after %s: got %v", name, time.Since(began), err)
			}
		}
		stop()
		<-ended
		if got := zk.List("/"); len(got) != 1 {
			t.Errorf("created: %v", got)
		}
	})
}

// constructors lists the exported functions of the packages that take a session, or
// return what takes one later.
func constructors(t *testing.T) []string {
	t.Helper()
	without := map[string]bool{"registry.NewCheck": true, "registry.NewProvider": true, "registry.NewMetrics": true, "config.NewMetrics": true}
	var names []string
	for _, dir := range []string{"recipe", "election", "registry", "config"} {
		files, err := filepath.Glob(filepath.Join("..", dir, "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			for _, d := range parsed.Decls {
				f, ok := d.(*ast.FuncDecl)
				if !ok || f.Recv != nil || !f.Name.IsExported() || strings.HasSuffix(file, "_test.go") || without[dir+"."+f.Name.Name] {
					continue
				}
				takes := strings.HasPrefix(f.Name.Name, "New")
				for _, p := range f.Type.Params.List {
					star, isPointer := p.Type.(*ast.StarExpr)
					takes = takes || isPointer && ast.IsExported(star.X.(*ast.SelectorExpr).Sel.Name) && star.X.(*ast.SelectorExpr).X.(*ast.Ident).Name == "session"
				}
				if takes {
					names = append(names, dir+"."+f.Name.Name)
				}
			}
		}
	}
	return names
}
