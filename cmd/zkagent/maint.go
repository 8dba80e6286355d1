package main

import (
	"context"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/zkagent/zkagent/internal/show"
	"github.com/zkagent/zkagent/internal/term"
	"github.com/zkagent/zkagent/internal/web"
	"github.com/zkagent/zkagent/registry"
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
		Use: "on --reason TEXT", Short: "Take services out, whatever their checks say, and the host out of rollouts, until maintenance ends", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if o.reason == "" {
				return usagef("maint on needs --reason: others will ask")
			}
			return setMaint(c.Context(), g, true, o)
		},
	}
	on.Flags().StringVar(&o.reason, "reason", "", "why; it is shown wherever the service is")
	on.Flags().DurationVar(&o.length, "for", 0, "end by itself after this time, such as 2h")
	on.Flags().StringVar(&o.drain, "drain", drainAsSet, "show it as draining first: for this time, as long as the service drains when it leaves, or 0 for not at all")
	on.Flags().Lookup("drain").NoOptDefVal = drainAsSet
	off := &cobra.Command{
		Use: "off", Short: "End maintenance: the checks decide again", Args: cobra.NoArgs,
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
		if o.service == "" {
			names = []string{""} // the host itself
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
