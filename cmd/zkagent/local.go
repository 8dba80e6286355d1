package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/zkagent/zkagent/agent"
	"github.com/zkagent/zkagent/internal/rolling"
	"github.com/zkagent/zkagent/internal/settings"
	"github.com/zkagent/zkagent/internal/show"
	"github.com/zkagent/zkagent/internal/term"
	"github.com/zkagent/zkagent/internal/web"
	"github.com/zkagent/zkagent/registry"
	"github.com/zkagent/zkagent/session"
)

type maintOptions struct {
	service string
	reason  string
	length  time.Duration
	drain   string
}

// drainAsSet is --drain without a duration.
const drainAsSet = "service"

func newMaintCommand(g *globals) *cobra.Command {
	var o maintOptions
	on := &cobra.Command{
		Use: "on --reason TEXT [--service NAME]", Short: "Take services out, whatever their checks say, and the host out of rollouts, until maintenance ends", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if o.reason == "" {
				return usagef("maint on needs --reason: others will ask")
			}
			return setMaint(c.Context(), g, true, o)
		},
	}
	on.Flags().StringVar(&o.reason, "reason", "", "why (required); it is shown wherever the service is listed")
	on.Flags().DurationVar(&o.length, "for", 0, "end by itself after this time, such as 2h (default: at \"zkagent maint off\")")
	on.Flags().StringVar(&o.drain, "drain", drainAsSet, "show it as draining first: for this time, as long as the service drains when it leaves, or 0 for not at all")
	on.Flags().Lookup("drain").NoOptDefVal = drainAsSet
	off := &cobra.Command{
		Use: "off [--service NAME]", Short: "End maintenance: the checks decide again", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return setMaint(c.Context(), g, false, o) },
	}
	for _, c := range []*cobra.Command{on, off} {
		c.Flags().StringVar(&o.service, "service", "", "only this service (default: all of this host, and the host's part in rollouts)")
	}
	return listing(g, "maint", "List, begin or end maintenance of this host's services", listMaint, on, off)
}

func setMaint(ctx context.Context, g *globals, on bool, o maintOptions) error {
	if d, err := time.ParseDuration(o.drain); !on || err == nil && d == 0 {
		o.drain = ""
	}
	return g.withAgent(ctx, func(ctx context.Context, client *web.Client) error {
		s, err := client.Status(ctx)
		if err != nil {
			return err
		}
		names := []string{o.service}
		if o.service == "" { // the host itself, and all of its services
			for _, v := range s.Services {
				names = append(names, v.Name)
			}
		}
		if !on {
			if names = slices.DeleteFunc(names, func(name string) bool { return !inMaintenance(s, name) }); len(names) == 0 {
				g.Say("nothing was in maintenance")
			}
		}
		for _, name := range names {
			args := url.Values{"name": {name}, "on": {strconv.FormatBool(on)}, "reason": {o.reason}, "drain": {o.drain}}
			if o.length > 0 {
				args.Set("for", o.length.String())
			}
			if err := client.Post(ctx, "/maint", args); err != nil {
				return err
			}
			subject := "service " + name
			if name == "" {
				subject = "rollouts on this host"
			}
			g.Say("%s: maintenance %s", subject, map[bool]string{true: "on", false: "off"}[on])
		}
		return nil
	})
}

// inMaintenance reports whether a service, or for "" the host itself, is in maintenance.
func inMaintenance(s *show.Status, name string) bool {
	m := s.Agent.Maintenance
	for _, v := range s.Services {
		if v.Name == name {
			m = v.Maintenance
		}
	}
	return m != nil && m.On
}

func maintRow(name string, m *registry.Maintenance) []string {
	if m == nil || !m.On {
		return []string{name, "off", "-", "-", ""}
	}
	until := "-"
	if !m.Until.IsZero() {
		until = m.Until.UTC().Format(time.RFC3339)
	}
	return []string{name, "on", term.Age(m.Since), until, m.Reason}
}

