package main

import (
	"context"
	"fmt"
	"slices"

	"github.com/zkagent/zkagent/agent"
	"github.com/zkagent/zkagent/internal/term"
	"github.com/zkagent/zkagent/registry"
	"github.com/zkagent/zkagent/session"
	"github.com/zkagent/zkagent/view"
)

// watchedGroup is one state of a group, as watch prints it.
type watchedGroup struct {
	Group    string        `json:"group"`
	Path     string        `json:"path"`
	Exists   bool          `json:"exists"`
	Holding  bool          `json:"holding"` // the guard keeps members that are gone
	Version  int64         `json:"version"` // largest zxid that was read
	Members  []memberRow   `json:"members"`
	Rejected []rejectedRow `json:"rejected"`
}

func watchedState(grp *view.Group) watchedGroup {
	rows, rejected := memberRows(view.View{}.With(grp), nil)
	return watchedGroup{
		Group: grp.Name, Path: grp.Path, Exists: !grp.Missing, Holding: !grp.Holding.IsZero(), Version: grp.Last,
		Members: notNil(rows), Rejected: notNil(rejected),
	}
}

// watchGroup follows a group as an agent does until the session or the context
// ends. States that come while the command runs are passed on as one.
func watchGroup(ctx context.Context, console *term.Console, s *session.Session, conf *agent.Config, name string, command []string, o watchOptions) error {
	c, err := groupNamed(conf, name)
	if err != nil {
		return err
	}
	if err := readable(ctx, s, []follower{{source: view.Source{Kind: view.KindGroup, Name: name}, path: c.Path}}); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	news := make(chan *view.Group, 1) // size 1: the newest state
	done := make(chan error, 1)
	go func() {
		defer close(done)
		done <- registry.NewGroup(c).Run(ctx, s, func(u *view.Group) {
			select {
			case <-news:
			default:
			}
			news <- u
		})
	}()
	err = eachState(ctx, console, news, done, command, o)
	cancel()
	for range done { // until the follower has ended
	}
	return err
}

// eachState prints each state, or runs the command for it.
func eachState(ctx context.Context, console *term.Console, news <-chan *view.Group, done <-chan error, command []string, o watchOptions) error {
	for seen := 0; !o.once || seen < 2; seen++ {
		select {
		case grp := <-news:
			if seen == 0 && o.changesOnly {
				continue
			}
			if err := groupChanged(ctx, console, grp, command); err != nil {
				return err
			}
		case err := <-done:
			if err == nil {
				err = context.Cause(ctx)
			}
			return err
		}
	}
	return nil
}

func groupChanged(ctx context.Context, console *term.Console, grp *view.Group, command []string) error {
	now := watchedState(grp)
	switch {
	case len(command) > 0:
		return onChange(ctx, console, now, command, "ZKAGENT_PATH="+now.Path, fmt.Sprintf("ZKAGENT_VERSION=%d", now.Version))
	case console.IsJSON():
		return console.Line(now)
	}
	if err := printMembers(console, view.View{}.With(grp), membersOptions{}); err != nil {
		return err
	}
	_, err := fmt.Fprintln(console.Out)
	return err
}

// groupNamed finds a group of the settings.
func groupNamed(conf *agent.Config, name string) (registry.GroupConfig, error) {
	if conf != nil {
		if i := slices.IndexFunc(conf.Groups, func(c registry.GroupConfig) bool { return c.Name == name }); i >= 0 {
			return conf.Groups[i], nil
		}
	}
	return registry.GroupConfig{}, fail(exitUsage, fmt.Errorf("there is no group %q", name), "name a znode by its path, or give settings with the group block by --config")
}
