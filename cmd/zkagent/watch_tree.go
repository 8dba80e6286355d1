package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/zkagent/zkagent/internal/mirror"
	"github.com/zkagent/zkagent/internal/proc"
	"github.com/zkagent/zkagent/session"
)

// treeChange is one znode of a subtree that differs from the copy before.
type treeChange struct {
	APIVersion string `json:"apiVersion"`
	Event      string `json:"event"` // present, created, changed or deleted
	Path       string `json:"path"`
	Data       string `json:"data,omitempty"`
	Version    int32  `json:"version"`
	Mzxid      int64  `json:"mzxid"`
}

// watchTree follows a subtree until the session or the context ends. Each
// snapshot is one batch of changes.
func (g *globals) watchTree(ctx context.Context, s *session.Session, root string, command []string, o watchOptions) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	errEnough := errors.New("enough")
	var before *mirror.Snapshot
	var failed error
	err := mirror.Follow(ctx, s, root, mirror.Options{Logger: g.logger()}, func(now *mirror.Snapshot) {
		changes := treeChanges(before, now)
		first := before == nil
		before = now
		if ctx.Err() != nil || !first && len(changes) == 0 {
			return
		}
		if !first || !o.initial {
			failed = g.treeChanged(ctx, root, now.Last, changes, command)
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

// treeChanges compares two copies in the order of the paths; before is nil for
// the first one.
func treeChanges(before, now *mirror.Snapshot) []treeChange {
	var changes []treeChange
	if before != nil {
		before.Walk(func(rel string, n *mirror.Node) bool {
			if _, stays := now.Get(rel); !stays {
				changes = append(changes, treeChange{
					APIVersion: "v1", Event: "deleted", Path: joinBelow(now.Root, rel),
					Version: n.Stat.Version, Mzxid: n.Stat.Mzxid,
				})
			}
			return true
		})
	}
	now.Walk(func(rel string, n *mirror.Node) bool {
		event := "present"
		if before != nil {
			old, was := before.Get(rel)
			switch {
			case !was:
				event = "created"
			case old.Stat.Mzxid == n.Stat.Mzxid && old.Stat.Czxid == n.Stat.Czxid:
				return true
			default:
				event = "changed"
			}
		}
		changes = append(changes, treeChange{
			APIVersion: "v1", Event: event, Path: joinBelow(now.Root, rel), Data: string(n.Data),
			Version: n.Stat.Version, Mzxid: n.Stat.Mzxid,
		})
		return true
	})
	return changes
}

func joinBelow(root, rel string) string {
	if rel == "" {
		return root
	}
	return session.JoinPath(root, rel)
}

// treeChanged prints a batch of changes, or gives it to the command, one JSON
// object a line.
func (g *globals) treeChanged(ctx context.Context, root string, zxid int64, changes []treeChange, command []string) error {
	if len(command) == 0 {
		for _, c := range changes {
			if err := g.printTreeChange(c); err != nil {
				return err
			}
		}
		return nil
	}
	var in bytes.Buffer
	out := json.NewEncoder(&in)
	for _, c := range changes {
		if err := out.Encode(c); err != nil {
			return err
		}
	}
	return g.runOnChange(ctx, in.Bytes(), command, "ZKAGENT_PATH="+root, fmt.Sprintf("ZKAGENT_VERSION=%d", zxid))
}

func (g *globals) printTreeChange(c treeChange) error {
	if g.isJSON() {
		return g.line(c)
	}
	_, err := fmt.Fprintf(g.out, "%s\t%s\n", c.Event, printable(c.Path))
	return err
}

// runOnChange runs the command of a watch. That it fails is told, and the watch
// goes on.
func (g *globals) runOnChange(ctx context.Context, stdin []byte, command []string, env ...string) error {
	dir, _ := os.Getwd()
	r, err := proc.Run(ctx, proc.Command{
		Args: command, Dir: dir, Stdin: stdin, Timeout: time.Hour,
		Env: append(append(os.Environ(), "ZKAGENT_EVENT=change"), env...),
	})
	if _, werr := fmt.Fprint(g.out, r.Output); werr != nil {
		return werr
	}
	if err != nil && ctx.Err() == nil {
		g.warnf("%v", err)
		return nil
	}
	return err
}
