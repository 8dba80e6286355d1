package main

import (
	"context"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/zkagent/zkagent/agent"
	"github.com/zkagent/zkagent/internal/settings"
)

// completeTime bounds how long a completion may take.
const completeTime = 200 * time.Millisecond

// completeNames completes the names of what the settings or the agent know.
func completeNames(g *globals, root *cobra.Command) {
	for path, names := range map[string]func(*agent.Config) []string{
		"members": groupNames, "resign": electionNames, "elect": electionNames, "render": bundleNames,
		"config get": configNames, "config diff": configNames, "config history": configNames, "config rollback": configNames,
		"config edit": configNames, "config freeze": configNames, "config unfreeze": configNames, "config export": configNames,
		"config convert": configNames, "config gc": configNames, "hooks run": hookNames, "hooks log": hookNames, "fleet": configNames,
	} {
		if c := find(root, path); c != nil {
			c.ValidArgsFunction = func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
				if len(args) > 0 {
					return nil, cobra.ShellCompDirectiveDefault
				}
				return g.known(names), cobra.ShellCompDirectiveNoFileComp
			}
		}
	}
}

// find returns the command of a path such as "config get".
func find(root *cobra.Command, path string) *cobra.Command {
	c := root
	for word := range strings.FieldsSeq(path) {
		i := slices.IndexFunc(c.Commands(), func(sub *cobra.Command) bool { return sub.Name() == word })
		if i < 0 {
			return nil
		}
		c = c.Commands()[i]
	}
	return c
}

// known lists names from the settings, silently and in bounded time.
func (g *globals) known(names func(*agent.Config) []string) []string {
	ctx, cancel := context.WithTimeout(context.Background(), completeTime)
	defer cancel()
	found := make(chan []string, 1) // size 1: the loader may come late
	go func() {
		s, err := settings.Load(g.configPaths(), settings.Options{Offline: true})
		if err != nil && s == nil {
			found <- nil
			return
		}
		found <- names(&s.Config)
	}()
	g.Err = io.Discard
	select {
	case list := <-found:
		return list
	case <-ctx.Done():
		return nil
	}
}

func configNames(c *agent.Config) []string {
	var list []string
	for _, v := range c.Configs {
		list = append(list, v.Name)
	}
	return list
}

func groupNames(c *agent.Config) []string {
	var list []string
	for _, v := range c.Groups {
		list = append(list, v.Name)
	}
	return list
}

func electionNames(c *agent.Config) []string {
	var list []string
	for _, v := range c.Elections {
		list = append(list, v.Name)
	}
	return list
}

func bundleNames(c *agent.Config) []string {
	var list []string
	for _, v := range c.Bundles {
		list = append(list, v.Name)
	}
	return list
}

func hookNames(c *agent.Config) []string {
	var list []string
	for _, v := range c.Hooks {
		list = append(list, v.Name)
	}
	return list
}
