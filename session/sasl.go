package session

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"time"

	"github.com/zkagent/zkagent/internal/jute"
)

// SASLMechanism proves an identity on each connection, before anything else is
// sent on it: at the first one, at each reconnect, and when the session of a
// former process is resumed. It may be used by several connections at once.
//
// [DigestMD5] is one; package session/kerberos has GSSAPI.
type SASLMechanism interface {
	// Name is the mechanism's, such as "DIGEST-MD5", for logs and errors.
	Name() string
	// Prepare does what takes time or other servers, such as getting a ticket.
	// It is called before a server is dialed, with the host as it is named in
	// Config.Servers. An error that matches ErrAuthFailed ends a session that is
	// new; any other counts as one of that server, and is tried again.
	Prepare(host string) error
	// Begin starts the exchange on one connection.
	Begin(host string) (SASLExchange, error)
}

// SASLRenewer is a mechanism whose means end, as tickets do. The session has them
// renewed in the background while it is connected, so that the next connection does
// not need whoever issues them.
type SASLRenewer interface {
	SASLMechanism
	// Renew gets anew what is due for a host, and returns how long to wait before
	// it is to be called again, after an error too.
	Renew(host string) (time.Duration, error)
}

// keepIdentity has the mechanism renewed while w lasts.
func (s *Session) keepIdentity(w *wire) {
	r, ok := s.cfg.SASL.(SASLRenewer)
	if !ok {
		return
	}
	for {
		wait, err := r.Renew(hostName(w.server))
		if err != nil {
			err = fmt.Errorf("SASL %s: %w", r.Name(), err)
			s.log.Warn("identity not renewed", "err", err)
		}
		s.met.renewed(err)
		s.mu.Lock()
		if (err == nil) != (s.notRenewed == nil) {
			s.wake()
		}
		s.notRenewed = err
		s.mu.Unlock()
		t := time.NewTimer(max(wait, minBackoff))
		select {
		case <-t.C:
		case <-w.gone:
			t.Stop()
			return
		}
	}
}

// SASLExchange is the client's side of one exchange.
type SASLExchange interface {
	// Step takes a challenge, nil at first, and returns the response. Done says
	// that the exchange is complete with this response, or without one when it
	// is nil.
	Step(challenge []byte) (response []byte, done bool, err error)
}

// Bounds of an exchange.
const (
	maxSASLSteps = 10
	maxSASLToken = 64 << 10
)

// errNoSASL says that the server takes no SASL at all.
var errNoSASL = errors.New("the server is not configured for SASL (it has no JAAS Server section)")

// prove runs the SASL exchange on a connection whose handshake was just
// answered. The library waits for that answer meanwhile, so that nothing else
// is written or read.
func (w *wire) prove() error {
	m := w.s.cfg.SASL
	if m == nil {
		return nil
	}
	if err := w.exchange(m); err != nil {
		return fmt.Errorf("SASL %s: %w", m.Name(), err)
	}
	return nil
}

func (w *wire) exchange(m SASLMechanism) error {
	x, err := m.Begin(hostName(w.server))
	if err != nil {
		return err
	}
	token, done, err := x.Step(nil)
	for step := int32(0); err == nil && step < maxSASLSteps; step++ {
		var challenge []byte
		if challenge, err = w.saslRound(firstXid+1+step, token); err != nil {
			return err
		}
		if done {
			return nil
		}
		if challenge == nil && step == 0 {
			return fmt.Errorf("%w: %w", ErrAuthFailed, errNoSASL)
		}
		if token, done, err = x.Step(challenge); err == nil && done && token == nil {
			return nil
		}
	}
	if err == nil {
		err = fmt.Errorf("%w: the server asks on after %d steps", ErrAuthFailed, maxSASLSteps)
	}
	return err
}

// hostName is the name in the address of a server.
func hostName(server string) string {
	host, _, err := net.SplitHostPort(server)
	if err != nil {
		return server
	}
	return host
}

// prepare lets the mechanism do what it needs before a server is dialed.
func (h *hosts) prepare(server string) error {
	m := h.s.cfg.SASL
	if m == nil {
		return nil
	}
	if err := m.Prepare(hostName(server)); err != nil {
		return h.s.unproven(server, fmt.Errorf("SASL %s: %w", m.Name(), err))
	}
	return nil
}

// saslRound sends one token and returns the server's; nil: it sent none.
func (w *wire) saslRound(xid int32, token []byte) ([]byte, error) {
	frame := newFrame(jute.OpSASL, len(token)+4, func(e *jute.Encoder) {
		if token == nil {
			token = []byte{}
		}
		e.Buffer(token)
	})
	putXid(frame, xid)
	w.s.counts[opIndex(jute.OpSASL)].Add(1)
	if _, err := w.conn.Write(frame); err != nil {
		return nil, err
	}
	buf, err := w.readFrame()
	if err != nil {
		return nil, fmt.Errorf("the server ended the connection: %w", err)
	}
	defer putFrame(buf)
	d := jute.NewDecoder(*buf)
	var h jute.ReplyHeader
	h.Decode(d)
	if err := d.Err(); err != nil {
		return nil, err
	}
	if h.Xid != xid {
		return nil, fmt.Errorf("the server answered request %d, not %d", h.Xid, xid)
	}
	if err := codeError(h.Err); err != nil {
		if !errors.Is(err, ErrAuthFailed) {
			err = fmt.Errorf("%w: %w", ErrAuthFailed, err)
		}
		return nil, err
	}
	challenge := d.Buffer()
	if err := d.Err(); err != nil {
		return nil, err
	}
	if len(challenge) > maxSASLToken {
		return nil, fmt.Errorf("a challenge of %d bytes", len(challenge))
	}
	return slices.Clone(challenge), nil
}
