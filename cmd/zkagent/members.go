package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/zkagent/zkagent/agent"
	"github.com/zkagent/zkagent/internal/haproxy"
	"github.com/zkagent/zkagent/internal/lists"
	"github.com/zkagent/zkagent/internal/show"
	"github.com/zkagent/zkagent/internal/term"
	"github.com/zkagent/zkagent/registry"
	"github.com/zkagent/zkagent/session"
	"github.com/zkagent/zkagent/view"
)

type membersOptions struct {
	watch  bool
	here   bool
	state  []string
	format string
	waiting
}

func newMembersCommand(g *globals) *cobra.Command {
	var o membersOptions
	c := &cobra.Command{
		Use: "members [GROUP|PATH]", Short: "List the members of a group",
		Long: `List the members of a group: one of the settings, or a path; without an argument,
of all groups of the settings. The command reads ZooKeeper. With --here it asks
the agent on this host for the members that it uses: "held" members are gone from
ZooKeeper and the guard keeps them, and a member that flaps keeps its last state.
Children that are not members are listed with the reason.`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if o.here && (o.watch || o.format != "") {
				return usagef("--here excludes --watch and --format")
			}
			return listMembers(c.Context(), g, args, o)
		},
	}
	c.Flags().BoolVar(&o.watch, "watch", false, "print the members again at each change, until Ctrl-C")
	c.Flags().BoolVar(&o.here, "here", false, "ask the agent on this host which members it uses, held ones included (default: ask ZooKeeper)")
	c.Flags().BoolVar(&o.failOnExpiry, "fail-on-expiry", false, "with --watch: exit with 69 when the session expires; by default, continue in a new session")
	c.Flags().StringSliceVar(&o.state, "state", nil, "only these states: up, draining, maintenance, down, held (default: all)")
	c.Flags().StringVar(&o.format, "format", "", "format of the members' data (default: the one of the settings, else auto)")
	c.AddCommand(&cobra.Command{
		Use: "accept GROUP [CHILD]", Short: "Accept the loss of members that the guard holds", Args: cobra.RangeArgs(1, 2),
		RunE: func(c *cobra.Command, args []string) error {
			order := url.Values{"name": args[:1], "group": args[1:]}
			return g.order(c.Context(), "/accept", order, "group "+args[0]+": its present members are used again")
		},
	})
	return c
}

func listMembers(ctx context.Context, g *globals, args []string, o membersOptions) error {
	for _, s := range o.state {
		if !slices.Contains([]string{view.StatusUp, view.StatusDown, view.StatusDraining, view.StatusMaintenance, statusHeld}, s) {
			return usagef("--state %q is not one of up, draining, maintenance, down, held", s)
		}
	}
	if o.here {
		s, err := g.status(ctx)
		if err != nil {
			return err
		}
		v, err := usedMembers(s, args)
		if err != nil {
			return err
		}
		if z := &s.ZooKeeper; z.Outage() {
			g.Warnf("%s", show.Joined(", ", "not up to date: ZooKeeper is "+z.State, z.AsOf()))
		}
		return printMembers(&g.Console, v, o)
	}
	if o.watch {
		return inSessions(ctx, g, o.waiting, func(ctx context.Context, s *session.Session, conf *agent.Config) error {
			list, err := groupFollowers(conf, args, o.format)
			if err != nil {
				return err
			}
			return watchMembers(ctx, &g.Console, s, list, o)
		})
	}
	return g.withSession(ctx, func(ctx context.Context, s *session.Session, conf *agent.Config) error {
		list, err := groupFollowers(conf, args, o.format)
		if err != nil {
			return err
		}
		if len(args) == 1 && strings.HasPrefix(args[0], "/") {
			if _, ok, err := s.Exists(ctx, args[0]); err != nil || !ok {
				return hintNearby(ctx, s, args[0], cmp.Or(err, session.ErrNoNode))
			}
		}
		v, err := gatherSources(ctx, g, s, view.View{}, list)
		if err != nil {
			return err
		}
		return printMembers(&g.Console, v, o)
	})
}

// groupFollowers shows what is in ZooKeeper: it has no guard and no damping.
func groupFollowers(conf *agent.Config, args []string, format string) ([]follower, error) {
	c := agent.Config{Logger: conf.Logger}
	for _, v := range conf.Groups {
		if len(args) == 0 || v.Name == args[0] || v.Path == args[0] {
			c.Groups = append(c.Groups, raw(v, format))
		}
	}
	for _, v := range conf.GroupSets {
		if len(args) == 0 || v.Name == args[0] {
			c.GroupSets = append(c.GroupSets, raw(v, format))
		}
	}
	if len(args) == 1 && len(c.Groups)+len(c.GroupSets) == 0 {
		if !strings.HasPrefix(args[0], "/") {
			return nil, fail(exitUsage, fmt.Errorf("there is no group %q", args[0]), "name it by its path, or give settings with a group block by --config")
		}
		if err := session.ValidatePath(args[0]); err != nil {
			return nil, fail(exitUsage, err)
		}
		c.Groups = append(c.Groups, raw(registry.GroupConfig{Name: args[0], Path: args[0]}, format))
	}
	list := followers(&c, allSources)
	if len(list) == 0 {
		return nil, fail(exitUsage, errors.New("no group named, and the settings have none"), "name one, as in \"zkagent members /services/web\"")
	}
	return list, nil
}

