package recipe

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/zkagent/zkagent/session"
)

// The persistent node: a znode that is made again, whatever happens to it, for as
// long as its owner wants it.
//
// Steps (Apache Curator's PersistentNode, with the ownership rules of this
// module): read the znode, decide what is wanted, make it so, watch, and read again.
// What Run does with an existing znode depends on its owner. It keeps a znode of this
// session, and sets the data if it differs. It replaces a znode of our own previous
// session in one multi(delete, create), so readers never see it missing. It waits for
// a znode of another live session. A persistent znode is a configuration error.
//
// After an unknown outcome, and after every event, Run only reads again. It finds a
// znode with a sequence among those that the session owns.
//
// The watch is on the children, of which an ephemeral has none. So it fires when the
// znode is deleted, and not when we write it. A change of the data costs one request,
// at the version that we wrote last. With a NodeControl the watch is on the data, so
// that Run notices the writes of other clients at once.
//
// A sequential node keeps its first name over all sessions. A node with a NodeSequence
// gets a new name each time. Run writes a node with a TTL again after each third of the
// TTL. The node outlives a session by the TTL: a node at <path>/touch is Curator's
// PersistentTtlNode of <path>.

// NodeConfig describes a persistent node.
type NodeConfig struct {
	// Path is the path of the znode. The path of a sequential znode differs, see
	// [Node.Path].
	Path string
	Data []byte // the first data; SetData replaces it
	// Mode is the mode of the znode; zero: session.Ephemeral. A plain persistent
	// znode needs no Node.
	Mode session.Mode
	// Sequence, if not nil, makes the znode ephemeral. Path is then the beginning of
	// a name, to which the server appends a sequence number.
	Sequence *NodeSequence
	// Control, if not nil, decides during Run whether the znode is wanted, and
	// with which data. Data and SetData are not used then.
	Control *NodeControl
	// Ids of earlier sessions of this program. Run replaces their
	// znodes at once, instead of waiting until those sessions expire.
	Former []int64
	// Keep keeps the znode when the context of Run ends, for a process that takes
	// the session over.
	Keep bool
	// Blocked, if not nil, is called with an error that matches ErrHeld when
	// another session's znode is at Path, and with nil when that is gone.
	// The callback must not block.
	Blocked func(error)
	// Owned, if not nil, is called with true when this session has come to own
	// the znode, and with false when it owns or keeps it no longer. The callback
	// must not block.
	Owned  func(bool)
	ACL    []session.ACL // of the znode; empty: that of the session
	Logger *slog.Logger  // nil: discard
}

// NodeControl decides the wanted state of a node, step by step. With a control, Run tries
// again after an error of the server, and while a persistent znode is in the way, with
// a growing delay. It calls the functions from one goroutine; they must not block.
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

// NodeWant is the wanted state of a node.
type NodeWant struct {
	Absent bool      // no znode is wanted
	Data   []byte    // the wanted data
	Next   time.Time // when to call Want again without an event; zero: never
	Now    bool      // do not wait for a delay
}

// NodeState is the knowledge of a node about its znode.
type NodeState struct {
	Path    string // with a sequence, empty while the znode does not exist
	Known   bool   // Run has read what follows, and no event has come since
	Owned   bool   // it exists and belongs to this session
	Adopted bool   // it existed before this Run made one
	Czxid   int64  // of the znode; 0 while it does not exist
	Data    []byte // as read or written last
	Blocked error  // what is in the way now: matches ErrHeld or ErrInTheWay
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
	path string // of the znode; empty: a sequential znode that does not exist yet
}

