package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/zkagent/zkagent/agent"
	"github.com/zkagent/zkagent/config"
	"github.com/zkagent/zkagent/fleet"
	"github.com/zkagent/zkagent/internal/lastgood"
	"github.com/zkagent/zkagent/internal/term"
	"github.com/zkagent/zkagent/session"
	"github.com/zkagent/zkagent/view"
)

func newConfigDeleteCommand(g *globals) *cobra.Command {
	var reason string
	c := &cobra.Command{
		Use: "delete NAME|PATH", Short: "Take a config out of use, so that it can be restored",
		Long: `Take a config out of use. Agents that follow it keep their files and report the
condition source-gone. "zkagent config restore" puts the config into use again, as it
was. Its versions stay in ZooKeeper; "zkagent config gc" keeps the deleted one for
seven days. "zkagent zk rm" removes the rest.`,
		Example: "  zkagent config delete /config/site --reason \"moved to /config/web\"",
		Args:    cobra.ExactArgs(1),
		RunE: onConfig(g, func(ctx context.Context, s *session.Session, t target, _ []string) error {
			followers, err := fleet.Followers(ctx, s, t.path)
			if err != nil {
				return err
			}
			question := "delete the config " + t.path + "?"
			if hosts := followers[t.path]; len(hosts) > 0 {
				question = fmt.Sprintf("delete the config %s, which %s use?", t.path, someHosts(hosts))
			}
			if err := g.mustConfirm(ctx, question); err != nil {
				return err
			}
			d, err := fleet.Delete(ctx, s, t.path, userName(), reason)
			if err != nil {
				return explainRollout(ctx, s, t, err)
			}
			return printDeleted(&g.Console, "deleted", t, d)
		}),
	}
	c.Flags().StringVar(&reason, "reason", "", "why you delete it; \"zkagent config restore\" lists it (default: no reason)")
	return c
}

func newConfigRestoreCommand(g *globals) *cobra.Command {
	var from string
	c := &cobra.Command{
		Use: "restore [NAME|PATH]", Short: "Put a deleted config into use again, or list the deleted ones",
		Long: `Put a config that "zkagent config delete" deleted into use again, as it was. Without a
name, list the deleted configs of the settings, or without settings those below /config.

With --from HOST, publish the tree that the agent of that host used last, from the view
that it saved. This helps when a config was removed in another way. Run it on that host,
as root or as the user of the agent. "zkagent config export NAME --saved" there writes
the tree as an archive, which "zkagent config import" publishes from any machine.`,
		Example: "  zkagent config restore /config/site\n  zkagent config restore site --from web-07",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			return g.withSession(c.Context(), func(ctx context.Context, s *session.Session, conf *agent.Config) error {
				if len(args) == 0 {
					return listDeleted(ctx, &g.Console, s, conf)
				}
				t, err := targetOf(conf, args[0])
				if err != nil {
					return err
				}
				if from != "" {
					return restoreFrom(ctx, g, s, conf, t, from)
				}
				d, err := fleet.Restore(ctx, s, t.path, userName())
				switch {
				case errors.Is(err, fleet.ErrNotDeleted):
					return fail(exitFailed, err, "\"zkagent config restore "+t.name+" --from HOST\" on a host that used it publishes its last tree")
				case err != nil:
					return explain(err, t)
				}
				return printDeleted(&g.Console, "restored", t, d)
			})
		},
	}
	c.Flags().StringVar(&from, "from", "", "publish the tree that the agent of this host used last (default: undo a delete)")
	return c
}

// restoreFrom publishes the tree of the last view that this host's agent saved.
func restoreFrom(ctx context.Context, g *globals, s *session.Session, conf *agent.Config, t target, host string) error {
	if len(conf.Files) > 0 && host != conf.ID {
		return fail(exitUsage, fmt.Errorf("this is %s: the saved view of %s is on that host", conf.ID, host),
			"run the command there, or \"ssh "+host+" zkagent config export "+t.name+" --saved | zkagent config import - "+t.name+"\" here")
	}
	tree, at, err := savedTree(conf, t)
	if err != nil {
		return err
	}
	if tree.Layout == config.LayoutPlain {
		return failf(exitFailed, "%s has the layout plain: other tools write it", t.path)
	}
	cfg := fleet.PublishConfig{
		Path: t.path, Layout: tree.Layout, Keys: valuesOf(tree), Check: new(int64), Logger: g.logger(),
		Message: fmt.Sprintf("restored from %s, which used %s", host, generation(tree.Layout, tree.Generation)),
	}
	if err := g.mustConfirm(ctx, fmt.Sprintf("publish %s of %s, as of %s?", term.Count(len(cfg.Keys), "key"), t.path, at.Format(time.RFC3339))); err != nil {
		return err
	}
	r, err := fleet.Publish(ctx, s, cfg)
	if err != nil {
		return explain(err, t)
	}
	return printPublished(ctx, &g.Console, s, t, "restored, now", r, nil)
}

