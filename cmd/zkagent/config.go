package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/zkagent/zkagent/agent"
	"github.com/zkagent/zkagent/config"
	"github.com/zkagent/zkagent/fleet"
	"github.com/zkagent/zkagent/internal/files"
	"github.com/zkagent/zkagent/internal/lastgood"
	"github.com/zkagent/zkagent/internal/term"
	"github.com/zkagent/zkagent/internal/trees"
	"github.com/zkagent/zkagent/session"
	"github.com/zkagent/zkagent/view"
)

func newConfigCommand(g *globals) *cobra.Command {
	return parent("config", "Plan, publish, read and roll back config trees",
		newConfigPlanCommand(g), newConfigPublishCommand(g), newConfigListCommand(g), newConfigGetCommand(g), newConfigDiffCommand(g),
		newConfigHistoryCommand(g), newConfigRollbackCommand(g), newConfigEditCommand(g), newConfigFreezeCommand(g),
		newConfigExportCommand(g), newConfigImportCommand(g), newConfigConvertCommand(g), newConfigGCCommand(g), newConfigSchemaCommand(g),
		newConfigDeleteCommand(g), newConfigRestoreCommand(g),
		configCommand(g, "finish NAME|PATH", "Mark the keys of an unfinished publish of a flat tree as complete", func(ctx context.Context, s *session.Session, t target, _ []string) error {
			r, err := fleet.Finish(ctx, s, fleet.PublishConfig{Path: t.path, Logger: g.logger()})
			return printPublished(ctx, &g.Console, s, t, "finished", r, err)
		}),
		configCommand(g, "unfreeze NAME|PATH", "Allow changes of a frozen config again", func(ctx context.Context, s *session.Session, t target, _ []string) error {
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
	)
}

type target struct {
	name string // as it was named
	path string // root znode
	// layout is the layout from the settings; empty without a block.
	layout string
}

// targetOf finds a config by the name of its block, or takes a path.
func targetOf(conf *agent.Config, name string) (target, error) {
	names := configNames(conf)
	if i := slices.Index(names, name); i >= 0 {
		c := conf.Configs[i]
		if c.Layout == config.LayoutLeaves {
			c.Layout = config.LayoutPlain
		}
		return target{name, c.Path, c.Layout}, nil
	}
	if !strings.HasPrefix(name, "/") {
		hint := "name it by its path, as in /config/" + strings.TrimPrefix(name, "config/") + ", or give settings with a config block by --config"
		if len(names) > 0 {
			hint = "the settings have " + listed(name, names) + "; a path begins with a slash"
		}
		return target{}, fail(exitUsage, fmt.Errorf("there is no config named %q", name), hint)
	}
	if name == "/" {
		return target{}, usagef("/ cannot be a config: name a path below it, as in /config/web")
	}
	return target{name: name, path: strings.TrimSuffix(name, "/")}, fail(exitUsage, session.ValidatePath(name))
}

// configCommand is a command that runs fn with the config that its first argument names.
func configCommand(g *globals, use, short string, fn func(context.Context, *session.Session, target, []string) error) *cobra.Command {
	return &cobra.Command{Use: use, Short: short, Args: cobra.ExactArgs(1), RunE: func(c *cobra.Command, args []string) error {
		return withConfig(c.Context(), g, args[0], func(ctx context.Context, s *session.Session, t target) error { return fn(ctx, s, t, args) })
	}}
}

func withConfig(ctx context.Context, g *globals, name string, fn func(context.Context, *session.Session, target) error) error {
	zk, _, t, err := g.target(name)
	if err != nil {
		return err
	}
	return onTarget(ctx, g, zk, t, fn)
}

// target is zkConfig with the config of that name.
func (g *globals) target(name string) (session.Config, *agent.Config, target, error) {
	zk, conf, err := g.zkConfig()
	if err != nil {
		return zk, conf, target{}, err
	}
	t, err := targetOf(conf, name)
	return zk, conf, t, err
}

func onTarget(ctx context.Context, g *globals, zk session.Config, t target, fn func(context.Context, *session.Session, target) error) error {
	return g.inSession(ctx, zk, func(ctx context.Context, s *session.Session) error {
		err := fn(ctx, s, t)
		if errors.Is(err, config.ErrNotReady) && !errors.Is(err, fleet.ErrUnfinished) {
			if _, kept := fleet.InTrash(ctx, s, t.path); kept == nil {
				return fail(exitFailed, err, "it was deleted: \"zkagent config restore "+t.name+"\" brings it back")
			}
			if missing := mustExist(ctx, s, t.path); missing != nil {
				return missing
			}
		}
		return explain(err, t)
	})
}

func explain(err error, t target) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, fleet.ErrUnfinished):
		return fail(exitFailed, err, "publish again with --finish, or \"zkagent config finish "+t.name+"\" when the keys are complete")
	case errors.Is(err, config.ErrDamaged):
		return fail(exitFailed, err, "agents keep what they have; \"zkagent config restore "+t.name+" --from HOST\" publishes the tree of one of them",
			"a publish of the whole tree with --force replaces it, with --rollout or, to all hosts at once, --rollout=false",
			"\"zkagent config rollback "+t.name+" --rollout=false\" with --to brings back an older version; \"zkagent config history "+t.name+"\" lists them")
	case errors.Is(err, fleet.ErrNoPrevious), errors.Is(err, trees.ErrGone) && !errors.Is(err, config.ErrNoVersion):
		return fail(exitFailed, err, "\"zkagent config rollback "+t.name+"\" with --to brings back another version; \"zkagent config history "+t.name+"\" lists them",
			"\"zkagent config restore "+t.name+" --from HOST\" publishes the tree that a host uses")
	case errors.Is(err, config.ErrNotReady):
		return fail(exitFailed, err, "\"zkagent config publish DIR "+t.name+"\" publishes a version")
	case errors.Is(err, config.ErrNoVersion):
		hint := "\"zkagent config history " + t.name + "\" shows the versions"
		if _, absent := errors.AsType[trees.NoVersionError](err); !absent {
			hint += "; \"zkagent config convert " + t.name + "\" converts a flat tree to a versioned one"
		}
		return fail(exitFailed, err, hint)
	}
	if _, ok := errors.AsType[*cliError](err); ok {
		return err
	}
	switch {
	case errors.Is(err, fleet.ErrFrozen):
		return fail(exitFailed, err, "\"zkagent config unfreeze "+t.name+"\" lifts it")
	case errors.Is(err, fleet.ErrConflict):
		return fail(exitTemporary, err, "another publisher was faster; look at \"zkagent config history "+t.name+"\" and plan again")
	}
	return err
}

