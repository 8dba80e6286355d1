package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/zkagent/zkagent/agent"
	"github.com/zkagent/zkagent/internal/rolling"
	"github.com/zkagent/zkagent/internal/settings"
	"github.com/zkagent/zkagent/internal/show"
	"github.com/zkagent/zkagent/internal/web"
	"github.com/zkagent/zkagent/registry"
	"github.com/zkagent/zkagent/session"
)

// socket returns the socket path of this host's agent.
func (g *globals) socket() (string, error) {
	if g.addr != "" {
		return g.addr, nil
	}
	if env := os.Getenv("ZKAGENT_ADDR"); env != "" && len(g.config) == 0 {
		return env, nil
	}
	if g.configNamed() || exists(defaultConfig) {
		// The settings of a running agent may have an error by now. Find the socket
		// all the same.
		s, err := settings.Load(g.configPaths(), settings.Options{Offline: true})
		if s.Config.Admin.Socket != "" {
			return s.Config.Admin.Socket, nil
		}
		if err != nil && g.configNamed() {
			return "", fail(exitConfig, err)
		}
	}
	return cmp.Or(settings.DefaultSocket("", os.LookupEnv), "/run/zkagent/zkagent.sock"), nil
}

func (g *globals) withAgent(ctx context.Context, fn func(context.Context, *web.Client) error) error {
	path, err := g.socket()
	if err != nil {
		return err
	}
	ctx, cancel := g.patience(ctx, 0)
	defer cancel()
	switch err = fn(ctx, web.NewClient(path)); {
	case errors.Is(err, fs.ErrPermission):
		return fail(exitPermission, err, "the mode of the socket decides who may use it: try as root or as the agent's user")
	case errors.Is(err, web.ErrNoAgent):
		return fail(exitUnavailable, err, "is it running? Name its socket by --addr, or its settings by --config")
	}
	return err
}

// status asks the agent of this host for its status.
func (g *globals) status(ctx context.Context) (*show.Status, error) {
	var s *show.Status
	err := g.withAgent(ctx, func(ctx context.Context, client *web.Client) error {
		var err error
		s, err = client.Status(ctx)
		return err
	})
	return s, err
}

// order gives the agent of this host one order, and says what it has done.
func (g *globals) order(ctx context.Context, path string, args url.Values, done string) error {
	return g.withAgent(ctx, func(ctx context.Context, client *web.Client) error {
		if err := client.Post(ctx, path, args); err != nil {
			return err
		}
		g.Say("%s", done)
		return nil
	})
}

func newReloadCommand(g *globals) *cobra.Command {
	var halted string
	c := &cobra.Command{
		Use: "reload", Short: "Make the agent load its settings again", Args: cobra.NoArgs,
		Long: "Make the agent load its settings again, and wait until it has. If they are\ninvalid, the command says why and exits with 78, and the old settings stay in use.",
		RunE: func(c *cobra.Command, _ []string) error {
			if halted != "" {
				return g.withSession(c.Context(), func(ctx context.Context, s *session.Session, _ *agent.Config) error {
					err := rolling.Clear(ctx, s, halted, userName())
					if errors.Is(err, session.ErrNoNode) {
						return fail(exitFailed, fmt.Errorf("the rolling reload of %q is not halted", halted), "\"zkagent fleet\" shows every halt")
					}
					if err == nil {
						g.Say("the rolling reload of %s continues", halted)
					}
					return err
				})
			}
			err := g.order(c.Context(), "/reload", nil, "settings are loaded")
			if e := classify(err); err != nil && e.code == exitFailed {
				return fail(exitConfig, fmt.Errorf("the settings were refused, the old ones stay in use: %w", err), "\"zkagent validate\" shows every error")
			}
			return err
		},
	}
	alreadySo(c, "wait")
	c.Flags().StringVar(&halted, "clear-halt", "", "only lift the halt of this template's rolling reload, on all hosts; do not load the settings")
	return c
}

func newLeaveCommand(g *globals) *cobra.Command {
	return &cobra.Command{
		Use: "leave", Short: "Stop the agent: it drains and removes its members, and resigns", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return g.withAgent(c.Context(), func(ctx context.Context, client *web.Client) error {
				if err := client.Post(ctx, "/leave", nil); err != nil {
					return err
				}
				defer g.awaiting("waiting for the agent to end")()
				if err := client.WaitGone(ctx); err != nil {
					return err
				}
				g.Say("the agent has left")
				return nil
			})
		},
	}
}

func newUpgradeCommand(g *globals) *cobra.Command {
	return &cobra.Command{
		Use: "upgrade", Short: "Restart the agent's program, and keep its session", Args: cobra.NoArgs,
		Long: "Make the agent execute its program file again and hand its session over: no member\ndisappears meanwhile, and no leader changes.",
		RunE: func(c *cobra.Command, _ []string) error {
			return g.order(c.Context(), "/upgrade", nil, "the agent executes its program again")
		},
	}
}

func newResignCommand(g *globals) *cobra.Command {
	return &cobra.Command{
		Use: "resign ELECTION", Short: "Give up this host's leadership of an election, or its place in the line", Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			return g.order(c.Context(), "/resign", url.Values{"name": {args[0]}}, "resigned")
		},
	}
}

func newCheckCommand(g *globals) *cobra.Command {
	var message string
	c := &cobra.Command{
		Use: "check pass|warn|fail SERVICE[/CHECK]", Short: "Report the state of a ttl check to the agent",
		Long: `Report the state of a ttl check to the agent on this host. A service with one
ttl check needs no CHECK. A report is valid for the ttl of the check. warn counts
as passing, and the status shows it.`,
		Example: "  zkagent check pass web\n  zkagent check fail web/backup -m \"no space\"",
		Args:    cobra.ExactArgs(2),
		RunE: func(c *cobra.Command, args []string) error {
			states := []registry.Report{registry.ReportPass, registry.ReportWarn, registry.ReportFail}
			if !slices.Contains(states, registry.Report(args[0])) {
				return usagef("the state is one of pass, warn, fail, not %q", args[0])
			}
			service, check, _ := strings.Cut(args[1], "/")
			return g.withAgent(c.Context(), func(ctx context.Context, client *web.Client) error {
				return client.Post(ctx, "/check", url.Values{"name": {service}, "check": {check}, "state": {args[0]}, "output": {message}})
			})
		},
	}
	c.Flags().StringVarP(&message, "message", "m", "", "a text that status shows with the state (default: none)")
	return c
}
