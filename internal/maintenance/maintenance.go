// Package maintenance keeps whether this host as a whole is in maintenance. That of
// one service is the registry's.
package maintenance

import (
	"cmp"
	"fmt"
	"sync"
	"time"

	"github.com/zkagent/zkagent/internal/files"
	"github.com/zkagent/zkagent/registry"
)

// Host is the maintenance of this host: no rollout asks for its vote, starts it or
// waits for it. It outlives the process when there is a state directory, and is safe
// for concurrent use.
type Host struct {
	kept *files.Store[registry.Maintenance]

	mu      sync.Mutex // mu guards everything below.
	now     registry.Maintenance
	changed chan struct{} // closed at the next change
	timer   *time.Timer   // ends it by itself
}

// New reads what a previous process has kept. With an error the host is not in
// maintenance.
func New(stateDir string) (*Host, error) {
	h := &Host{changed: make(chan struct{})}
	var err error
	if h.kept, err = files.OpenStore[registry.Maintenance](stateDir, "maintenance-host.json", nil); err != nil {
		return h, fmt.Errorf("read maintenance of the host: %w", err)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.kept.Read(func(m registry.Maintenance) { h.now = m })
	h.arm()
	return h, nil
}

// Set switches it; what cannot be kept is not switched.
func (h *Host) Set(m registry.Maintenance) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	m.Since = time.Now()
	if !m.On {
		m = registry.Maintenance{}
	}
	err := h.kept.Change(func(kept *registry.Maintenance) files.Write {
		*kept = m
		return files.WriteSave
	})
	if err != nil {
		return fmt.Errorf("keep maintenance of the host: %w", err)
	}
	h.now = m
	h.arm()
	h.report()
	return nil
}

// arm makes the maintenance end at its time. h.mu is held.
func (h *Host) arm() {
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
func (h *Host) report() {
	close(h.changed)
	h.changed = make(chan struct{})
}

// Reason is why the host is in maintenance, empty when it is not; the channel
// is closed at the next change.
func (h *Host) Reason() (string, <-chan struct{}) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.now.Active(time.Now()) {
		return "", h.changed
	}
	return cmp.Or(h.now.Reason, "no reason given"), h.changed
}

// Status is what is shown; nil: the host is not in maintenance.
func (h *Host) Status() *registry.Maintenance {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.now.Active(time.Now()) {
		return nil
	}
	m := h.now
	return &m
}
