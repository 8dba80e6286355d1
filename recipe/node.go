package recipe

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/zkagent/zkagent/session"
)

// The persistent node: a znode that stays for as long as its owner wants it,
// whatever happens to it.
//
//	<path>                          ephemeral, container, or with a TTL
//	<dir>/_c_<uuid>-<name><sequence>   of a sequential one
//	<path><sequence>                ephemeral sequential, of a NodeSequence
//
// Steps (Apache Curator's PersistentNode, with the ownership rules of this
// module): look what is there, decide what is wanted, make it so, watch, and look
// again. When the znode exists, its owner counts. This session's is kept, and its
// data set if it differs. Our own former session's is replaced in one
// multi(delete, create): readers never see it missing. Another live session's is
// waited for. A persistent one is a configuration error.
//
// An outcome that is not known, and every event, only mean "look again". A znode
// with a sequence is found among those that the session owns.
//
// The watch stands on the children, of which an ephemeral has none: it fires when
// the znode is deleted and not when we write it. A change of the data costs one
// request, at the version that we wrote last. With a NodeControl the watch stands
// on the data, so that what somebody else writes is seen at once.
//
// A sequential node keeps the name that it got first, over all sessions; one with a
// NodeSequence gets a new name each time. One with a TTL is written again after each
// third of it, and outlives a session by the TTL: a node at <path>/touch is
// Curator's PersistentTtlNode of <path>.
//
// Guarantees: within a session the znode is there, with the data that is wanted,
// except for the moments after somebody deleted it; a reconnect alone writes
// nothing; a znode of another live session is never deleted. A znode that somebody
// keeps deleting or changing is made again with a growing delay. When Run has
// returned, its znode is deleted, unless the session ended before or the
// configuration says Keep. Containers and znodes with a TTL are left to the server.
// Not guaranteed: that a persistent sequential znode goes when its process dies.

// NodeConfig describes a persistent node.
type NodeConfig struct {
	// Path is where the znode stands. A sequential one stands beside it, see
	// [Node.Path].
	Path string
	Data []byte // to begin with; SetData replaces it
	// Mode is the kind of the znode; zero: session.Ephemeral. A plain persistent
	// znode needs no keeper.
	Mode session.Mode
	// Sequence, if not nil, makes the znode ephemeral, and Path the beginning of a
	// name that the server completes with a sequence number.
	Sequence *NodeSequence
	// Control, if not nil, decides while Run runs whether the znode is wanted, and
	// with which data. Data and SetData are not used then.
	Control *NodeControl
	// Former are the ids of earlier sessions of this program: a znode of theirs is
	// replaced at once, instead of being waited for until the session expires.
	Former []int64
	// Keep leaves the znode standing when the context of Run ends, for a
	// process that takes the session over.
	Keep bool
	// Blocked, if not nil, is called when another session's znode stands at
	// Path, and with nil when it does no longer. The error matches ErrHeld.
	// The callback must not block.
	Blocked func(error)
	// Owned, if not nil, is called with true when the znode has become this
	// session's, and with false when it is not any more, or is not kept any
	// more. The callback must not block.
	Owned  func(bool)
	ACL    []session.ACL // of the znode; empty: that of the session
	Logger *slog.Logger  // nil: discard
}

// NodeControl decides what a node should be, step by step. A node with a control
// goes on after an error of the server, and beside a persistent znode, with a
// growing delay. Run calls the functions from one goroutine; they must not block.
type NodeControl struct {
	// Want is called before each step.
	Want func(NodeState) (NodeWant, error)
	// Changed is called after each step.
	Changed func(NodeState)
	// Wake makes Run ask Want again.
	Wake <-chan struct{}
	// First delays the first look, and Splay each first look after a reconnect,
	// so that many nodes do not look at the same moment.
	First, Splay time.Duration
}

// NodeWant is what should be there now.
type NodeWant struct {
	Absent bool      // no znode is wanted
	Data   []byte    // that the znode should have
	Next   time.Time // when to ask again though nothing happens; zero: never
	Now    bool      // do not wait for a delay
}