// raw switches off guard and damping, and sets the format if one is given.
func raw(c registry.GroupConfig, format string) registry.GroupConfig {
	c.Guard.Off, c.NoDamping = true, true
	if format != "" {
		c.Format = format
	}
	return c
}

func warnLabels(console *term.Console, rows []memberRow) {
	for _, m := range rows {
		if len(m.Raw) > 0 {
			console.Warnf("%s: %s", term.Printable(m.Group), term.Printable(show.RawLabels(m.ID, m.Raw)))
		}
		if m.LeftOut != "" {
			console.Warnf("%s: left out of %s: %s", term.Printable(m.Group), m.ID, m.LeftOut)
		}
	}
}

func printMembers(console *term.Console, v view.View, o membersOptions) error {
	rows, rejected := memberRows(v, o.state)
	for _, r := range rejected {
		console.Warnf("%s: %s is not a member: %s", term.Printable(r.Group), term.Printable(r.Znode), term.Printable(r.Reason))
	}
	warnLabels(console, rows)
	switch console.Format {
	case "ndjson":
		return term.PrintList(console, "members", rows)
	case "json", "yaml":
		return console.PrintObject(map[string]any{"members": rows, "rejected": rejected})
	}
	t := &term.Table{Header: []string{"GROUP", "MEMBER", "ADDRESS", "STATUS", "WEIGHT", "AGE"}}
	if isWide(console) {
		t.Header = append(t.Header, "LABELS", "NODE", "ZNODE")
	}
	for _, m := range rows {
		row := []string{term.Printable(m.Group), m.ID, m.address, stateWord(console, m.Status), strconv.Itoa(m.Weight), term.Age(m.Created)}
		if isWide(console) {
			labels := lists.Map(slices.Sorted(maps.Keys(m.Labels)), func(k string) string { return k + "=" + m.Labels[k] })
			row = append(row, strings.Join(labels, ","), m.Node, m.Znode)
		}
		t.Add(row...)
	}
	return console.PrintTable(t)
}

// statusHeld is of a member that is gone from ZooKeeper and that a guard keeps.
const statusHeld = "held"

type memberRow struct {
	Group   string            `json:"group"`
	ID      string            `json:"id"`
	Host    string            `json:"host"`
	Port    int               `json:"port"`
	Ports   map[string]int    `json:"ports,omitempty"`
	Weight  int               `json:"weight"`
	Status  string            `json:"status"`
	Labels  map[string]string `json:"labels,omitempty"`
	Raw     map[string]string `json:"raw_labels,omitempty"` // no tokens
	LeftOut string            `json:"labels_left_out,omitempty"`
	Node    string            `json:"node"`
	Znode   string            `json:"znode"`
	Czxid   int64             `json:"czxid"`
	Created time.Time         `json:"created"`
	address string
}

type rejectedRow struct {
	Group  string `json:"group"`
	Znode  string `json:"znode"`
	Reason string `json:"reason"`
}

func memberRows(v view.View, states []string) ([]memberRow, []rejectedRow) {
	rows, rejected := []memberRow{}, []rejectedRow{} // not nil: JSON has lists
	take := func(name string, g *view.Group) {
		for _, m := range g.Members {
			status := m.Status
			if m.Held {
				status = statusHeld
			}
			if len(states) > 0 && !slices.Contains(states, status) {
				continue
			}
			rows = append(rows, memberRow{name, m.ID, m.Host, m.Port, m.Ports, m.Weight, status, m.Labels, m.RawLabels, string(m.LabelsLeftOut), m.Node, m.Znode, m.Czxid, m.Created.UTC(), m.Address()})
		}
		for _, r := range g.Rejected {
			rejected = append(rejected, rejectedRow{name, r.Znode, r.Reason})
		}
	}
	for _, src := range v.Sources() {
		if grp, ok := v.Group(src.Name); ok && src.Kind == view.KindGroup {
			take(grp.Name, grp)
		}
		if set, ok := v.Groups(src.Name); ok && src.Kind == view.KindGroups {
			for _, grp := range set.Groups {
				take(set.Name+"/"+grp.Name, grp)
			}
		}
	}
	return rows, rejected
}

