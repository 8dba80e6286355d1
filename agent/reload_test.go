package agent

import (
	"testing"

	"github.com/zkagent/zkagent/election"
	"github.com/zkagent/zkagent/internal/apply"
)

func TestReload_LeaderOnlyRunsOnceInTheFleet(t *testing.T) {
	b := newBed(t)
	b.tree(map[string]string{"port": "80"})
	agent := func(id string) *started {
		c := b.config()
		c.ID, c.StateDir = id, b.path("state-"+id)
		c.Elections = []election.Config{{Name: "e", Path: "/elections/e"}}
		f := b.file(id+".conf", `{{ key "web/port" }}`)
		f.Name = "web"
		f.Reload = &apply.ReloadConfig{Leader: "e", Command: script("echo $(cat %s) >> %s", b.path(id+".conf"), b.path("log"))}
		c.Bundles = []apply.Config{f}
		a := b.start(c)
		a.ready()
		return a
	}
	first := agent("first")
	fileIs(t, b.path("log"), "80\n")
	agent("second")
	b.set("/config/web/port", "81")
	fileIs(t, b.path("second.conf"), "81")
	fileIs(t, b.path("log"), "80\n81\n")
	if err := first.stop(); err != nil {
		t.Fatal(err)
	}
	// The next leader finds in the ledger that 81 was reloaded, and runs 82.
	b.set("/config/web/port", "82")
	fileIs(t, b.path("log"), "80\n81\n82\n")
}
