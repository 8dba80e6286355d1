package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/zkagent/zkagent/agent"
	"github.com/zkagent/zkagent/internal/term"
	"github.com/zkagent/zkagent/recipe"
	"github.com/zkagent/zkagent/session"
)

// lockOptions are the flags of lock; the letters are those of flock(1).
type lockOptions struct {
	waiting
	shared    bool
	write     bool
	list      bool
	conflict  int
	permits   int
	fence     string
	dialect   string
	describe  string
	killAfter time.Duration
}

func newLockCommand(g *globals) *cobra.Command {
	var o lockOptions
	c := &cobra.Command{
		Use:   "lock [flags] NAME -- CMD [ARG...]",
		Short: "Run a command under a lock",
		Long: `Run a command under a lock in ZooKeeper, and exit with its code.

NAME is a znode path, or a name below ` + locksRoot + `. The command owns the
terminal and gets the signals that zkagent gets. When the lock is lost, zkagent
ends the command, with TERM and then KILL, before another client can have the
lock, and exits with 76. The command's environment has ZKAGENT_LOCK_NAME,
ZKAGENT_FENCE (a number that grows from holder to holder) and ZKAGENT_LOCK_EXPIRES.

A path is one kind of lock: plain, read-write (--shared and --write), or a
semaphore (--permits). A contender of another kind is refused. --list shows who
holds and who waits.`,
		Example: "  zkagent lock -n backup -- /usr/bin/backup\n  zkagent lock --permits 3 -w 60 reindex -- ./reindex.sh\n  zkagent lock --list backup",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			names, command := commandAfter(args, c.ArgsLenAtDash())
			switch {
			case len(names) == 1 && o.list && len(command) == 0:
				return listStanding(c.Context(), g, func(*agent.Config) (string, error) { return pathOf(locksRoot, names[0]) })
			case len(names) != 1 || len(command) == 0:
				return usagef("lock takes a name, \"--\" and a command")
			case o.list:
				return usagef("--list takes no command")
			case o.shared && o.write || (o.shared || o.write) && o.permits > 0:
				return usagef("--shared, --write and --permits exclude each other")
			case o.permits < 1 && c.Flags().Changed("permits"):
				return usagef("--permits %d: at least 1 command must be able to run", o.permits)
			}
			return runLock(c.Context(), g, names[0], command, o)
		},
	}
	f := c.Flags()
	o.flags(f, "fail at once when another client holds it", "fail when the lock is not acquired in this time")
	f.BoolVarP(&o.shared, "shared", "s", false, "take a read lock: many can hold it at once, but not together with a write lock")
	f.BoolVar(&o.write, "write", false, "take a write lock, which excludes the read locks of --shared; by default the path is a plain lock")
	f.BoolVar(&o.list, "list", false, "print the holder and the waiters, and exit")
	f.IntVarP(&o.conflict, "conflict-exit-code", "E", exitTemporary, "exit code when the lock is not acquired")
	f.IntVar(&o.permits, "permits", 0, "let this number of commands run at once: a semaphore (default: a lock, which lets one run)")
	f.StringVar(&o.fence, "fence", "", "write the fencing token to this file, for programs that do not read $ZKAGENT_FENCE")
	f.StringVar(&o.dialect, "dialect", recipe.Curator, "layout of the znodes: curator or kazoo; all contenders must use the same one")
	f.StringVar(&o.describe, "describe", "", "a text for --list after host:pid, such as the purpose of the command (default: none)")
	f.DurationVar(&o.killAfter, "kill-after", killAfter, "how long the command may take to end after TERM before it gets KILL")
	return c
}

func runLock(ctx context.Context, g *globals, name string, command []string, o lockOptions) error {
	path, err := pathOf(locksRoot, name)
	if err != nil {
		return err
	}
	return inSessions(ctx, g, o.waiting, func(wait context.Context, s *session.Session, _ *agent.Config) error {
		h, err := acquireLock(ctx, wait, &g.Console, s, path, o)
		if err != nil {
			return err
		}
		defer func() { // even after an interrupt
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
			defer cancel()
			if err := h.Release(ctx); err != nil && !errors.Is(err, recipe.ErrNotHeld) {
				g.Warnf("%v; it is gone with the session", err)
			}
		}()
		if o.fence != "" {
			if err := os.WriteFile(o.fence, []byte(strconv.FormatInt(h.Fence(), 10)+"\n"), 0o600); err != nil {
				return fail(exitFailed, fmt.Errorf("write fence: %w", err))
			}
		}
		return runHeld(ctx, g, heldCommand{
			what: "lock " + path, ctx: h.Context(), s: s, fence: h.Fence(), killAfter: o.killAfter,
			env: []string{"ZKAGENT_LOCK_NAME=" + name, "ZKAGENT_LOCK_PATH=" + path},
		}, command)
	})
}

// acquireLock waits for the lock and says so.
func acquireLock(ctx, wait context.Context, console *term.Console, s *session.Session, path string, o lockOptions) (*recipe.Hold, error) {
	defer later(time.Second, func() { console.Say("waiting for lock %s; \"zkagent lock --list %s\" shows for whom", path, path) })()
	h, err := o.acquire(wait, s, path)
	hint := func() string {
		return cmp.Or(holders(ctx, s, path), "\"zkagent lock --list "+path+"\" shows who is in line")
	}
	switch {
	case err == nil:
		return h, nil
	case errors.Is(err, recipe.ErrKind):
		return nil, fail(exitFailed, err, "--shared and --write are for read-write locks, --permits for semaphores, none of them for plain locks")
	case errors.Is(err, recipe.ErrHeld):
		return nil, fail(o.conflict, fmt.Errorf("lock %s: %w", path, recipe.ErrHeld), hint())
	case wait.Err() != nil && ctx.Err() == nil:
		return nil, fail(o.conflict, fmt.Errorf("lock %s: not obtained in time", path), hint())
	case errors.Is(err, recipe.ErrPermits):
		return nil, fail(exitFailed, err, "all contenders must use the same --permits")
	case errors.Is(err, recipe.ErrInTheWay):
		return nil, fail(exitFailed, err, "\"zkagent lock --list "+path+"\" shows it")
	}
	return nil, err
}

// acquire picks the recipe.
func (o lockOptions) acquire(ctx context.Context, s *session.Session, path string) (*recipe.Hold, error) {
	data := contenderData(o.describe)
	cfg := recipe.LockConfig{Path: path, Dialect: o.dialect, Data: data}
	var try, get func(context.Context) (*recipe.Hold, error)
	switch {
	case o.permits > 0:
		m := recipe.NewSemaphore(s, recipe.SemaphoreConfig{Path: path, K: o.permits, Dialect: o.dialect, Data: data})
		try, get = m.TryAcquire, m.Acquire
	case o.shared:
		l := recipe.NewRWLock(s, cfg)
		try, get = l.TryRLock, l.RLock
	case o.write:
		l := recipe.NewRWLock(s, cfg)
		try, get = l.TryLock, l.Lock
	default:
		l := recipe.NewLock(s, cfg)
		try, get = l.TryAcquire, l.Acquire
	}
	if o.nonblock {
		return try(ctx)
	}
	return get(ctx)
}
