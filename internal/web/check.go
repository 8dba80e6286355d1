package web

import (
	"fmt"
	"strings"

	"github.com/zkagent/zkagent/fleet"
)

// States of a monitoring system, as its plugins exit.
const (
	CheckOK = iota
	CheckWarning
	CheckCritical
	CheckUnknown
)

// CheckWords are the words of the states.
var CheckWords = [...]string{"OK", "WARNING", "CRITICAL", "UNKNOWN"}

// Check makes the health of the host, in the words of every view, a state of a
// monitoring system with its text. Maintenance is on purpose: it alarms nobody, and
// is not called ok.
func (s *Status) Check() (code int, word, text string) { //nolint:nonamedreturns // two of them are texts
	code, text = s.check()
	if s.Health == fleet.Maintenance {
		return code, "MAINTENANCE", text
	}
	return code, CheckWords[code], text
}

func (s *Status) check() (int, string) {
	texts := make([]string, len(s.Conditions))
	for i, c := range s.Conditions {
		texts[i] = c.Name() + ": " + c.Text
	}
	text := strings.Join(texts, "; ")
	if text == "" {
		text = s.Summary
	}
	switch s.Health {
	case fleet.OK, fleet.Maintenance:
		return CheckOK, text
	case fleet.Degraded:
		return CheckWarning, text
	case fleet.Failing:
		return CheckCritical, text
	case fleet.Lost, fleet.Stopped: // an agent that answers is not.
	}
	return CheckUnknown, fmt.Sprintf("the agent says that it is %q: it is of another version; %s", s.Health, text)
}
