package recipe

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/zkagent/zkagent/session"
)

// Contender is a client that holds or waits at a path, as its znode describes it.
type Contender struct {
	Path     string    // of its znode
	Data     []byte    // what it says of itself, by custom a host name
	Holder   bool      // it holds; otherwise it waits
	Shared   bool      // a reader of a read-write lock
	Since    time.Time // when it came, by the clock of the server
	Czxid    int64     // its fencing token; that of a writer that became a reader is smaller
	Owner    int64     // session; 0: a persistent znode, which never leaves by itself
	Sequence Sequence  // its place in the order
}

// Contenders returns the contenders of a lock, a read-write lock or an election, in
// order. It reads every layout that this package knows. A path that does not exist
// has no contenders.
func Contenders(ctx context.Context, s *session.Session, path string) ([]Contender, error) {
	list, err := contenders(ctx, s, path, func(name string) bool {
		_, ok := parseContender(name)
		return ok
	})
	if err != nil {
		return nil, fmt.Errorf("contenders of %s: %w", path, err)
	}
	shared := true
	for i := range list {
		shared = shared && list[i].Shared
		list[i].Holder = i == 0 || shared
	}
	return list, nil
}

// contenders reads the children that want accepts. It sorts them by sequence number,
// and those with the same number by creation.
func contenders(ctx context.Context, s *session.Session, path string, want func(string) bool) ([]Contender, error) {
	children, err := s.GetChildren(ctx, path)
	if err != nil && !errors.Is(err, session.ErrNoNode) {
		return nil, err
	}
	list := []Contender{}
	for _, one := range children {
		switch {
		case !want(one.Name), errors.Is(one.Err, session.ErrNoNode):
			continue
		case one.Err != nil && !errors.Is(one.Err, session.ErrNoAuth):
			return nil, one.Err
		}
		c, _ := parseContender(one.Name)
		_, seq, _ := splitSequence(one.Name)
		list = append(list, Contender{
			Path: child(path, one.Name), Data: one.Data, Shared: c.shared, Since: time.UnixMilli(one.Stat.Ctime),
			Czxid: one.Stat.Czxid, Owner: one.Stat.EphemeralOwner, Sequence: seq,
		})
	}
	slices.SortFunc(list, func(a, b Contender) int {
		switch {
		case a.Sequence == b.Sequence:
			return cmp.Compare(a.Czxid, b.Czxid)
		case a.Sequence.Before(b.Sequence):
			return -1
		}
		return 1
	})
	return list, nil
}
