package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
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
		} else if result = printLeader(console, l); nobody && result == nil {
			result = codeError(exitFailed)
		}
		return !once && result == nil
	})
	return cmp.Or(result, err)
}

func printLeader(console *term.Console, l *view.Leader) error {
	if console.IsJSON() {
		return console.Line(map[string]any{"election": l.Name, "path": l.Path, "leader": l.ID, "term": l.Term})
	}
	id := l.ID
	if l.Term == 0 {
		id = "-"
	}
	console.Printf("%s\t%d\n", term.Printable(id), l.Term)
	return console.Failed()
}
