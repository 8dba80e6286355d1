package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/zkagent/zkagent/agent"
	"github.com/zkagent/zkagent/election"
	"github.com/zkagent/zkagent/internal/term"
	"github.com/zkagent/zkagent/recipe"
	"github.com/zkagent/zkagent/session"
	"github.com/zkagent/zkagent/view"
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
semaphore (--permits). zkagent refuses a contender of another kind. --list shows who
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

func acquireLock(ctx, wait context.Context, console *term.Console, s *session.Session, path string, o lockOptions) (*recipe.Hold, error) {
	defer later(time.Second, func() { console.Say("waiting for lock %s; \"zkagent lock --list %s\" shows for whom", path, path) })()
	h, err := o.acquire(wait, s, path)
	hint := func() string { // names the holders
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		list, _ := standing(ctx, s, path)
		var names []string
		for _, c := range list {
			if c.Holder {
				names = append(names, fmt.Sprintf("%s since %s", term.Printable(string(c.Data)), c.Since.Format(time.TimeOnly)))
			}
		}
		if len(names) == 0 {
			return "\"zkagent lock --list " + path + "\" shows who is in line"
		}
		return "held by " + strings.Join(names, ", ")
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

type electOptions struct {
	observe   bool
	once      bool
	joinDelay time.Duration
	id        string
	describe  string
	dialect   string
	waiting
	list      bool
	killAfter time.Duration
}

func newElectCommand(g *globals) *cobra.Command {
	var o electOptions
	c := &cobra.Command{
		Use:   "elect [flags] NAME [-- CMD [ARG...]]",
		Short: "Run a command while leading, or show who leads",
		Long: `Take part in an election and run a command once this candidate leads. When the
command ends, the candidate resigns, and zkagent exits with the same code. When
the leadership is lost, zkagent ends the command before another candidate can
lead, and exits with 76. $ZKAGENT_FENCE is the term, for the command.

With --observe or --once, zkagent is not a candidate and only prints the leader.
NAME is an election of the settings, a znode path, or a name
below ` + electionsRoot + `.`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			names, command := commandAfter(args, c.ArgsLenAtDash())
			switch {
			case len(names) != 1:
				return usagef("elect takes one name")
			case o.list && len(command) == 0:
				return listStanding(c.Context(), g, func(conf *agent.Config) (string, error) {
					path, _, err := electionOf(conf, names[0], o.dialect)
					return path, err
				})
			case o.id != "" && o.describe != "":
				return usagef("--id and --describe exclude each other")
			case o.observe && len(command) > 0:
				return usagef("--observe takes no command")
			case !o.observe && !o.once && len(command) == 0:
				return usagef("elect needs \"--\" and a command, or --observe")
			}
			return runElection(c.Context(), g, names[0], command, o)
		},
	}
	f := c.Flags()
	f.BoolVar(&o.observe, "observe", false, "print the leader at each change, without being a candidate")
	f.BoolVar(&o.once, "once", false, "print the current leader and exit, without being a candidate")
	f.DurationVar(&o.joinDelay, "join-delay", 0, "wait this long before joining, so that other hosts lead first (default: not at all); no leader is replaced")
	f.StringVar(&o.id, "id", "", "name of this candidate, which the other hosts see (default host:pid)")
	f.StringVar(&o.describe, "describe", "", "a text for --list after host:pid, such as the purpose of the command (default: none); excludes --id")
	f.StringVar(&o.dialect, "dialect", "curator", "layout of the znodes: curator, curator-selector or kazoo; all candidates must use the same one")
	o.flags(f, "fail at once when another leads", "fail when not elected in this time")
	f.BoolVar(&o.list, "list", false, "print the leader and the candidates in line, and exit")
	f.DurationVar(&o.killAfter, "kill-after", killAfter, "how long the command may take to end after TERM before it gets KILL")
	return c
}

func runElection(ctx context.Context, g *globals, name string, command []string, o electOptions) error {
	return inSessions(ctx, g, o.waiting, func(wait context.Context, s *session.Session, conf *agent.Config) error {
		path, dialect, err := electionOf(conf, name, o.dialect)
		if err != nil {
			return err
		}
		if o.observe || o.once {
			return observeElection(wait, &g.Console, s, name, path, dialect, o.once)
		}
		if o.nonblock {
			list, err := recipe.Contenders(wait, s, path)
			if err != nil {
				return err
			}
			if len(list) > 0 {
				return fail(exitTemporary, fmt.Errorf("election %s: another candidate leads", path), "\"zkagent elect --once "+path+"\" shows who leads")
			}
		}
		o.id = cmp.Or(o.id, string(contenderData(o.describe)))
		wait, cancel := o.attempt(wait)
		defer cancel()
		return leadElection(ctx, wait, g, s, path, dialect, command, o)
	})
}

// electionOf finds the path and the layout of an election by its name.
func electionOf(conf *agent.Config, name, dialect string) (string, string, error) {
	if i := slices.Index(electionNames(conf), name); i >= 0 {
		return conf.Elections[i].Path, conf.Elections[i].Dialect, nil
	}
	path, err := pathOf(electionsRoot, name)
	return path, dialect, err
}

// leadElection campaigns until the command has run for one term.
func leadElection(ctx, wait context.Context, g *globals, s *session.Session, path, dialect string, command []string, o electOptions) error {
	// leading is one term of this process as leader.
	type leading struct {
		ctx  context.Context //nolint:containedctx // a term is a context
		term election.Term
	}
	terms := make(chan leading)
	// A signal goes to the command. It must not end the term under it.
	campaign, stop := context.WithCancelCause(context.WithoutCancel(ctx))
	c := election.New(election.Config{
		Name: path, Path: path, ID: o.id, Dialect: dialect, JoinDelay: o.joinDelay, Logger: g.logger(),
		Lead: func(ctx context.Context, t election.Term) {
			// The term lasts until this returns.
			select {
			case terms <- leading{ctx, t}:
				<-ctx.Done()
			case <-ctx.Done():
			}
		},
	})
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stop(nil)
	wg.Go(func() { stop(c.Run(campaign, s, nil)) })
	elected := g.awaiting("waiting to be elected at %s", path)
	defer elected()
	select {
	case l := <-terms:
		elected()
		g.Say("leading %s, term %d", path, l.term.ID)
		err := runHeld(ctx, g, heldCommand{
			what: "leadership of " + path, ctx: l.ctx, s: s, fence: l.term.ID,
			env: []string{"ZKAGENT_ELECTION=" + path}, killAfter: o.killAfter,
		}, command)
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		if err := c.Resign(end); err != nil && !errors.Is(err, session.ErrExpired) && !errors.Is(err, session.ErrClosed) {
			g.Warnf("resign: %v; the candidate is gone with the session", err)
		}
		return err
	case <-campaign.Done():
		return context.Cause(campaign)
	case <-s.Done():
		return context.Cause(s.Context())
	case <-wait.Done():
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return fail(exitTemporary, fmt.Errorf("election %s: not elected in time", path), "\"zkagent elect --once "+path+"\" shows who leads")
	}
}

func observeElection(ctx context.Context, console *term.Console, s *session.Session, name, path, dialect string, once bool) error {
	var last *view.Leader
	var result error
	list := followers(&agent.Config{Elections: []election.Config{{Name: name, Path: path, Dialect: dialect}}}, allSources)
	err := followSources(ctx, s, list, func(u view.Update) bool {
		l, _ := u.(*view.Leader)
		if last != nil && *l == *last {
			return true
		}
		last = l
		nobody := once && l.Term == 0
		if nobody && !console.IsJSON() {
			result = failf(exitFailed, "election %s has no leader", path)
			return false
		}
		switch {
		case console.IsJSON():
			result = console.Line(map[string]any{"election": l.Name, "path": l.Path, "leader": l.ID, "term": l.Term})
		case l.Term == 0:
			console.Printf("no leader\n")
		default:
			console.Printf("%s\t%d\n", term.Printable(l.ID), l.Term)
		}
		result = cmp.Or(result, console.Failed())
		if nobody && result == nil {
			result = codeError(exitFailed)
		}
		return !once && result == nil
	})
	return cmp.Or(result, err)
}
