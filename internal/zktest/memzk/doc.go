// Package memzk is the ZooKeeper in memory of internal/memzk for tests: it looks
// into the server, changes znodes as another client would, and injects faults.
package memzk

import "github.com/zkagent/zkagent/internal/memzk"

// The names of internal/memzk that tests use.
type (
	// Options configures a Server. New sets Options.Faults.
	Options = memzk.Options
	// Node is a znode as it stands in the tree.
	Node = memzk.Node
	// Change is what a transaction does to one znode.
	Change = memzk.Change
	// Error is an error code of ZooKeeper.
	Error = memzk.Error
)

// Server is one in-memory ZooKeeper with faults. Its methods may be called from any
// goroutine.
type Server struct {
	*memzk.Server

	faults *faults
}

// New starts a server with an empty tree. Inside a synctest bubble it must be closed
// before the bubble ends.
func New(opts Options) *Server {
	f := newFaults()
	opts.Faults = f
	return &Server{Server: memzk.New(opts), faults: f}
}
