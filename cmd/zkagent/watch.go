package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/zkagent/zkagent/agent"
	"github.com/zkagent/zkagent/internal/proc"
	"github.com/zkagent/zkagent/internal/term"
	"github.com/zkagent/zkagent/recipe"
	"github.com/zkagent/zkagent/registry"
	"github.com/zkagent/zkagent/session"
	"github.com/zkagent/zkagent/view"
)

type watchOptions struct {
	children    bool
	recursive   bool
	once        bool
	changesOnly bool // leave the present state out
	waiting
}

type watched struct {
	Path     string   `json:"path"`
	Exists   bool     `json:"exists"`
	Data     string   `json:"data,omitempty"`
	Version  int32    `json:"version"`
	Mzxid    int64    `json:"mzxid"`
	Children []string `json:"children,omitempty"`
}

func newWatchCommand(g *globals) *cobra.Command {
	var o watchOptions
	c := &cobra.Command{
		Use:   "watch [flags] PATH [-- CMD [ARG...]]",
		Short: "Print a znode at each change, or run a command",
		Long: `Print the data of a znode, or with --children the names of its children, now
and after each change. Changes that follow each other quickly may be shown as
one. A command gets the state as JSON on its standard input, and the version in
ZKAGENT_VERSION. If the command fails, that is reported, and the watch continues.

With --recursive the znode and everything below it is followed. The output has one
line for each znode that exists, then one for each znode that is created, changed
or deleted. A command gets the changes that came together, one JSON object a line. A
change costs one request, whatever the size of the tree.`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			names, command := commandAfter(args, c.ArgsLenAtDash())
			if len(names) != 1 {
				return usagef("watch takes one path or group")
			}
			if !strings.HasPrefix(names[0], "/") {
				if o.children {
					return usagef("--children is for a path")
				}
				return inSessions(c.Context(), g, o.waiting, func(ctx context.Context, s *session.Session, conf *agent.Config) error {
					return watchGroup(ctx, &g.Console, s, conf, names[0], command, o)
				})
			}
			if err := session.ValidatePath(names[0]); err != nil {
				return fail(exitUsage, err)
			}
			if o.children && o.recursive {
				return usagef("--children and --recursive exclude each other")
			}
			return inSessions(c.Context(), g, o.waiting, func(ctx context.Context, s *session.Session, _ *agent.Config) error {
				if o.recursive {
					return watchTree(ctx, g, s, names[0], command, o)
				}
				return watchZnode(ctx, &g.Console, s, names[0], command, o)
			})
		},
	}
	rawFlag(g, c)
	c.Flags().BoolVar(&o.children, "children", false, "print the names of the children, instead of the data")
	c.Flags().BoolVar(&o.recursive, "recursive", false, "follow the znode and everything below it")
	c.Flags().BoolVar(&o.once, "once", false, "exit after the first change (default: at Ctrl-C)")
	c.Flags().BoolVar(&o.failOnExpiry, "fail-on-expiry", false, "exit with 69 when the session expires; by default, continue in a new session")
	c.Flags().BoolVar(&o.changesOnly, "changes-only", false, "print only changes; by default the current state comes first")
	return c
}

func watchZnode(ctx context.Context, console *term.Console, s *session.Session, path string, command []string, o watchOptions) error {
	var last watched
	for seen := 0; !o.once || seen < 2; {
		now, w, err := readWatched(ctx, s, path, o.children)
		if err != nil {
			return err
		}
		same := now.Exists == last.Exists && now.Mzxid == last.Mzxid && now.Version == last.Version && slices.Equal(now.Children, last.Children)
		if seen == 0 || !same {
			if seen > 0 || !o.changesOnly {
				switch {
				case len(command) > 0:
					err = runOnChange(ctx, console, command, now.Path, now.Mzxid, now)
				case console.IsJSON():
					err = console.Line(now)
				case !now.Exists:
					console.Say("%s does not exist", now.Path)
				case o.children:
					err = console.Data([]byte(strings.Join(append(now.Children, "\n"), "\n")))
				default:
					err = console.Data([]byte(strings.TrimSuffix(now.Data, "\n") + "\n"))
				}
			}
			seen++
			last = now
		}
		if err == nil && (!o.once || seen < 2) {
			err = s.WaitAny(ctx, w)
		}
		w.Stop()
		if err != nil {
			return err
		}
	}
	return nil
}

