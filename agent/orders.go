package agent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/zkagent/zkagent/internal/event"
	"github.com/zkagent/zkagent/internal/hook"
	"github.com/zkagent/zkagent/internal/web"
	"github.com/zkagent/zkagent/registry"
	"github.com/zkagent/zkagent/session"
	"github.com/zkagent/zkagent/view"
)

func (a *Agent) orders() map[string]web.Order {
	return map[string]web.Order{
		"/reload":    func(ctx context.Context, _ web.Args) error { return a.Reload(ctx) },
		"/render":    func(ctx context.Context, _ web.Args) error { a.RenderAll(ctx); return nil },
		"/leave":     func(context.Context, web.Args) error { a.Leave(); return nil },
		"/upgrade":   func(context.Context, web.Args) error { a.Upgrade(); return nil },
		"/resign":    func(ctx context.Context, o web.Args) error { return a.Resign(ctx, o["name"]) },
		"/maint":     a.maint,
		"/accept":    func(_ context.Context, o web.Args) error { return a.Accept(o["name"], o["group"]) },
		"/hooks/run": func(ctx context.Context, o web.Args) error { return a.hooks.RunNow(ctx, o["name"]) },
		"/check":     a.reportCheck,
	}
}

// Members returns the members of every group, as the templates see them.
func (a *Agent) Members() map[string][]view.Member {
	all := map[string][]view.Member{}
	for name, g := range a.loop.snapshot.Load().groups() {
		if g != nil {
			all[name] = append([]view.Member{}, g.Members...)
		}
	}
	return all
}

// GroupNames are the names of the groups, sorted: "web", or "SET/CHILD" in a
// set of groups.
func (a *Agent) GroupNames() []string {
	return slices.Sorted(maps.Keys(a.loop.snapshot.Load().groups()))
}

// groups are the groups by their names of GroupNames; nil before one has reported.
func (s *snapshot) groups() map[string]*view.Group {
	all := map[string]*view.Group{}
	for _, src := range s.declared {
		switch src.Kind {
		case view.KindGroup:
			all[src.Name], _ = s.view.Group(src.Name)
		case view.KindGroups:
			if set, ok := s.view.Groups(src.Name); ok {
				for _, g := range set.Groups {
					all[set.Name+"/"+g.Name] = g
				}
			}
		default: // It has no members.
		}
	}
	return all
}

// Group returns the latest state of a group, by a name of GroupNames; nil
// before it has reported. False: there is no such group.
func (a *Agent) Group(name string) (*view.Group, bool) {
	snap := a.loop.snapshot.Load()
	if slices.Contains(snap.declared, view.Source{Kind: view.KindGroup, Name: name}) {
		g, _ := snap.view.Group(name)
		return g, true
	}
	set, child, _ := strings.Cut(name, "/")
	if !slices.Contains(snap.declared, view.Source{Kind: view.KindGroups, Name: set}) || child == "" {
		return nil, false
	}
	groups, ok := snap.view.Groups(set)
	if !ok {
		return nil, true
	}
	return groups.Group(child)
}

// GroupSet reports whether there is a groups block of that name.
func (a *Agent) GroupSet(name string) bool {
	return slices.Contains(a.loop.snapshot.Load().declared, view.Source{Kind: view.KindGroups, Name: name})
}

// Resign makes this agent give up a term, or its place in the line.
func (a *Agent) Resign(ctx context.Context, name string) error {
	c, ok := kindElection.of(a.sup, name)
	if !ok {
		return fmt.Errorf("election %q: %w", name, hook.ErrUnknownName)
	}
	return c.Resign(ctx)
}

// Accept makes the present members of a group the ones that are believed. For
// a set of groups, group names one of them.
func (a *Agent) Accept(name, group string) error {
	if g, ok := kindGroup.of(a.sup, name); ok {
		g.Accept()
		return nil
	}
	if g, ok := kindGroups.of(a.sup, name); ok {
		if !g.Accept(group) {
			return fmt.Errorf("groups %s has no group %q", name, group)
		}
		return nil
	}
	return fmt.Errorf("group %q: %w", name, hook.ErrUnknownName)
}

// maint switches the maintenance of a service, or without a name that of the
// host as rollouts see it: name, on ("true" or "false"),
// reason, for (a duration after which it ends by itself) and drain (empty: no;
// "service": as the service does when it leaves; else a duration).
func (a *Agent) maint(_ context.Context, o web.Args) error {
	set := a.maintainHost
	if o["name"] != "" {
		r, ok := kindService.of(a.sup, o["name"])
		if !ok {
			return fmt.Errorf("service %q: %w", o["name"], hook.ErrUnknownName)
		}
		set = r.SetMaintenance
	}
	m := registry.Maintenance{Reason: o["reason"], Drain: o["drain"] != ""}
	var err error
	if m.On, err = strconv.ParseBool(o["on"]); err != nil {
		return fmt.Errorf("on is %q, not true or false", o["on"])
	}
	if o["for"] != "" {
		d, err := time.ParseDuration(o["for"])
		if err != nil || d <= 0 {
			return fmt.Errorf("for is %q, not a duration", o["for"])
		}
		m.Until = time.Now().Add(d)
	}
	if m.Drain && o["drain"] != "service" {
		d, err := time.ParseDuration(o["drain"])
		if err != nil || d <= 0 {
			return fmt.Errorf("drain is %q, not a duration", o["drain"])
		}
		m.DrainFor = view.Seconds(d)
	}
	return set(m)
}

func (a *Agent) maintainHost(m registry.Maintenance) error {
	if err := a.hostMaint.Set(m); err != nil {
		return err
	}
	log := a.log.With("on", m.On, "reason", m.Reason)
	if !m.Until.IsZero() {
		log = log.With("until", m.Until)
	}
	log.Info("maintenance of the host changed")
	a.events.Add(event.Event{Kind: "maintenance", Subject: map[bool]string{true: "on", false: "off"}[m.On], Text: m.Reason})
	return nil
}

// reportCheck gives a ttl check its state: name, check, state, output.
func (a *Agent) reportCheck(ctx context.Context, o web.Args) error {
	r, ok := kindService.of(a.sup, o["name"])
	if !ok {
		return fmt.Errorf("service %q: %w", o["name"], hook.ErrUnknownName)
	}
	return r.Report(ctx, o["check"], registry.Report(o["state"]), o["output"])
}

// shown is the agent as its page sees it.
type shown struct{ *Agent }

// State implements web.Source.
func (a shown) State() (string, <-chan struct{}) {
	s := a.loop.snapshot.Load()
	return fmt.Sprintf("%x", s.at.UnixNano()), s.next
}

// Ping implements web.Source.
func (a shown) Ping(ctx context.Context) error {
	select {
	case a.loop.calls <- func() {}:
		return nil
	case <-a.loop.done:
		return errors.New("the loop has ended")
	case <-ctx.Done():
		return errors.New("the loop does not turn")
	}
}

// Ended implements web.Source.
func (a shown) Ended() <-chan struct{} { return a.loop.done }

// HTTP implements web.Source.
func (a shown) HTTP() *web.HTTPConfig { return a.cfg.Load().HTTP }

// Session implements web.Source: without a connection it returns an error at
// once, so that a reader does not wait during an outage.
func (a shown) Session(ctx context.Context) (*session.Session, error) {
	if st := a.sessions.State(); st != session.Connected && st != session.ReadOnly {
		return nil, fmt.Errorf("ZooKeeper is %s", st)
	}
	return a.sessions.Session(ctx)
}
