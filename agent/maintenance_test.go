package agent

import (
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

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
