package show

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/zkagent/zkagent/fleet"
	"github.com/zkagent/zkagent/internal/lists"
	"github.com/zkagent/zkagent/internal/term"
)

// Gone reports whether a host of this health has no agent that runs.
func Gone(h fleet.Health) bool { return h == fleet.Lost || h == fleet.Stopped }

// Host is one host of the fleet as every view shows it.
type Host struct {
	*fleet.HostStatus

	State Severity
	From  time.Time // when its health became what it is; zero: unknown
	Files string    // how many, and those that have problems
	Leads string
	Holds string // groups whose members its guard keeps
}

// HostOf is the row of one host.
func HostOf(h *fleet.HostStatus) Host {
	var bad []string
	for _, name := range slices.Sorted(maps.Keys(h.Files)) {
		if state, version := h.File(name); state != "ok" {
			text := name + " " + state
			if version != 0 {
				text += fmt.Sprintf(", v%d in use", version)
			}
			bad = append(bad, text)
		}
	}
	total := strconv.Itoa(len(h.Files) + h.More["files"])
	return Host{
		HostStatus: h, State: SeverityOf(string(h.Health)), From: h.At, Files: fleet.Clip(Joined(": ", total, strings.Join(bad, "; ")), 500),
		Leads: fleet.Clip(strings.Join(h.Leads, ", "), 200), Holds: fleet.Clip(strings.Join(h.Holds, ", "), 200),
	}
}

// Joined joins the texts that are not empty.
func Joined(between string, parts ...string) string {
	return strings.Join(slices.DeleteFunc(parts, func(p string) bool { return p == "" }), between)
}

// HealthCount is how many hosts have one health.
type HealthCount struct {
	Health fleet.Health
	Count  int
}

// Healths counts the hosts by health, the worst first.
func Healths(hosts []fleet.HostStatus) []HealthCount {
	counts := map[fleet.Health]int{}
	for _, h := range hosts {
		counts[h.Health]++
	}
	var list []HealthCount
	for _, word := range fleet.Healths {
		if counts[word] > 0 {
			list = append(list, HealthCount{word, counts[word]})
		}
	}
	return list
}

// FleetSummary says in one line how many hosts there are, and how they are.
func FleetSummary(hosts []fleet.HostStatus) string {
	total, counts := term.Count(len(hosts), "host"), Healths(hosts)
	switch {
	case len(counts) == 0:
		return "no agent runs on this ZooKeeper, or none has reported yet"
	case len(counts) == 1 && counts[0].Health == fleet.OK:
		return total + ", all healthy"
	}
	parts := lists.Map(counts, func(c HealthCount) string { return fmt.Sprintf("%d %s", c.Count, c.Health) })
	return total + ": " + strings.Join(parts, ", ")
}

// Service is one service of one host.
type Service struct {
	Service string       `json:"service"`
	Host    string       `json:"host"`
	Health  fleet.Health `json:"health"` // of the host
	fleet.ServiceUse

	Faults []string `json:"faults,omitempty"` // of the service, without their texts
}

// Services lists the services of the hosts, those that need a look first. Without
// names it lists all.
func Services(hosts []fleet.HostStatus, names ...string) []Service {
	var rows []Service
	for i := range hosts {
		h := &hosts[i]
		for name, use := range h.Services {
			if len(names) > 0 && !slices.Contains(names, name) {
				continue
			}
			row := Service{Service: name, Host: h.ID, Health: h.Health, ServiceUse: use}
			for _, f := range h.Faults {
				if f.Subject == name && strings.HasPrefix(f.Code, "service-") {
					row.Faults = append(row.Faults, f.Code)
				}
			}
			rows = append(rows, row)
		}
	}
	slices.SortFunc(rows, func(a, b Service) int {
		return cmp.Or(cmp.Compare(b.Severity(), a.Severity()), cmp.Compare(a.Service, b.Service), cmp.Compare(a.Host, b.Host))
	})
	return rows
}

// Severity is the severity of the service's state.
func (s *Service) Severity() Severity { return SeverityOf(s.State) }

