package agent

import (
	"fmt"
	"testing"

	"github.com/zkagent/zkagent/internal/condition"
)

// A publication that says nothing new makes no text, however many templates
// there are, and one that does makes few.
func TestFleetStatus_NothingNew(t *testing.T) {
	a := &Agent{conds: &condition.Set{}}
	a.cfg.Store(&Config{})
	f := &fleetStatus{agent: a}
	snap := &snapshot{bundles: map[string]*bundleReport{}}
	for i := range 200 {
		name := fmt.Sprintf("template-%03d", i)
		snap.order = append(snap.order, name)
		snap.bundles[name] = &bundleReport{State: "ok"}
	}
	first := f.text(snap)
	if got := testing.AllocsPerRun(100, func() {
		if f.text(snap) != first {
			t.Error("the text is another one")
		}
	}); got > 100 {
		t.Errorf("%v allocations where nothing is new", got)
	}
	snap.bundles["template-000"] = &bundleReport{State: "failed"}
	snap.turns++
	if text := f.text(snap); text == first || !snap.failed() || len(text) > fleetMax || len(text) < fleetMax-60 {
		t.Errorf("got %d bytes: %s", len(text), text)
	}
}
