package main

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/zkagent/zkagent/internal/term"
	"github.com/zkagent/zkagent/internal/web"
	"github.com/zkagent/zkagent/registry"
	"github.com/zkagent/zkagent/view"
)

// printStatus prints a status: a summary, the problems, and a row for each thing
// that the agent manages.
func printStatus(console *term.Console, s *web.Status) error {
	if console.IsJSON() {
		return console.PrintJSON("status", s)
	}
	_, _ = fmt.Fprintf(console.Out, "%s: %s; %s\n", s.Agent.ID, healthWord(console, s.Health), term.Printable(s.Summary))
	if m := s.Agent.Maintenance; m != nil && m.On {
		console.Printf("maintenance: %s\n", term.Printable(joined([]string{m.Reason, untilWords(m)}, ", ")))
	}
	_, _ = fmt.Fprintf(console.Out, "zookeeper: %s\n", zookeeperLine(console, &s.ZooKeeper))
	for _, c := range s.Conditions {
		_, _ = fmt.Fprintf(console.Out, "%s: %s (for %s)\n", console.Colored(console.Out, "33", term.Printable(c.Name())), term.Printable(c.Text), term.Age(c.Since))
		if about, ok := c.About(); ok && isWide(console) {
			_, _ = fmt.Fprintf(console.Out, "  in use: %s\n  do: %s\n", about.Use, term.Printable(about.Do))
		}
	}
	t := &term.Table{Header: []string{"KIND", "NAME", "STATE", "SINCE", "DETAIL"}}
	serviceRows(console, t, s)
	templateRows(console, t, s)
	sourceRows(console, t, s)
	runRows(console, t, s)
	return console.PrintTable(t)
}

// zookeeperLine describes the connection, or why it is missing.
func zookeeperLine(console *term.Console, z *web.ZooKeeperStatus) string {
	line := stateWord(console, z.State)
	if z.Server != "" {
		line += " " + z.Server
	}
	if z.SessionID != "" {
		line += fmt.Sprintf(", session %s, timeout %s", z.SessionID, z.Timeout)
	}
	if !z.Since.IsZero() {
		line += ", for " + term.Age(z.Since)
	}
	if z.State != "connected" && z.LastError != "" {
		line += ": " + term.Printable(z.LastError)
	}
	if z.Warning != "" {
		line += "; " + console.Colored(console.Out, "33", term.Printable(z.Warning))
	}
	if isWide(console) {
		line += fmt.Sprintf("; watches %d, reconnections %d, expired sessions %d", z.Watches, z.Reconnects, z.Expirations)
		if z.Resumed {
			line += ", resumed from the former process"
		}
	}
	return line
}

func isWide(console *term.Console) bool { return console.Format == "wide" }

func serviceRows(console *term.Console, t *term.Table, s *web.Status) {
	for _, v := range s.Services {
		t.Add("service", v.Name, stateWord(console, v.State), term.Age(v.Since), serviceDetail(&v))
		if !isWide(console) {
			continue
		}
		for _, c := range v.Checks {
			t.Add("  check", c.Name, stateWord(console, c.State.String()), term.Age(c.Since), strings.TrimSpace(c.Output))
		}
		if v.Node != "" {
			t.Add("  znode", "-", "-", "-", v.Node)
		}
	}
}

// serviceDetail returns the address and why it gets no traffic.
func serviceDetail(v *registry.ServiceStatus) string {
	parts := []string{v.Address}
	if m := v.Maintenance; m != nil && m.On {
		parts = append(parts, joined([]string{m.Reason, untilWords(m)}, ", "))
	}
	for _, c := range v.Checks {
		if c.State == registry.Critical {
			parts = append(parts, "check "+c.Name+": "+strings.TrimSpace(c.Output))
		}
	}
	parts = append(parts, v.Error)
	return joined(parts, "; ")
}

// untilWords says when a maintenance ends by itself; empty when it does not.
func untilWords(m *registry.Maintenance) string {
	if m.Until.IsZero() {
		return ""
	}
	return "until " + m.Until.UTC().Format(time.RFC3339)
}

// joined is the parts that are not empty.
func joined(parts []string, between string) string {
	var list []string
	for _, p := range parts {
		if p != "" {
			list = append(list, p)
		}
	}
	return strings.Join(list, between)
}

func templateRows(console *term.Console, t *term.Table, s *web.Status) {
	sources := map[string]web.SourceStatus{}
	for _, v := range s.Sources {
		sources[v.Kind+"."+v.Name] = v
	}
	for _, v := range s.Templates {
		detail := ""
		if v.Version != "" {
			detail = "version " + v.Version
		}
		switch {
		case v.State == "failed" && hasCondition(s, "template-failed", v.Name), v.State == "kept" && hasCondition(s, "group-empty", v.Name):
			detail = "" // the condition says why.
		case v.Error != "":
			detail = v.Error
		}
		if v.Owed {
			detail = joined([]string{"reload owed for " + term.Age(v.OwedSince), detail}, "; ")
		}
		t.Add("template", v.Name, stateWord(console, v.State), term.Age(v.LastChange), detail)
		if !isWide(console) {
			continue
		}
		for _, name := range v.Sources {
			src := sources[name]
			t.Add("  uses", name, stateWord(console, sourceState(&src)), term.Age(src.Changed), sourceDetail(&src))
		}
		for _, f := range v.Files {
			t.Add("  file", "-", "-", term.Age(v.LastChange), f)
		}
		reloadRow(console, t, &v)
	}
}

