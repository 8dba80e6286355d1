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

func (m Maintenance) active(now time.Time) bool {
	return m.On && (m.Until.IsZero() || now.Before(m.Until))
}

// loadMaintenance reads the state file. A missing file means no maintenance.
func loadMaintenance(path string) (Maintenance, error) {
	var m Maintenance
	if path == "" {
		return m, nil
	}
	if err := files.LoadJSON(path, &m); err != nil {
		return Maintenance{}, fmt.Errorf("read maintenance: %w", err)
	}
	return m, nil
}

// save replaces the state file atomically, or removes it.
func (m Maintenance) save(path string) error {
	if path == "" {
		return nil
	}
	if !m.On {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("forget maintenance: %w", err)
		}
		return nil
	}
	if err := files.SaveJSON(path, m); err != nil {
		return fmt.Errorf("save maintenance: %w", err)
	}
	return nil
}
