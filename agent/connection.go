package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/zkagent/zkagent/internal/condition"
	"github.com/zkagent/zkagent/internal/event"
	"github.com/zkagent/zkagent/internal/pace"
	"github.com/zkagent/zkagent/internal/show"
	"github.com/zkagent/zkagent/session"
	"github.com/zkagent/zkagent/view"
)

// How patient the watch over the connection is.
const (
	connectPatience = 2 * time.Second // before a start without a server is reported
	connectRepeat   = time.Minute     // before the newest error replaces the reported one
)

// followConnection reports the state of the session, with a condition while
// there is no connection, and events, so that an outage and its reason can be
// read at any place. It sleeps while nothing changes.
func (a *Agent) followConnection(ctx context.Context) {
	patience := connectPatience
	for ctx.Err() == nil {
		wait, cancel := context.WithTimeout(ctx, patience)
		s, err := a.sessions.Session(wait)
		cancel()
		if err == nil {
			a.followSession(ctx, s)
			patience = connectPatience
			continue
		}
		if !errors.Is(wait.Err(), context.DeadlineExceeded) {
			return // ctx has ended, or the manager of sessions.
		}
		a.conds.Open(condition.ZooKeeperUnreachable, "", a.unreachable())
		patience = connectRepeat
	}
}

// followSession reports on one session until it has ended.
func (a *Agent) followSession(ctx context.Context, s *session.Session) {
	connected := uint64(0)
	for {
		changed := s.Changed()
		switch n := s.Connection(); {
		case s.Context().Err() != nil:
			cause := context.Cause(s.Context())
			a.events.Add(event.Event{Kind: "session-ended", Subject: hexID(s.ID()), Text: cause.Error(), Warn: errors.Is(cause, session.ErrExpired)})
			return
		case (s.State() == session.Connected || s.State() == session.ReadOnly) && n != connected:
			connected = n
			a.conds.Close(condition.ZooKeeperUnreachable, "")
			readOnly := ""
			if s.State() == session.ReadOnly {
				readOnly = "reading from " + s.Server()
			}
			a.conds.SetText(condition.ZooKeeperReadOnly, "", readOnly)
			pace.Notify(a.wake.services)
			a.events.Add(event.Event{Kind: "session-connected", Subject: hexID(s.ID()), Text: s.Server()})
		case s.State() == session.Suspended:
			a.conds.Open(condition.ZooKeeperUnreachable, "", a.unreachable())
		}
		a.conds.SetText(condition.IdentityNotRenewed, "", a.sessions.Status().NotRenewed)
		select {
		case <-changed:
		case <-s.Done():
		case <-ctx.Done():
			return
		}
	}
}

// Which outages the status has.
const (
	outagesKept = 10
	outageLeast = time.Second
)

// noteOutage keeps how long ZooKeeper was away, for the status, if that is what the
// closed condition says. Only followConnection closes that one.
func (a *Agent) noteOutage(c condition.Condition) {
	now := time.Now()
	lasted := now.Sub(c.Since)
	if c.Code != condition.ZooKeeperUnreachable.Code || lasted < outageLeast {
		return
	}
	list := append(a.pastOutages(), show.Outage{Since: c.Since, Until: now, Seconds: view.Seconds(lasted), Reason: c.Text})
	list = list[max(0, len(list)-outagesKept):]
	a.outages.Store(&list)
}

// pastOutages returns a copy of the outages that are kept.
func (a *Agent) pastOutages() []show.Outage {
	if list := a.outages.Load(); list != nil {
		return slices.Clone(*list)
	}
	return nil
}

// hexID shows a session id as servers do.
func hexID(id int64) string { return fmt.Sprintf("0x%x", uint64(id)) } // #nosec G115 -- its bits are what is shown

// unreachable says why there is no connection.
func (a *Agent) unreachable() string {
	z := a.sessions.Status()
	return z.State.String() + ": " + cmp.Or(z.LastError, "no server has answered yet")
}
