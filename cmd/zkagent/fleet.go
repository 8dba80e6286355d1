package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/zkagent/zkagent/agent"
	"github.com/zkagent/zkagent/fleet"
	"github.com/zkagent/zkagent/internal/rolling"
	"github.com/zkagent/zkagent/internal/show"
	"github.com/zkagent/zkagent/internal/term"
	"github.com/zkagent/zkagent/internal/trees"
	"github.com/zkagent/zkagent/session"
)

func newFleetCommand(g *globals) *cobra.Command {
	var watch, services bool
	c := &cobra.Command{
		Use: "fleet [NAME|PATH]...", Short: "List all hosts: health, version, problems; with configs, the version of each host",
		Long: `List every host of the fleet, the worst first: those whose agent runs, and those
that were lost or stopped in the last seven days. Each agent reports its state in
ZooKeeper. With names or paths of configs, list their subscribers: the version that
each host has accepted, a newer one that it knows, and the version of its files.

Health is one of: lost (its session ended without a stop), failing (something in
its settings is not in place), degraded (it works with old members or files),
maintenance, stopped, ok.`,
		Example: `  zkagent fleet
  zkagent fleet --watch
  zkagent fleet site
  zkagent fleet --services web
  zkagent fleet forget web-07`,
		RunE: func(c *cobra.Command, args []string) error {
			return g.withSession(c.Context(), func(ctx context.Context, s *session.Session, conf *agent.Config) error {
				if services && watch {
					return usagef("--services and --watch exclude each other")
				}
				if watch {
					return repeated(c.Context(), func() error {
						return redrawScreen(&g.Console, func() error { return showFleet(c.Context(), &g.Console, s, conf, args) })
					})
				}
				if services {
					return listServices(ctx, &g.Console, s, args)
				}
				return showFleet(ctx, &g.Console, s, conf, args)
			})
		},
	}
	c.Flags().BoolVar(&watch, "watch", false, "print the list again every two seconds, until Ctrl-C")
	c.Flags().BoolVar(&services, "services", false, "list services instead of hosts, all or those named: where each is down, since when and why")
	c.AddCommand(&cobra.Command{
		Use: "forget HOST...", Short: "Forget hosts that were lost or stopped",
		Long: `Forget hosts that are shown as lost or stopped. Agents forget them by
themselves after seven days. A host whose agent runs is not forgotten.`,
		Example: `  zkagent fleet forget web-07`,
		Args:    cobra.MinimumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			return g.withSession(c.Context(), func(ctx context.Context, s *session.Session, _ *agent.Config) error {
				for _, id := range args {
					err := fleet.Forget(ctx, s, id)
					if errors.Is(err, session.ErrNoNode) {
						return fail(exitFailed, fmt.Errorf("no host %q is known", id), "\"zkagent fleet\" lists the hosts")
					}
					if err != nil {
						return err
					}
					g.Say("%s is forgotten", id)
				}
				return nil
			})
		},
	})
	return c
}

func showFleet(ctx context.Context, console *term.Console, s *session.Session, conf *agent.Config, args []string) error {
	if len(args) == 0 {
		hosts, err := fleet.Agents(ctx, s)
		if err != nil {
			return err
		}
		header := []string{"HOST", "HEALTH", "VERSION", "SINCE", "FILES", "LEADS", "DETAIL"}
		err = term.PrintRows(console, "agents", hosts, header, func(h fleet.HostStatus) []string {
			row := show.HostOf(&h)
			return []string{h.ID, stateWord(console, h.Health), cmp.Or(h.Version, "-"), term.Age(row.From), row.Files, cmp.Or(row.Leads, "-"), h.Detail}
		})
		if err != nil || console.IsJSON() {
			return err
		}
		console.Printf("%s\n", show.FleetSummary(hosts))
		halts, err := rolling.Halts(ctx, s)
		if err != nil {
			return err
		}
		for _, h := range halts {
			console.Printf("the rolling reload of %s is halted since %s: %s: %s (\"zkagent reload --clear-halt %s\" lifts the halt)\n",
				h.Bundle, term.Age(h.Time), term.Printable(h.Host), term.Printable(h.Reason), h.Bundle)
		}
		return nil
	}
	return listSubscribers(ctx, console, s, conf, args)
}