type publishFlags struct {
	publish fleet.PublishConfig // as the flags say
	check   int64
	schema  string
}

func (p *publishFlags) add(c *cobra.Command) {
	f := c.Flags()
	f.StringVarP(&p.publish.Message, "message", "m", "", "why you publish; the history and audit show it (default: no reason)")
	f.Int64Var(&p.check, "check-version", 0, "publish only if this version is in use, so that you undo nobody's change; otherwise exit with 75 (default: any version)")
	f.BoolVar(&p.publish.Force, "force", false, "publish although the tree grows or shrinks more than fivefold")
	f.BoolVar(&p.publish.Finish, "finish", false, "replace an unfinished publish of a flat tree; by default it is refused")
	f.StringVar(&p.publish.Layout, "layout", config.LayoutAuto, "auto, flat or versioned; auto keeps the layout of an existing tree, and creates a new one as versioned")
	f.BoolVar(&p.publish.NoDelta, "no-delta", false, "omit diffs; agents read full contents from publisher-only paths")
	f.StringVar(&p.schema, "schema", "", "JSON Schema file that the tree must satisfy (default: the key .schema.json of the tree, if it has one)")
}

func (p *publishFlags) config(g *globals, c *cobra.Command, t target) (fleet.PublishConfig, error) {
	cfg := p.publish
	cfg.Path, cfg.Logger = t.path, g.logger()
	switch {
	case !slices.Contains([]string{config.LayoutAuto, config.LayoutFlat, config.LayoutVersioned}, cfg.Layout):
		return cfg, usagef("--layout %q is not one of auto, flat, versioned", cfg.Layout)
	case t.layout == config.LayoutPlain:
		return cfg, failf(exitFailed, "config %s has the layout plain: other tools write it", t.name)
	case cfg.Layout == config.LayoutAuto:
		cfg.Layout = cmp.Or(t.layout, cfg.Layout)
	}
	if c.Flags().Changed("check-version") {
		cfg.Check = &p.check
	}
	if p.schema != "" {
		var err error
		if cfg.Schema, err = files.ReadNamed(p.schema, files.MaxSize); err != nil {
			return cfg, err
		}
	}
	return cfg, nil
}