// NodeState is what a node knows of its znode.
type NodeState struct {
	Path    string // with a sequence, empty while there is none
	Known   bool   // what follows was looked up, and nothing has happened since
	Owned   bool   // it is there and this session's
	Adopted bool   // it stood there before this Run made one
	Czxid   int64  // of the znode; 0 while it is not there
	Data    []byte // as read or written last
	Blocked error  // why it cannot be there now: matches ErrHeld or ErrInTheWay
	Err     error  // of the last step
}

// Node keeps one znode. Run it once per session. Its other methods may be called
// from any goroutine.
type Node struct {
	cfg     NodeConfig
	wake    chan struct{} // size 1: SetData was called
	created chan struct{}
	once    sync.Once // closes created
	simple  bool      // there is no control

	mu   sync.Mutex // guards what follows
	data []byte
	path string // of the znode; empty: a sequential one that was not created yet
}

// NewNode returns a node. It does no I/O.
func NewNode(cfg NodeConfig) *Node {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	n := &Node{cfg: cfg, data: bytes.Clone(cfg.Data), wake: make(chan struct{}, 1), created: make(chan struct{})}
	if cfg.Control == nil {
		n.cfg.Control = &NodeControl{Want: n.newest, Changed: func(NodeState) {}}
	}
	n.simple = cfg.Control == nil
	switch {
	case cfg.Sequence != nil:
		n.cfg.Mode = session.EphemeralSequential
	case cfg.Mode == 0:
		n.cfg.Mode = session.Ephemeral
	}
	n.name("")
	return n
}

// Path returns the path of the znode; empty for a sequential one that does not
// exist yet.
func (n *Node) Path() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.path
}

// name notes the path of a sequential znode; empty: it has none.
func (n *Node) name(path string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.path = path; !n.cfg.Mode.Sequential() {
		n.path = n.cfg.Path
	}
}

// Created is closed when the znode has been there for the first time.
func (n *Node) Created() <-chan struct{} { return n.created }

// SetData replaces the data, now or when Run gets to it; of several, the newest
// counts. It never blocks.
func (n *Node) SetData(data []byte) {
	n.mu.Lock()
	n.data = bytes.Clone(data)
	n.mu.Unlock()
	select {
	case n.wake <- struct{}{}:
	default:
	}
}

// newest wants the newest data.
func (n *Node) newest(NodeState) (NodeWant, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return NodeWant{Data: n.data}, nil
}

// Find returns the path of the znode that Run would keep in session s; with a
// Sequence, empty when the session owns none. Another path is returned whether or
// not something is there.
func (n *Node) Find(ctx context.Context, s *session.Session) (string, error) {
	if n.cfg.Sequence == nil {
		return n.Path(), nil
	}
	return n.cfg.Sequence.find(ctx, s, n.cfg.Path)
}

// Run keeps the znode until ctx or the session ends. It returns nil when ctx is
// done, after the znode was deleted, and an error when it cannot go on in this
// session: the cause of the session's end, ErrInTheWay, or a refusal of the
// server. It may be run again in the next session.
func (n *Node) Run(ctx context.Context, s *session.Session) error {
	err := session.ValidatePath(n.cfg.Path)
	if err == nil {
		k := nodeKeeper{Node: n, s: s}
		err = k.run(ctx)
	}
	if ctx.Err() != nil && s.Context().Err() == nil {
		if !n.cfg.Keep {
			n.remove(s)
		}
		return nil
	}
	return fmt.Errorf("keep %s: %w", n.cfg.Path, err)
}

// remove deletes the znode, if the server would not.
func (n *Node) remove(s *session.Session) {
	path := n.Path()
	switch {
	case path == "", n.cfg.Mode == session.Container, n.cfg.Mode.TTL() > 0:
		return
	case n.cfg.Mode.Ephemeral():
		abandonOwned(s, path)
	default:
		abandon(s, path) // nobody else uses a protected name
	}
	n.name("")
}
