package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/zkagent/zkagent/agent"
	"github.com/zkagent/zkagent/config"
	"github.com/zkagent/zkagent/fleet"
	"github.com/zkagent/zkagent/internal/term"
	"github.com/zkagent/zkagent/session"
)

// agentsPath is where each agent says how it is.
const agentsPath = "/zkagent/agents"

// fleetAgent is one agent as the fleet sees it.
type fleetAgent struct {
	ID string `json:"id"`
	fleet.Record
	State string `json:"state"` // ok, failing or unreadable
}

func newFleetCommand(g *globals) *cobra.Command {
	return &cobra.Command{
		Use: "fleet [NAME|PATH]...", Short: "List all agents: version, state, last error; with configs, who uses which version",
		Long: `List the agents that are connected to ZooKeeper, from what each of them says
there. With names or paths of configs, list the subscribers of those: which
version each uses, and why one does not.`,
		RunE: func(c *cobra.Command, args []string) error {
			return g.withSession(c.Context(), func(ctx context.Context, s *session.Session, conf *agent.Config) error {
				ctx, cancel := g.patience(ctx, 0)
				defer cancel()
				if len(args) == 0 {
					return g.listAgents(ctx, s)
				}
				return g.listSubscribers(ctx, s, conf, args)
			})
		},
	}
}

// listAgents shows what the agents say of themselves.
func (g *globals) listAgents(ctx context.Context, s *session.Session) error {
	agents, err := readAgents(ctx, s)
	if err != nil {
		return err
	}
	if g.IsJSON() {
		return term.PrintList(&g.Console, "agents", agents)
	}
	tab := &term.Table{Header: []string{"AGENT", "STATE", "VERSION", "UP", "TEMPLATES", "LEADS", "LAST ERROR"}}
	failing := 0
	for _, a := range agents {
		if a.State != config.StateOK {
			failing++
		}
		tab.Add(a.ID, g.agentState(a.State), orWord(a.Version, "-"), term.Age(a.Since), templatesWord(a.Record), orWord(strings.Join(a.Leads, ","), "-"), a.Error)
	}
	if err := g.PrintTable(tab); err != nil {
		return err
	}
	g.Say("%s, %d of them not well", term.Count(len(agents), "agent"), failing)
	return nil
}

// readAgents reads what all agents say, sorted by their ids. An agent that
// leaves meanwhile is left out.
func readAgents(ctx context.Context, s *session.Session) ([]fleetAgent, error) {
	ids, _, err := s.Children(ctx, agentsPath)
	if errors.Is(err, session.ErrNoNode) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	slices.Sort(ids)
	paths := make([]string, len(ids))
	for i, id := range ids {
		paths[i] = session.JoinPath(agentsPath, id)
	}
	results, err := s.GetMany(ctx, paths)
	if err != nil {
		return nil, err
	}
	agents := make([]fleetAgent, 0, len(ids))
	for i, r := range results {
		if errors.Is(r.Err, session.ErrNoNode) {
			continue
		}
		if r.Err != nil {
			return nil, r.Err
		}
		a := fleetAgent{ID: ids[i], State: config.StateOK}
		if err := json.Unmarshal(r.Data, &a.Record); err != nil {
			a.State, a.Error = "unreadable", err.Error()
		} else if a.Error != "" {
			a.State = "failing"
		}
		agents = append(agents, a)
	}
	return agents, nil
}

// templatesWord sums up an agent's templates: how many, and which have failed.
func templatesWord(st fleet.Record) string {
	var failed []string
	for name, state := range st.Templates {
		if strings.HasPrefix(state, "failed") {
			failed = append(failed, name)
		}
	}
	slices.Sort(failed)
	total := strconv.Itoa(len(st.Templates) + st.More)
	if len(failed) == 0 {
		return total
	}
	return total + ", failed " + strings.Join(failed, ",")
}

func (g *globals) agentState(state string) string {
	code := map[string]string{config.StateOK: "32", config.StateFailed: "31", "failing": "31", config.StateHeld: "33", config.StateMaintenance: "33"}[state]
	return g.Colored(g.Out, code, state)
}

// subscriberRow is one agent's use of one config.
type subscriberRow struct {
	Config string `json:"config"`
	Agent  string `json:"agent"`
	config.Subscription
	Behind bool `json:"behind"` // another version than the one that ready names
}

// listSubscribers shows who uses which version of the configs.
func (g *globals) listSubscribers(ctx context.Context, s *session.Session, conf *agent.Config, names []string) error {
	var rows []subscriberRow
	for _, name := range names {
		t, err := targetOf(conf, name)
		if err != nil {
			return err
		}
		ready, _, err := config.ReadReady(ctx, s, t.path)
		if err != nil {
			return explain(err, t)
		}
		subscribers, err := config.Subscribers(ctx, s, t.path)
		if err != nil {
			return explain(err, t)
		}
		for _, sub := range subscribers {
			rows = append(rows, subscriberRow{Config: t.name, Agent: sub.ID, Subscription: sub, Behind: sub.Version != ready.Version})
		}
	}
	if g.IsJSON() {
		return term.PrintList(&g.Console, "subscribers", rows)
	}
	tab := &term.Table{Header: []string{"CONFIG", "AGENT", "VERSION", "STATE", "ERROR"}}
	for _, r := range rows {
		version := fmt.Sprintf("v%d", r.Version)
		if r.Behind {
			version += " (behind)"
		}
		tab.Add(r.Config, r.Agent, version, g.agentState(r.State), r.Error)
	}
	return g.PrintTable(tab)
}
