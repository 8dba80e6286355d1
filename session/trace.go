package session

import (
	"context"

	"github.com/zkagent/zkagent/internal/jute"
)

// Tracer is called when a request begins, in the goroutine and with the context of
// who makes it, and returns what is called with the error when the request has ended;
// nil: nothing. It may be called by many goroutines at once and must not block. Pings
// and what belongs to a connection are not traced; what is sent again after a lost
// connection is one request.
type Tracer func(ctx context.Context, r TracedRequest) (end func(error))

// TracedRequest is what a Tracer sees of a request.
type TracedRequest struct {
	Op      string // as ZooKeeper names it: "getData", "create2", "multi", ...
	Path    string // without the chroot; empty for requests of several paths
	Bytes   int    // what is sent, without the length
	Session int64  // id of the session
	Server  string // host:port last connected to
}

// trace tells the tracer that r begins, and returns what is called at its end.
func (s *Session) trace(ctx context.Context, r *request) func(error) {
	if s.cfg.Trace != nil {
		end := s.cfg.Trace(ctx, TracedRequest{Op: jute.OpName(r.op), Path: r.path, Bytes: len(r.frame) - 4, Session: s.ID(), Server: s.Server()})
		if end != nil {
			return end
		}
	}
	return func(error) {}
}
