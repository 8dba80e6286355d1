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
	"github.com/zkagent/zkagent/internal/files"
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
		a.away()
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
			a.back()
			readOnly := ""
			if s.State() == session.ReadOnly {
				readOnly = "reading from " + s.Server()
			}
			a.conds.SetText(condition.ZooKeeperReadOnly, "", readOnly)
			pace.Notify(a.wake.services)
			a.events.Add(event.Event{Kind: "session-connected", Subject: hexID(s.ID()), Text: s.Server()})
		case s.State() == session.Suspended:
			a.away()
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

// away opens the condition, and notes the outage. One that began in a previous process
// is still the same: it lasts until an agent of this host is connected again.
func (a *Agent) away() {
	reason := a.unreachable()
	a.conds.Open(condition.ZooKeeperUnreachable, "", reason)
	a.changeOutages(func(list []show.Outage) []show.Outage {
		if n := len(list); n > 0 && list[n-1].Until.IsZero() {
			return list
		}
		return append(list, show.Outage{Since: time.Now(), Reason: reason})
	})
}

// back closes the condition, and ends the outage, for the status.
func (a *Agent) back() {
	a.conds.Close(condition.ZooKeeperUnreachable, "")
	a.changeOutages(func(list []show.Outage) []show.Outage {
		n := len(list) - 1
		if n < 0 || !list[n].Until.IsZero() {
			return list
		}
		now := time.Now()
		lasted := now.Sub(list[n].Since)
		if lasted < outageLeast {
			return list[:n]
		}
		list[n].Until, list[n].Seconds = now, view.Seconds(lasted)
		return list[max(0, len(list)-outagesKept):]
	})
}

// changeOutages lets fn change the outages, here and for the next process.
func (a *Agent) changeOutages(fn func([]show.Outage) []show.Outage) {
	err := a.outages.Change(func(list *[]show.Outage) files.Write {
		was := slices.Clone(*list)
		if *list = fn(*list); slices.Equal(was, *list) {
			return files.WriteNothing
		}
		return files.WriteNote
	})
	if err != nil {
		a.log.Warn("cannot keep the outages", "err", err)
	}
}

// pastOutages returns a copy of the outages that have ended.
func (a *Agent) pastOutages() []show.Outage {
	var past []show.Outage
	a.outages.Read(func(list []show.Outage) {
		past = slices.DeleteFunc(slices.Clone(list), func(o show.Outage) bool { return o.Until.IsZero() })
	})
	return past
}

// hexID shows a session id as servers do.
func hexID(id int64) string { return fmt.Sprintf("0x%x", uint64(id)) } // #nosec G115 -- its bits are what is shown

// unreachable says why there is no connection.
func (a *Agent) unreachable() string {
	z := a.sessions.Status()
	return z.State.String() + ": " + cmp.Or(z.LastError, "no server has answered yet")
}
