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
		Long: `Open a transaction of the given sites, wait until each has voted, and decide:
commit when all voted commit, abort otherwise or at the deadline. A command is run
after a commit, and its exit code is that of zkagent; abort exits with 1.`,
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

// voteTxn prepares and votes. If the transaction is decided already, it returns that
// decision.
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
