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
	connectRepeat   = time.Minute     // before the latest error replaces the reported one
)

// followConnection reports the state of the session, with a condition while
// there is no connection, and events, so that an outage and its reason can be
// read at any place. It sleeps while nothing changes.
func (a *Agent) followConnection(ctx context.Context) {
	defer a.changeOutages(func(list []outage) []outage { return list }) // how long one has lasted by now
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
			a.conds.Open(condition.ZooKeeperReadOnly, "", readOnly)
			pace.Notify(a.wake.services)
			a.events.Add(event.Event{Kind: "session-connected", Subject: hexID(s.ID()), Text: s.Server()})
		case s.State() == session.Suspended:
			a.away()
		}
		a.conds.Open(condition.IdentityNotRenewed, "", a.sessions.Status().NotRenewed)
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
	outageGap   = 2 * connectRepeat // without an agent: still the same outage
)

// outage is what is kept of one. Until is when it was last seen.
type outage struct {
	show.Outage

	Open bool `json:"open,omitempty"`
}

// away opens the condition, and notes the outage.
func (a *Agent) away() {
	z := a.sessions.Status()
	reason := z.State.String() + ": " + cmp.Or(z.LastError, "no server has answered yet")
	is, other := condition.ZooKeeperUnreachable, condition.ZooKeeperRefused
	if z.Refused {
		is, other = other, is
	}
	a.conds.Open(is, "", reason)
	a.conds.Close(other, "")
	a.changeOutages(func(list []outage) []outage {
		if n := len(list); n > 0 && list[n-1].Open {
			return list
		}
		now := time.Now()
		return append(list, outage{show.Outage{Since: now, Until: now, Reason: reason}, true})
	})
}

// back closes the condition, and ends the outage, for the status.
func (a *Agent) back() {
	a.conds.Close(condition.ZooKeeperUnreachable, "")
	a.conds.Close(condition.ZooKeeperRefused, "")
	a.changeOutages(func(list []outage) []outage {
		n := len(list) - 1
		if n < 0 || !list[n].Open {
			return list
		}
		if list[n].Open = false; time.Duration(list[n].Seconds) < outageLeast {
			return list[:n]
		}
		return list[max(0, len(list)-outagesKept):]
	})
}

// changeOutages notes that an open outage lasts, if it is one of this process or of one that
// ended shortly before. Otherwise it ended when that process last saw it: what came later is
// not known. Then fn changes the list, here and for the next process.
func (a *Agent) changeOutages(fn func([]outage) []outage) {
	defer pace.Notify(a.saved.wake) // The status line shows the connection.
	err := a.outages.Change(func(list *[]outage) files.Write {
		was, now := slices.Clone(*list), time.Now()
		if n := len(*list) - 1; n >= 0 && (*list)[n].Open {
			o := &(*list)[n]
			if o.Open = !o.Until.Before(a.process.started) || now.Sub(o.Until) < outageGap; o.Open {
				o.Until, o.Seconds = now, view.Seconds(now.Sub(o.Since))
			}
		}
		if *list = fn(*list); slices.Equal(was, *list) {
			return files.WriteNothing
		}
		return files.WriteNote
	})
	if err != nil {
		a.log.Warn("cannot keep the outages", "err", err)
	}
}

func (a *Agent) pastOutages() []show.Outage {
	var past []show.Outage
	a.outages.Read(func(list []outage) {
		for _, o := range list {
			if !o.Open {
				past = append(past, o.Outage)
			}
		}
	})
	return past
}

func hexID(id int64) string { return fmt.Sprintf("0x%x", uint64(id)) } // #nosec G115 -- its bits are what is shown
