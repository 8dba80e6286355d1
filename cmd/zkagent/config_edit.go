package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/zkagent/zkagent/config"
	"github.com/zkagent/zkagent/session"
)

func newConfigEditCommand(g *globals) *cobra.Command {
	var p publishFlags
	c := &cobra.Command{
		Use: "edit NAME|PATH [KEY]", Short: "Edit one key in $EDITOR, look at the difference, and publish it",
		Long: `Edit one key in $VISUAL or $EDITOR, look at the difference, and publish it. The
key may be left out when the config has only one. What was edited is kept in a
file when it cannot be published.`,
		Args: cobra.RangeArgs(1, 2),
		RunE: func(c *cobra.Command, args []string) error {
			return g.withConfig(c.Context(), args[0], func(ctx context.Context, s *session.Session, t target) error {
				cfg, err := p.config(g, c, t)
				if err != nil {
					return err
				}
				if err = g.refuseOpen(ctx, s, t, false); err != nil {
					return err
				}
				return g.edit(ctx, s, t, cfg, args[1:])
			})
		},
	}
	p.add(c)
	return c
}

// edit publishes only on top of the tree that was edited.
func (g *globals) edit(ctx context.Context, s *session.Session, t target, cfg config.PublishConfig, args []string) error {
	keys, tree, err := keysInUse(ctx, s, t)
	if err != nil {
		return err
	}
	key, err := keyToEdit(keys, args)
	if err != nil {
		return err
	}
	old := keys[key]
	value, err := g.editor(ctx, key, old)
	if err != nil {
		return err
	}
	if bytes.Equal(old, value) {
		g.say("nothing changed")
		return nil
	}
	change := config.Change{Key: key, Kind: config.Changed, Old: old, New: value}
	if _, ok := keys[key]; !ok {
		change.Kind = config.Added
	}
	if err = g.writeDiff(change.Unified("in use", "edited")); err != nil {
		return err
	}
	if ok, answer := g.confirm("publish this?"); answer != nil || !ok {
		return answer
	}
	keys[key] = value
	cfg.Keys = keys
	if cfg.Check == nil {
		generation := int64(0)
		if tree != nil {
			generation = tree.Generation
		}
		cfg.Check = &generation
	}
	r, err := config.Publish(ctx, s, cfg)
	if err != nil {
		return keepEdit(err, key, value)
	}
	return g.told("published", t, r)
}

// keyToEdit is the key that was named, or the only one.
func keyToEdit(keys map[string][]byte, args []string) (string, error) {
	if len(args) > 0 {
		return strings.TrimPrefix(args[0], "/"), nil
	}
	names := slices.Sorted(maps.Keys(keys))
	if len(names) == 1 {
		return names[0], nil
	}
	return "", fail(exitUsage, fmt.Errorf("which of %s?", count(len(names), "key")), "name one: "+strings.Join(names[:min(len(names), 20)], ", "))
}

// keepEdit keeps what was edited and could not be published.
func keepEdit(err error, key string, value []byte) error {
	f, createErr := os.CreateTemp("", "zkagent-edited-*-"+filepath.Base(key))
	if createErr != nil {
		return errors.Join(err, createErr)
	}
	_, writeErr := f.Write(value)
	if writeErr = errors.Join(writeErr, f.Close()); writeErr != nil {
		return errors.Join(err, writeErr)
	}
	return fmt.Errorf("%w (what you edited is kept in %s)", err, f.Name())
}

// editor lets the user edit a value.
func (g *globals) editor(ctx context.Context, key string, value []byte) ([]byte, error) {
	editor := os.Getenv("VISUAL")
	if editor == "" {
		editor = os.Getenv("EDITOR")
	}
	if editor == "" {
		editor = "vi"
	}
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
	cmd.Stdin, cmd.Stdout, cmd.Stderr = g.in, g.out, g.err
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("editor %s: %w", words[0], err)
	}
	return os.ReadFile(name)
}
