package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/zkagent/zkagent/agent"
	"github.com/zkagent/zkagent/config"
	"github.com/zkagent/zkagent/fleet"
	"github.com/zkagent/zkagent/internal/event"
	"github.com/zkagent/zkagent/internal/lists"
	"github.com/zkagent/zkagent/internal/rolling"
	"github.com/zkagent/zkagent/internal/show"
	"github.com/zkagent/zkagent/internal/term"
	"github.com/zkagent/zkagent/internal/trees"
	"github.com/zkagent/zkagent/internal/web"
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
		RunE: func(c *cobra.Command, args []string) error {
			return g.withSession(c.Context(), func(ctx context.Context, s *session.Session, conf *agent.Config) error {
				if services && watch {
					return usagef("--services and --watch exclude each other")
				}
				if watch {
					return redrawn(c.Context(), &g.Console, func() (func() error, error) {
						return func() error { return showFleet(c.Context(), &g.Console, s, conf, args) }, nil
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
	Behind bool              `json:"behind"`          // an older version than the one that ready names
	Ahead  bool              `json:"ahead,omitempty"` // a later one, which a rollout brings
	Known  int64             `json:"known,omitempty"` // the latest version that the host has read
	Files  map[string]string `json:"files,omitempty"` // of the host: state@version in use
	Health fleet.Health      `json:"health,omitempty"`

	record fleet.Record
}

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
				Config: t.name, Agent: sub.ID, Subscription: sub, Behind: sub.Version < ready.Version, Ahead: sub.Version > ready.Version,
				Known: h.UseOf(t.path).Known, Files: h.Files, Health: h.Health, record: h.Record,
			})
		}
	}
	header := []string{"CONFIG", "HOST", "ACCEPTED", "STATE", "HEALTH", "DETAIL", "USES"}
	return term.PrintRows(console, "subscribers", rows, header, func(r subscriberRow) []string {
		version := fmt.Sprintf("v%d", r.Version)
		if r.Behind {
			version += " (behind)"
		} else if r.Ahead {
			version += " (ahead)"
		}
		detail := r.Error
		if r.Known > r.Version {
			detail = show.Joined("; ", fmt.Sprintf("knows v%d", r.Known), detail)
		}
		return []string{r.Config, r.Agent, version, stateWord(console, r.State), stateWord(console, cmp.Or(r.Health, "-")), cmp.Or(detail, "-"), usesWord(&r.record)}
	})
}

type deed struct {
	Time  time.Time `json:"time"`
	Where string    `json:"where"` // the config, or "this host"
	Who   string    `json:"who,omitempty"`
	What  string    `json:"what"`
	Why   string    `json:"why,omitempty"`
}

func newAuditCommand(g *globals) *cobra.Command {
	return &cobra.Command{
		Use: "audit [NAME|PATH]", Short: "Show who published, rolled out, paused, halted or froze a config, and when",
		Long: `Show who published, rolled out, paused, resumed, aborted or froze a config, and when,
latest first: of all configs of the settings, or of one. If an agent
runs on this host, the list has the orders that it received, too: maintenance, an
accepted loss, a resignation.

Each act is noted where it takes effect: in the version, the rollout, the freeze,
the list of lifted halts or the events of the agent. The latest ones are kept.`,
		Example: "  zkagent audit /config/site",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			var deeds []deed
			err := g.withSession(c.Context(), func(ctx context.Context, s *session.Session, conf *agent.Config) error {
				targets, err := auditTargets(conf, args)
				if err != nil {
					return err
				}
				for _, t := range targets {
					if len(args) > 0 {
						if err := mustExist(ctx, s, t.path); err != nil {
							return err
						}
					}
					of, err := auditOf(ctx, s, t)
					if err != nil {
						return explain(err, t)
					}
					deeds = append(deeds, of...)
				}
				if len(args) > 0 {
					return nil
				}
				of, err := auditHalts(ctx, s)
				deeds = append(deeds, of...)
				return err
			})
			if err != nil {
				return err
			}
			if len(args) == 0 {
				deeds = append(deeds, localDeeds(c.Context(), g)...)
			}
			slices.Reverse(deeds) // deeds of one moment, too
			slices.SortStableFunc(deeds, func(a, b deed) int { return b.Time.Compare(a.Time) })
			return term.PrintRows(&g.Console, "deeds", deeds, []string{"WHEN", "WHERE", "WHO", "WHAT", "WHY"}, func(d deed) []string {
				return []string{d.Time.Format(time.RFC3339), d.Where, cmp.Or(d.Who, "-"), d.What, cmp.Or(d.Why, "-")}
			})
		},
	}
}

