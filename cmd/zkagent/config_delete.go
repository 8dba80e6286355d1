package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
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
		RunE: func(c *cobra.Command, args []string) error {
			return withConfig(c.Context(), g, args[0], func(ctx context.Context, s *session.Session, t target) error {
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
			})
		},
	}
	c.Flags().StringVar(&reason, "reason", "", "why; it is kept with the deleted config")
	return c
}

func newConfigRestoreCommand(g *globals) *cobra.Command {
	var from string
	c := &cobra.Command{
		Use: "restore [NAME|PATH]", Short: "Put a deleted config into use again, or list the deleted ones",
		Long: `Put a config that "zkagent config delete" deleted into use again, as it was. Without a
name, list the deleted configs of the settings.

With --from HOST, publish the tree that the agent of that host used last, from the view
that it saved. This helps when a config was removed in another way. Run it on that host,
as root or as the user of the agent.`,
		Example: "  zkagent config restore /config/site\n  zkagent config restore site --from web-07",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) == 0 {
				return g.withSession(c.Context(), func(ctx context.Context, s *session.Session, conf *agent.Config) error {
					return listDeleted(ctx, &g.Console, s, conf)
				})
			}
			return g.withSession(c.Context(), func(ctx context.Context, s *session.Session, conf *agent.Config) error {
				t, err := targetOf(conf, args[0])
				if err != nil {
					return err
				}
				ctx, cancel := g.patience(ctx, 0)
				defer cancel()
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
	c.Flags().StringVar(&from, "from", "", "publish the tree that this host's agent used last")
	return c
}

// restoreFrom publishes the tree of the last view that this host's agent saved.
func restoreFrom(ctx context.Context, g *globals, s *session.Session, conf *agent.Config, t target, host string) error {
	if conf == nil || conf.StateDir == "" {
		return usagef("--from needs the settings of the agent by --config: they name its state directory")
	}
	if host != conf.ID {
		return fail(exitUsage, fmt.Errorf("this is %s: the saved view of %s is on that host", conf.ID, host), "run the command there")
	}
	saved, err := lastgood.Load(conf.StateDir)
	if err != nil {
		return err
	}
	if saved == nil {
		return failf(exitFailed, "%s has no saved view in %s", host, conf.StateDir)
	}
	updates := saved.Updates()
	i := slices.IndexFunc(updates, func(u view.Update) bool { tree, ok := u.(*view.Tree); return ok && tree.Path == t.path })
	if i < 0 {
		return failf(exitFailed, "the saved view of %s has no config %s", host, t.path)
	}
	tree := updates[i].(*view.Tree) //nolint:forcetypeassert // as just looked
	if tree.Layout == config.LayoutPlain {
		return failf(exitFailed, "%s has the layout plain: other tools write it", t.path)
	}
	cfg := fleet.PublishConfig{
		Path: t.path, Layout: tree.Layout, Keys: map[string][]byte{}, Check: new(int64), Logger: g.logger(),
		Message: fmt.Sprintf("restored from %s, which used %s", host, generation(tree.Layout, tree.Generation)),
	}
	tree.Walk("", func(key string, k view.Key) bool {
		cfg.Keys[key] = k.Value
		return true
	})
	if err := g.mustConfirm(ctx, fmt.Sprintf("publish %s of %s, as of %s?", term.Count(len(cfg.Keys), "key"), t.path, saved.Saved.Format(time.RFC3339))); err != nil {
		return err
	}
	r, err := fleet.Publish(ctx, s, cfg)
	if err != nil {
		return explain(err, t)
	}
	return printPublished(&g.Console, "restored, now", t, r)
}

// listDeleted lists the deleted configs of the settings.
func listDeleted(ctx context.Context, console *term.Console, s *session.Session, conf *agent.Config) error {
	targets, err := auditTargets(conf, nil)
	if err != nil {
		return err
	}
	list := []fleet.Deleted{}
	rows := &term.Table{Header: []string{"CONFIG", "DELETED", "BY", "IN USE", "REASON"}}
	for _, t := range targets {
		d, err := fleet.InTrash(ctx, s, t.path)
		if errors.Is(err, fleet.ErrNotDeleted) {
			continue
		}
		if err != nil {
			return err
		}
		list = append(list, d)
		rows.Add(d.Path, d.At.Format(time.RFC3339), orWord(d.By, "-"), deletedVersion(d), d.Reason)
	}
	if console.IsJSON() {
		return term.PrintList(console, "deleted", list)
	}
	return console.PrintTable(rows)
}

// deletedVersion names what was in use.
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
