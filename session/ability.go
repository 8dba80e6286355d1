package session

import (
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"sync"
	"time"

	"github.com/zkagent/zkagent/internal/jute"
)

// The refusals of a server show what it cannot do. A Manager remembers them for each
// server, over sessions: asking again would lose the connection again.
//
// A server that does not know an operation answers "unimplemented" and closes the
// connection. A proxy, or a server with a smaller jute.maxbuffer, closes it without an
// answer. Then the session suspects the requests in flight. After three such ends in a
// row it stops using an operation for a while, if there is another way. After two it
// does not send a large request again.

// Among the operations, bulkWatches stands for setWatches behind a read, and largeWatches for
// setWatches of the size that was sent so far.
const (
	bulkWatches int32 = -1000 - iota
	largeWatches
)

const (
	refusedFor   = 12 * time.Hour   // how long a refusal counts: the server may be upgraded
	suspectedFor = 10 * time.Minute // how long a suspicion counts
	opStrikes    = 3
	sizeStrikes  = 2
	largeFrame   = 64 << 10 // smaller requests are never suspected for their size
)

// replaceable are the operations for which there is another way.
var replaceable = []int32{jute.OpMultiRead, jute.OpAddWatch, bulkWatches}

// ability is what one server cannot do. Its methods may be called on nil.
type ability struct {
	mu      sync.Mutex // guards the fields below
	until   map[int32]time.Time
	strikes map[int32]int
	version string    // as the server reported it; "": unknown
	asked   time.Time // when we last asked for it; zero: never
	wonder  bool      // it hung up on a request: its version may be the reason

	renewal    int // bytes of a setWatches request while largeWatches is refused
	size       int // requests of this size or more are suspected; 0: none
	sizeStruck int
	sizeUntil  time.Time
}

// abilities are those of all servers.
type abilities struct {
	mu sync.Mutex // guards of
	of map[string]*ability
}

func (a *abilities) server(name string) *ability {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.of[name] == nil {
		a.of[name] = &ability{until: map[int32]time.Time{}, strikes: map[int32]int{}}
	}
	return a.of[name]
}

func (s *Session) able() *ability { return s.cfg.abilities.server(s.Server()) }

// refuses reports whether not to send op to the server.
func (a *ability) refuses(op int32) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return time.Now().Before(a.until[op])
}

// refuse notes that the server does not know op.
func (a *ability) refuse(op int32) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.until[op] = time.Now().Add(refusedFor)
}

// check returns why not to send a request that needs another operation too, or nil.
func (a *ability) check(op, needs int32, size int) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := time.Now()
	switch {
	case now.Before(a.until[op]), now.Before(a.until[needs]):
		return ErrUnimplemented
	case a.size > 0 && size >= a.size && a.sizeStruck >= sizeStrikes && now.Before(a.sizeUntil):
		return fmt.Errorf("%w: request of %d bytes, the server hung up at one of %d (its jute.maxbuffer is smaller)", ErrTooLarge, size, a.size)
	}
	return nil
}

// answered notes that the server has answered a request.
func (a *ability) answered(op int32, size int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if op == jute.OpSetWatches {
		op = bulkWatches
	}
	delete(a.strikes, op)
	if a.size > 0 && size >= a.size {
		a.size, a.sizeStruck = 0, 0
	}
}

// wondered reports, once, whether the server's version may explain why it hung up.
func (a *ability) wondered() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	is := a.wonder
	a.wonder = false
	return is
}

// watches returns how many bytes of watches one setWatches request may set.
func (a *ability) watches() int {
	if a.refuses(largeWatches) {
		return locked(&a.mu, &a.renewal)
	}
	return setWatchesSize
}

// hungUp notes that the server closed the connection and did not answer calls. Requests that
// set watches are half as large on the next one.
func (a *ability) hungUp(calls []*call, awaited bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, c := range calls {
		if n := len(c.frame) / 2; c.op == jute.OpSetWatches && (c.sent || c.partly) && n >= minFrame {
			a.renewal, a.until[largeWatches] = n, time.Now().Add(refusedFor)
			break
		}
	}
	if !awaited {
		return
	}
	a.wonder = true
	largest := 0
	struck := map[int32]bool{}
	for _, c := range calls {
		op := c.op
		if op == jute.OpSetWatches {
			op = bulkWatches
		}
		if c.sent || c.partly {
			largest = max(largest, len(c.frame)-4)
			struck[op] = slices.Contains(replaceable, op)
		}
	}
	for op, is := range struck {
		if !is {
			continue
		}
		if a.strikes[op]++; a.strikes[op] >= opStrikes {
			a.until[op] = time.Now().Add(suspectedFor)
			delete(a.strikes, op)
		}
	}
	if largest < largeFrame {
		return
	}
	if a.size == 0 || time.Now().After(a.sizeUntil) {
		a.size, a.sizeStruck = largest, 0
	}
	a.size = min(a.size, largest)
	a.sizeStruck++
	a.sizeUntil = time.Now().Add(suspectedFor)
}

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

// reported finds "3.4.13" in "Zookeeper version: 3.4.13-2d71af4, built on ...".
var reported = regexp.MustCompile(`version: ([0-9][0-9.]*)`)

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
	match := reported.FindStringSubmatch(answer)
	if match == nil {
		s.log.Debug("cannot learn the version of the server by the four-letter word srvr", "server", server, "err", err)
		return before != ""
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.version != "" && a.version != match[1] {
		clear(a.until)
	}
	a.version = match[1]
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
	var major, minor int
	n, _ := fmt.Sscanf(a.version, "%d.%d", &major, &minor)
	switch {
	case n > 0 && (major < 3 || major == 3 && minor < 5):
		return fmt.Errorf("%w: it is %s", ErrOldServer, a.version)
	case a.version == "" && (create || check):
		return ErrOldServer
	}
	return nil
}
