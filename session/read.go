package session

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/zkagent/zkagent/internal/jute"
	"github.com/zkagent/zkagent/internal/lists"
)

// Stat is the metadata of a znode. A zxid is the number of a transaction of the ensemble.
// Times are milliseconds since 1970.
type Stat struct {
	Czxid          int64 // zxid of the creation
	Mzxid          int64 // zxid of the last change of the data
	Ctime          int64 // time of the creation
	Mtime          int64 // time of the last change of the data
	Version        int32 // changes of the data
	Cversion       int32 // creations and deletions of children
	Aversion       int32 // changes of the ACL
	EphemeralOwner int64 // session that owns the znode; 0 if it is not ephemeral
	DataLength     int32 // bytes of data
	NumChildren    int32 // direct children
	Pzxid          int64 // zxid of the last creation or deletion of a child
}

// Get reads the data of a znode.
func (s *Session) Get(ctx context.Context, path string) ([]byte, Stat, error) {
	data, st, _, err := s.get(ctx, path, false)
	return data, st, err
}

// GetW reads the data of a znode and watches it. On an error it watches nothing.
func (s *Session) GetW(ctx context.Context, path string) ([]byte, Stat, *Watch, error) {
	return s.get(ctx, path, true)
}

func (s *Session) get(ctx context.Context, path string, watch bool) ([]byte, Stat, *Watch, error) {
	var data []byte
	var st Stat
	w, err := s.read(ctx, jute.OpGetData, path, watchData, watch, &data, &st)
	return data, st, w, err
}

// Exists reports whether a znode exists. A missing znode is not an error.
func (s *Session) Exists(ctx context.Context, path string) (Stat, bool, error) {
	st, ok, _, err := s.exists(ctx, path, false)
	return st, ok, err
}

// ExistsW reports whether a znode exists, and watches it: for a change of its data and
// its deletion, or for its creation. Its parents need not exist.
func (s *Session) ExistsW(ctx context.Context, path string) (Stat, bool, *Watch, error) {
	return s.exists(ctx, path, true)
}

func (s *Session) exists(ctx context.Context, path string, watch bool) (Stat, bool, *Watch, error) {
	var st Stat
	w, err := s.read(ctx, jute.OpExists, path, watchExists, watch, &st)
	if errors.Is(err, ErrNoNode) {
		return Stat{}, false, w, nil
	}
	return st, err == nil, w, err
}

// Children lists the names of a znode's children, in no order.
func (s *Session) Children(ctx context.Context, path string) ([]string, Stat, error) {
	names, st, _, err := s.children(ctx, path, false)
	return names, st, err
}

// ChildrenW lists the names of a znode's children and watches the list. The watch fires
// when children are created or deleted, and when the znode is deleted. It does not fire
// when their data changes.
func (s *Session) ChildrenW(ctx context.Context, path string) ([]string, Stat, *Watch, error) {
	return s.children(ctx, path, true)
}

func (s *Session) children(ctx context.Context, path string, watch bool) ([]string, Stat, *Watch, error) {
	var names []string
	var st Stat
	w, err := s.read(ctx, jute.OpGetChildren2, path, watchChild, watch, &names, &st)
	return possible(names), st, w, err
}

// possible leaves out the names that no znode can have: a server that lists one lies. Nobody
// builds a path from it or prints it.
func possible(names []string) []string {
	return slices.DeleteFunc(names, func(name string) bool { return jute.CheckName(name) != nil })
}

// Listing is the list of a znode's children, if the znode exists.
type Listing struct {
	Exists bool     // false: the znode does not exist, and Names is empty
	Names  []string // in no order
	Stat   Stat     // of the znode; zero when it does not exist
}

// ListW lists the children of a znode and watches the list, like ChildrenW. A missing
// znode is no error: the watch fires when the znode is created.
func (s *Session) ListW(ctx context.Context, path string) (Listing, *Watch, error) {
	for {
		names, st, w, err := s.ChildrenW(ctx, path)
		if err == nil {
			return Listing{Exists: true, Names: names, Stat: st}, w, nil
		}
		if !errors.Is(err, ErrNoNode) {
			return Listing{}, nil, err
		}
		_, exists, w, err := s.ExistsW(ctx, path)
		if err != nil || !exists {
			return Listing{}, w, err
		}
		w.Stop() // created in between
	}
}

// Child is the result of GetChildren for one child.
type Child struct {
	Name string // last element of the path
	Result
}

// GetChildren reads all children of a znode, sorted by name. It leaves out children that
// vanish between the list and the read. A child that it cannot read has an Err.
func (s *Session) GetChildren(ctx context.Context, path string) ([]Child, error) {
	names, _, err := s.Children(ctx, path)
	if err != nil {
		return nil, err
	}
	slices.Sort(names)
	paths := lists.Map(names, func(name string) string { return JoinPath(path, name) })
	results, err := s.GetMany(ctx, paths)
	if err != nil {
		return nil, err
	}
	children := make([]Child, 0, len(names))
	for i, r := range results {
		if !errors.Is(r.Err, ErrNoNode) {
			children = append(children, Child{Name: names[i], Result: r})
		}
	}
	return children, nil
}

// read sends a request that consists of a path and whether to watch it.
func (s *Session) read(ctx context.Context, op int32, path string, kind watchKind, watch bool, result ...any) (*Watch, error) {
	r, err := s.newRequest(op, path, []any{watch}, result...)
	if err != nil {
		return nil, err
	}
	if r.kind = kind; watch {
		r.watch = full(s.cfg.Chroot, path)
	}
	return s.exchange(ctx, r)
}

// Sync waits until the server has caught up with the leader. Reads after it see all
// changes that were finished before it.
func (s *Session) Sync(ctx context.Context, path string) error {
	return s.ask(ctx, jute.OpSync, path, nil)
}

// Ephemerals lists the znodes that this session owns at and below prefix.
func (s *Session) Ephemerals(ctx context.Context, prefix string) ([]string, error) {
	var found, paths []string
	err := s.ask(ctx, jute.OpGetEphemerals, prefix, nil, &found)
	p := full(s.cfg.Chroot, prefix)
	for _, e := range found {
		// The server compares text: /a finds /ab too.
		if (p == "/" || e == p || strings.HasPrefix(e, p+"/")) && jute.CheckPath(e) == nil {
			paths = append(paths, strip(s.cfg.Chroot, e))
		}
	}
	return paths, err
}

// GetACL reads the ACL of a znode.
func (s *Session) GetACL(ctx context.Context, path string) ([]ACL, Stat, error) {
	var acl []ACL
	var st Stat
	err := s.ask(ctx, jute.OpGetACL, path, nil, &acl, &st)
	return acl, st, err
}
