package main

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/zkagent/zkagent/config"
	"github.com/zkagent/zkagent/session"
)

func newConfigPlanCommand(g *globals) *cobra.Command {
	var p publishFlags
	var roll strategyFlags
	c := &cobra.Command{
		Use: "plan DIR|FILE NAME|PATH", Short: "Show what a publish would do, and the command that does exactly that",
		Args: cobra.ExactArgs(2),
		RunE: func(c *cobra.Command, args []string) error {
			dir, name := sourceAndTarget(args)
			return g.withConfig(c.Context(), name, func(ctx context.Context, s *session.Session, t target) error {
				cfg, err := p.config(g, c, t)
				if err != nil {
					return err
				}
				if cfg.Keys, err = config.ReadDir(dir); err != nil {
					return err
				}
				plan, err := config.NewPlan(ctx, s, cfg)
				if err != nil {
					return err
				}
				return g.printPlan(plan, dir, t, p, rolloutPlan(c, &roll))
			})
		},
	}
	p.add(c)
	c.Flags().BoolVar(&roll.rollout, "rollout", false, "plan a rollout: say how the version would reach the hosts")
	roll.add(c.Flags())
	return c
}

// printPlan shows the differences and the guarded command.
func (g *globals) printPlan(p *config.Plan, dir string, t target, flags publishFlags, roll *strategyFlags) error {
	size := len(p.Subscribers) - len(p.Maintenance)
	strategy, err := roll.strategy(size)
	if err != nil {
		return err
	}
	if g.isJSON() {
		if err := g.printJSON("plan", p); err != nil {
			return err
		}
		return p.Refused
	}
	next := "a new generation"
	if p.Layout == config.LayoutVersioned {
		next = fmt.Sprintf("v%d", p.Next)
	}
	from := "nothing"
	if p.From > 0 {
		from = generation(p.Layout, p.From)
	}
	_, _ = fmt.Fprintf(g.out, "%s: %s -> %s (%s, %d changed), %s would change%s\n",
		t.name, from, next, count(p.Count, "key"), len(p.Changes), count(size, "agent"), besides(len(p.Maintenance)))
	if err := g.writeDiff(config.Unified(p.Changes, from, next)); err != nil {
		return err
	}
	if p.Refused != nil {
		return explain(p.Refused, t)
	}
	if len(p.Changes) == 0 && p.From > 0 {
		g.say("nothing would change")
		return nil
	}
	if roll.rollout {
		g.printf("Strategy: %s\n", describe(strategy, size))
	}
	g.printf("To publish exactly this:\n  zkagent config publish %s %s --check-version %d%s%s\n", shellWord(dir), shellWord(t.name), p.From, flags.repeat(), roll.repeat())
	return nil
}

// repeat are the flags that a guarded publish takes over from its plan.
func (p publishFlags) repeat() string {
	words := ""
	if p.force {
		words += " --force"
	}
	if p.schema != "" {
		words += " --schema " + shellWord(p.schema)
	}
	if p.message != "" {
		words += " -m " + shellWord(p.message)
	}
	return words
}

