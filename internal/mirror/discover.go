package mirror

import (
	"context"
	"errors"
	"slices"

	"github.com/zkagent/zkagent/session"
)

// discover reads znodes that the copy does not have yet: their data and, from
// those that have children, the lists. It returns what the lists brought, and
// the znodes whose lists are still to be read.
//
// Few of them are read one by one, many together: then one pair of requests
// reads a few hundred and watches data and children, and a znode that had no
// child when it was read needs no list, for its watch tells of the first.
func (m *Mirror) discover(ctx context.Context, rels []string) ([]string, []string, error) {
	rels = slices.DeleteFunc(rels, func(rel string) bool { return m.arms[rel] == nil })
	slices.Sort(rels)
	rels = slices.Compact(rels)
	if len(rels) <= fewReads {
		data := make(map[string]struct{}, len(rels))
		var lists []string
		for _, rel := range rels {
			data[rel] = struct{}{}
			if m.watchesKids(rel) {
				lists = append(lists, rel)
			}
		}
		return nil, lists, m.fetch(ctx, data)
	}
	var inner, last []string // The last level has no lists.
	for _, rel := range rels {
		if m.watchesKids(rel) {
			inner = append(inner, rel)
		} else {
			last = append(last, rel)
		}
	}
	if _, _, err := m.discoverMany(ctx, last, false); err != nil {
		return nil, nil, err
	}
	return m.discoverMany(ctx, inner, true)
}

// discoverMany is discover for znodes that are read together.
func (m *Mirror) discoverMany(ctx context.Context, rels []string, kids bool) ([]string, []string, error) {
	results, err := m.s.GetManyW(ctx, m.paths(rels), kids)
	if err != nil {
		return nil, nil, err
	}
	var lists, parents []string
	for i, rel := range rels {
		r := results[i]
		switch {
		case r.Err == nil:
		case errors.Is(r.Err, session.ErrNoNode):
			m.vanished(rel)
			continue
		default:
			if err = m.failed(ctx, rel, r.Err); err != nil {
				return nil, nil, err
			}
			continue
		}
		m.fetched(rel, reply{data: r.Data, stat: r.Stat, watch: r.Watch})
		switch {
		case !kids:
		case !r.Kids: // The server wants to be asked one by one.
			lists = append(lists, rel)
		default:
			m.arm(rel, true, r.Watch)
			if r.Stat.NumChildren > 0 {
				parents = append(parents, rel)
			}
		}
	}
	found, err := m.listMany(ctx, parents)
	return found, lists, err
}

// listMany reads the lists of znodes whose children are watched already.
func (m *Mirror) listMany(ctx context.Context, rels []string) ([]string, error) {
	if len(rels) == 0 {
		return nil, nil
	}
	results, err := m.s.ChildrenMany(ctx, m.paths(rels))
	if err != nil {
		return nil, err
	}
	var found []string
	for i, rel := range rels {
		r := results[i]
		switch {
		case r.Err == nil:
			found = append(found, m.listed(rel, reply{names: r.Names, stat: m.nodes[rel].Stat})...)
		case errors.Is(r.Err, session.ErrNoNode):
			m.vanished(rel)
		default:
			if err := m.failed(ctx, rel, r.Err); err != nil {
				return nil, err
			}
		}
	}
	return found, nil
}

// paths are the paths of znodes relative to the root.
func (m *Mirror) paths(rels []string) []string {
	paths := make([]string, len(rels))
	for i, rel := range rels {
		paths[i] = m.path(rel)
	}
	return paths
}
