package session

import (
	"bytes"
	"crypto/rand"
	"crypto/subtle"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
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
		var reply *jute.Decoder
		if reply, err = w.round(jute.OpSASL, firstXid+1+step, newFrame(jute.OpSASL, present(token))); err != nil {
			return err
		}
		switch challenge := reply.Buffer(); { // nil: none was sent
		case reply.Err() != nil:
			return reply.Err()
		case len(challenge) > maxSASLToken:
			return fmt.Errorf("a challenge of %d bytes", len(challenge))
		case done:
			return nil
		case challenge == nil && step == 0:
			return fmt.Errorf("%w: %w", ErrAuthFailed, errNoSASL)
		default:
			if token, done, err = x.Step(challenge); err == nil && done && token == nil {
				return nil
			}
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

// round sends a frame that proves who we are, and returns what follows the header of the
// reply. A server that answers with an error refuses us.
func (w *wire) round(op, xid int32, frame []byte) (*jute.Decoder, error) {
	putXid(frame, xid)
	w.s.counts[opIndex(op)].Add(1)
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
	return d, nil
}

// DigestMD5 returns the SASL mechanism DIGEST-MD5 (RFC 2831) with a user of the
// server's JAAS file. The password is never sent. Only the quality of
// protection "auth" is used: the connection itself is not protected; use TLS.
func DigestMD5(user, password string) SASLMechanism { return digestMD5{user, password} }

type digestMD5 struct{ user, password string }

func (digestMD5) Name() string         { return "DIGEST-MD5" }
func (digestMD5) Prepare(string) error { return nil }

// String keeps the password out of logs.
func (m digestMD5) String() string { return "DIGEST-MD5 " + m.user }

func (m digestMD5) Begin(string) (SASLExchange, error) {
	if m.user == "" {
		return nil, errors.New("the user is empty")
	}
	return &digestExchange{digestMD5: m, cnonce: rand.Text()}, nil
}

type digestExchange struct {
	digestMD5
	cnonce string
	want   string // what proves that the server knows the password, too
	step   int
}

// Step answers the challenge, and then checks the server's answer.
func (x *digestExchange) Step(challenge []byte) ([]byte, bool, error) {
	x.step++
	switch x.step {
	case 1:
		return nil, false, nil // the server speaks first
	case 2:
		response, err := x.respond(challenge)
		return response, false, err
	}
	got, ok := bytes.CutPrefix(challenge, []byte("rspauth="))
	if !ok || subtle.ConstantTimeCompare(got, []byte(x.want)) != 1 {
		return nil, false, fmt.Errorf("%w: the server does not know the password of %s", ErrAuthFailed, x.user)
	}
	return nil, true, nil
}

func (x *digestExchange) respond(challenge []byte) ([]byte, error) {
	c, err := jute.ParseDirectives(string(challenge))
	if err != nil {
		return nil, fmt.Errorf("challenge: %w", err)
	}
	nonce, realm := c["nonce"], c["realm"]
	if nonce == "" || !strings.EqualFold(c["algorithm"], "md5-sess") {
		return nil, errors.New("challenge: no nonce, or an algorithm that is not md5-sess")
	}
	if qop := c["qop"]; qop != "" && !slices.Contains(strings.FieldsFunc(qop, func(r rune) bool { return r == ',' || r == ' ' }), "auth") {
		return nil, fmt.Errorf("challenge: the server wants the quality of protection %q; only \"auth\" is supported", qop)
	}
	response := x.digest("AUTHENTICATE", realm, nonce)
	x.want = x.digest("", realm, nonce)
	var b strings.Builder
	fmt.Fprintf(&b, `charset=utf-8,username=%s,realm=%s,nonce=%s,nc=00000001,cnonce=%s,digest-uri=%s,maxbuf=65536,response=%s,qop=auth`,
		quoteDirective(x.user), quoteDirective(realm), quoteDirective(nonce), quoteDirective(x.cnonce), quoteDirective(jute.DigestURI), response)
	return []byte(b.String()), nil
}

func (x *digestExchange) digest(method, realm, nonce string) string {
	return jute.DigestResponse(method, x.user, realm, x.password, nonce, x.cnonce)
}

func quoteDirective(s string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(s) + `"`
}
