package session

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/zkagent/zkagent/internal/jute"
)

// connectRequest asks for this session, or for a new one when it has none yet.
func (s *Session) connectRequest() jute.ConnectRequest {
	s.mu.Lock()
	defer s.mu.Unlock()
	// A read-only server will do for a session that was made for one, or if the session is
	// new and all servers were tried.
	readOnly := s.cfg.ReadOnly && s.id == 0 && (s.reader.Load() || s.hosts.failed > len(s.hosts.servers))
	return jute.ConnectRequest{
		LastZxidSeen: s.zxid.Load(),
		Timeout:      int32(s.cfg.Timeout / time.Millisecond),
		SessionID:    s.id,
		Password:     s.password,
		ReadOnly:     &readOnly,
	}
}

// welcome handles the server's answer to the handshake and returns the frame for the
// library. It hides from the library that a session is gone: the library would start a
// new one by itself.
func (w *wire) welcome(frame []byte) ([]byte, error) {
	if refusedReadOnly(frame) {
		return nil, errors.New("handshake: the server is read-only and may make no session (it has no localSessionsEnabled)")
	}
	var r jute.ConnectResponse
	if err := jute.NewDecoder(frame).Get(&r); err != nil {
		return nil, fmt.Errorf("handshake: %w", err)
	}
	readOnly := r.ReadOnly != nil && *r.ReadOnly
	switch {
	case readOnly && (r.SessionID == 0 || r.Timeout <= 0 || w.wantID != 0 && r.SessionID != w.wantID):
		return nil, errors.New("handshake: the server is read-only and does not know the session")
	case r.SessionID == 0 || r.Timeout <= 0:
		if w.wantID == 0 {
			return nil, fmt.Errorf("handshake: %s gave no session", w.server)
		}
		w.s.expire("the server says so")
		return nil, nil
	case w.wantID != 0 && r.SessionID != w.wantID:
		w.s.expire("the server answered with another session, " + hexID(r.SessionID))
		return nil, nil
	case len(r.Password) > passwordLength:
		return nil, fmt.Errorf("handshake: %s gave a password of %d bytes", w.server, len(r.Password))
	case !w.s.cfg.mayGrant(granted(r)):
		return nil, fmt.Errorf("handshake: %s gave a session timeout of %s, where %s was asked for", w.server, granted(r), w.s.cfg.Timeout)
	}
	if w.s.reader.Load() && !readOnly {
		frame := newFrame(jute.OpClose) // of the session that was just made
		putXid(frame, firstXid)
		_, _ = w.conn.Write(frame)
		return nil, w.s.leaveReader(w.server)
	}
	if m := w.s.cfg.SASL; m != nil {
		if err := w.prove(m); err != nil {
			return nil, w.s.unproven(w.server, err)
		}
	}
	if w.readOnly.Store(readOnly); !w.s.attach(w, r) {
		return nil, nil
	}
	return forLibrary(r.SessionID, r.Timeout), nil
}

// passwordLength is what every server gives a session.
const passwordLength = 16

// forLibrary returns the ConnectResponse that the library gets. It holds nothing else of
// the server's: the library repeats what it was given in its next ConnectRequest.
func forLibrary(id int64, timeout int32) []byte {
	return packet(jute.ConnectResponse{Timeout: timeout, SessionID: id, Password: make([]byte, passwordLength)})
}

// granted returns the session timeout that the server chose.
func granted(r jute.ConnectResponse) time.Duration {
	return time.Duration(r.Timeout) * time.Millisecond
}

// refusedReadOnly reports whether a server refused the handshake because it has no
// majority.
func refusedReadOnly(frame []byte) bool {
	var h jute.ReplyHeader
	_ = jute.NewDecoder(frame).Get(&h)
	return len(frame) == jute.ReplyHeaderSize && h.Err == jute.ErrCodeNotReadOnly
}

// unproven handles a SASL exchange that failed. A new session ends when the server
// refuses the identity: another try needs another credential. An existing session tries
// again, because it may own znodes.
func (s *Session) unproven(server string, err error) error {
	err = fmt.Errorf("SASL %s: %w", s.cfg.SASL.Name(), err)
	s.log.Error("authentication failed", "server", server, "err", err)
	if errors.Is(err, ErrAuthFailed) && s.ID() == 0 {
		s.end(Closed, fmt.Errorf("%w: %s: %w", ErrClosed, server, err))
	}
	return err
}

// setUp queues a frame that must come before all requests. It returns false when the
// connection has ended meanwhile.
func (w *wire) setUp(c *call) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.phase != phaseAsking {
		return false
	}
	w.put(c)
	return true
}

// open lets requests use the connection. It returns false when the connection has ended
// meanwhile.
func (w *wire) open(timeout time.Duration) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.phase != phaseAsking {
		return false
	}
	w.phase, w.answered = phaseOpen, true
	_ = w.conn.SetDeadline(time.Time{})
	_ = w.conn.SetReadDeadline(time.Now().Add(idleLimit(timeout)))
	return true
}

func putXid(frame []byte, xid int32) { binary.BigEndian.PutUint32(frame[4:], uint32(xid)) }
