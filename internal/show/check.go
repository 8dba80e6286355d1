package show

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