// reloadRow is the newest reload, and the one that is owed.
func reloadRow(console *term.Console, t *term.Table, v *web.TemplateStatus) {
	r := v.LastReload
	switch {
	case r == nil && v.Owed:
		t.Add("  reload", "-", stateWord(console, "owed"), term.Age(v.OwedSince), "not tried in this process")
	case r != nil:
		state, detail := "done", joined([]string{"took " + term.Short(time.Duration(r.Took)), r.Error}, "; ")
		if r.Error != "" {
			state = "failed"
		}
		if v.Owed {
			detail = joined([]string{"owed for " + term.Age(v.OwedSince), detail}, "; ")
		}
		t.Add("  reload", "-", stateWord(console, state), term.Age(r.At), detail)
	}
}

func hasCondition(s *web.Status, code, subject string) bool {
	for _, c := range s.Conditions {
		if c.Code == code && c.Subject == subject {
			return true
		}
	}
	return false
}

func sourceState(v *web.SourceStatus) string {
	if v.Reported {
		return "ok"
	}
	return "waiting"
}

// sourceDetail is what is in use of a source.
func sourceDetail(v *web.SourceStatus) string {
	switch v.Kind {
	case "config":
		if v.Version == "" {
			return v.Path
		}
		version := v.Version
		if v.Known != 0 {
			version += fmt.Sprintf(" (knows v%d)", v.Known)
		}
		return fmt.Sprintf("%s, version %s, %s", v.Path, version, term.Count(v.Size, "key"))
	case "group":
		return fmt.Sprintf("%s, %s", v.Path, term.Count(v.Size, "member"))
	case "groups":
		return fmt.Sprintf("%s, %s", v.Path, term.Count(v.Size, "group"))
	}
	return v.Path
}

// sourceRows are the configs, groups and elections, with what is wrong.
func sourceRows(console *term.Console, t *term.Table, s *web.Status) {
	faults := sourceFaults(s)
	for _, v := range s.Sources {
		if v.Kind == "election" {
			continue
		}
		fault := faults[v.Kind+"."+v.Name]
		state := sourceState(&v)
		if fault.failed {
			state = "failed"
		}
		t.Add(v.Kind, v.Name, stateWord(console, state), term.Age(v.Changed), joined([]string{sourceDetail(&v), fault.text}, "; "))
	}
	for _, v := range s.Elections {
		state, detail := "follower", fmt.Sprintf("%s, term %d", cmp.Or(v.ID, "nobody"), v.Term)
		switch {
		case v.Held:
			state = "leader"
		case v.Term == 0: // a candidate in line sees only its own turn.
			state, detail = "not leading", fmt.Sprintf("`zkagent elect --list %s` shows who leads", v.Name)
		}
		t.Add("election", v.Name, state, "-", detail)
	}
}

// fault is the problem of a source.
type fault struct {
	text   string
	failed bool
}

// sourceFaults returns the problems of configs and groups.
func sourceFaults(s *web.Status) map[string]fault {
	faults := map[string]fault{}
	for _, c := range s.Configs {
		switch {
		case c.Error != "":
			faults["config."+c.Name] = fault{c.Error, true}
		case c.Waiting != "":
			faults["config."+c.Name] = fault{text: "waits " + strings.TrimPrefix("for "+c.Waiting, "for for ")}
		}
	}
	for _, v := range s.Groups {
		faults["group."+v.Name] = groupFault(&v)
	}
	return faults
}

func groupFault(v *registry.GroupStatus) fault {
	var parts []string
	if v.Missing {
		parts = append(parts, "the znode does not exist")
	}
	if v.Held > 0 {
		parts = append(parts, fmt.Sprintf("the guard holds %s for %s", term.Count(v.Held, "member"), term.Age(v.Holding)))
	}
	if n := len(v.Flapping); n > 0 {
		parts = append(parts, fmt.Sprintf("%s held back, for they come and go: %s", term.Count(n, "member"), strings.Join(v.Flapping[:min(n, 3)], ", ")))
	}
	if n := len(v.Rejected); n > 0 {
		parts = append(parts, fmt.Sprintf("%d not taken as members: %s: %s", n, v.Rejected[0].Znode, v.Rejected[0].Reason))
	}
	if i := slices.IndexFunc(v.Members, func(m view.Member) bool { return len(m.RawLabels) > 0 }); i >= 0 {
		parts = append(parts, "label of "+rawLabels(v.Members[i].ID, v.Members[i].RawLabels))
	}
	return fault{joined(append(parts, v.Error), "; "), v.Error != ""}
}

// runRows are the hooks and the supervised programs.
func runRows(console *term.Console, t *term.Table, s *web.Status) {
	for _, v := range s.Hooks {
		state, since, detail := "idle", "-", ""
		if last := v.Last(); last != nil {
			state, since, detail = last.State, term.Age(last.Began), last.Error
		}
		if detail == "" && !v.Next.IsZero() {
			detail = "next " + v.Next.UTC().Format(time.RFC3339)
		}
		t.Add("hook", v.Name, stateWord(console, state), since, detail)
	}
	for _, v := range s.Execs {
		t.Add("exec", v.Name, stateWord(console, v.State), term.Age(v.Since), strings.TrimSpace("pid "+strconv.Itoa(v.PID)+" "+v.Error))
	}
}

// stateWord colours the word of a state.
func stateWord(console *term.Console, state string) string {
	code := ""
	switch state {
	case "ok", "connected", "done", "up", "running", "registered", "passing":
		code = "32"
	case "failed", "expired", "closed", "down", "critical", "owed":
		code = "31"
	case "suspended", "waiting", "connecting", "drain", "maint", "maintenance", "warning", "held", "kept":
		code = "33"
	}
	return console.Colored(console.Out, code, state)
}
