// Package show is the one way to show the state of an agent and of a fleet: the
// documents, the severity of each state, and the rows that the commands, the page,
// the monitoring check and the metrics have in common.
//
// Not here: how a row looks on a terminal (internal/term) or on the page
// (internal/web).
package show

import (
	"fmt"
	"slices"
	"strings"

	"github.com/zkagent/zkagent/fleet"
	"github.com/zkagent/zkagent/internal/condition"
)

// Severity is how much a state needs a look. It is the one place where states
// become colours, on terminals and on the page; the word always stands beside it.
type Severity int

// The severities.
const (
	Plain Severity = iota // neither good nor bad, or unknown
	OK
	Active  // on its way
	Warning // it serves, and something is held, kept or stopped on purpose
	Critical
)

var severities = map[string]Severity{
	"ok": OK, "connected": OK, "running": OK, "done": OK, "up": OK, "passing": OK, "leader": OK, "registered": OK,

	"started": Active, "rolling": Active, "voting": Active, "granted": Active,

	"degraded": Warning, "drain": Warning, "draining": Warning, "maint": Warning, "maintenance": Warning, "suspended": Warning,
	"connecting": Warning, "cached": Warning, "paused": Warning, "waiting": Warning, "warning": Warning, "starting": Warning,
	"stopping": Warning, "stopped": Warning, "held": Warning, "kept": Warning, "reloading": Warning, "baking": Warning,
	"skipped": Warning, "rolled back": Warning,

	"lost": Critical, "failing": Critical, "failed": Critical, "expired": Critical, "closed": Critical, "down": Critical,
	"critical": Critical, "blocked": Critical, "halted": Critical, "aborted": Critical, "refused": Critical, "exited": Critical,
	"reload-failed": Critical, "owed": Critical, "rejected": Critical,
}

// SeverityOf returns the severity of a state, of a word of health, or of the code of
// a condition; Plain for a word that it does not know.
func SeverityOf(state string) Severity {
	if s, ok := severities[state]; ok {
		return s
	}
	switch k := (Condition{Code: state}).Kind(); {
	case k.Failing:
		return Critical
	case k != condition.Kind{}:
		return Warning
	}
	return Plain
}

// Class is the class of the severity in the style sheet of the page.
func (s Severity) Class() string { return [...]string{"mut", "ok", "acc", "warn", "bad"}[s] }

// Color is the number of the severity's colour on a terminal; "": none.
func (s Severity) Color() string { return [...]string{"", "32", "", "33", "31"}[s] }

// States of a monitoring system, as its plugins exit.
const (
	CheckOK = iota
	CheckWarning
	CheckCritical
	CheckUnknown
)

// Check makes the health of the host a state of a monitoring system, with its word
// and a text. Maintenance is on purpose: it alarms nobody, and is not called ok.
func (s *Status) Check() (code int, word, text string) { //nolint:nonamedreturns // two of them are texts
	texts := make([]string, len(s.Conditions))
	for i, c := range s.Conditions {
		texts[i] = c.Name() + ": " + c.Text
	}
	if text = strings.Join(texts, "; "); text == "" {
		text = s.Summary
	}
	switch s.Health {
	case fleet.OK:
		if slices.ContainsFunc(s.Templates, func(t TemplateStatus) bool { return t.State == "waiting" }) {
			return CheckWarning, "WARNING", text // The agent has just started.
		}
		return CheckOK, "OK", text
	case fleet.Maintenance:
		return CheckOK, "MAINTENANCE", text
	case fleet.Degraded:
		return CheckWarning, "WARNING", text
	case fleet.Failing:
		return CheckCritical, "CRITICAL", text
	case fleet.Lost, fleet.Stopped: // an agent that answers is not.
	}
	return CheckUnknown, "UNKNOWN", fmt.Sprintf("unknown health %q, probably of another version; %s", s.Health, text)
}
