package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/zkagent/zkagent/agent"
	"github.com/zkagent/zkagent/internal/term"
	"github.com/zkagent/zkagent/recipe"
	"github.com/zkagent/zkagent/session"
)

func newTxnCommand(g *globals) *cobra.Command {
	return parent("txn", "Decide on many hosts: all commit, or none",
		newTxnProposeCommand(g), newTxnVoteCommand(g),
		txnCommand(g, "result NAME", "Print the decision: commit, abort or undecided", (*recipe.Txn).Result),
		txnCommand(g, "wait NAME", "Wait for the decision and print it", (*recipe.Txn).Await),
		txnCommand(g, "coordinate NAME", "Decide a transaction whose proposer has died", (*recipe.Txn).Coordinate),
		txnCommand(g, "abort NAME", "Decide abort, unless it is decided", (*recipe.Txn).Abort),
		txnCommand(g, "remove NAME", "Remove a decided transaction", func(x *recipe.Txn, ctx context.Context) (recipe.Decision, error) {
			d, err := x.Result(ctx)
			if err == nil {
				err = x.Remove(ctx)
			}
			return d, err
		}),
	)
}

// txnCommand makes a command whose answer is the decision.
func txnCommand(g *globals, use, short string, fn func(*recipe.Txn, context.Context) (recipe.Decision, error)) *cobra.Command {
	return &cobra.Command{
		Use: use, Short: short, Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			return withTxn(c.Context(), g, args[0], func(ctx context.Context, x *recipe.Txn) error {
				d, err := fn(x, ctx)
				return printDecision(&g.Console, d, err)
			})
		},
	}
}

func withTxn(ctx context.Context, g *globals, name string, fn func(context.Context, *recipe.Txn) error) error {
	path, err := pathOf(txnsRoot, name)
	if err != nil {
		return err
	}
	return g.withSession(ctx, func(bounded context.Context, s *session.Session, _ *agent.Config) error {
		defer g.awaiting("waiting for transaction %s", path)()
		err := fn(bounded, recipe.NewTxn(s, path))
		switch {
		case err != nil && bounded.Err() != nil && ctx.Err() == nil:
			return fail(exitTemporary, fmt.Errorf("transaction %s: no decision in time", path))
		case errors.Is(err, session.ErrNoNode):
			return fail(exitFailed, fmt.Errorf("there is no transaction %s", path), "\"zkagent txn propose "+path+" --sites A,B\" opens one")
		case errors.Is(err, session.ErrNodeExists):
			return fail(exitFailed, fmt.Errorf("there is a transaction %s already", path), "\"zkagent txn remove "+path+"\" removes a decided one; a new one takes another name")
		}
		return err
	})
}

// printDecision prints the decision; abort ends with 1.
func printDecision(console *term.Console, d recipe.Decision, err error) error {
	word := string(cmp.Or(d, "undecided"))
	if err == nil {
		err = console.PrintResult("decision", word, "%s\n", word)
	}
	if err != nil || d == recipe.Commit {
		return err
	}
	return codeError(exitFailed)
}

func newTxnProposeCommand(g *globals) *cobra.Command {
	var sites []string
	var deadline time.Duration
	c := &cobra.Command{
		Use: "propose NAME --sites A,B [-- CMD [ARG...]]", Short: "Open a transaction, wait for all votes, decide",
		Long: `Open a transaction of the given sites, and wait until each has voted or the deadline
is over. The decision is commit when all sites voted commit, otherwise abort. After a
commit, zkagent runs the command and exits with its code. After an abort it exits with 1.`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			names, command := commandAfter(args, c.ArgsLenAtDash())
			if len(names) != 1 || len(sites) == 0 {
				return usagef("propose takes one name and --sites")
			}
			slices.Sort(sites)
			if len(slices.Compact(slices.Clone(sites))) != len(sites) {
				return usagef("--sites names a site twice")
			}
			return withTxn(c.Context(), g, names[0], func(ctx context.Context, x *recipe.Txn) error {
				if err := x.Propose(ctx, recipe.Proposal{Sites: sites, Deadline: time.Now().Add(deadline)}); err != nil {
					return err
				}
				d, err := x.Coordinate(ctx)
				if err = printDecision(&g.Console, d, err); err != nil || len(command) == 0 {
					return err
				}
				return runFree(c.Context(), g, command)
			})
		},
	}
	c.Flags().StringSliceVar(&sites, "sites", nil, "the sites that vote, separated by commas (required)")
	c.Flags().DurationVar(&deadline, "deadline", time.Minute, "abort when not all sites have voted within this time")
	return c
}

