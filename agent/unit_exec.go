package agent

import (
	"time"

	"github.com/zkagent/zkagent/internal/program"
)

// programState is the snapshot as programs see it.
func (a *Agent) programState() program.State {
	snap := a.loop.snapshot.Load()
	names := make([]string, len(snap.bundles))
	for i, b := range snap.bundles {
		names[i] = b.Config.Name
	}
	return program.State{
		View: snap.view, Ready: snap.complete || snap.cached, Bundles: names, Next: snap.next,
		Applied: func(bundle string) (time.Time, bool) {
			r := snap.report(bundle)
			return r.LastChange, r.State == "ok" || !r.LastApply.IsZero() && len(r.Files) > 0
		},
	}
}

// programEnded ends the agent: it was there for its program.
func (a *Agent) programEnded(err *program.ExitError) {
	if err == nil {
		a.Leave()
		return
	}
	select {
	case a.process.failed <- err:
	default: // another program was first.
	}
}

func (a *Agent) execStatus() []program.Status {
	list := []program.Status{}
	for _, c := range a.cfg.Load().Execs {
		if p, ok := kindExec.of(a.sup, c.Name); ok {
			if st := p.Status(); st != nil {
				list = append(list, *st)
			}
		}
	}
	return list
}
