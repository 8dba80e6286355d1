package registry

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/zkagent/zkagent/session"
)

// Back-off of the registrar.
const (
	retryShort  = time.Second      // after the first error, and after a deletion by somebody else
	retryLong   = 30 * time.Second // at most, and for what is permanent
	calmAfter   = time.Minute      // a znode that lived so long makes back-off start anew
	retryFactor = 2
)

// membership is the member of one registrar in one session. It works by
// comparing what should be with what is, again and again; an event or a
// result of unknown outcome only means "look again". Only its loop touches it.
//
// Rules that it keeps: own it before you believe it (ephemeralOwner is this
// session); a znode of a former session of ours is replaced in one multi;
// anybody else's is waited for and never deleted; a persistent one is a
// configuration error; what somebody deleted is made again with a back-off.
type membership struct {
	r *Registrar
	s *session.Session

	host string // as registered
	id   string
	path string // of the znode; for sequential names empty while there is none

	looked bool   // what is below is known
	mine   bool   // the znode is there and this session owns it
	data   []byte // its data
	watch  *session.Watch
	conn   uint64 // connection when watch was set
	since  time.Time

	keep      time.Time // until when it is kept without a verdict; zero: it was not found
	notBefore time.Time // splay, back-off
	back      time.Duration
	blocked   error // why it cannot be registered now
}

func (m *membership) loop(ctx context.Context) error {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		w := m.r.want(time.Now(), m.keep)
		if w.state == StateRegistered || w.state == StateCritical {
			m.keep = time.Time{} // decided
		}
		w, err := m.reconcile(ctx, w)
		switch {
		case ctx.Err() != nil:
			return nil
		case m.s.Context().Err() != nil:
			return context.Cause(m.s.Context())
		}
		m.settle(w, err)
		m.r.publish(m, w)
		// A time that came meanwhile is no longer a next one.
		timer.Reset(m.pause(earliest(w.next, m.r.want(time.Now(), m.keep).next)))
		select {
		case <-ctx.Done():
			return nil
		case <-m.s.Done():
			return context.Cause(m.s.Context())
		case <-m.r.wake:
		case <-m.fired():
			m.lookAgain()
		case <-timer.C:
		}
	}
}

// pause is how long to wait for something to happen.
func (m *membership) pause(next time.Time) time.Duration {
	now := time.Now()
	if m.notBefore.After(now) {
		next = earliest(next, m.notBefore)
	}
	if next.IsZero() {
		return time.Hour
	}
	return max(next.Sub(now), 0)
}

func (m *membership) fired() <-chan struct{} {
	if m.watch == nil {
		return nil
	}
	return m.watch.C()
}

// lookAgain forgets what is known. After a reconnect the members of this
// process look one after the other, within the splay.
func (m *membership) lookAgain() {
	m.looked = false
	m.watch = nil
	if m.mine && m.conn != m.s.Connection() {
		m.notBefore = time.Now().Add(splayOf(m.r.cfg.Group+"/"+m.id, m.r.cfg.Splay))
	}
}

func (m *membership) close() { m.watch.Stop() }

// reconcile does what is needed to get from what is to w, or to what is wanted
// after a look, which it returns. It returns at the first error; settle decides
// when it is tried again.
func (m *membership) reconcile(ctx context.Context, w want) (want, error) {
	if m.held(w) {
		return w, nil
	}
	if err := m.identify(ctx); err != nil {
		return w, err
	}
	if !m.looked {
		if err := m.look(ctx); err != nil {
			return w, err
		}
		// A member that was found changes what is wanted, and so does the time.
		w = m.r.want(time.Now(), m.keep)
	}
	if m.held(w) {
		return w, nil
	}
	switch {
	case !w.present && m.mine:
		return w, m.remove(ctx)
	case !w.present:
		m.blocked = nil
		return w, nil
	case m.blocked != nil:
		return w, nil //nolint:nilerr // its watch tells when it is out of the way
	}
	return w, m.write(ctx, w)
}

// held reports whether splay or back-off forbid to act now. The splay does not
// hold up a removal.
func (m *membership) held(w want) bool {
	return time.Now().Before(m.notBefore) && !w.left && (w.present || m.back > 0)
}

// write makes the znode, or sets its data where it differs.
func (m *membership) write(ctx context.Context, w want) error {
	if m.mine && w.status == "" {
		w.status = m.foundStatus()
	}
	if !m.mine {
		m.r.born0(time.Now())
	}
	data, err := m.r.data(w, m.host, m.id)
	if err != nil {
		return fmt.Errorf("encode member: %w", err)
	}
	switch {
	case !m.mine:
		return m.create(ctx, data)
	case !bytes.Equal(m.data, data):
		return m.set(ctx, data)
	}
	return nil
}

// foundStatus is the status that the found znode has: it is not changed
// before the checks have decided.
func (m *membership) foundStatus() string {
	member, err := Decode(m.r.cfg.format(), nodeName(m.path), m.data)
	if err != nil {
		return ""
	}
	return member.Status
}

// settle notes the outcome of a reconcile and sets the back-off.
func (m *membership) settle(w want, err error) {
	if err == nil {
		if m.mine && time.Since(m.since) >= calmAfter {
			m.back = 0
		}
		return
	}
	m.looked = false
	m.watch.Stop()
	m.watch = nil
	if errors.Is(err, errLookAgain) {
		m.r.poke()
		return
	}
	m.delay(session.IsPermanent(err))
	m.blocked = nil
	m.r.log.Warn("member not registered as wanted", "service", m.r.cfg.Name, "group", m.r.cfg.Group,
		"state", w.state, "err", err, "retry_in", m.back)
	m.r.fail(err)
}

// delay puts the next try off, longer each time.
func (m *membership) delay(permanent bool) {
	m.back = min(max(m.back*retryFactor, retryShort), retryLong)
	if permanent {
		m.back = retryLong
	}
	m.notBefore = time.Now().Add(m.back)
}