// shellWord quotes a word for a shell when it needs to be.
func shellWord(s string) string {
	if s != "" && !strings.ContainsFunc(s, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("/._-:@%+=", r)
	}) {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

func newConfigPublishCommand(g *globals) *cobra.Command {
	var p publishFlags
	var roll strategyFlags
	c := &cobra.Command{
		Use: "publish DIR|FILE NAME|PATH", Short: "Make the files of a directory the keys of a config",
		Long: `Make the files of a directory the keys of a config. The directory is the whole
tree: a key without a file is removed. Agents see the new tree as a whole or
not at all. "-" reads one key from standard input with --key.

With --rollout every subscribed agent renders and checks the version first, and
says yes or no; then a few hosts change at a time. Without, all change at once.

While a rollout is open nothing else is published. --emergency publishes
nevertheless, checked as always, and ends the rollout: all hosts change at once.`,
		Args: cobra.ExactArgs(2),
	}
	var emergency, replace bool
	var key string
	c.Flags().StringVar(&key, "key", "", "with - as source: the key that standard input is the value of; the others stay")
	c.RunE = func(c *cobra.Command, args []string) error {
		dir, name := sourceAndTarget(args)
		if (dir == "-") != (key != "") {
			return usagef("the source - and --key belong together")
		}
		if emergency && roll.rollout || replace && !roll.rollout {
			return usagef("--emergency is without --rollout, --replace with it")
		}
		return g.withConfig(c.Context(), name, func(ctx context.Context, s *session.Session, t target) error {
			cfg, err := p.config(g, c, t)
			if err != nil {
				return err
			}
			if dir == "-" {
				cfg.Keys, err = g.oneKey(ctx, s, t, key)
			} else {
				cfg.Keys, err = config.ReadDir(dir)
			}
			if err != nil {
				return err
			}
			if roll.rollout {
				return g.publishByRollout(ctx, s, t, cfg, &roll, replace)
			}
			return g.publishAtOnce(ctx, s, t, cfg, emergency)
		})
	}
	p.add(c)
	c.Flags().BoolVar(&roll.rollout, "rollout", false, "let every subscriber vote, then change a few hosts at a time")
	c.Flags().BoolVar(&emergency, "emergency", false, "publish although a rollout is open, to all hosts at once; asks for the config's name unless --yes")
	c.Flags().BoolVar(&replace, "replace", false, "with --rollout: take the place of a rollout that has halted")
	roll.add(c.Flags())
	return c
}

// publishAtOnce publishes to all hosts at once, unless a rollout is open and this
// is no emergency.
func (g *globals) publishAtOnce(ctx context.Context, s *session.Session, t target, cfg config.PublishConfig, emergency bool) error {
	if err := g.refuseOpen(ctx, s, t, emergency); err != nil {
		return err
	}
	r, err := config.Publish(ctx, s, cfg)
	if err != nil {
		return err
	}
	return g.told("published", t, r)
}

// oneKey is the tree in use with one key changed.
func (g *globals) oneKey(ctx context.Context, s *session.Session, t target, key string) (map[string][]byte, error) {
	value, err := io.ReadAll(g.in)
	if err != nil {
		return nil, err
	}
	keys, _, err := keysInUse(ctx, s, t)
	if err != nil {
		return nil, err
	}
	keys[key] = value
	return keys, nil
}

func newConfigFinishCommand(g *globals) *cobra.Command {
	return &cobra.Command{
		Use: "finish NAME|PATH", Short: "Declare the keys of an unfinished publish of a flat tree complete", Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			return g.withConfig(c.Context(), args[0], func(ctx context.Context, s *session.Session, t target) error {
				r, err := config.Finish(ctx, s, config.PublishConfig{Path: t.path, Logger: g.logger()})
				if err != nil {
					return err
				}
				return g.told("finished", t, r)
			})
		},
	}
}

func newConfigRollbackCommand(g *globals) *cobra.Command {
	var p publishFlags
	var to versionFlag
	c := &cobra.Command{
		Use: "rollback NAME|PATH", Short: "Publish an older version again, as a new one", Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			return g.withConfig(c.Context(), args[0], func(ctx context.Context, s *session.Session, t target) error {
				cfg, err := p.config(g, c, t)
				if err != nil {
					return err
				}
				if err = g.refuseOpen(ctx, s, t, false); err != nil {
					return err
				}
				r, err := config.Rollback(ctx, s, cfg, int64(to))
				if err != nil {
					return err
				}
				return g.told("rolled back, now", t, r)
			})
		},
	}
	c.Flags().Var(&to, "to", "the version to bring back (default: the one before)")
	p.add(c)
	return c
}

func newConfigConvertCommand(g *globals) *cobra.Command {
	var p publishFlags
	var keep bool
	c := &cobra.Command{
		Use: "convert NAME|PATH", Short: "Give a flat tree versions", Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			return g.withConfig(c.Context(), args[0], func(ctx context.Context, s *session.Session, t target) error {
				cfg, err := p.config(g, c, t)
				if err != nil {
					return err
				}
				if err = g.refuseOpen(ctx, s, t, false); err != nil {
					return err
				}
				cfg.Layout = config.LayoutAuto
				r, err := config.Convert(ctx, s, cfg, keep)
				if err != nil {
					return err
				}
				return g.told("converted, now", t, r)
			})
		},
	}
	c.Flags().BoolVar(&keep, "keep", false, "leave the flat keys for programs that know only them")
	p.add(c)
	return c
}