func listMaint(ctx context.Context, console *term.Console, client *web.Client) error {
	s, err := client.Status(ctx)
	if err != nil {
		return err
	}
	if console.IsJSON() {
		return term.PrintList(console, "services", s.Services)
	}
	t := &term.Table{Header: []string{"SERVICE", "MAINTENANCE", "SINCE", "UNTIL", "REASON"}}
	t.Add(maintRow("(rollouts)", s.Agent.Maintenance)...)
	for _, v := range s.Services {
		t.Add(maintRow(v.Name, v.Maintenance)...)
	}
	return console.PrintTable(t)
}

func newHooksCommand(g *globals) *cobra.Command {
	list := &cobra.Command{Use: "list", Short: "List the hooks and their last runs", Args: cobra.NoArgs}
	var dry bool
	run := &cobra.Command{
		Use: "run NAME", Short: "Run a hook now, and wait for its end", Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if !dry {
				return g.order(c.Context(), "/hooks/run", url.Values{"name": {args[0]}}, "hook "+args[0]+" was run")
			}
			return withHook(c.Context(), g, args[0], func(h show.HookStatus) error {
				return g.PrintResult("hook", h, "%s\n", term.Printable(h.Command))
			})
		},
	}
	run.Flags().BoolVar(&dry, "dry-run", false, "print the command, and do not run it")
	log := &cobra.Command{
		Use: "log NAME", Short: "Show the last runs of a hook with their output", Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			return withHook(c.Context(), g, args[0], func(h show.HookStatus) error {
				slices.Reverse(h.Runs) // the latest first
				if g.IsJSON() {
					return term.PrintList(&g.Console, "runs", h.Runs)
				}
				for _, r := range h.Runs {
					g.Printf("%s  %s  %s  took %s  exit %d  %s\n", r.Began.UTC().Format(time.RFC3339), r.Event, stateWord(&g.Console, r.State), term.Short(time.Duration(r.Took)), r.Code, term.Printable(r.Error))
					for line := range strings.Lines(r.Output) {
						g.Printf("  %s\n", term.Printable(strings.TrimSuffix(line, "\n")))
					}
				}
				return nil
			})
		},
	}
	c := listing(g, "hooks", "List and run hooks, and read their output", listHooks, list, run, log)
	list.RunE = c.RunE
	return c
}

func withHook(ctx context.Context, g *globals, name string, fn func(show.HookStatus) error) error {
	return g.withAgent(ctx, func(ctx context.Context, client *web.Client) error {
		var list []show.HookStatus
		if err := client.Get(ctx, "/hooks", &list); err != nil {
			return err
		}
		i := slices.IndexFunc(list, func(h show.HookStatus) bool { return h.Name == name })
		if i < 0 {
			return fail(exitFailed, fmt.Errorf("there is no hook %q", name), "\"zkagent hooks list\" shows them")
		}
		return fn(list[i])
	})
}

func listHooks(ctx context.Context, console *term.Console, client *web.Client) error {
	var list []show.HookStatus
	if err := client.Get(ctx, "/hooks", &list); err != nil {
		return err
	}
	return term.PrintRows(console, "hooks", list, []string{"HOOK", "WHERE", "TRIGGERS", "LAST", "AGE", "NEXT"}, func(h show.HookStatus) []string {
		where, state, ago, next := "every host", "-", "-", "-"
		if h.Leader != "" {
			where = "leader of " + h.Leader
		}
		if last := h.Last(); last != nil {
			state, ago = last.State, term.Age(last.Began)
		}
		if !h.Next.IsZero() {
			next = h.Next.UTC().Format(time.RFC3339)
		}
		return []string{h.Name, where, strings.Join(h.Triggers, " "), stateWord(console, state), ago, next}
	})
}

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
			return "", fail(exitConfig, err, configHint)
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
				if err := client.Post(ctx, "/leave", nil); err != nil && !errors.Is(err, io.EOF) { // it may end before it answers
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
		Long: "Make the agent start its program file again, for example after an upgrade. The new\nprocess takes over the session: no member disappears, and no leader changes.",
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
