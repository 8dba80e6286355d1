package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/zkagent/zkagent/config"
	"github.com/zkagent/zkagent/fleet"
	"github.com/zkagent/zkagent/internal/term"
	"github.com/zkagent/zkagent/session"
	"github.com/zkagent/zkagent/view"
)

func newConfigPublishCommand(g *globals) *cobra.Command {
	var pipe pipeline
	c := &cobra.Command{
		Use: "publish DIR|FILE NAME|PATH", Short: "Publish a directory as a config: each file is a key",
		Long: `Publish a directory as a config: each file is a key. The directory is the whole
tree: a key without a file is removed. Agents see the new tree as a whole or
not at all. "-" reads one key from standard input with --key. If nothing differs,
the command writes nothing, and needs no permission to write.

Without --rollout all hosts change at once. With it, every subscribed agent renders
and checks the version first, and votes; then a few hosts change at a time. A key
.rollout.json of the tree in use makes --rollout the default, and has its flags.

While a rollout is open, every other publish is refused. --emergency publishes
anyway, after the usual checks: it ends the rollout, and all hosts change at once.`,
		Args: cobra.ExactArgs(2),
	}
	var key string
	c.Flags().StringVar(&key, "key", "", "with - as source: publish standard input as the value of this key; the other keys stay")
	c.RunE = func(c *cobra.Command, args []string) error {
		dir, name := sourceAndTarget(args)
		if (dir == "-") != (key != "") {
			return usagef("the source - and --key belong together")
		}
		return pipe.run(g, c, name, func(ctx context.Context, s *session.Session, t target, cfg fleet.PublishConfig) error {
			var err error
			if dir == "-" {
				err = setKey(ctx, &g.Console, s, t, key, &cfg)
			} else {
				cfg.Keys, err = config.ReadDir(dir)
			}
			if err != nil {
				return err
			}
			return sendPipeline(ctx, g, s, t, cfg, &pipe)
		})
	}
	pipe.add(c)
	return c
}

// setKey makes cfg publish the tree in use with one key changed.
func setKey(ctx context.Context, console *term.Console, s *session.Session, t target, key string, cfg *fleet.PublishConfig) error {
	if err := config.ValidateKey(key); err != nil {
		return fail(exitUsage, err)
	}
	value, err := io.ReadAll(console.In)
	if err != nil {
		return err
	}
	return onTopOf(ctx, s, t, cfg, func(keys map[string][]byte) error {
		keys[key] = value
		return nil
	})
}

// onTopOf makes cfg publish the tree in use with change applied. The publish fails
// if another one comes in between.
func onTopOf(ctx context.Context, s *session.Session, t target, cfg *fleet.PublishConfig, change func(map[string][]byte) error) error {
	keys, tree, err := keysInUse(ctx, s, t)
	if err != nil {
		return err
	}
	if err = change(keys); err != nil {
		return err
	}
	cfg.Keys = keys
	base := cmp.Or(tree, &view.Tree{}) // generation 0: nothing is published
	cfg.Check = cmp.Or(cfg.Check, &base.Generation)
	return nil
}

func newConfigRollbackCommand(g *globals) *cobra.Command {
	var pipe pipeline
	var to versionFlag
	c := &cobra.Command{
		Use: "rollback NAME|PATH", Short: "Publish an older version again, as a new one",
		Long: `Publish the content of an older version as a new version. All hosts change at once,
unless you give --rollout or the tree in use has a key .rollout.json: then a rollout
brings it to the hosts. With --rollout=false all hosts change at once in any case.
"zkagent rollout undo" lets every subscriber vote and then changes all of them
together. It also ends a rollout that is open.`,
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			return pipe.run(g, c, args[0], func(ctx context.Context, s *session.Session, t target, cfg fleet.PublishConfig) error {
				if pipe.roll.rollout {
					if err := refusePipeline(ctx, s, t, &pipeline{}); err != nil {
						return err // "zkagent rollout undo" ends the open rollout
					}
					if !c.Flags().Changed("rollout") {
						g.Say("%s", g.here(fmt.Sprintf("%s asks for a rollout by its key %s; \"zkagent rollout undo %s\" needs no bake, and --rollout=false no vote", t.name, config.RolloutKey, t.name)))
					}
					return rollBack(ctx, g, s, t, cfg, int64(to), &pipe.roll)
				}
				r, err := fleet.Rollback(ctx, s, cfg, int64(to))
				return printPublished(ctx, &g.Console, s, t, "rolled back, now", r, err)
			})
		},
	}
	c.Flags().Var(&to, "to", "the version to bring back (default: the one before)")
	c.Flags().BoolVar(&pipe.roll.rollout, "rollout", false, "let every subscriber vote, then change a few hosts at a time; by default only if the key .rollout.json asks for it")
	pipe.publishFlags.add(c)
	pipe.roll.add(c.Flags())
	return c
}