// savedTree returns a config as the agent of this host has saved it, and when.
func savedTree(conf *agent.Config, t target) (*view.Tree, time.Time, error) {
	if conf.StateDir == "" {
		return nil, time.Time{}, usagef("the saved view needs the settings of the agent by --config: they name its state directory")
	}
	saved, err := lastgood.Load(conf.StateDir)
	if err != nil {
		return nil, time.Time{}, err
	}
	if saved == nil {
		return nil, time.Time{}, failf(exitFailed, "%s has no saved view in %s", conf.ID, conf.StateDir)
	}
	for _, src := range saved.Sources() {
		if tree, ok := saved.Get(src).(*view.Tree); ok && tree.Path == t.path {
			return tree, saved.Saved, nil
		}
	}
	return nil, time.Time{}, failf(exitFailed, "the saved view of %s has no config %s", conf.ID, t.path)
}

// listDeleted lists the deleted configs of the settings.
func listDeleted(ctx context.Context, console *term.Console, s *session.Session, conf *agent.Config) error {
	targets, err := configsToList(ctx, s, conf, nil)
	if err != nil {
		return err
	}
	var list []fleet.Deleted
	for _, t := range targets {
		d, err := fleet.InTrash(ctx, s, t.path)
		if errors.Is(err, fleet.ErrNotDeleted) {
			continue
		}
		if err != nil {
			return err
		}
		list = append(list, d)
	}
	return term.PrintRows(console, "deleted", list, []string{"CONFIG", "DELETED", "BY", "IN USE", "REASON"}, func(d fleet.Deleted) []string {
		return []string{d.Path, d.At.Format(time.RFC3339), cmp.Or(d.By, "-"), deletedVersion(d), d.Reason}
	})
}

func deletedVersion(d fleet.Deleted) string {
	if d.Version == 0 {
		return d.Layout
	}
	return generation(d.Layout, d.Version)
}

func printDeleted(console *term.Console, verb string, t target, d fleet.Deleted) error {
	if console.IsJSON() {
		return console.PrintJSON(verb, d)
	}
	console.Say("%s: %s (%s)", t.name, verb, strings.TrimSpace(deletedVersion(d)))
	return nil
}

func newConfigFreezeCommand(g *globals) *cobra.Command {
	var reason string
	c := &cobra.Command{
		Use: "freeze NAME|PATH --reason TEXT", Short: "Refuse every change of a config until it is unfrozen", Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if reason == "" {
				return usagef("freeze needs --reason: others will ask")
			}
			return withConfig(c.Context(), g, args[0], func(ctx context.Context, s *session.Session, t target) error {
				if err := mustExist(ctx, s, t.path); err != nil {
					return err
				}
				if err := fleet.Freeze(ctx, s, t.path, userName(), reason); err != nil {
					return err
				}
				g.Say("%s is frozen", t.name)
				return nil
			})
		},
	}
	c.Flags().StringVar(&reason, "reason", "", "why (required); everybody who tries to publish sees it")
	return c
}

func newConfigUnfreezeCommand(g *globals) *cobra.Command {
	return &cobra.Command{
		Use: "unfreeze NAME|PATH", Short: "Allow changes of a frozen config again", Args: cobra.ExactArgs(1),
		RunE: onConfig(g, func(ctx context.Context, s *session.Session, t target, _ []string) error {
			was, err := fleet.Unfreeze(ctx, s, t.path, userName())
			switch {
			case err != nil:
				return err
			case was:
				g.Say("%s can be changed again", t.name)
			default:
				g.Say("%s was not frozen", t.name)
			}
			return nil
		}),
	}
}

func newConfigGCCommand(g *globals) *cobra.Command {
	var keep int
	c := &cobra.Command{
		Use: "gc NAME|PATH", Short: "Delete old versions, and contents that only they use", Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if keep < 1 {
				return fail(exitUsage, errors.New("--keep must be at least 1"))
			}
			return withConfig(c.Context(), g, args[0], func(ctx context.Context, s *session.Session, t target) error {
				question := fmt.Sprintf("delete all versions of %s but the latest %d and those in use?", t.path, keep)
				if err := g.mustConfirm(ctx, question); err != nil {
					return err
				}
				done, err := fleet.GC(ctx, s, t.path, keep, g.logger())
				if err != nil {
					return err
				}
				return g.PrintResult("collected", done, "%s: deleted %s, %s\n", t.name, term.Count(len(done.Versions), "version"), term.Count(done.Objects, "object"))
			})
		},
	}
	c.Flags().IntVar(&keep, "keep", fleet.DefaultKeep, "how many of the latest versions stay")
	return c
}
