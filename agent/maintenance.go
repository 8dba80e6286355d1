package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/zkagent/zkagent/internal/event"
	"github.com/zkagent/zkagent/internal/files"
	"github.com/zkagent/zkagent/internal/web"
	"github.com/zkagent/zkagent/registry"
)

// hostMaintenance is whether the host as a whole is in maintenance: no rollout
// asks for its vote, starts it or waits for it. It outlives the process when
// there is a state directory, and is safe for concurrent use.
type hostMaintenance struct {
	path string // empty: memory only

	mu      sync.Mutex // mu guards everything below.
	now     registry.Maintenance
	changed chan struct{} // closed at the next change
	timer   *time.Timer   // ends it by itself
}

// newHostMaintenance reads what a former process has kept.
func newHostMaintenance(stateDir string) (*hostMaintenance, error) {
	h := &hostMaintenance{changed: make(chan struct{})}
	if stateDir == "" {
		return h, nil
	}
	h.path = filepath.Join(stateDir, "maintenance-host.json")
	data, err := os.ReadFile(h.path)
	if errors.Is(err, fs.ErrNotExist) {
		return h, nil
	}
	if err == nil {
		err = json.Unmarshal(data, &h.now)
	}
	if err != nil {
		h.now = registry.Maintenance{}
		return h, fmt.Errorf("read maintenance of the host: %w", err)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.arm()
	return h, nil
}

// set switches it; what cannot be kept is not switched.
func (h *hostMaintenance) set(m registry.Maintenance) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	m.Since = time.Now()
	if !m.On {
		m = registry.Maintenance{}
	}
	if h.path != "" {
		data, err := json.Marshal(m)
		if err == nil {
			err = files.Save(h.path, append(data, '\n'))
		}
		if err != nil {
			return fmt.Errorf("keep maintenance of the host: %w", err)
		}
	}
	h.now = m
	h.arm()
	h.tell()
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
		h.tell()
	})
}

// tell wakes the goroutines that wait for a change. h.mu is held.
func (h *hostMaintenance) tell() {
	close(h.changed)
	h.changed = make(chan struct{})
}

// reason is why the host is in maintenance, empty when it is not; the channel
// is closed at the next change.
func (h *hostMaintenance) reason() (string, <-chan struct{}) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.on() {
		return "", h.changed
	}
	if h.now.Reason == "" {
		return "no reason given", h.changed
	}
	return h.now.Reason, h.changed
}

// on reports whether it is on now. h.mu is held.
func (h *hostMaintenance) on() bool {
	return h.now.On && (h.now.Until.IsZero() || time.Now().Before(h.now.Until))
}

// status is what is shown; nil: the host is not in maintenance.
func (h *hostMaintenance) status() *registry.Maintenance {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.on() {
		return nil
	}
	m := h.now
	return &m
}

// maintainHost switches the maintenance of the host: on, reason, for.
func (a *Agent) maintainHost(o web.Args) error {
	on, err := strconv.ParseBool(o["on"])
	if err != nil {
		return fmt.Errorf("on is %q, not true or false", o["on"])
	}
	m := registry.Maintenance{On: on, Reason: o["reason"]}
	if o["for"] != "" {
		d, err := time.ParseDuration(o["for"])
		if err != nil || d <= 0 {
			return fmt.Errorf("for is %q, not a duration", o["for"])
		}
		m.Until = time.Now().Add(d)
	}
	if err := a.hostMaint.set(m); err != nil {
		return err
	}
	log := a.log.With("on", on, "reason", m.Reason)
	if !m.Until.IsZero() {
		log = log.With("until", m.Until)
	}
	log.Info("maintenance of the host changed")
	a.events.Add(event.Event{Kind: "maintenance", Subject: map[bool]string{true: "on", false: "off"}[on], Text: m.Reason})
	return nil
}
