package session

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/go-zookeeper/zk"

	"github.com/zkagent/zkagent/internal/jute"
)

// libraryBuffer bounds a frame of the library, which sees only pings and handshakes.
// Its own default is 1.5 MB for each direction.
const libraryBuffer = 4 << 10

// connect starts the client library, which begins to dial.
func (s *Session) connect() (*zk.Conn, <-chan zk.Event, error) {
	text := slog.NewLogLogger(s.log.Handler(), slog.LevelDebug)
	text.SetPrefix("zookeeper client: ")
	lib, events, err := zk.Connect(s.cfg.Servers, s.cfg.Timeout,
		zk.WithHostProvider(s.hosts),
		zk.WithDialer(s.hosts.dial),
		zk.WithLogger(text),
		zk.WithMaxBufferSize(libraryBuffer),
		zk.WithMaxConnBufferSize(libraryBuffer),
	)
	if err != nil {
		return nil, nil, fmt.Errorf("start the zookeeper client: %w", err)
	}
	return lib, events, nil
}

// shutdown ends the session from our side. It closes the session on the server too,
// unless it hands the session over.
func (s *Session) shutdown(handOver bool) error {
	s.mu.Lock()
	w := s.cur
	s.mu.Unlock()
	if !s.end(Closed, ErrClosed) {
		return nil
	}
	if w != nil && !handOver {
		s.sayGoodbye(w)
	}
	return nil
}

// sayGoodbye asks the server to end the session, and waits briefly for the reply.
func (s *Session) sayGoodbye(w *wire) {
	c := newCall(jute.OpClose, newFrame(jute.OpClose))
	if w.send(c) {
		ctx, cancel := context.WithTimeout(context.Background(), handshakeLimit(s.Timeout()))
		defer cancel()
		_ = awaitAll(ctx, c)
	}
}

// finish ends the client library and waits for all of it.
func (s *Session) finish(lib *zk.Conn, events <-chan zk.Event) {
	s.hosts.cancel()
	s.mu.Lock()
	w := s.dialed
	s.cur = nil
	s.mu.Unlock()
	if w != nil {
		w.detach()
	}
	<-s.hosts.settled.Done()
	lib.Close()
	for range events {
	}
	s.hosts.writers.Wait()
	s.cleanups.Wait()
	s.watches.end()
}
