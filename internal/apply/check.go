package apply

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/zkagent/zkagent/internal/command"
)

// check runs the check of the bundle if it belongs to this moment.
func (t *applying) check(ctx context.Context, swapped bool) error {
	c := t.job.Bundle.Config.Check
	if c == nil || !c.Command.Set() || (c.At == atSwapped) != swapped {
		return nil
	}
	dir := ""
	if !swapped {
		var err error
		if dir, err = t.stagedDir(); err != nil {
			return fail(stageStage, time.Second, err)
		}
		defer func() { _ = os.RemoveAll(dir) }()
	}
	for _, vars := range t.stagedVars(dir) {
		args, err := c.Command.Args(vars)
		if err != nil {
			return fail(stageCheck, 0, err)
		}
		cmd := t.trigger(command.EventCheck).Command(args)
		cmd.Timeout = c.Timeout
		if cmd.Timeout <= 0 {
			cmd.Timeout = DefaultCheckTimeout
		}
		if _, err := t.Options.Run(ctx, cmd); err != nil {
			return fail(stageCheck, 5*time.Second, err)
		}
		if t.job.Bundle.Config.ForEach == nil {
			break
		}
	}
	return nil
}

// stagedDir makes the private directory in which every file of the bundle
// stands under its destination.
func (t *applying) stagedDir() (string, error) {
	base := ""
	if t.StateDir != "" {
		base = filepath.Join(t.StateDir, "staged")
		if err := os.MkdirAll(base, 0o700); err != nil {
			return "", err
		}
	}
	dir, err := os.MkdirTemp(base, "bundle-")
	if err != nil {
		return "", err
	}
	if err := t.tx.Materialize(dir); err != nil {
		return "", errors.Join(err, os.RemoveAll(dir))
	}
	return dir, nil
}

// stagedVars are the variables of a check: for each element once, with its
// first staged file.
func (t *applying) stagedVars(dir string) []command.Vars {
	var list []command.Vars
	seen := map[string]bool{}
	for i, o := range t.staged {
		if seen[o.eachKey()] {
			continue
		}
		seen[o.eachKey()] = true
		list = append(list, command.Vars{Staged: t.tx.Files()[i].Path(), StagedDir: dir, Destination: o.dest, Each: o.each})
	}
	return list
}

// touched are the elements whose files changed, or nil for the bundle as one.
func (t *applying) touched() []*command.Each {
	if t.job.Bundle.Config.ForEach == nil {
		return []*command.Each{nil}
	}
	var list []*command.Each
	seen := map[string]bool{}
	for _, o := range t.outputs {
		if !seen[o.eachKey()] {
			seen[o.eachKey()] = true
			list = append(list, o.each)
		}
	}
	if len(list) == 0 {
		list = append(list, nil)
	}
	return list
}

// lists evaluates the distinct argument lists of a command.
func (t *applying) lists(c command.Command, elements []*command.Each) ([][]string, error) {
	var lists [][]string
	seen := map[string]bool{}
	for _, e := range elements {
		args, err := c.Args(t.job.Bundle.vars(e))
		if err != nil {
			return nil, err
		}
		if key := strings.Join(args, "\x00"); !seen[key] {
			seen[key] = true
			lists = append(lists, args)
		}
	}
	return lists, nil
}