// NewNode returns a node. It does no I/O.
func NewNode(cfg NodeConfig) *Node {
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	n := &Node{cfg: cfg, data: bytes.Clone(cfg.Data), wake: make(chan struct{}, 1), created: make(chan struct{})}
	if cfg.Control == nil {
		n.cfg.Control = &NodeControl{Changed: func(NodeState) {}, Want: func(NodeState) (NodeWant, error) {
			n.mu.Lock()
			defer n.mu.Unlock()
			return NodeWant{Data: n.data}, nil
		}}
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

// Path returns the path of the znode. It is empty for a sequential znode that does not
// exist yet.
func (n *Node) Path() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.path
}

// name notes the path of a sequential znode; empty: it does not exist.
func (n *Node) name(path string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.path = path; !n.cfg.Mode.Sequential() {
		n.path = n.cfg.Path
	}
}

// Created is closed when the znode exists for the first time.
func (n *Node) Created() <-chan struct{} { return n.created }

// SetData replaces the data, and never blocks: Run writes it. After several calls Run
// may write only the latest data.
func (n *Node) SetData(data []byte) {
	n.mu.Lock()
	n.data = bytes.Clone(data)
	n.mu.Unlock()
	select {
	case n.wake <- struct{}{}:
	default:
	}
}

// Find returns the path of the znode that Run would keep in session s. With a Sequence
// the path is empty when the session owns no such znode. Without a Sequence, Find does
// not check whether the znode exists.
func (n *Node) Find(ctx context.Context, s *session.Session) (string, error) {
	q, prefix := n.cfg.Sequence, n.cfg.Path
	if q == nil {
		return n.Path(), nil
	}
	dir, _ := session.SplitPath(prefix)
	paths, err := s.Ephemerals(ctx, dir)
	if errors.Is(err, session.ErrUnimplemented) {
		paths, err = listOwned(ctx, s, dir, prefix)
	}
	if err != nil {
		return "", fmt.Errorf("list own znodes: %w", err)
	}
	paths = slices.DeleteFunc(paths, func(p string) bool {
		head, _, ok := splitSequence(p)
		return !ok || head != prefix
	})
	if slices.Contains(paths, q.Known) {
		return q.Known, nil
	}
	for _, p := range paths {
		if q.Mine == nil {
			return p, nil
		}
		data, stat, err := s.Get(ctx, p)
		switch {
		case errors.Is(err, session.ErrNoNode):
		case err != nil:
			return "", err
		case stat.EphemeralOwner == s.ID() && q.Mine(p, data):
			return p, nil
		}
	}
	return "", nil
}

// Run keeps the znode until ctx or the session ends. When ctx ends, Run deletes the
// znode and returns nil. When it cannot continue in this session, it returns an error:
// the cause of the session's end, ErrInTheWay, or an error of the server. Run it again
// in the next session.
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

// remove deletes the znode, unless the server will delete it.
func (n *Node) remove(s *session.Session) {
	path := n.Path()
	switch {
	case path == "" && n.cfg.Sequence == nil, n.cfg.Mode == session.Container, n.cfg.Mode.TTL() > 0:
		return
	case n.cfg.Mode.Ephemeral():
		inBackground(s, func(ctx context.Context) error {
			path := path
			if path == "" { // its create may have lost its reply
				var err error
				if path, err = n.Find(ctx, s); err != nil || path == "" {
					return err
				}
			}
			stat, exists, err := lookAgain(ctx, s, path)
			if err != nil || !exists || stat.EphemeralOwner != s.ID() {
				return err
			}
			return removeExactly(ctx, s, path, stat.Czxid)
		})
	default:
		abandon(s, path) // no other client uses a protected name
	}
	n.name("")
}

// NodeSequence describes a node whose name ends with a sequence number of the server.
// The node looks for its znode among those that the session owns. There it also finds
// a znode whose create lost its reply, and the znode of a previous process in the same
// session.
type NodeSequence struct {
	// Known is the previous path of the znode; empty: unknown.
	Known string
	// Mine, if not nil, reports whether a znode of the session, whose name begins
	// like the node's, is the node's.
	Mine func(path string, data []byte) bool
}

// listOwned finds the znodes that this session owns below dir, on servers that cannot
// list them (before 3.6).
func listOwned(ctx context.Context, s *session.Session, dir, prefix string) ([]string, error) {
	names, _, err := s.Children(ctx, dir)
	if errors.Is(err, session.ErrNoNode) {
		return nil, nil
	}
	var own []string
	for _, name := range names {
		p := child(dir, name)
		if !strings.HasPrefix(p, prefix) {
			continue
		}
		stat, ok, existsErr := s.Exists(ctx, p)
		if existsErr != nil {
			return nil, existsErr
		}
		if ok && stat.EphemeralOwner == s.ID() {
			own = append(own, p)
		}
	}
	return own, err
}
