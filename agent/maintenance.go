package agent

import (
	"cmp"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	"github.com/zkagent/zkagent/internal/files"
	"github.com/zkagent/zkagent/registry"
)

// hostMaintenance is the maintenance of this host as a whole: no rollout asks for its vote, starts it or
// waits for it. It outlives the process when there is a state directory, and is safe
// for concurrent use.
type hostMaintenance struct {
	path string // of the file that keeps it; empty: it ends with the process

	mu      sync.Mutex // mu guards everything below.
	now     registry.Maintenance
	changed chan struct{} // closed at the next change
	timer   *time.Timer   // ends it by itself
}

// openMaintenance reads what a previous process has kept. With an error the host is not in
// maintenance.
func openMaintenance(stateDir string) (*hostMaintenance, error) {
	h := &hostMaintenance{changed: make(chan struct{})}
	if stateDir == "" {
		return h, nil
	}
	h.path = filepath.Join(stateDir, "maintenance-host.json")
	var kept registry.Maintenance
	if err := files.LoadJSON(h.path, &kept); err != nil {
		return h, fmt.Errorf("read maintenance of the host: %w", err)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.now = kept
	h.arm()
	return h, nil
}

// Set switches it; what cannot be kept is not switched.
func (h *hostMaintenance) Set(m registry.Maintenance) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	m.Since = time.Now()
	if !m.On {
		m = registry.Maintenance{}
	}
	if h.path != "" {
		if err := files.SaveJSON(h.path, m); err != nil {
			return fmt.Errorf("keep maintenance of the host: %w", err)
		}
	}
	h.now = m
	h.arm()
	h.report()
	return nil
}

// arm makes the maintenance end at its time. h.mu is held.
func (h *hostMaintenance) arm() {
	if h.timer != nil {
		h.timer.Stop()
	}
	if !h.now.On || h.now.Until.IsZero() {
		return
	}
	h.timer = time.AfterFunc(time.Until(h.now.Until), func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.report()
	})
}

// report wakes the goroutines that wait for a change. h.mu is held.
func (h *hostMaintenance) report() {
	close(h.changed)
	h.changed = make(chan struct{})
}

// Reason is why the host is in maintenance, empty when it is not; the channel
// is closed at the next change.
func (h *hostMaintenance) Reason() (string, <-chan struct{}) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.now.Active(time.Now()) {
		return "", h.changed
	}
	return cmp.Or(h.now.Reason, "no reason given"), h.changed
}

// Status is what is shown; nil: the host is not in maintenance.
func (h *hostMaintenance) Status() *registry.Maintenance {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.now.Active(time.Now()) {
		return nil
	}
	m := h.now
	return &m
}
