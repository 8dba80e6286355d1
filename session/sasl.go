package session

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"time"

	"github.com/zkagent/zkagent/internal/jute"
	"github.com/zkagent/zkagent/internal/pace"
)

// SASLMechanism proves an identity on each connection, before the session sends anything
// else: on the first one, on each reconnect, and when it resumes the session of a previous
// process. Several connections may use it at once.
//
// [DigestMD5] is a mechanism. Package session/kerberos has GSSAPI.
type SASLMechanism interface {
	// Name is the mechanism's, such as "DIGEST-MD5", for logs and errors.
	Name() string
	// Prepare does work that takes time or needs other servers, such as getting a
	// ticket. It is called before each dial, with the host's name from
	// Config.Servers. An error that matches ErrAuthFailed ends a new session. Any
	// other error counts as a failure of that server, and the session tries again.
	Prepare(host string) error
	// Begin starts the exchange on one connection.
	Begin(host string) (SASLExchange, error)
}

// SASLRenewer is a mechanism whose credentials expire, such as tickets. The session
// renews them in the background while it is connected. So the next connection does not
// depend on their issuer.
type SASLRenewer interface {
	SASLMechanism
	// Renew renews the due credentials for a host. It returns how long to wait before
	// the next call, also with an error.
	Renew(host string) (time.Duration, error)
}

// keepIdentity renews the mechanism's credentials while w lasts.
func (s *Session) keepIdentity(w *wire) {
	r, ok := s.cfg.SASL.(SASLRenewer)
	if !ok {
		return
	}
	for {
		wait, err := r.Renew(hostName(w.server))
		if err != nil {
			err = fmt.Errorf("SASL %s: %w", r.Name(), err)
			s.log.Warn("cannot renew the identity", "err", err)
			s.met.RenewalFailed()
		}
		s.mu.Lock()
		if (err == nil) != (s.notRenewed == nil) {
			s.wake()
		}
		s.notRenewed = err
		s.mu.Unlock()
		if !pace.Sleep(w.life, max(wait, minBackoff)) {
			return
		}
	}
}

// SASLExchange is the client's side of one exchange.
type SASLExchange interface {
	// Step takes a challenge, which is nil at first, and returns the response. done
	// says that the exchange is complete with this response; a nil response is not
	// sent.
	Step(challenge []byte) (response []byte, done bool, err error)
}

// Bounds of an exchange.
const (
	maxSASLSteps = 10
	maxSASLToken = 64 << 10
)

// errNoSASL says that the server does not support SASL.
var errNoSASL = errors.New("the server is not configured for SASL (it has no JAAS Server section)")

// prove runs the SASL exchange on a connection, just after the server has answered the
// handshake. The library still waits for that answer, so nothing else is read or written.
func (w *wire) prove(m SASLMechanism) error {
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

func hostName(server string) string {
	host, _, err := net.SplitHostPort(server)
	if err != nil {
		return server
	}
	return host
}

// saslRound sends one token and returns the server's token, or nil if it sent none.
func (w *wire) saslRound(xid int32, token []byte) ([]byte, error) {
	frame := newFrame(jute.OpSASL, present(token))
	putXid(frame, xid)
	w.s.counts[opIndex(jute.OpSASL)].Add(1)
	if _, err := w.conn.Write(frame); err != nil {
		return nil, err
	}
	frame, err := w.readFrame()
	if err != nil {
		return nil, fmt.Errorf("the server ended the connection: %w", err)
	}
	d := jute.NewDecoder(frame)
	var h jute.ReplyHeader
	if err := d.Get(&h); err != nil {
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
