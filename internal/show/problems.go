package show

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/zkagent/zkagent/fleet"
	"github.com/zkagent/zkagent/internal/term"
)

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
	list := make([]*Problem, 0, len(found))
	for _, p := range found {
		list = append(list, p)
	}
	slices.SortFunc(list, func(a, b *Problem) int {
		return cmp.Or(cmp.Compare(b.State, a.State), cmp.Compare(len(b.Hosts), len(a.Hosts)), a.Since.Compare(b.Since), cmp.Compare(a.String(), b.String()))
	})
	return list
}

// Names lists the first hosts of the problem.
func (p *Problem) Names() string {
	const most = 5
	text := strings.Join(p.Hosts[:min(most, len(p.Hosts))], ", ")
	if n := len(p.Hosts) - most; n > 0 {
		text += fmt.Sprintf(" and %d more", n)
	}
	return text
}

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