func newTxnVoteCommand(g *globals) *cobra.Command {
	site, _ := os.Hostname()
	var onCommit, onAbort string
	c := &cobra.Command{
		Use: "vote NAME [--site SITE] -- CMD [ARG...]", Short: "Prepare with a command, vote by its exit code, wait for the decision",
		Long: `Run the command, which prepares the change and must leave a durable record. Vote
commit if it exits with 0, otherwise abort. Then wait for the decision, run
--on-commit or --on-abort, and print the decision. Abort exits with 1. The commands
have the standard input and output of zkagent, and the terminal.`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			names, command := commandAfter(args, c.ArgsLenAtDash())
			if len(names) != 1 || len(command) == 0 {
				return usagef("vote takes one name, \"--\" and a command")
			}
			return withTxn(c.Context(), g, names[0], func(ctx context.Context, x *recipe.Txn) error {
				d, err := voteTxn(ctx, g, x, site, command)
				if err != nil {
					return err
				}
				after := map[recipe.Decision]string{recipe.Commit: onCommit, recipe.Abort: onAbort}[d]
				if after != "" {
					if err := runFree(c.Context(), g, []string{"sh", "-c", after}); err != nil {
						return err
					}
				}
				return printDecision(&g.Console, d, nil)
			})
		},
	}
	c.Flags().StringVar(&site, "site", site, "the site as which this host votes (default: the host name)")
	c.Flags().StringVar(&onCommit, "on-commit", "", "shell command to run after a commit (default: none)")
	c.Flags().StringVar(&onAbort, "on-abort", "", "shell command to run after an abort (default: none)")
	return c
}

// voteTxn prepares and votes, unless the transaction is decided already.
func voteTxn(ctx context.Context, g *globals, x *recipe.Txn, site string, command []string) (recipe.Decision, error) {
	d, err := x.Withdraw(ctx, site)
	if err != nil || d != recipe.Undecided {
		return d, err
	}
	v := recipe.Commit
	if failed := runFree(ctx, g, command); failed != nil {
		g.Warnf("prepare: %v; voting abort", failed)
		v = recipe.Abort
	}
	if d, err = x.Vote(ctx, site, v); errors.Is(err, recipe.ErrDecided) {
		return d, nil
	}
	if err != nil {
		return d, err
	}
	return x.AwaitOrAbort(ctx)
}