func usedMembers(s *show.Status, args []string) (view.View, error) {
	named := func(name, path string) bool { return len(args) == 0 || args[0] == name || args[0] == path }
	used := func(st registry.GroupStatus) *view.Group {
		return &view.Group{Name: st.Name, Path: st.Path, Members: st.Members, Rejected: st.Rejected, Holding: st.Holding, Missing: st.Missing}
	}
	var v view.View
	for _, st := range s.Groups {
		if named(st.Name, st.Path) {
			v = v.With(used(st))
		}
	}
	for _, st := range s.GroupSets {
		if named(st.Name, st.Path) {
			set := &view.Groups{Name: st.Name, Path: st.Path}
			for _, grp := range st.Groups {
				set.Groups = append(set.Groups, used(grp))
			}
			v = v.With(set)
		}
	}
	if len(args) == 1 && len(v.Sources()) == 0 {
		return v, fail(exitUsage, fmt.Errorf("the agent follows no group %q", args[0]), "\"zkagent status\" lists its groups")
	}
	return v, nil
}

func watchMembers(ctx context.Context, console *term.Console, s *session.Session, list []follower, o membersOptions) error {
	var v view.View
	return followSources(ctx, s, list, func(u view.Update) bool {
		if v = v.With(u); !v.Has(sourcesOf(list)...) {
			return true
		}
		if err := printMembers(console, v, o); err == nil && !console.IsJSON() {
			console.Printf("\n")
		}
		return console.Failed() == nil
	})
}

func newHAProxyCommand(g *globals) *cobra.Command {
	var backend haproxy.Backend
	var once bool
	c := &cobra.Command{
		Use:   "haproxy --socket SOCKET --backend BACKEND GROUP|PATH",
		Short: "Update the servers of a HAProxy backend from a group, without a reload",
		Long: `Put the members of a group into the server slots of a HAProxy backend through
HAProxy's runtime API, now and at each change. The backend needs slots:

    backend web
      server-template slot 20 127.0.0.1:1 disabled

and HAProxy a socket of level admin (stats socket /run/haproxy/admin.sock level
admin). A member keeps its slot while it stays. A draining member drains; the
slot of a member that is gone, down or in maintenance is in maintenance. The
command reads HAProxy's slots every 10 s and fills them again after a restart of
HAProxy. While ZooKeeper cannot be reached, HAProxy keeps its servers.

GROUP is a group block of the settings, with its guard and filters; PATH is the
znode of a group.`,
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if err := haproxy.CheckName(backend.Name); err != nil {
				return fail(exitUsage, err, "name it by --backend")
			}
			if backend.Socket == "" {
				return usagef("--socket is missing: the path of HAProxy's stats socket")
			}
			return followHAProxy(c.Context(), g, args[0], backend, once)
		},
	}
	c.Flags().StringVar(&backend.Socket, "socket", "", "path of HAProxy's stats socket, which must have the level admin (required)")
	c.Flags().StringVar(&backend.Name, "backend", "", "name of the backend in HAProxy's settings (required)")
	c.Flags().BoolVar(&once, "once", false, "set the members once and exit; by default, follow the group")
	return c
}

// followHAProxy follows the group, over sessions, and applies its members.
func followHAProxy(ctx context.Context, g *globals, name string, backend haproxy.Backend, once bool) error {
	zk, conf, err := g.zkConfig()
	if err != nil {
		return err
	}
	group := registry.GroupConfig{Name: name, Path: name}
	if !strings.HasPrefix(name, "/") {
		if group, err = groupNamed(conf, name); err != nil {
			return err
		}
		group.Logger = conf.Logger
	} else if err := session.ValidatePath(name); err != nil {
		return fail(exitUsage, err)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	lists := make(chan []view.Member, 1)
	members := registry.NewGroup(group)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel(nil)
	wg.Go(func() {
		cancel(session.Each(ctx, zk, func(ctx context.Context, s *session.Session) error {
			source := view.Source{Kind: view.KindGroup, Name: name}
			if err := readable(ctx, s, []follower{{source: source, path: group.Path}}); err != nil {
				return err
			}
			return members.Run(ctx, s, func(grp *view.Group) {
				if grp.Missing { // without the group's znode its members are unknown
					return
				}
				select {
				case <-lists: // those that nobody has taken
				default:
				}
				lists <- grp.Members
			})
		}))
	})
	if once {
		return haproxyOnce(ctx, g, backend, lists)
	}
	backend.Follow(ctx, lists, haproxyDone(&g.Console, &backend))
	return context.Cause(ctx)
}

func haproxyOnce(ctx context.Context, g *globals, b haproxy.Backend, lists <-chan []view.Member) error {
	ctx, cancel := g.patience(ctx, cmp.Or(g.timeout, oneShot))
	defer cancel()
	defer g.awaiting("waiting for the members of the group; --timeout ends it")()
	select {
	case members := <-lists:
		r, err := b.Apply(ctx, members)
		if err == nil {
			haproxyDone(&g.Console, &b)(r, nil)
		}
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func haproxyDone(console *term.Console, b *haproxy.Backend) func(haproxy.Result, error) {
	return func(r haproxy.Result, err error) {
		if err != nil {
			console.Say("%v", err)
			return
		}
		console.Say("backend %s: %d servers take traffic, %d commands", b.Name, r.Ready, r.Commands)
		if len(r.Left) > 0 {
			console.Say("%d members have no slot or no address: %s", len(r.Left), term.First(r.Left, 10))
		}
	}
}
