package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/zkagent/zkagent/agent"
	"github.com/zkagent/zkagent/internal/files"
	"github.com/zkagent/zkagent/internal/proc"
	"github.com/zkagent/zkagent/internal/term"
	"github.com/zkagent/zkagent/template"
	"github.com/zkagent/zkagent/view"
)

// rendered is one rendered file.
type rendered struct {
	cfg  agent.TemplateConfig
	each *agent.Each
	path string
	data []byte
}

// renderBundle renders one bundle, and writes it unless the options say
// otherwise. It reports whether a file differs from what was rendered.
func (g *globals) renderBundle(ctx context.Context, b bundle, v *view.View, o renderOptions) (bool, error) {
	list, err := executeBundle(ctx, b, v)
	if err != nil {
		return false, err
	}
	differs := false
	for _, f := range list {
		before, err := os.ReadFile(f.path)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return false, err
		}
		existed := err == nil
		changed := !existed || !bytes.Equal(before, f.data)
		differs = differs || changed
		switch {
		case o.diff && changed:
			if err = g.PrintDiff(term.Diff(f.path, before, existed, f.data)); err != nil {
				return differs, err
			}
		case o.diff:
		case o.stdout:
			if err = g.printRendered(f, len(list) > 1); err != nil {
				return differs, err
			}
		case o.dryRun && changed:
			_, _ = fmt.Fprintf(g.Out, "%s would change\n", f.path)
		}
	}
	if o.diff || o.stdout || o.dryRun {
		return differs, nil
	}
	return differs, g.writeBundle(ctx, b, list)
}

func (g *globals) printRendered(f rendered, several bool) error {
	if several {
		g.Say("> %s", f.path)
	}
	_, err := g.Out.Write(f.data)
	return err
}

// executeBundle executes the templates of a bundle for each element.
func executeBundle(ctx context.Context, b bundle, v *view.View) ([]rendered, error) {
	elements := []*template.Each{nil}
	if b.cfg.ForEach != nil {
		list, err := template.Elements(v, *b.cfg.ForEach)
		if err != nil {
			return nil, err
		}
		elements = elements[:0]
		for i := range list {
			elements = append(elements, &list[i])
		}
	}
	var list []rendered
	for i, cfg := range b.cfg.Templates {
		for _, e := range elements {
			f := rendered{cfg: cfg}
			if e != nil {
				f.each = &agent.Each{Key: e.Key, Value: e.Value}
			}
			var err error
			if f.path, err = cfg.Destination(f.each); err != nil {
				return nil, err
			}
			if f.data, err = b.templates[i].Render(ctx, v, e); err != nil {
				return nil, err
			}
			list = append(list, f)
		}
	}
	return list, nil
}

// writeBundle stages, checks and swaps the files: all of them or none.
func (g *globals) writeBundle(ctx context.Context, b bundle, list []rendered) error {
	tx := files.Begin(files.TxConfig{Bundle: b.cfg.Name})
	for _, f := range list {
		_, err := tx.Stage(files.File{
			Destination: f.path, Mode: f.cfg.Mode, Owner: f.cfg.Owner, Group: f.cfg.Group, Backup: f.cfg.Backup,
			InPlace: f.cfg.InPlace, Symlink: f.cfg.Symlink,
		}, f.data)
		if err != nil {
			return errors.Join(err, tx.Discard())
		}
	}
	if !tx.Changed() {
		g.Say("%s: nothing changed", b.cfg.Name)
		return tx.Discard()
	}
	if err := checkBundle(ctx, b, tx, list, "staged"); err != nil {
		return errors.Join(err, tx.Discard())
	}
	if err := tx.Swap(); err != nil {
		return errors.Join(err, tx.Discard())
	}
	if err := checkBundle(ctx, b, tx, list, "swapped"); err != nil {
		return errors.Join(err, tx.Restore(), tx.Commit())
	}
	for _, s := range tx.Files() {
		if s.Changed() {
			g.Say("%s: written", s.Destination())
		}
	}
	return tx.Commit()
}

// checkBundle runs the check of a bundle, if it belongs to this moment: once,
// or once for each element.
func checkBundle(ctx context.Context, b bundle, tx *files.Tx, list []rendered, at string) error {
	c := b.cfg.Check
	if c == nil || !c.Command.Set() || c.At != at {
		return nil
	}
	dir, err := os.MkdirTemp("", "zkagent-check-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	if err := tx.Materialize(dir); err != nil {
		return err
	}
	seen := map[string]bool{}
	for i, f := range list {
		key := ""
		if f.each != nil {
			key = f.each.Key
		}
		if seen[key] {
			continue
		}
		seen[key] = true
		args, err := c.Command.Args(agent.Vars{Staged: tx.Files()[i].Path(), StagedDir: dir, Destination: f.path, Each: f.each})
		if err != nil {
			return err
		}
		if _, err := proc.Run(ctx, proc.Command{Args: args, Timeout: c.Timeout, Env: []string{"ZKAGENT_EVENT=check", "ZKAGENT_TEMPLATE=" + b.cfg.Name}}); err != nil {
			return fmt.Errorf("check: %w", err)
		}
	}
	return nil
}
