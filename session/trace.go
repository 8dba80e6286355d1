package session

import (
	"context"

	"github.com/zkagent/zkagent/internal/jute"
)

// Tracer is called when a request begins, in the goroutine and with the context of its
// caller. The session calls the returned function with the error when the request has
// ended; the function may be nil. Many goroutines may call a Tracer at once, and it must
// not block. The session does not trace pings and the requests that set up a connection.
// A request that is sent again after a lost connection is traced once.
type Tracer func(ctx context.Context, r TracedRequest) (end func(error))

// TracedRequest describes a request to a Tracer.
type TracedRequest struct {
	Op      string // as ZooKeeper names it: "getData", "create2", "multi", ...
	Path    string // without the chroot; empty for requests of several paths
	Bytes   int    // size of the request, without the length field
	Session int64  // id of the session
	Server  string // host:port last connected to
}

// trace calls the tracer at the beginning of r. It returns the function to call at the
// end of r.
func (s *Session) trace(ctx context.Context, r *request) func(error) {
	if s.cfg.Trace != nil {
		end := s.cfg.Trace(ctx, TracedRequest{Op: jute.OpName(r.op), Path: r.path, Bytes: len(r.frame) - 4, Session: s.ID(), Server: s.Server()})
		if end != nil {
			return end
		}
	}
	return func(error) {}
}
