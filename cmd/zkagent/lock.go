package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/zkagent/zkagent/agent"
	"github.com/zkagent/zkagent/recipe"
	"github.com/zkagent/zkagent/session"
)

// lockOptions are the flags of lock; the letters are those of flock(1).
type lockOptions struct {
	nonblock bool
	wait     time.Duration
	shared   bool
	conflict int
	permits  int
	fence    string
	dialect  string
}

func newLockCommand(g *globals) *cobra.Command {
	var o lockOptions
	c := &cobra.Command{
		Use:   "lock [flags] NAME -- CMD [ARG...]",
		Short: "Run a command under a lock",
		Long: `Run a command under a lock in ZooKeeper, and end with its exit code.

NAME is a znode path, or a name below ` + locksRoot + `. The command is
ended with TERM, and KILL, when the lock is lost, before another can have it;
the exit code then is 76. Its environment has ZKAGENT_LOCK_NAME, ZKAGENT_FENCE
(a number that grows from holder to holder) and ZKAGENT_LOCK_EXPIRES. It does
not get the terminal for input.`,
		Example: "  zkagent lock -n backup -- /usr/bin/backup\n  zkagent lock --permits 3 -w 1m reindex -- ./reindex.sh",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			names, command := commandAfter(args, c.ArgsLenAtDash())
			if len(names) != 1 || len(command) == 0 {
				return usagef("lock takes a name, \"--\" and a command")
			}
			if o.shared && o.permits > 0 {
				return usagef("--shared and --permits exclude each other")
			}
			return g.lock(c.Context(), names[0], command, o)
		},
	}
	f := c.Flags()
	f.BoolVarP(&o.nonblock, "nonblock", "n", false, "fail at once when it is held by another")
	f.DurationVarP(&o.wait, "wait", "w", 0, "fail when it is not obtained in this time (0: wait for ever)")
	f.BoolVarP(&o.shared, "shared", "s", false, "a read lock: held by many at once, and not together with a write lock")
	f.IntVarP(&o.conflict, "conflict-exit-code", "E", exitTemporary, "exit code when it is not obtained")
	f.IntVar(&o.permits, "permits", 0, "a semaphore with so many permits instead of a lock")
	f.StringVar(&o.fence, "fence", "", "write the fencing token to this file, too")
	f.StringVar(&o.dialect, "dialect", recipe.Curator, "layout of the znodes: curator or kazoo")
	return c
}

func (g *globals) lock(ctx context.Context, name string, command []string, o lockOptions) error {
	path, err := pathOf(locksRoot, name)
	if err != nil {
		return err
	}
	return g.withSession(ctx, func(ctx context.Context, s *session.Session, _ *agent.Config) error {
		h, err := g.acquire(ctx, s, path, o)
		if err != nil {
			return err
		}
		defer g.release(ctx, h)
		if o.fence != "" {
			if err := os.WriteFile(o.fence, []byte(strconv.FormatInt(h.Fence(), 10)+"\n"), 0o600); err != nil {
				return fmt.Errorf("write fence: %w", err)
			}
		}
		what := held{what: "lock " + path, ctx: h.Context(), s: s, fence: h.Fence(), env: []string{"ZKAGENT_LOCK_NAME=" + name, "ZKAGENT_LOCK_PATH=" + path}}
		return g.runHeld(ctx, what, command)
	})
}

// acquire waits for the lock and says so.
func (g *globals) acquire(ctx context.Context, s *session.Session, path string, o lockOptions) (*recipe.Hold, error) {
	wait, cancel := g.patience(ctx, o.wait)
	defer cancel()
	notice := time.AfterFunc(time.Second, func() { g.Say("waiting for lock %s", path) })
	defer notice.Stop()
	h, err := o.acquire(wait, s, path)
	switch {
	case err == nil:
		return h, nil
	case errors.Is(err, recipe.ErrHeld):
		return nil, fail(o.conflict, fmt.Errorf("lock %s: %w", path, recipe.ErrHeld), "\"zkagent zk ls "+path+"\" shows who is in line")
	case wait.Err() != nil && ctx.Err() == nil:
		return nil, fail(o.conflict, fmt.Errorf("lock %s: not obtained in time", path), "\"zkagent zk ls "+path+"\" shows who is in line")
	case errors.Is(err, recipe.ErrPermits):
		return nil, fail(exitFailed, err, "all contenders must use the same --permits")
	}
	return nil, err
}

// acquire picks the recipe.
func (o lockOptions) acquire(ctx context.Context, s *session.Session, path string) (*recipe.Hold, error) {
	cfg := recipe.LockConfig{Path: path, Dialect: o.dialect, Data: whoAmI()}
	var try, get func(context.Context) (*recipe.Hold, error)
	switch {
	case o.permits > 0:
		m := recipe.NewSemaphore(s, recipe.SemaphoreConfig{Path: path, K: o.permits, Dialect: o.dialect, Data: whoAmI()})
		try, get = m.TryAcquire, m.Acquire
	case o.shared:
		l := recipe.NewRWLock(s, cfg)
		try, get = l.TryRLock, l.RLock
	default:
		l := recipe.NewLock(s, cfg)
		try, get = l.TryAcquire, l.Acquire
	}
	if o.nonblock {
		return try(ctx)
	}
	return get(ctx)
}