// Detail says why the service is not registered; "" when the record does not.
func (s *Service) Detail() string {
	switch {
	case s.Check == "":
		return strings.Join(s.Faults, ", ")
	case s.Exit == 0:
		return "check " + s.Check + " has failed"
	}
	return fmt.Sprintf("check %s has failed with exit status %d", s.Check, s.Exit)
}

// Problem is one fault, with every host that has it.
type Problem struct {
	fleet.Fault // of the host that has it for the longest

	Hosts []string
	State Severity
}

// Problems lists what is wrong in the fleet, the worst first: equal faults of many
// hosts are one problem.
func Problems(hosts []fleet.HostStatus) []*Problem {
	found := map[string]*Problem{}
	add := func(host string, f fleet.Fault, s Severity) {
		p := found[f.String()]
		if p == nil {
			p = &Problem{Fault: f, State: s}
			found[f.String()] = p
		}
		if p.Hosts = append(p.Hosts, host); !f.Since.IsZero() && (p.Since.IsZero() || f.Since.Before(p.Since)) {
			p.Fault = f
		}
	}
	for _, h := range hosts {
		if h.Health == fleet.Lost {
			add(h.ID, fleet.Fault{Code: "lost", Since: h.At}, Critical)
			continue
		}
		for _, f := range h.Faults {
			add(h.ID, f, max(SeverityOf(f.Code), Warning))
		}
	}
	return slices.SortedFunc(maps.Values(found), func(a, b *Problem) int {
		return cmp.Or(cmp.Compare(b.State, a.State), cmp.Compare(len(b.Hosts), len(a.Hosts)), a.Since.Compare(b.Since), cmp.Compare(a.String(), b.String()))
	})
}

// Names lists the first hosts of the problem.
func (p *Problem) Names() string { return term.First(p.Hosts, 5) }

// Verdict is the state of a fleet in one line: how many hosts have the worst health,
// since when, and why.
type Verdict struct {
	State Severity
	Text  string
	Since time.Time // zero: all is well, or it is unknown
	Cause string
}

// VerdictOf judges a fleet. Hosts that were stopped on purpose do not count.
func VerdictOf(hosts []fleet.HostStatus, problems []*Problem) Verdict {
	var worst HealthCount
	total := 0
	for _, c := range Healths(hosts) {
		if c.Health == fleet.Stopped {
			continue
		}
		if total += c.Count; worst.Count == 0 {
			worst = c
		}
	}
	switch {
	case total == 0:
		return Verdict{State: Plain, Text: "No agent runs"}
	case worst.Health == fleet.OK:
		return Verdict{State: OK, Text: term.Count(total, "host") + ", all healthy"}
	}
	v := Verdict{State: SeverityOf(string(worst.Health)), Text: fmt.Sprintf("%d of %s %s", worst.Count, term.Count(total, "host"), worst.Health)}
	for _, h := range hosts {
		if h.Health == worst.Health && !h.At.IsZero() && (v.Since.IsZero() || h.At.Before(v.Since)) {
			v.Since = h.At
		}
	}
	if len(problems) > 0 && problems[0].Code != string(worst.Health) {
		v.Cause = problems[0].String()
		if n := len(problems) - 1; n > 0 {
			v.Cause += ", and " + term.Count(n, "other problem")
		}
	}
	return v
}

// ServiceGroup is a service with all hosts that have it.
type ServiceGroup struct {
	Name string
	Up   int
	Rows []Service // those that need a look first
}

// State is the severity of the worst of its rows.
func (g *ServiceGroup) State() Severity { return g.Rows[0].Severity() }

// Down counts the hosts where the service is not up.
func (g *ServiceGroup) Down() int { return len(g.Rows) - g.Up }

// ServiceGroups groups services by name: those that need a look first.
func ServiceGroups(rows []Service) []*ServiceGroup {
	var list []*ServiceGroup
	for _, row := range rows {
		i := slices.IndexFunc(list, func(g *ServiceGroup) bool { return g.Name == row.Service })
		if i < 0 {
			i, list = len(list), append(list, &ServiceGroup{Name: row.Service})
		}
		list[i].Rows = append(list[i].Rows, row)
		if row.Severity() == OK && !Gone(row.Health) {
			list[i].Up++
		}
	}
	return list
}
