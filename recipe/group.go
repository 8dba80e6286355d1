package recipe

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/zkagent/zkagent/internal/mirror"
	"github.com/zkagent/zkagent/session"
)

// Group membership.
//
// Steps (ZooKeeper Recipes, "Group Membership"): a member keeps its znode (see
// [Node]). A reader keeps a copy of the group: it lists the children with a watch, reads
// those that are new, and lists again when the watch fires.

// Group is a set of members at a path.
type Group struct {
	s      *session.Session
	path   string
	logger *slog.Logger
}

// Member is one member of a group.
type Member struct {
	ID    string // name of its znode
	Data  []byte // as it was when the member joined
	Czxid int64  // of its znode: the transaction in which it joined
}

// NewGroup returns the group at path. It does no I/O.
func NewGroup(s *session.Session, path string, logger *slog.Logger) *Group {
	return &Group{s: s, path: path, logger: logger}
}

// Join makes this process a member until ctx or the session ends. It blocks, and
// returns what [Node.Run] returns.
func (g *Group) Join(ctx context.Context, id string, data []byte) error {
	return NewNode(NodeConfig{Path: child(g.path, id), Data: data, Logger: g.logger}).Run(ctx, g.s)
}

// Members returns the current members, sorted by id. A group that does not exist
// has no members.
func (g *Group) Members(ctx context.Context) ([]Member, error) {
	children, err := g.s.GetChildren(ctx, g.path)
	if err != nil && !errors.Is(err, session.ErrNoNode) {
		return nil, fmt.Errorf("list group %s: %w", g.path, err)
	}
	var members []Member
	for _, c := range children {
		if c.Err != nil {
			return nil, c.Err
		}
		members = append(members, Member{ID: c.Name, Data: c.Data, Czxid: c.Stat.Czxid})
	}
	return members, nil
}

// Follow calls up with the members, at once and after each change, until ctx or
// the session ends. It returns the cause. It never changes a slice after the call.
func (g *Group) Follow(ctx context.Context, up func([]Member)) error {
	var members []Member
	first := true
	err := mirror.Follow(ctx, g.s, g.path, mirror.Options{Depth: 1, Logger: g.logger}, nil, func(snap *mirror.Snapshot, _ []string) (time.Time, error) {
		for _, err := range snap.Errors() { // any of them
			return time.Time{}, fmt.Errorf("follow group %s: %w", g.path, err)
		}
		var next []Member
		snap.Walk(func(name string, n *mirror.Node) bool {
			if name != "" {
				next = append(next, Member{ID: name, Data: n.Data, Czxid: n.Stat.Czxid})
			}
			return true
		})
		if first || !slices.EqualFunc(members, next, func(a, b Member) bool { return a.ID == b.ID && a.Czxid == b.Czxid }) {
			first, members = false, next
			up(members)
		}
		return time.Time{}, nil
	})
	return cmp.Or(err, context.Cause(ctx))
}