func newConfigConvertCommand(g *globals) *cobra.Command {
	var p publishFlags
	var keep bool
	c := &cobra.Command{
		Use: "convert NAME|PATH", Short: "Convert a flat tree to a versioned one", Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			return p.run(g, c, args[0], func(ctx context.Context, s *session.Session, t target, cfg fleet.PublishConfig) error {
				cfg.Layout = config.LayoutAuto
				r, err := fleet.Convert(ctx, s, cfg, keep)
				return printPublished(ctx, &g.Console, s, t, "converted, now", r, err)
			})
		},
	}
	c.Flags().BoolVar(&keep, "keep", false, "keep the flat keys for programs that read only them; by default they are deleted")
	p.add(c)
	return c
}

func newConfigExportCommand(g *globals) *cobra.Command {
	var version versionFlag
	var saved bool
	c := &cobra.Command{
		Use: "export NAME|PATH [DIR]", Short: "Write a config into a new directory, or as a tar archive to standard output", Args: cobra.RangeArgs(1, 2),
		RunE: func(c *cobra.Command, args []string) error {
			if saved {
				_, conf, t, err := g.target(args[0])
				if err != nil {
					return err
				}
				tree, _, err := savedTree(conf, t)
				return exportTree(g, t, args[1:], tree, err)
			}
			return withConfig(c.Context(), g, args[0], func(ctx context.Context, s *session.Session, t target) error {
				tree, err := readTree(ctx, s, t, int64(version))
				return exportTree(g, t, args[1:], tree, err)
			})
		},
	}
	c.Flags().Var(&version, "version", "an older version instead of the one in use")
	c.Flags().BoolVar(&saved, "saved", false, "the tree that the agent of this host used last, from the view that it saved; ZooKeeper is not asked")
	c.MarkFlagsMutuallyExclusive("version", "saved")
	return c
}

// exportTree writes into the directory that is named, or to standard output.
func exportTree(g *globals, t target, dir []string, tree *view.Tree, err error) error {
	switch {
	case err != nil:
		return err
	case len(dir) == 0 && term.IsTerminal(g.Out):
		return usagef("an archive is not written to a terminal; name a directory, or redirect")
	case len(dir) == 0:
		return config.WriteTar(g.Out, tree)
	}
	if err = config.WriteDir(dir[0], tree); err == nil {
		g.Say("%s: wrote %s of %s into %s", t.name, term.Count(tree.Len(), "key"), generation(tree.Layout, tree.Generation), dir[0])
	}
	return err
}

func newConfigImportCommand(g *globals) *cobra.Command {
	var pipe pipeline
	c := &cobra.Command{
		Use: "import FILE.tar|- NAME|PATH", Short: "Publish an archive that export wrote", Args: cobra.ExactArgs(2),
		RunE: func(c *cobra.Command, args []string) error {
			return pipe.run(g, c, args[1], func(ctx context.Context, s *session.Session, t target, cfg fleet.PublishConfig) error {
				archive, err := g.openInput(args[0])
				if err != nil {
					return err
				}
				defer archive.Close()
				if cfg.Keys, err = config.ReadTar(archive); err != nil {
					return err
				}
				return sendPipeline(ctx, g, s, t, cfg, &pipe)
			})
		},
	}
	pipe.add(c)
	return c
}

