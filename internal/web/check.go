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

// Check makes the health of the host, in the words of every view, a state of a
// monitoring system with its text. Maintenance is on purpose.
func (s *Status) Check() (int, string) {
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
