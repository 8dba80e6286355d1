package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/zkagent/zkagent/agent"
	"github.com/zkagent/zkagent/registry"
	"github.com/zkagent/zkagent/session"
	"github.com/zkagent/zkagent/view"
)

type membersOptions struct {
	watch  bool
	state  []string
	format string
}

func newMembersCommand(g *globals) *cobra.Command {
	var o membersOptions
	c := &cobra.Command{
		Use: "members [GROUP|PATH]", Short: "Who is registered",
		Long: `List the members of a group: one of the settings, or a path; without one, of
all groups of the settings. What is listed is what stands in ZooKeeper: members
that an agent's guard holds are marked by "zkagent status" there.`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error { return g.members(c.Context(), args, o) },
	}
	c.Flags().BoolVar(&o.watch, "watch", false, "print them again at each change")
	c.Flags().StringSliceVar(&o.state, "state", nil, "only these states: up, down, drain, maint")
	c.Flags().StringVar(&o.format, "format", "", "how the data is read (default: the settings, or auto)")
	c.AddCommand(newAcceptCommand(g))
	return c
}

func newAcceptCommand(g *globals) *cobra.Command {
	return &cobra.Command{
		Use: "accept GROUP [CHILD]", Short: "Make the agent believe the loss of members that its guard holds", Args: cobra.RangeArgs(1, 2),
		RunE: func(c *cobra.Command, args []string) error {
			return g.withAgent(c.Context(), func(ctx context.Context, client *agent.Client) error {
				name, child := args[0], ""
				if len(args) == 2 {
					child = args[1]
				}
				if err := client.Post(ctx, "/accept", url.Values{"name": {name}, "group": {child}}, nil); err != nil {
					return err
				}
				g.say("group %s: the present members are believed", name)
				return nil
			})
		},
	}
}

func (g *globals) members(ctx context.Context, args []string, o membersOptions) error {
	for _, s := range o.state {
		if !slices.Contains([]string{view.StatusUp, view.StatusDown, view.StatusDrain, view.StatusMaint}, s) {
			return usagef("--state %q is not one of up, down, drain, maint", s)
		}
	}
	return g.withSession(ctx, func(ctx context.Context, s *session.Session, conf *agent.Config) error {
		list, err := groupFollowers(conf, args, o.format)
		if err != nil {
			return err
		}
		if o.watch {
			return g.watchMembers(ctx, s, list, o)
		}
		wait, cancel := g.patience(ctx, 0)
		if g.timeout == 0 {
			wait, cancel = context.WithTimeout(ctx, connectTimeout)
		}
		defer cancel()
		v, err := g.gather(wait, s, view.View{}, list)
		if err != nil {
			return err
		}
		return g.printMembers(v, o)
	})
}

// groupFollowers follows one group, or all groups of the settings. Nothing is
// held back: what stands in ZooKeeper is shown.
func groupFollowers(conf *agent.Config, args []string, format string) ([]follower, error) {
	if conf == nil {
		conf = &agent.Config{}
	}
	c := agent.Config{}
	for _, v := range conf.Groups {
		if len(args) == 0 || v.Name == args[0] || v.Path == args[0] {
			c.Groups = append(c.Groups, raw(v, format))
		}
	}
	for _, v := range conf.GroupSets {
		if len(args) == 0 || v.Name == args[0] {
			v.Guard.Off = true
			c.GroupSets = append(c.GroupSets, v)
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
	list := followers(&c, func(view.Source) bool { return true })
	if len(list) == 0 {
		return nil, fail(exitUsage, errors.New("no group named, and the settings have none"), "zkagent members /services/web --zk host:port")
	}
	return list, nil
}

// raw makes a follower show what is there, at once.
func raw(c registry.GroupConfig, format string) registry.GroupConfig {
	c.Guard.Off, c.NoDamping, c.Linger = true, true, -1
	if format != "" {
		c.Format = format
	}
	return c
}

// memberRow is one member as data.
type memberRow struct {
	Group   string            `json:"group"`
	ID      string            `json:"id"`
	Host    string            `json:"host"`
	Port    int               `json:"port"`
	Ports   map[string]int    `json:"ports,omitempty"`
	Weight  int               `json:"weight"`
	Status  string            `json:"status"`
	Labels  map[string]string `json:"labels,omitempty"`
	Node    string            `json:"node"`
	Czxid   int64             `json:"czxid"`
	Created time.Time         `json:"created"`
	address string
}

// memberRows lists the members of all groups of a view.
func memberRows(v view.View, states []string) ([]memberRow, map[string][]view.Rejected) {
	var rows []memberRow
	rejected := map[string][]view.Rejected{}
	take := func(name string, g *view.Group) {
		for _, m := range g.Members {
			if len(states) > 0 && !slices.Contains(states, m.Status) {
				continue
			}
			rows = append(rows, memberRow{name, m.ID, m.Host, m.Port, m.Ports, m.Weight, m.Status, m.Labels, m.Node, m.Czxid, m.Created.UTC(), m.Address()})
		}
		if len(g.Rejected) > 0 {
			rejected[name] = g.Rejected
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

func (g *globals) printMembers(v view.View, o membersOptions) error {
	rows, rejected := memberRows(v, o.state)
	for _, name := range sortedNames(rejected) {
		for _, r := range rejected[name] {
			g.warnf("%s: %s is not taken as a member: %s", printable(name), printable(r.Node), printable(r.Reason))
		}
	}
	if g.isJSON() {
		return printList(g, "members", rows)
	}
	t := &table{header: []string{"GROUP", "MEMBER", "ADDRESS", "STATUS", "WEIGHT", "AGE"}}
	if g.output == "wide" {
		t.header = append(t.header, "LABELS", "NODE")
	}
	for _, m := range rows {
		row := []string{printable(m.Group), m.ID, m.address, g.stateWord(m.Status), strconv.Itoa(m.Weight), age(m.Created)}
		if g.output == "wide" {
			var labels []string
			for _, k := range sortedNames(m.Labels) {
				labels = append(labels, k+"="+m.Labels[k])
			}
			row = append(row, strings.Join(labels, ","), m.Node)
		}
		t.add(row...)
	}
	return g.printTable(t)
}
