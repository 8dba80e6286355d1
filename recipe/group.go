package recipe

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"

	"github.com/zkagent/zkagent/session"
)

// Group membership.
//
//	<path>/<id>    ephemeral, one per member (Apache Curator's GroupMember)
//
// Steps (ZooKeeper Recipes, "Group Membership"): a member keeps its znode (see
// [Node]). A reader lists the children with a watch, reads them in one request
// (multiRead), and lists again when the watch fires.
//
// Guarantees: Follow reports the newest membership, and never the same one twice in
// a row. It leaves out a member that vanishes between the list and the read. Not
// guaranteed: that Follow sees every membership. It reads the data of a member when
// the member joins, and does not follow later changes.

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
	names, _, err := g.s.Children(ctx, g.path)
	if errors.Is(err, session.ErrNoNode) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list group %s: %w", g.path, err)
	}
	return g.read(ctx, names)
}

// Follow calls up with the members, at once and after each change, until ctx or
// the session ends. It returns the cause. It never changes a slice after the call.
func (g *Group) Follow(ctx context.Context, up func([]Member)) error {
	var members []Member
	first, read := true, session.Listing{}
	for {
		list, watch, err := g.s.ListW(ctx, g.path)
		if err != nil {
			return fmt.Errorf("follow group %s: %w", g.path, err)
		}
		if !first && list.Exists == read.Exists && list.Stat.Pzxid == read.Stat.Pzxid {
			if err := watch.Wait(ctx); err != nil { // same members as before
				return err
			}
			continue
		}
		read = list
		next, err := g.read(ctx, list.Names)
		if err != nil {
			watch.Stop()
			return fmt.Errorf("follow group %s: %w", g.path, err)
		}
		if first || !slices.EqualFunc(members, next, sameMember) {
			first, members = false, next
			up(members)
		}
		if err := watch.Wait(ctx); err != nil {
			return err
		}
	}
}

// read reads all listed members, also those whose names are known: such a member may
// have left and joined again.
func (g *Group) read(ctx context.Context, names []string) ([]Member, error) {
	if len(names) == 0 {
		return nil, nil
	}
	slices.Sort(names)
	paths := make([]string, len(names))
	for i, name := range names {
		paths[i] = child(g.path, name)
	}
	results, err := g.s.GetMany(ctx, paths)
	if err != nil {
		return nil, err
	}
	members := make([]Member, 0, len(names))
	for i, r := range results {
		switch {
		case r.Err == nil:
			members = append(members, Member{ID: names[i], Data: r.Data, Czxid: r.Stat.Czxid})
		case !errors.Is(r.Err, session.ErrNoNode):
			return nil, r.Err
		}
	}
	return members, nil
}

func sameMember(a, b Member) bool { return a.ID == b.ID && a.Czxid == b.Czxid }
