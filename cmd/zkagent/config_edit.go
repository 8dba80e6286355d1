package main

import (
	"bytes"
	"cmp"
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
	"github.com/zkagent/zkagent/fleet"
	"github.com/zkagent/zkagent/internal/term"
	"github.com/zkagent/zkagent/session"
)

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
	ok, err := g.confirm(ctx, "publish this?")
	switch {
	case err == nil && ok:
		err = sendPipeline(ctx, g, s, t, cfg, pipe)
	case err == nil:
		err = failf(exitFailed, "not confirmed, nothing was published")
	}
	return keepEdit(&g.Console, err, change.Key, change.New)
}

func editValue(ctx context.Context, g *globals, keys map[string][]byte, args []string) (config.Change, error) {
	key, err := keyToEdit(keys, args)
	if err != nil {
		return config.Change{}, err
	}
	if err = g.mayAsk("publish this?"); err != nil {
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

// keyToEdit returns the named key, or the only key.
func keyToEdit(keys map[string][]byte, args []string) (string, error) {
	if len(args) > 0 {
		key := strings.TrimPrefix(args[0], "/")
		return key, fail(exitUsage, config.ValidateKey(key))
	}
	names := slices.Sorted(maps.Keys(keys))
	if len(names) == 1 {
		return names[0], nil
	}
	return "", fail(exitUsage, fmt.Errorf("which of %s?", term.Count(len(names), "key")), "name one: "+strings.Join(names[:min(len(names), 20)], ", "))
}

// keepEdit saves an unpublished edit to a file and prints its name, even after an
// interrupt or with --quiet.
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
