package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/zkagent/zkagent/internal/proc"
	"github.com/zkagent/zkagent/internal/term"
	"github.com/zkagent/zkagent/recipe"
	"github.com/zkagent/zkagent/session"
)

// treeChange is one znode of a subtree that differs from the copy before.
type treeChange struct {
	Event string `json:"event"` // present, created, changed or deleted
	Path  string `json:"path"`
	Data  string `json:"data,omitempty"`
	Mzxid int64  `json:"mzxid"`
}

// watchTree follows a subtree until the session or the context ends. Each update of the
// copy is one batch of changes.
func watchTree(ctx context.Context, g *globals, s *session.Session, root string, command []string, o watchOptions) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	done := false
	var failed error
	var warned map[string]error
	err := recipe.NewTree(recipe.TreeConfig{Path: root, Logger: g.logger()}).Run(ctx, s, func(u recipe.TreeUpdate) {
		if ctx.Err() != nil {
			return
		}
		failed = unreadable(&g.Console, root, u, warned)
		warned = u.Errors
		if failed == nil && (u.First && !o.changesOnly || !u.First && len(u.Changes) > 0) {
			failed = treeChanged(ctx, &g.Console, root, u.Last, treeChanges(u), command)
		}
		if done = failed != nil || o.once && !u.First && len(u.Changes) > 0; done {
			cancel()
		}
	})
	if done {
		return failed
	}
	return cmp.Or(context.Cause(ctx), err)
}

// unreadable warns about the znodes that cannot be read now and are not in warned. A root
// that an ACL closes is an error.
func unreadable(console *term.Console, root string, u recipe.TreeUpdate, warned map[string]error) error {
	if err := u.Errors[root]; u.First && errors.Is(err, session.ErrNoAuth) {
		return err
	}
	for _, path := range slices.Sorted(maps.Keys(u.Errors)) {
		if warned[path] == nil {
			console.Warnf("%s cannot be read: %v", path, u.Errors[path])
		}
	}
	return nil
}

// treeChanges returns the deleted znodes first.
func treeChanges(u recipe.TreeUpdate) []treeChange {
	var deleted, others []treeChange
	for _, c := range u.Changes {
		if c.New == nil {
			deleted = append(deleted, treeChange{Event: "deleted", Path: c.Path, Mzxid: c.Old.Mzxid})
			continue
		}
		event := "changed"
		switch {
		case u.First:
			event = "present"
		case c.Old == nil:
			event = "created"
		}
		others = append(others, treeChange{Event: event, Path: c.Path, Data: string(c.New.Data), Mzxid: c.New.Mzxid})
	}
	return append(deleted, others...)
}

func treeChanged(ctx context.Context, console *term.Console, root string, zxid int64, changes []treeChange, command []string) error {
	if len(command) > 0 {
		return runOnChange(ctx, console, command, root, zxid, changes...)
	}
	for _, c := range changes {
		if console.IsJSON() {
			_ = console.Line(c)
		} else {
			console.Printf("%s\t%s\n", c.Event, term.Printable(c.Path))
		}
	}
	return console.Failed()
}

// runOnChange runs the command of a watch with the states on its standard input, one a
// line. If the command fails, it prints the error and the watch continues.
func runOnChange[T any](ctx context.Context, console *term.Console, command []string, path string, version int64, states ...T) error {
	var in []byte
	for _, state := range states {
		line, err := term.Document(state)
		if err != nil {
			return err
		}
		in = append(append(in, line...), '\n')
	}
	dir, _ := os.Getwd()
	r, err := proc.Run(ctx, proc.Command{
		Args: command, Dir: dir, Stdin: in, Timeout: time.Hour,
		Env: append(os.Environ(), "ZKAGENT_EVENT=change", "ZKAGENT_PATH="+path, fmt.Sprintf("ZKAGENT_VERSION=%d", version)),
	})
	console.Printf("%s", r.Output)
	if err != nil && ctx.Err() == nil {
		console.Warnf("%v", err)
		err = nil
	}
	return cmp.Or(err, console.Failed())
}
