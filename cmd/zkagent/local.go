package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/zkagent/zkagent/agent"
	"github.com/zkagent/zkagent/internal/rolling"
	"github.com/zkagent/zkagent/internal/settings"
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
		if s != nil && s.Config.Admin.Socket != "" {
			return s.Config.Admin.Socket, nil
		}
		if err != nil && g.configNamed() {
			return "", fail(exitConfig, err)
		}
	}
	if path := settings.DefaultSocket("", os.LookupEnv); path != "" {
		return path, nil
	}
	return "/run/zkagent/zkagent.sock", nil
}

func (g *globals) withAgent(ctx context.Context, fn func(context.Context, *web.Client) error) error {
	path, err := g.socket()
	if err != nil {
		return err
	}
	ctx, cancel := g.patience(ctx, 0)
	defer cancel()
	return agentError(fn(ctx, web.NewClient(path)))
}

// agentError adds hints to the error of an unreachable agent.
func agentError(err error) error {
	switch {
	case errors.Is(err, fs.ErrPermission):
		return fail(exitPermission, err, "the mode of the socket decides who may use it: try as root or as the agent's user")
	case errors.Is(err, web.ErrNoAgent):
		return fail(exitUnavailable, err, "is it running? --addr or --config says where its socket is")
	}
	return err
}

// orderCommand makes a command that gives the agent one order.
func orderCommand(g *globals, use, short, long, path, done string, args cobra.PositionalArgs, values func([]string) url.Values) *cobra.Command {
	return &cobra.Command{
		Use: use, Short: short, Long: long, Args: args,
		RunE: func(c *cobra.Command, a []string) error {
			return g.withAgent(c.Context(), func(ctx context.Context, client *web.Client) error {
				if err := client.Post(ctx, path, values(a), nil); err != nil {
					return err
				}
				g.Say("%s", done)
				return nil
			})
		},
	}
}

func nothing([]string) url.Values { return nil }

func newReloadCommand(g *globals) *cobra.Command {
	c := orderCommand(g, "reload", "Make the agent load its settings again",
		"Make the agent load its settings again, and wait until it has. If they are\ninvalid, the command says why and exits with 78, and the old settings stay in use.",
		"/reload", "settings are loaded", cobra.NoArgs, nothing)
	run := c.RunE
	var halted string
	c.Flags().StringVar(&halted, "clear-halt", "", "lift the halt of this template's rolling reload on all hosts, and do nothing else")
	c.RunE = func(c *cobra.Command, args []string) error {
		if halted != "" {
			return clearHalt(c.Context(), g, halted)
		}
		err := run(c, args)
		if e := classify(err); err != nil && e.code == exitFailed {
			return fail(exitConfig, fmt.Errorf("the settings were refused, the old ones stay in use: %w", err), "\"zkagent validate\" shows every error")
		}
		return err
	}
	c.Flags().Bool("wait", true, "wait for the result (always)")
	_ = c.Flags().MarkHidden("wait")
	return c
}

// clearHalt lets the hosts continue a halted rolling reload.
func clearHalt(ctx context.Context, g *globals, bundle string) error {
	return g.withSession(ctx, func(ctx context.Context, s *session.Session, _ *agent.Config) error {
		ctx, cancel := g.patience(ctx, 0)
		defer cancel()
		err := rolling.Clear(ctx, s, bundle, userName())
		if errors.Is(err, session.ErrNoNode) {
			return fail(exitFailed, fmt.Errorf("the rolling reload of %q is not halted", bundle), "\"zkagent fleet\" shows every halt")
		}
		if err == nil {
			g.Say("the rolling reload of %s goes on", bundle)
		}
		return err
	})
}

func newLeaveCommand(g *globals) *cobra.Command {
	return goneCommand(g, "leave", "Stop the agent: drain, remove its members, resign, end", "/leave", "the agent has left")
}

func newUpgradeCommand(g *globals) *cobra.Command {
	return orderCommand(g, "upgrade", "Restart the agent's program, and keep its session",
		"Make the agent execute its program file again and hand its session over: no member\ndisappears meanwhile, and no leader changes.", "/upgrade", "the agent executes its program again", cobra.NoArgs, nothing)
}

// goneCommand makes a command that ends the agent and waits for its end.
func goneCommand(g *globals, use, short, path, done string) *cobra.Command {
	return &cobra.Command{
		Use: use, Short: short, Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return g.withAgent(c.Context(), func(ctx context.Context, client *web.Client) error {
				if err := client.Post(ctx, path, nil, nil); err != nil {
					return err
				}
				notice := time.AfterFunc(time.Second, func() { g.Say("waiting for the agent to end") })
				defer notice.Stop()
				if err := client.WaitGone(ctx); err != nil {
					return err
				}
				g.Say("%s", done)
				return nil
			})
		},
	}
}

func newResignCommand(g *globals) *cobra.Command {
	c := orderCommand(g, "resign ELECTION", "Give up a leadership, or the place in the line",
		"", "/resign", "resigned", cobra.ExactArgs(1), func(a []string) url.Values { return url.Values{"name": {a[0]}} })
	return c
}

func newCheckCommand(g *globals) *cobra.Command {
	var message string
	c := &cobra.Command{
		Use: "check pass|warn|fail SERVICE[/CHECK]", Short: "Report the state of a ttl check to the agent",
		Long: `Report the state of a ttl check to the agent on this host. A service with one
ttl check needs no CHECK. A report is good for the check's ttl; warn counts as
good and is shown.`,
		Example: "  zkagent check pass web\n  zkagent check fail web/backup -m \"no space\"",
		Args:    cobra.ExactArgs(2),
		RunE: func(c *cobra.Command, args []string) error {
			states := []registry.Report{registry.ReportPass, registry.ReportWarn, registry.ReportFail}
			if !slices.Contains(states, registry.Report(args[0])) {
				return usagef("the state is one of pass, warn, fail, not %q", args[0])
			}
			service, check, _ := strings.Cut(args[1], "/")
			return g.withAgent(c.Context(), func(ctx context.Context, client *web.Client) error {
				return client.Post(ctx, "/check", url.Values{"name": {service}, "check": {check}, "state": {args[0]}, "output": {message}}, nil)
			})
		},
	}
	c.Flags().StringVarP(&message, "message", "m", "", "what to show with it")
	return c
}