// run runs fn with the config of the name and what the flags say about its publisher.
func (p *publishFlags) run(g *globals, c *cobra.Command, name string, fn func(context.Context, *session.Session, target, fleet.PublishConfig) error) error {
	zk, _, t, err := g.target(name)
	if err != nil {
		return err
	}
	cfg, err := p.config(g, c, t)
	if err != nil {
		return err
	}
	return onTarget(c.Context(), g, zk, t, func(ctx context.Context, s *session.Session, t target) error { return fn(ctx, s, t, cfg) })
}

// sourceAndTarget returns the two arguments DIR|FILE NAME|PATH. It accepts the
// other order if only that makes sense.
func sourceAndTarget(args []string) (string, string) {
	if exists(args[1]) && !exists(args[0]) {
		return args[1], args[0]
	}
	return args[0], args[1]
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func printPublished(ctx context.Context, console *term.Console, s *session.Session, t target, verb string, r fleet.Result, err error) error {
	switch {
	case err != nil:
		return explainRollout(ctx, s, t, err)
	case r.Unchanged && !console.IsJSON():
		console.Say("%s: nothing changed, %s stays in use", t.name, generation(r.Layout, r.Generation))
		return nil
	}
	return console.PrintResult("result", r, "%s: %s %s, %s, %s\n", t.name, verb, generation(r.Layout, r.Generation), term.Count(r.Count, "key"), term.Count(len(r.Changes), "change"))
}

// generation names a state of a tree: a version, or the czxid of ready.
func generation(layout string, n int64) string {
	if layout == config.LayoutVersioned {
		return fmt.Sprintf("v%d", n)
	}
	return fmt.Sprintf("generation %d", n)
}

func newConfigSchemaCommand(g *globals) *cobra.Command {
	var file string
	c := configCommand(g, "schema NAME|PATH", "Show the JSON Schema of a config, and check the tree in use against it or another", func(ctx context.Context, s *session.Session, t target, _ []string) error {
		keys, _, err := keysInUse(ctx, s, t)
		if err != nil {
			return err
		}
		schema, own := keys[config.SchemaKey]
		switch {
		case file != "":
			if schema, err = files.ReadNamed(file, files.MaxSize); err != nil {
				return err
			}
		case !own:
			return fail(exitFailed, fmt.Errorf("%s has no schema", t.name), "a key "+config.SchemaKey+" in the tree is one")
		}
		if err := config.CheckSchema(schema, treeOf(t, keys)); err != nil {
			return fmt.Errorf("%s: %w", t.name, err)
		}
		if file == "" {
			g.Printf("%s\n", bytes.TrimSuffix(schema, []byte("\n")))
		}
		g.Say("%s: the tree in use satisfies the schema", t.name)
		return nil
	})
	c.Long = `Show the JSON Schema of a config, and check the tree in use against it. The
schema is the key .schema.json of the tree itself, so that plan, publish and
every vote check against the same one. --schema checks against a file instead,
before it is published. Exit 1 when the tree violates the schema.`
	c.Flags().StringVar(&file, "schema", "", "check against this file (default: the key .schema.json of the tree)")
	return c
}

func newConfigDeleteCommand(g *globals) *cobra.Command {
	var reason string
	c := configCommand(g, "delete NAME|PATH", "Take a config out of use, so that it can be restored", func(ctx context.Context, s *session.Session, t target, _ []string) error {
		followers, err := fleet.Followers(ctx, s, t.path)
		if err != nil {
			return err
		}
		question := "delete the config " + t.path + "?"
		if hosts := followers[t.path]; len(hosts) > 0 {
			question = fmt.Sprintf("delete the config %s, which %s use?", t.path, someHosts(hosts))
		}
		if err := g.confirm(ctx, question); err != nil {
			return err
		}
		d, err := fleet.Delete(ctx, s, t.path, userName(), reason)
		if err != nil {
			return explainRollout(ctx, s, t, err)
		}
		return printDeleted(&g.Console, "deleted", t, d)
	})
	c.Long = `Take a config out of use. Agents that follow it keep their files and report the
condition source-gone. "zkagent config restore" puts the config into use again, as it
was. Its versions stay in ZooKeeper; "zkagent config gc NAME" keeps the deleted one for
seven days. "zkagent zk rm PATH" removes the rest.`
	c.Example = "  zkagent config delete /config/site --reason \"moved to /config/web\""
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
that it saved. This helps when a config was removed or damaged in another way. Run it there,
as root or as the user of the agent. Elsewhere it prints the command that does the same
by ssh.`,
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
	damaged, check := false, int64(0) // of a tree whose ready is damaged, the version in use is 0
	if _, err := config.Read(ctx, s, t.path); errors.Is(err, config.ErrDamaged) {
		ready, _, _ := trees.ReadReady(ctx, s, t.path)
		damaged, check = true, ready.Version
	}
	if host != conf.ID {
		there := "zkagent config export " + term.ShellWord(t.path) + " --saved"
		here := fmt.Sprintf("zkagent config import - %s --check-version %d", term.ShellWord(t.name), check)
		if damaged {
			here += " --force --rollout=false"
		}
		return fail(exitUsage, fmt.Errorf("only root and the agent's user on %s can read the view that it saved", host),
			"\"ssh "+term.ShellWord(host)+" "+term.ShellWord(there)+" | "+here+"\" publishes it from here")
	}
	tree, at, err := savedTree(conf, t)
	if err != nil {
		return err
	}
	if tree.Layout == config.LayoutPlain {
		return failf(exitFailed, "%s has the layout plain: other tools write it", t.path)
	}
	cfg := fleet.PublishConfig{
		Path: t.path, Layout: tree.Layout, Keys: valuesOf(tree), Check: &check, Force: damaged, Logger: g.logger(),
		Message: fmt.Sprintf("restored from %s, which used %s", host, generation(tree.Layout, tree.Generation)),
	}
	if err := g.confirm(ctx, fmt.Sprintf("publish %s of %s, as of %s?", term.Count(len(cfg.Keys), "key"), t.path, at.Format(time.RFC3339))); err != nil {
		return err
	}
	r, err := fleet.Publish(ctx, s, cfg)
	return explain(printPublished(ctx, &g.Console, s, t, "restored, now", r, err), t)
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

func newConfigGCCommand(g *globals) *cobra.Command {
	var keep int
	c := &cobra.Command{
		Use: "gc NAME|PATH", Short: "Delete old versions, and contents that only they use", Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if keep < 1 {
				return fail(exitUsage, errors.New("--keep must be at least 1"))
			}
			return withConfig(c.Context(), g, args[0], func(ctx context.Context, s *session.Session, t target) error {
				if err := g.confirm(ctx, fmt.Sprintf("delete all versions of %s but the latest %d and those in use?", t.path, keep)); err != nil {
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
