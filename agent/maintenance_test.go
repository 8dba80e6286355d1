package agent

import (
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zkagent/zkagent/internal/zktest/testhelp"
	"github.com/zkagent/zkagent/registry"
)

func TestHostMaintenance_OutlivesTheProcessAndEndsByItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		h, err := openMaintenance(dir)
		if err != nil {
			t.Fatal(err)
		}
		why, changed := h.Reason()
		if why != "" || h.Status() != nil {
			t.Errorf("a new host is in maintenance: %q", why)
		}
		if err := h.Set(registry.Maintenance{On: true, Reason: "kernel", Until: time.Now().Add(time.Hour)}); err != nil {
			t.Fatal(err)
		}
		<-changed
		next, err := openMaintenance(dir)
		if err != nil {
			t.Fatal(err)
		}
		why, changed = next.Reason()
		if why != "kernel" {
			t.Errorf("the next process says %q, want kernel", why)
		}
		<-changed // an hour later
		if why, _ := next.Reason(); why != "" || next.Status() != nil {
			t.Errorf("after its time: %q", why)
		}
		if err := next.Set(registry.Maintenance{On: true}); err != nil {
			t.Fatal(err)
		}
		if why, _ := next.Reason(); why != "no reason given" {
			t.Errorf("without a reason: %q", why)
		}
		if err := next.Set(registry.Maintenance{}); err != nil {
			t.Fatal(err)
		}
		if why, _ := next.Reason(); why != "" {
			t.Errorf("switched off: %q", why)
		}
	})
}

func TestHostMaintenance_UnreadableIsTold(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "maintenance-host.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	h, err := openMaintenance(dir)
	if err == nil {
		t.Error("no error for a file that is not JSON")
	}
	if why, _ := h.Reason(); why != "" {
		t.Errorf("got %q", why)
	}
}

// A host in maintenance keeps its version over settings that are loaded and over restarts.
func TestHostMaintenance_KeepsTheVersion(t *testing.T) {
	for name, event := range map[string]func(h *worldHost){
		"other settings of the config": func(h *worldHost) {
			h.settings = 3
			h.w.must(h.reload())
		},
		"the agent leaves and comes back": func(h *worldHost) { h.stop(stopLeave); h.start() },
		"the agent hands over":            func(h *worldHost) { h.stop(stopHandOver); h.start() },
	} {
		if testhelp.NotToday(name, 2) {
			continue
		}
		t.Run(name, func(t *testing.T) {
			inWorld(t, 1, func(w *world) {
				h := w.hosts[0]
				has := func(want string) {
					w.t.Helper()
					w.pass(time.Minute)
					if got, _ := h.file(); got != want {
						w.t.Errorf("it has %s, want %s", got, want)
					}
				}
				has("v0")
				h.maintain(true)
				w.must(w.rollout("v1", false))
				has("v0")
				event(h)
				has("v0")
				h.maintain(false)
				has("v1")
			})
		})
	}
}
