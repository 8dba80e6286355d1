// Package keeper is what the packages of this module ask of a recipe.Node beyond what its
// users do: a member of a service decides step by step what its znode contains.
package keeper

import "time"

// Config is the part of a recipe.NodeConfig that only this module uses.
type Config struct {
	// Sequence, if not nil, makes the znode ephemeral. Path is then the beginning of
	// a name, to which the server appends a sequence number.
	Sequence *Sequence
	// Control, if not nil, decides during Run whether the znode is wanted, and
	// with which data. Data and SetData are not used then.
	Control *Control
	// Earlier are the ids of earlier sessions of this program. Run replaces their
	// znodes at once, instead of waiting until those sessions expire.
	Earlier []int64
}

// Control decides the wanted state of a node, step by step. With a control, Run tries
// again after an error of the server, and while a persistent znode is in the way, with
// a growing delay. It calls the functions from one goroutine; they must not block.
type Control struct {
	// Want is called before each step.
	Want func(State) (Want, error)
	// Changed is called after each step.
	Changed func(State)
	// Wake makes Run ask Want again.
	Wake <-chan struct{}
	// First delays the first look, and Splay each first look after a reconnect,
	// so that many nodes do not look at the same moment.
	First, Splay time.Duration
}

// Want is the wanted state of a node.
type Want struct {
	Absent bool      // no znode is wanted
	Data   []byte    // the wanted data
	Next   time.Time // when to call Want again without an event; zero: never
	Now    bool      // do not wait for a delay
}

// State is the knowledge of a node about its znode.
type State struct {
	Path    string // with a sequence, empty while the znode does not exist
	Known   bool   // Run has read what follows, and no event has come since
	Owned   bool   // it exists and belongs to this session
	Adopted bool   // it existed before this Run made one
	Czxid   int64  // of the znode; 0 while it does not exist
	Data    []byte // as read or written last
	Blocked error  // what is in the way now: matches ErrHeld or ErrInTheWay
	Err     error  // of the last step
}

// Sequence describes a node whose name ends with a sequence number of the server.
// The node looks for its znode among those that the session owns. There it also finds
// a znode whose create lost its reply, and the znode of a previous process in the same
// session.
type Sequence struct {
	// Known is the previous path of the znode; empty: unknown.
	Known string
	// Mine, if not nil, reports whether a znode of the session, whose name begins
	// like the node's, is the node's.
	Mine func(path string, data []byte) bool
}