func newConfigEditCommand(g *globals) *cobra.Command {
	var pipe pipeline
	c := &cobra.Command{
		Use: "edit NAME|PATH [KEY]", Short: "Edit one key in $EDITOR, look at the difference, and publish it",
		Long: `Edit one key in $VISUAL or $EDITOR, look at the difference, and publish it: with
--rollout by votes and a few hosts at a time, otherwise to all hosts at once. Name
no key if the config has only one; a key that does not exist is created. If
somebody else publishes meanwhile, the command publishes nothing. It keeps an edit
that it does not publish in a file.`,
		Args: cobra.RangeArgs(1, 2),
		RunE: func(c *cobra.Command, args []string) error {
			return pipe.run(g, c, args[0], func(ctx context.Context, s *session.Session, t target, cfg fleet.PublishConfig) error {
				if err := refusePipeline(ctx, s, t, &pipe); err != nil {
					return err // fail before the user edits in vain
				}
				return editConfig(ctx, g, s, t, cfg, &pipe, args[1:])
			})
		},
	}
	pipe.add(c)
	return c
}

// editConfig publishes only on top of the tree that was edited.
func editConfig(ctx context.Context, g *globals, s *session.Session, t target, cfg fleet.PublishConfig, pipe *pipeline, args []string) error {
	var change config.Change
	err := onTopOf(ctx, s, t, &cfg, func(keys map[string][]byte) error {
		var err error
		change, err = editValue(ctx, g, keys, args)
		keys[change.Key] = change.New
		return err
	})
	if err != nil {
		return err
	}
	if change.Kind == config.Changed && bytes.Equal(change.Old, change.New) {
		g.Say("nothing changed")
		return nil
	}
	if err = g.PrintDiff(change.Unified("in use", "edited")); err != nil {
		return err
	}
	if err = g.confirm(ctx, "publish this?"); err == nil {
		err = sendPipeline(ctx, g, s, t, cfg, pipe)
	}
	return keepEdit(&g.Console, err, change.Key, change.New)
}

func editValue(ctx context.Context, g *globals, keys map[string][]byte, args []string) (config.Change, error) {
	names := slices.Sorted(maps.Keys(keys))
	if len(args) == 0 && len(names) == 0 {
		return config.Change{}, fail(exitUsage, errors.New("the config has no keys yet"), "name the key to create")
	}
	if len(args) == 0 && len(names) > 1 {
		return config.Change{}, fail(exitUsage, fmt.Errorf("which of %s?", term.Count(len(names), "key")), "name one: "+strings.Join(names[:min(len(names), 20)], ", "))
	}
	key := strings.TrimPrefix(append(args, names...)[0], "/") // that was named, or the only one
	if err := config.ValidateKey(key); err != nil {
		return config.Change{}, fail(exitUsage, err)
	}
	if err := g.mayAsk("publish this?"); err != nil {
		return config.Change{}, err // before somebody edits in vain
	}
	old, exists := keys[key]
	value, err := editor(ctx, &g.Console, key, old)
	if err != nil {
		return config.Change{}, err
	}
	kind := config.Changed
	if !exists {
		kind = config.Added
	}
	return config.Change{Key: key, Kind: kind, Old: old, New: value}, nil
}

// keepEdit saves an unpublished edit and prints where, even after an interrupt or with --quiet.
func keepEdit(console *term.Console, err error, key string, value []byte) error {
	if err == nil {
		return nil
	}
	f, createErr := os.CreateTemp("", "zkagent-edited-*-"+filepath.Base(key))
	if createErr != nil {
		return errors.Join(err, createErr)
	}
	_, writeErr := f.Write(value)
	if writeErr = errors.Join(writeErr, f.Close()); writeErr != nil {
		return errors.Join(err, writeErr)
	}
	_, _ = fmt.Fprintf(console.Err, "your edit is kept in %s\n", f.Name())
	return err
}

func editor(ctx context.Context, console *term.Console, key string, value []byte) ([]byte, error) {
	editor := cmp.Or(os.Getenv("VISUAL"), os.Getenv("EDITOR"), "vi")
	dir, err := os.MkdirTemp("", "zkagent-edit-")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	name := filepath.Join(dir, filepath.Base(key))
	if err := os.WriteFile(name, value, 0o600); err != nil {
		return nil, err
	}
	words := strings.Fields(editor)
	if len(words) == 0 {
		return nil, errors.New("$EDITOR is empty")
	}
	cmd := exec.CommandContext(ctx, words[0], append(words[1:], name)...) //nolint:gosec // the user's own editor
	cmd.Stdin, cmd.Stdout, cmd.Stderr = console.In, term.Unguarded(console.Out), term.Unguarded(console.Err)
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("editor %s: %w", words[0], err)
	}
	return os.ReadFile(name)
}