func readWatched(ctx context.Context, s *session.Session, path string, children bool) (watched, *session.Watch, error) {
	for {
		state := watched{Path: path, Exists: true}
		var w *session.Watch
		var stat session.Stat
		var err error
		if children {
			state.Children, stat, w, err = s.ChildrenW(ctx, path)
			slices.Sort(state.Children)
			stat.Mzxid, stat.Version = stat.Pzxid, stat.Cversion
		} else {
			var data []byte
			data, stat, w, err = s.GetW(ctx, path)
			state.Data = string(data)
		}
		state.Mzxid, state.Version = stat.Mzxid, stat.Version
		if !errors.Is(err, session.ErrNoNode) {
			return state, w, err
		}
		_, exists, w, err := s.ExistsW(ctx, path)
		if err != nil || !exists {
			return watched{Path: path}, w, err
		}
		w.Stop() // it was created in between
	}
}

type watchedGroup struct {
	Group    string        `json:"group"`
	Path     string        `json:"path"`
	Exists   bool          `json:"exists"`
	Holding  bool          `json:"holding"` // the guard keeps members that are gone
	Version  int64         `json:"version"` // largest zxid that was read
	Members  []memberRow   `json:"members"`
	Rejected []rejectedRow `json:"rejected"`
}

// watchGroup follows a group as an agent does until the session or the context
// ends. States that come while the command runs are passed on as one.
func watchGroup(ctx context.Context, console *term.Console, s *session.Session, conf *agent.Config, name string, command []string, o watchOptions) error {
	c, err := groupNamed(conf, name)
	if err != nil {
		return err
	}
	seen := 0
	var failed error
	err = followSources(ctx, s, followers(&agent.Config{Groups: []registry.GroupConfig{c}}, allSources), func(u view.Update) bool {
		if grp, ok := u.(*view.Group); ok && (seen > 0 || !o.changesOnly) {
			now := watchedGroup{Group: grp.Name, Path: grp.Path, Exists: !grp.Missing, Holding: !grp.Holding.IsZero(), Version: grp.Last}
			now.Members, now.Rejected = memberRows(view.View{}.With(grp), nil)
			switch {
			case len(command) > 0:
				failed = runOnChange(ctx, console, command, now.Path, now.Version, now)
			case console.IsJSON():
				failed = console.Line(now)
			default:
				_ = printMembers(console, view.View{}.With(grp), membersOptions{})
				console.Printf("\n")
				failed = console.Failed()
			}
		}
		seen++
		return failed == nil && (!o.once || seen < 2)
	})
	return cmp.Or(failed, err)
}

func groupNamed(conf *agent.Config, name string) (registry.GroupConfig, error) {
	if i := slices.Index(groupNames(conf), name); i >= 0 {
		return conf.Groups[i], nil
	}
	return registry.GroupConfig{}, fail(exitUsage, fmt.Errorf("there is no group %q", name), "name a znode by its path, or give settings with the group block by --config")
}

type treeChange struct {
	Event string `json:"event"` // present, created, changed or deleted
	Path  string `json:"path"`
	Data  string `json:"data,omitempty"`
	Mzxid int64  `json:"mzxid"`
}

// watchTree prints each update of the copy as one batch of changes.
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
		if err := u.Errors[root]; u.First && errors.Is(err, session.ErrNoAuth) {
			failed = err // elsewhere, what cannot be read is a warning
		}
		for _, path := range slices.Sorted(maps.Keys(u.Errors)) {
			if failed == nil && warned[path] == nil {
				g.Warnf("%s cannot be read: %v", path, u.Errors[path])
			}
		}
		warned = u.Errors
		if failed == nil && (u.First && !o.changesOnly || !u.First && len(u.Changes) > 0) {
			failed = printTreeChanges(ctx, &g.Console, root, u, command)
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

// printTreeChanges prints what has changed, the deleted znodes first, or runs the command.
func printTreeChanges(ctx context.Context, console *term.Console, root string, u recipe.TreeUpdate, command []string) error {
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
	changes := slices.Concat(deleted, others)
	if len(command) > 0 {
		return runOnChange(ctx, console, command, root, u.Last, changes...)
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
