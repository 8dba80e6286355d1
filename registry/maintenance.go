package registry

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/zkagent/zkagent/internal/files"
	"github.com/zkagent/zkagent/view"
)

// Maintenance takes a service out of use on purpose, independent of its checks.
type Maintenance struct {
	On     bool      `json:"on"`               // the member is out of service on purpose
	Reason string    `json:"reason,omitempty"` // for people
	Since  time.Time `json:"since,omitzero"`   // when it was switched on
	Until  time.Time `json:"until,omitzero"`   // zero: until it is switched off
	// Drain shows the member as draining before it is taken out, for DrainFor
	// (0: as long as the service drains when it leaves).
	Drain    bool         `json:"drain,omitempty"`
	DrainFor view.Seconds `json:"drain_for_seconds,omitempty"`
}

// Active reports whether it takes effect at a time.
func (m Maintenance) Active(now time.Time) bool {
	return m.On && (m.Until.IsZero() || now.Before(m.Until))
}

// save replaces the state file, or removes it when maintenance is off. An empty path keeps
// nothing.
func (m Maintenance) save(path string) error {
	var err error
	switch {
	case path == "":
	case m.On:
		err = files.SaveJSON(path, m)
	default:
		if err = os.Remove(path); errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
	}
	if err != nil {
		return fmt.Errorf("keep maintenance: %w", err)
	}
	return nil
}
