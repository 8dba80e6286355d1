package agent

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/zkagent/zkagent/internal/pace"
	"github.com/zkagent/zkagent/internal/term"
	"github.com/zkagent/zkagent/session"
)

// RenderAll renders every bundle again and compares every file with the disk.
func (a *Agent) RenderAll(ctx context.Context) {
	a.loop.do(ctx, func() {
		now := time.Now()
		for _, b := range a.loop.bundles {
			b.force = true
			b.failures, b.retryAt = 0, time.Time{}
			b.settle.Note(now)
		}
	})
}

// Summary is one line about how things stand, for the service manager.
func (a *Agent) Summary() string {
	s := a.loop.snapshot.Load()
	var ok, failed, kept int
	for _, b := range s.bundles {
		switch a.templateState(b.report, b.Config.Name) {
		case "ok":
			ok++
		case "failed", "reload-failed":
			failed++
		case "kept":
			kept++
		}
	}
	parts := []string{term.Count(ok, "template") + " ok"}
	if failed > 0 {
		parts[0] += fmt.Sprintf(", %d failed", failed)
	}
	if kept > 0 {
		parts[0] += fmt.Sprintf(", %d kept", kept)
	}
	if waiting := len(s.bundles) - ok - failed - kept; waiting > 0 {
		parts[0] += fmt.Sprintf(", %d waiting", waiting)
	}
	zk := a.sessions.Status()
	switch {
	case zk.State == session.Connected:
		parts = append(parts, "ZooKeeper "+zk.Server)
	case zk.State == session.ReadOnly:
		parts = append(parts, "ZooKeeper "+zk.Server+" read-only")
	case s.cached:
		parts = append(parts, "running from the last known good state, ZooKeeper "+zk.State.String())
	default:
		parts = append(parts, "ZooKeeper "+zk.State.String())
	}
	for _, src := range s.view.Sources() {
		if l, found := s.view.Leader(src.Name); found && src.Kind == "election" && l.Mine {
			parts = append(parts, "leads "+src.Name)
		}
	}
	return strings.Join(parts, "; ")
}

// published is called by the loop after each publication: what takes longer than
// a moment is done by others.
func (a *Agent) published() {
	a.saved.ready.Store(a.loop.isReady)
	pace.Poke(a.saved.wake)
	pace.Poke(a.wake.record)
}
