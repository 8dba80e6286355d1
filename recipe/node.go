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

	"github.com/zkagent/zkagent/internal/keeper"
	"github.com/zkagent/zkagent/session"
)

// The persistent node: a znode that Run creates again, whatever happens to it, for as
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
// at the version that we wrote last. With a keeper.Control the watch is on the data, so
// that Run notices the writes of other clients at once.
//
// A sequential node keeps its first name over all sessions. A node with a keeper.Sequence
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
	// Internal cannot be set from outside of this module.
	Internal keeper.Config
}

// Node keeps one znode. Run it once per session. Its other methods may be called
// from any goroutine.
type Node struct {
	cfg     NodeConfig
	wake    chan struct{} // size 1: SetData was called
	created chan struct{}
	once    sync.Once // closes created
	simple  bool      // there is no control

	mu   sync.Mutex // guards the fields below
	data []byte
	path string // of the znode; empty: a sequential znode that does not exist yet
}

// NewNode returns a node. It does no I/O.
func NewNode(cfg NodeConfig) *Node {
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	n := &Node{cfg: cfg, data: bytes.Clone(cfg.Data), wake: make(chan struct{}, 1), created: make(chan struct{})}
	if cfg.Internal.Control == nil {
		n.cfg.Internal.Control = &keeper.Control{Changed: func(keeper.State) {}, Want: func(keeper.State) (keeper.Want, error) {
			n.mu.Lock()
			defer n.mu.Unlock()
			return keeper.Want{Data: n.data}, nil
		}}
	}
	n.simple = cfg.Internal.Control == nil
	switch {
	case cfg.Internal.Sequence != nil:
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
	q, prefix := n.cfg.Internal.Sequence, n.cfg.Path
	if q == nil {
		return n.Path(), nil
	}
	s = session.Usable(s, prefix)
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
	s = session.Usable(s, n.cfg.Path)
	k := nodeKeeper{Node: n, s: s}
	err := k.run(ctx)
	if ctx.Err() != nil && s.Context().Err() == nil {
		if !n.cfg.Keep {
			n.remove(s)
		}
		return nil
	}
	if op, ok := errors.AsType[*session.Error](err); ok && op.Path == n.cfg.Path {
		return err // which names the path
	}
	return fmt.Errorf("keep %s: %w", n.cfg.Path, err)
}

// remove deletes the znode, unless the server will delete it.
func (n *Node) remove(s *session.Session) {
	path := n.Path()
	switch {
	case path == "" && n.cfg.Internal.Sequence == nil, n.cfg.Mode == session.Container, n.cfg.Mode.TTL() > 0:
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
