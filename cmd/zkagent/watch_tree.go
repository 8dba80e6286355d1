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

	"github.com/zkagent/zkagent/internal/mirror"
	"github.com/zkagent/zkagent/internal/proc"
	"github.com/zkagent/zkagent/internal/term"
	"github.com/zkagent/zkagent/session"
)

// treeChange is one znode of a subtree that differs from the copy before.
type treeChange struct {
	Event string `json:"event"` // present, created, changed or deleted
	Path  string `json:"path"`
	Data  string `json:"data,omitempty"`
	Mzxid int64  `json:"mzxid"`
}

// watchTree follows a subtree until the session or the context ends. Each
// snapshot is one batch of changes.
func watchTree(ctx context.Context, g *globals, s *session.Session, root string, command []string, o watchOptions) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	errEnough := errors.New("enough")
	var before map[string]int64
	var failed error
	err := followTree(ctx, s, root, mirror.Options{Logger: g.logger()}, func(now *mirror.Snapshot) {
		changes, after := treeChanges(before, now)
		first := before == nil
		before = after
		if ctx.Err() != nil || !first && len(changes) == 0 {
			return
		}
		if !first || !o.changesOnly {
			failed = treeChanged(ctx, &g.Console, root, now.Last, changes, command)
		}
		if failed != nil || o.once && !first {
			cancel(errEnough)
		}
	})
	switch {
	case failed != nil:
		return failed
	case errors.Is(context.Cause(ctx), errEnough):
		return nil
	case ctx.Err() != nil:
		return context.Cause(ctx)
	}
	return err
}

// followTree calls emit with the first copy of the subtree and with each that
// differs from the one before. It returns nil when ctx ends, and the cause when
// the session ends.
func followTree(ctx context.Context, s *session.Session, root string, opt mirror.Options, emit func(*mirror.Snapshot)) error {
	m := mirror.New(s, root, opt)
	defer m.Close()
	for first := true; ; first = false {
		snap, changed, err := m.Refresh(ctx)
		if err != nil {
			return mirror.Ended(ctx, s, fmt.Errorf("watch %s: %w", root, err))
		}
		if first || len(changed) > 0 {
			emit(snap)
		}
		select {
		case <-m.Dirty():
		case <-ctx.Done():
			return nil
		case <-s.Done():
			return context.Cause(s.Context())
		}
	}
}

// treeChanges compares a copy with the mzxids of the one before, in the order
// of the paths, and returns its own; before is nil for the first one.
func treeChanges(before map[string]int64, now *mirror.Snapshot) ([]treeChange, map[string]int64) {
	var changes []treeChange
	for _, rel := range slices.Sorted(maps.Keys(before)) {
		if _, stays := now.Get(rel); !stays {
			changes = append(changes, treeChange{Event: "deleted", Path: joinBelow(now.Root, rel), Mzxid: before[rel]})
		}
	}
	after := map[string]int64{}
	now.Walk(func(rel string, n *mirror.Node) bool {
		after[rel] = n.Stat.Mzxid
		event := "present"
		if before != nil {
			old, was := before[rel]
			switch {
			case !was:
				event = "created"
			case old == n.Stat.Mzxid:
				return true
			default:
				event = "changed"
			}
		}
		changes = append(changes, treeChange{
			Event: event, Path: joinBelow(now.Root, rel), Data: string(n.Data), Mzxid: n.Stat.Mzxid,
		})
		return true
	})
	return changes, after
}

func joinBelow(root, rel string) string {
	if rel == "" {
		return root
	}
	return session.JoinPath(root, rel)
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
