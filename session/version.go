package session

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/zkagent/zkagent/internal/jute"
)

// ErrOldServer means that the server is older than ZooKeeper 3.5, the least version
// that this package works with.
var ErrOldServer = errors.New("the server is older than ZooKeeper 3.5, the least version that is supported")

// The session asks a server for its version with the four-letter word "srvr", which
// servers allow by default. Each question takes a connection. So the session asks only
// when the server refused something, and at most once an hour.
const (
	versionAgain  = time.Hour
	versionLimit  = time.Second // time limit of the answer
	versionAnswer = 1 << 10     // bytes of the answer to read; they hold the version
)

// CheckServer returns an error that matches ErrOldServer when the session is connected
// to a server that is too old. If the server does not report its version, CheckServer
// sends it a request that 3.5 introduced and that changes nothing.
func (s *Session) CheckServer(ctx context.Context) error {
	w, err := s.connection(ctx, false)
	if err != nil {
		return err
	}
	if s.lookVersion(ctx, w.server, w.able) {
		return w.able.warning()
	}
	err = s.ask(ctx, jute.OpCheckWatches, "/", []any{jute.WatcherAny})
	if errors.Is(err, CodeError(jute.ErrCodeNoWatcher)) || errors.Is(err, ErrNoAuth) {
		return nil
	}
	return err
}

// askWord returns a server's answer to srvr, as far as it arrives.
func (h *hosts) askWord(ctx context.Context, server string) (string, error) {
	conn, err := h.open(ctx, server, versionLimit)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if _, err = io.WriteString(conn, "srvr"); err != nil {
		return "", err
	}
	answer, err := io.ReadAll(io.LimitReader(conn, versionAnswer))
	return string(answer), err
}

// parseVersion finds "3.4.13" in "Zookeeper version: 3.4.13-2d71af4, built on ...".
func parseVersion(answer string) string {
	_, after, found := strings.Cut(answer, "version: ")
	if !found {
		return ""
	}
	end := strings.IndexFunc(after, func(r rune) bool { return r != '.' && (r < '0' || r > '9') })
	if end <= 0 {
		return ""
	}
	return after[:end]
}

func oldVersion(version string) bool {
	major, rest, _ := strings.Cut(version, ".")
	minor, _, _ := strings.Cut(rest, ".")
	x, err := strconv.Atoi(major)
	y, _ := strconv.Atoi(minor)
	return err == nil && (x < 3 || x == 3 && y < 5)
}

// lookVersion asks the server for its version, unless it did so within the last hour, and
// reports whether it is known. After an upgrade of the server it forgets what the server
// refused before.
func (s *Session) lookVersion(ctx context.Context, server string, a *ability) bool {
	a.mu.Lock()
	before, recent := a.version, time.Since(a.asked) < versionAgain
	if !recent {
		a.asked = time.Now()
	}
	a.mu.Unlock()
	if recent {
		return before != ""
	}
	answer, err := s.hosts.askWord(ctx, server)
	version := parseVersion(answer)
	if version == "" {
		s.log.Debug("cannot learn the version of the server by the four-letter word srvr", "server", server, "err", err)
		return before != ""
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.version != "" && a.version != version {
		clear(a.until)
	}
	a.version = version
	return true
}

// explain adds the server's version to the error of a request, if the version may be the
// reason: the server does not know an operation, cannot read a multi that contains one,
// or has hung up.
func (s *Session) explain(ctx context.Context, w *wire, err error) error {
	unread := errors.Is(err, CodeError(jute.ErrCodeMarshallingError))
	refused := unread || errors.Is(err, ErrUnimplemented)
	if w == nil || !refused && !errors.Is(err, ErrUnknown) {
		return err
	}
	if refused {
		s.lookVersion(ctx, w.server, w.able)
	}
	old := w.able.warning()
	switch {
	case old == nil:
		return err
	case unread:
		return fmt.Errorf("%w: %w", ErrUnimplemented, old)
	}
	return fmt.Errorf("%w: %w", err, old)
}

// warning returns ErrOldServer for a server that is too old, or nil. If the version is
// unknown, a server that does not know an operation of 3.5 is older.
func (a *ability) warning() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	_, create := a.until[jute.OpCreate2]
	_, check := a.until[jute.OpCheckWatches]
	switch {
	case oldVersion(a.version):
		return fmt.Errorf("%w: it is %s", ErrOldServer, a.version)
	case a.version == "" && (create || check):
		return ErrOldServer
	}
	return nil
}