func newBarrierCommand(g *globals) *cobra.Command {
	var wait waiting
	var n int
	var id string
	simple := func(use, short string, fn func(context.Context, *session.Session, string) error) *cobra.Command {
		return &cobra.Command{
			Use: use, Short: short, Args: cobra.ExactArgs(1),
			RunE: func(c *cobra.Command, args []string) error {
				return waitBarrier(c.Context(), g, args[0], wait, fn)
			},
		}
	}
	waitCmd := simple("wait NAME", "Wait until the barrier is open", func(ctx context.Context, s *session.Session, path string) error {
		if !wait.nonblock {
			return recipe.NewBarrier(s, path).Wait(ctx)
		}
		_, closed, err := s.Exists(ctx, path)
		if err == nil && closed {
			err = failf(exitTemporary, "barrier %s: it is closed", path)
		}
		return err
	})
	closeCmd := simple("close NAME", "Close the barrier: processes that wait for it stay held back", func(ctx context.Context, s *session.Session, path string) error {
		return recipe.NewBarrier(s, path).Close(ctx)
	})
	openCmd := simple("open NAME", "Open the barrier: everybody who waits continues", func(ctx context.Context, s *session.Session, path string) error {
		return recipe.NewBarrier(s, path).Open(ctx)
	})
	enter := &cobra.Command{
		Use: "enter NAME --count N [-- CMD [ARG...]]", Short: "Wait until N have entered; with a command, run it and leave together",
		Long: `Wait until N processes have entered. Then end, or run the command and wait until
the commands of all N have ended. Without a command this process leaves the
barrier when it ends; "leave" then waits for the others, and makes the barrier
usable again.`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			names, command := commandAfter(args, c.ArgsLenAtDash())
			if len(names) != 1 || n < 1 {
				return usagef("enter takes one name and --count N")
			}
			return waitBarrier(c.Context(), g, names[0], wait, func(ctx context.Context, s *session.Session, path string) error {
				return enterBarrier(c.Context(), ctx, g, s, recipe.DoubleBarrierConfig{Path: path, N: n, ID: id, Data: whoAmI()}, command)
			})
		},
	}
	leave := simple("leave NAME --count N", "Wait until N processes have come to leave", func(ctx context.Context, s *session.Session, path string) error {
		if n < 1 {
			return usagef("leave takes --count N")
		}
		return leaveBarrier(ctx, s, recipe.DoubleBarrierConfig{Path: path, N: n, ID: id, Data: whoAmI()})
	})
	for _, c := range []*cobra.Command{waitCmd, enter, leave} {
		wait.flags(c.Flags(), "fail at once when the barrier holds back", "fail after this time")
	}
	for _, c := range []*cobra.Command{enter, leave} {
		c.Flags().IntVar(&n, "count", 0, "number of processes that continue together (required)")
		c.Flags().StringVar(&id, "id", "", "the name under which this process takes part (default: a random one)")
	}
	return parent("barrier", "Hold back processes of many hosts and let them go together", waitCmd, closeCmd, openCmd, enter, leave)
}

// waitBarrier runs fn with a session and a bounded wait.
func waitBarrier(ctx context.Context, g *globals, name string, wait waiting, fn func(context.Context, *session.Session, string) error) error {
	path, err := pathOf(barriersRoot, name)
	if err != nil {
		return err
	}
	return inSessions(ctx, g, wait, func(bounded context.Context, s *session.Session, _ *agent.Config) error {
		defer g.awaiting("waiting at barrier %s", path)()
		bounded, cancel := wait.attempt(bounded)
		defer cancel()
		err := fn(bounded, s, path)
		switch {
		case err == nil:
			return nil
		case errors.Is(err, recipe.ErrRound):
			return fail(exitFailed, err, "\"zkagent barrier leave "+path+"\" ends a round; a barrier of another name begins a new one")
		case bounded.Err() != nil && ctx.Err() == nil:
			return fail(exitTemporary, fmt.Errorf("barrier %s: not passed in time", path))
		}
		return err
	})
}

// enterBarrier bounds only the waiting; a command then runs until all leave together.
func enterBarrier(whole, bounded context.Context, g *globals, s *session.Session, cfg recipe.DoubleBarrierConfig, command []string) error {
	b := recipe.NewDoubleBarrier(s, cfg)
	h, err := b.Enter(bounded)
	if err != nil || len(command) == 0 {
		return err
	}
	held := heldCommand{what: "barrier " + cfg.Path, ctx: h.Context(), s: s, fence: h.Fence(), env: []string{"ZKAGENT_BARRIER=" + cfg.Path}}
	return cmp.Or(runHeld(whole, g, held, command), b.Leave(whole, h))
}

// leaveBarrier lets processes leave together when other processes entered for them.
// They meet at a second barrier beside the first. Once all of them have come, the
// ready znode of the first is removed.
func leaveBarrier(ctx context.Context, s *session.Session, cfg recipe.DoubleBarrierConfig) error {
	entered := cfg.Path
	cfg.Path += "-leave"
	b := recipe.NewDoubleBarrier(s, cfg)
	h, err := b.Enter(ctx)
	if err != nil {
		return err
	}
	if err := s.Delete(ctx, session.JoinPath(entered, "ready"), -1); err != nil && !errors.Is(err, session.ErrNoNode) {
		return fmt.Errorf("end round of %s: %w", entered, err)
	}
	return b.Leave(ctx, h)
}