func auditTargets(conf *agent.Config, args []string) ([]target, error) {
	if len(args) > 0 {
		t, err := targetOf(conf, args[0])
		return []target{t}, err
	}
	if len(conf.Files) == 0 {
		return nil, usagef("name a config by its path, or give settings with config blocks by --config")
	}
	return lists.Map(conf.Configs, func(c config.Config) target { return target{c.Name, c.Path, c.Layout} }), nil
}

func auditOf(ctx context.Context, s *session.Session, t target) ([]deed, error) {
	var deeds []deed
	versions, err := config.History(ctx, s, t.path)
	if err != nil && !errors.Is(err, config.ErrNoVersion) {
		return nil, err
	}
	for _, v := range versions {
		what := fmt.Sprintf("wrote version %d", v.Number)
		if v.RollbackOf > 0 {
			what += fmt.Sprintf(", the content of version %d", v.RollbackOf)
		}
		if v.Active {
			what += ", in use"
		}
		deeds = append(deeds, deed{v.Time, t.name, show.Joined("@", v.Author, v.Host), what, v.Message})
	}
	past, err := fleet.PastFreezes(ctx, s, t.path)
	if err != nil {
		return nil, err
	}
	for _, f := range past {
		deeds = append(deeds, deed{f.Since.UTC(), t.name, f.By, "froze it", f.Reason})
		if !f.Replaced {
			deeds = append(deeds, deed{f.Until.UTC(), t.name, f.EndedBy, "unfroze it", ""})
		}
	}
	rollouts, err := fleet.Rollouts(ctx, s, t.path)
	if err != nil {
		return nil, err
	}
	for _, r := range rollouts {
		for _, a := range r.Acts() {
			deeds = append(deeds, deed{a.At.UTC(), t.name, a.Who, r.Name + ": " + a.What, a.Why})
		}
	}
	frozen, err := fleet.Frozen(ctx, s, t.path)
	if frozen != nil {
		deeds = append(deeds, deed{frozen.Since.UTC(), t.name, frozen.By, "froze it", frozen.Reason})
	}
	return deeds, err
}

func auditHalts(ctx context.Context, s *session.Session) ([]deed, error) {
	var deeds []deed
	halted := func(h rolling.Halt) {
		deeds = append(deeds, deed{h.Time.UTC(), "template " + h.Bundle, h.Host, "halted its rolling reload", h.Reason})
	}
	halts, err := rolling.Halts(ctx, s)
	if err != nil {
		return nil, err
	}
	for _, h := range halts {
		halted(h)
	}
	lifted, err := rolling.LiftedHalts(ctx, s)
	for _, l := range lifted {
		halted(l.Halt)
		deeds = append(deeds, deed{l.At.UTC(), "template " + l.Bundle, l.By, "lifted the halt of its rolling reload", ""})
	}
	return deeds, err
}

// localDeeds returns the orders that the agent of this host received.
func localDeeds(ctx context.Context, g *globals) []deed {
	var deeds []deed
	path, err := g.socket()
	if err != nil {
		return nil
	}
	ctx, cancel := g.patience(ctx, 0)
	defer cancel()
	_ = web.NewClient(path).Events(ctx, 0, false, func(e event.Event) bool { // Without an agent there are none.
		if e.Kind == "order" {
			deeds = append(deeds, deed{e.Time.UTC(), "this host", e.By, "gave the order " + e.Subject, e.Text})
		}
		return true
	})
	return deeds
}