// listServices shows the services of every host, those that need a look first.
func listServices(ctx context.Context, console *term.Console, s *session.Session, names []string) error {
	hosts, err := fleet.Agents(ctx, s)
	if err != nil {
		return err
	}
	rows, left := show.Services(hosts, names...), 0
	for _, h := range hosts {
		left += h.More["services"]
	}
	if len(rows) == 0 && len(names) > 0 {
		return fail(exitFailed, fmt.Errorf("no host reports a service %s", strings.Join(names, ", ")), "\"zkagent fleet --services\" lists all")
	}
	err = term.PrintRows(console, "services", rows, []string{"SERVICE", "HOST", "STATE", "SINCE", "DETAIL"}, func(r show.Service) []string {
		return []string{r.Service, r.Host, stateWord(console, r.State), term.Age(r.Since), cmp.Or(r.Detail(), "-")}
	})
	if left > 0 && !console.IsJSON() {
		console.Printf("%s did not fit into the records of their hosts\n", term.Count(left, "more service"))
	}
	return err
}

// usesWord lists the files of a host by the version in use, the latest first.
func usesWord(r *fleet.Record) string {
	const most = 3 // names for each version
	names := map[int64][]string{}
	for _, name := range slices.Sorted(maps.Keys(r.Files)) {
		state, version := r.File(name)
		if state != "ok" {
			name += " (" + state + ")"
		}
		names[version] = append(names[version], name)
	}
	var parts []string
	for _, version := range slices.Backward(slices.Sorted(maps.Keys(names))) {
		word := fmt.Sprintf("v%d: ", version)
		if version == 0 {
			word = "none: "
		}
		list := names[version]
		if len(list) > most {
			list = append(list[:most:most], fmt.Sprintf("%d more", len(list)-most))
		}
		parts = append(parts, word+strings.Join(list, ", "))
	}
	if n := r.More["files"]; n > 0 {
		parts = append(parts, fmt.Sprintf("%d not in the record", n))
	}
	return cmp.Or(strings.Join(parts, "; "), "-")
}

type subscriberRow struct {
	Config string `json:"config"`
	Agent  string `json:"agent"`
	fleet.Subscription
	Behind bool              `json:"behind"`          // another version than the one that ready names
	Known  int64             `json:"known,omitempty"` // the latest version that the host has read
	Files  map[string]string `json:"files,omitempty"` // of the host: state@version in use
	Health fleet.Health      `json:"health,omitempty"`

	record fleet.Record
}

// listSubscribers shows which agents use which version of the configs.
func listSubscribers(ctx context.Context, console *term.Console, s *session.Session, conf *agent.Config, names []string) error {
	var rows []subscriberRow
	hosts, err := fleet.Agents(ctx, s)
	if err != nil {
		return err
	}
	records := map[string]fleet.HostStatus{}
	for _, h := range hosts {
		records[h.ID] = h
	}
	for _, name := range names {
		t, err := targetOf(conf, name)
		if err != nil {
			return err
		}
		ready, _, err := trees.ReadReady(ctx, s, t.path)
		if err != nil {
			return explain(err, t)
		}
		subscribers, err := fleet.Subscribers(ctx, s, t.path)
		if err != nil {
			return explain(err, t)
		}
		slices.SortStableFunc(subscribers, func(a, b fleet.Subscription) int {
			return cmp.Compare(records[a.ID].Health.Rank(), records[b.ID].Health.Rank())
		})
		for _, sub := range subscribers {
			h := records[sub.ID]
			rows = append(rows, subscriberRow{
				Config: t.name, Agent: sub.ID, Subscription: sub, Behind: sub.Version != ready.Version,
				Known: h.UseOf(t.path).Known, Files: h.Files, Health: h.Health, record: h.Record,
			})
		}
	}
	header := []string{"CONFIG", "HOST", "ACCEPTED", "STATE", "HEALTH", "DETAIL", "USES"}
	return term.PrintRows(console, "subscribers", rows, header, func(r subscriberRow) []string {
		version := fmt.Sprintf("v%d", r.Version)
		if r.Behind {
			version += " (behind)"
		}
		detail := r.Error
		if r.Known > r.Version {
			detail = show.Joined("; ", fmt.Sprintf("knows v%d", r.Known), detail)
		}
		return []string{r.Config, r.Agent, version, stateWord(console, r.State), stateWord(console, cmp.Or(r.Health, "-")), cmp.Or(detail, "-"), usesWord(&r.record)}
	})
}
