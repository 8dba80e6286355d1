package mirror

import (
	"context"
	"fmt"
	"time"

	"github.com/zkagent/zkagent/session"
)

// Clone returns a copy that stays as it is.
func (s *Snapshot) Clone() *Snapshot {
	c := *s
	c.top, c.parts = s.top.clone(), map[string]*part{}
	for name, p := range s.parts {
		c.parts[name] = new(*p)
	}
	return &c
}

func (z *znode) clone() *znode {
	c := *z
	if z.inner != nil {
		c.inner = &inner{over: z.inner.over}
		for _, child := range z.inner.children {
			c.inner.children = append(c.inner.children, child.clone())
		}
	}
	return &c
}

// copyTree copies the subtree below root and calls emit with a clone of the first
// snapshot and then of each that differs from the one before. It returns nil when
// ctx ends, and the cause when the session ends.
func copyTree(ctx context.Context, s *session.Session, root string, opt Options, emit func(*Snapshot)) error {
	first, failed := true, 0
	var before *Snapshot
	return Follow(ctx, s, root, opt, nil, func(snap *Snapshot, changed []string) (time.Time, error) {
		if first || len(changed) > 0 || len(snap.errs) != failed {
			now := snap.Clone()
			if err := told(before, now, changed); err != nil {
				return time.Time{}, err
			}
			before = now
			emit(now)
		}
		first, failed = false, len(snap.errs)
		return time.Time{}, nil
	})
}

// told checks that changed has each path whose znode came, went or changed, and none twice.
func told(before, now *Snapshot, changed []string) error {
	if before == nil {
		before = &Snapshot{Root: now.Root, top: &znode{path: now.Root, stat: Stat{Mzxid: unread}}}
	}
	set := map[string]bool{}
	for _, rel := range changed {
		if set[rel] {
			return fmt.Errorf("%q changed twice", rel)
		}
		set[rel] = true
	}
	var err error
	compare := func(in, with *Snapshot) {
		in.Walk(func(rel string, n *Node) bool {
			if o, ok := with.Get(rel); !set[rel] && (!ok || o.Stat.Mzxid != n.Stat.Mzxid) {
				err = fmt.Errorf("%q changed, and was not told", rel)
			}
			return err == nil
		})
	}
	compare(before, now)
	compare(now, before)
	return err
}
