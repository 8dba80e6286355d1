package session

import (
	"context"
	"errors"

	"github.com/zkagent/zkagent/internal/jute"
)

// Stat is what ZooKeeper knows about a znode besides its data.
type Stat = jute.Stat

// Get reads the data of a znode.
func (s *Session) Get(ctx context.Context, path string) ([]byte, Stat, error) {
	data, st, _, err := s.get(ctx, path, false)
	return data, st, err
}

// GetW reads the data of a znode and watches it. Nothing is watched on an error.
func (s *Session) GetW(ctx context.Context, path string) ([]byte, Stat, *Watch, error) {
	return s.get(ctx, path, true)
}

func (s *Session) get(ctx context.Context, path string, watch bool) ([]byte, Stat, *Watch, error) {
	var data []byte
	var st Stat
	w, err := s.read(ctx, jute.OpGetData, path, watchData, watch, func(d *jute.Decoder) error {
		data = d.Buffer()
		st.Decode(d)
		return nil
	})
	return data, st, w, err
}

// Exists reports whether a znode is there. A missing one is no error.
func (s *Session) Exists(ctx context.Context, path string) (Stat, bool, error) {
	st, ok, _, err := s.exists(ctx, path, false)
	return st, ok, err
}

// ExistsW reports whether a znode is there and watches it: for a change of its
// data and its deletion, or for its creation. Its parents need not exist.
func (s *Session) ExistsW(ctx context.Context, path string) (Stat, bool, *Watch, error) {
	return s.exists(ctx, path, true)
}

func (s *Session) exists(ctx context.Context, path string, watch bool) (Stat, bool, *Watch, error) {
	var st Stat
	w, err := s.read(ctx, jute.OpExists, path, watchExists, watch, func(d *jute.Decoder) error {
		st.Decode(d)
		return nil
	})
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

// ChildrenW lists the names of a znode's children and watches the list: for
// children that come or go, not for their data, and for the deletion of the znode.
func (s *Session) ChildrenW(ctx context.Context, path string) ([]string, Stat, *Watch, error) {
	return s.children(ctx, path, true)
}

func (s *Session) children(ctx context.Context, path string, watch bool) ([]string, Stat, *Watch, error) {
	var names []string
	var st Stat
	w, err := s.read(ctx, jute.OpGetChildren2, path, watchChild, watch, func(d *jute.Decoder) error {
		names = d.Strings()
		st.Decode(d)
		return nil
	})
	return names, st, w, err
}

// read sends a request that consists of a path and whether to watch it.
func (s *Session) read(ctx context.Context, op int32, path string, kind watchKind, watch bool, decode func(*jute.Decoder) error) (*Watch, error) {
	r := &request{op: op, path: path, kind: kind, decode: decode}
	if err := ValidatePath(path); err != nil {
		return nil, r.fail(err)
	}
	p := full(s.cfg.Chroot, path)
	if watch {
		r.watch = p
	}
	r.frame = newFrame(op, len(p)+5, func(e *jute.Encoder) {
		e.String(p)
		e.Bool(watch)
	})
	return s.exchange(ctx, r)
}

// Sync waits until the server has caught up with the leader: what others finished
// before is then seen by reads.
func (s *Session) Sync(ctx context.Context, path string) error {
	r := &request{op: jute.OpSync, path: path}
	if err := ValidatePath(path); err != nil {
		return r.fail(err)
	}
	r.frame = newFrame(r.op, len(path)+64, func(e *jute.Encoder) { e.String(full(s.cfg.Chroot, path)) })
	_, err := s.exchange(ctx, r)
	return err
}

// Ephemerals lists the znodes that this session owns at and below prefix.
func (s *Session) Ephemerals(ctx context.Context, prefix string) ([]string, error) {
	r := &request{op: jute.OpGetEphemerals, path: prefix}
	if err := ValidatePath(prefix); err != nil {
		return nil, r.fail(err)
	}
	p := full(s.cfg.Chroot, prefix)
	var paths []string
	r.frame = newFrame(r.op, len(p)+4, func(e *jute.Encoder) { e.String(p) })
	r.decode = func(d *jute.Decoder) error {
		// The server compares text: /a finds /ab too.
		for _, e := range d.Strings() {
			if p == "/" || e == p || len(e) > len(p) && e[:len(p)] == p && e[len(p)] == '/' {
				paths = append(paths, strip(s.cfg.Chroot, e))
			}
		}
		return nil
	}
	_, err := s.exchange(ctx, r)
	return paths, err
}

// GetACL reads the ACL of a znode.
func (s *Session) GetACL(ctx context.Context, path string) ([]ACL, Stat, error) {
	var acl []ACL
	var st Stat
	r := &request{op: jute.OpGetACL, path: path}
	if err := ValidatePath(path); err != nil {
		return nil, st, r.fail(err)
	}
	r.frame = newFrame(r.op, len(path)+64, func(e *jute.Encoder) { e.String(full(s.cfg.Chroot, path)) })
	r.decode = func(d *jute.Decoder) error {
		acl = jute.DecodeACLs(d)
		st.Decode(d)
		return nil
	}
	_, err := s.exchange(ctx, r)
	return acl, st, err
}
