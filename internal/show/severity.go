package show

import (
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
