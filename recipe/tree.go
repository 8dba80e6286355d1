package recipe

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/zkagent/zkagent/internal/lists"
	"github.com/zkagent/zkagent/internal/mirror"
	"github.com/zkagent/zkagent/session"
)

// The tree cache (Apache Curator, "Curator Cache"; kazoo, "TreeCache").
//
// Steps: read the subtree with a watch for each znode, or one recursive watch for many;
// read again what a watch reports. A znode that changes often while it waits is read once.
//
// Not guaranteed: that a copy existed at one moment. Its znodes are read one by one.

// ErrTreeTooLarge means that a subtree has more than its TreeConfig allows.
var ErrTreeTooLarge = errors.New("the subtree is too large to be copied")

// TreeConfig describes a copy of a subtree.
type TreeConfig struct {
	Path  string // root of the subtree; it need not exist
	Depth int    // levels below the root that are copied; 0: all
	// Skip leaves out a znode and all below it, by its path; nil: none.
	Skip      func(path string) bool
	MaxZnodes int          // 0: any number
	MaxBytes  int64        // of all data; 0: any number
	Logger    *slog.Logger // nil: discard
}

// TreeNode is a znode of a Tree as it was read. It must not be changed.
type TreeNode struct {
	Path         string
	Data         []byte
	Children     []string // their names, sorted; none at the last level
	Czxid, Mzxid int64
	Ctime, Mtime time.Time // by the server's clock
	Version      int32     // of the data
}

// TreeChange is a znode that came, changed or went. When Old and New differ in Czxid,
// the znode was deleted and created again in between.
type TreeChange struct {
	Path     string
	Old, New *TreeNode // nil: it did not exist, or does not exist any more
}

// TreeUpdate is one step of a Tree.
type TreeUpdate struct {
	First   bool         // of this session: the whole subtree has been read
	Changes []TreeChange // in the order of the paths
	Last    int64        // the largest zxid that was read
	// Errors are the znodes that cannot be read or listed now, by path. They keep their
	// last state, and are tried again.
	Errors map[string]error
}

// Tree is a live copy of a subtree. It outlives sessions: in a later session it reports
// only the differences. Any goroutine may call the methods, except Run: calls of Run
// must not overlap.
type Tree struct {
	cfg    TreeConfig
	failed map[string]error

	mu    sync.RWMutex // guards nodes
	nodes map[string]*TreeNode
}

// NewTree returns an empty copy. It does no I/O; Run reports an invalid cfg.
func NewTree(cfg TreeConfig) *Tree { return &Tree{cfg: cfg, nodes: map[string]*TreeNode{}} }

// Get returns the znode at a path, as it was read last.
func (t *Tree) Get(path string) (*TreeNode, bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	n, ok := t.nodes[path]
	return n, ok
}

// Len returns the number of znodes.
func (t *Tree) Len() int {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return len(t.nodes)
}

// Run keeps the copy until ctx or the session ends. It calls up when the subtree has been
// read, and after each change; the copy shows the change by then. up may be nil. Run
// returns nil when ctx ends, the session's cause when the session ends, and an error that
// matches ErrTreeTooLarge for a subtree beyond the bounds.
func (t *Tree) Run(ctx context.Context, s *session.Session, up func(TreeUpdate)) error {
	s = session.Usable(s, t.cfg.Path)
	opt := mirror.Options{Depth: t.cfg.Depth, MaxZnodes: t.cfg.MaxZnodes, MaxBytes: t.cfg.MaxBytes, Logger: t.cfg.Logger}
	if t.cfg.Skip != nil {
		opt.Skip = func(rel string) bool { return t.cfg.Skip(session.JoinPath(t.cfg.Path, rel)) }
	}
	first := true
	err := mirror.Follow(ctx, s, t.cfg.Path, opt, nil, func(snap *mirror.Snapshot, changed []string) (time.Time, error) {
		if snap.TooLarge {
			return time.Time{}, fmt.Errorf("%w: it has %d bytes", ErrTreeTooLarge, snap.Bytes)
		}
		u, failing := t.take(snap, changed, first)
		if up != nil && (first || failing || len(u.Changes) > 0) {
			up(u)
		}
		first = false
		return time.Time{}, nil
	})
	if errors.Is(err, mirror.ErrTooMany) {
		err = fmt.Errorf("%w: %w", ErrTreeTooLarge, err)
	}
	if err != nil && s.Context().Err() == nil {
		err = fmt.Errorf("tree %s: %w", t.cfg.Path, err)
	}
	return err
}

// take takes in a snapshot. The first one of a session is compared with all that is
// known. It also reports whether the errors are others than before.
func (t *Tree) take(snap *mirror.Snapshot, changed []string, first bool) (TreeUpdate, bool) {
	paths := lists.Map(changed, func(rel string) string { return session.JoinPath(t.cfg.Path, rel) })
	if first {
		paths = slices.AppendSeq(paths, maps.Keys(t.nodes))
	}
	slices.Sort(paths)
	u := TreeUpdate{First: first, Last: snap.Last, Errors: map[string]error{}}
	for rel, err := range snap.Errors() {
		u.Errors[session.JoinPath(t.cfg.Path, rel)] = err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, path := range slices.Compact(paths) {
		if change := t.set(path, snap, u.Errors); change.Old != change.New {
			u.Changes = append(u.Changes, change)
		}
	}
	failing := !maps.EqualFunc(u.Errors, t.failed, func(a, b error) bool { return a.Error() == b.Error() })
	t.failed = u.Errors
	return u, failing
}

// set takes in one znode. A list of children that changed is no change: its children
// have changed. A znode that cannot be reached now stays.
func (t *Tree) set(path string, snap *mirror.Snapshot, errs map[string]error) TreeChange {
	old := t.nodes[path]
	n, exists := snap.Get(strings.TrimPrefix(strings.TrimPrefix(path, t.cfg.Path), "/"))
	if !exists {
		if !unreachable(path, errs) {
			delete(t.nodes, path)
			return TreeChange{Path: path, Old: old}
		}
		return TreeChange{}
	}
	node := &TreeNode{
		Path: path, Data: n.Data, Children: n.Children, Czxid: n.Stat.Czxid, Mzxid: n.Stat.Mzxid, Version: n.Stat.Version,
		Ctime: time.UnixMilli(n.Stat.Ctime), Mtime: time.UnixMilli(n.Stat.Mtime),
	}
	t.nodes[path] = node
	if old != nil && old.Mzxid == node.Mzxid && old.Czxid == node.Czxid {
		return TreeChange{}
	}
	return TreeChange{Path: path, Old: old, New: node}
}

// unreachable reports whether the znode or one above it cannot be read.
func unreachable(path string, errs map[string]error) bool {
	for len(errs) > 0 && path != "" {
		if errs[path] != nil {
			return true
		}
		path = path[:len(path)-len(base(path))-1]
	}
	return errs["/"] != nil
}
