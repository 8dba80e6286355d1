package registry

import (
	"cmp"
	"slices"
	"strings"

	"github.com/zkagent/zkagent/recipe"
	"github.com/zkagent/zkagent/view"
)

// memberKey identifies a member: two records with the same key are the same member.
// It does not contain the znode's name, which changes when a member registers
// again.
type memberKey struct {
	host string
	port int
	name string
}

func keyOf(m *view.Member) memberKey {
	name := m.Name
	if _, ok := recipe.ParseSequence(name, "_"); ok && name == m.Znode && name[0] != '_' {
		name = name[:strings.LastIndexByte(name, '_')] // a sequential znode without a member name
	}
	return memberKey{m.Host, m.Port, name}
}

// compareKeys orders members by their keys: host, port, name.
func compareKeys(a, b *view.Member) int {
	if c := view.CompareHosts(a.Host, b.Host); c != 0 {
		return c
	}
	if c := cmp.Compare(a.Port, b.Port); c != 0 {
		return c
	}
	return strings.Compare(keyOf(a).name, keyOf(b).name)
}

// members is a set of members in the order of their keys. Once a stage has passed
// on a set, the set and its members never change. Two sets share equal members, so
// comparing two sets means comparing pointers.
type members []*view.Member

func (s members) find(m *view.Member) (int, bool) { return slices.BinarySearchFunc(s, m, compareKeys) }

func (s members) has(m *view.Member) bool {
	_, ok := s.find(m)
	return ok
}

// changes calls f for each key whose member differs. was is nil for a member that
// is only in other; is is nil for one that is only in s.
func (s members) changes(other members, f func(was, is *view.Member)) {
	for len(s) > 0 || len(other) > 0 {
		order := 0
		switch {
		case len(other) == 0:
			order = -1
		case len(s) == 0:
			order = 1
		case s[0] != other[0]:
			order = compareKeys(s[0], other[0])
		default:
			s, other = s[1:], other[1:]
			continue
		}
		var was, is *view.Member
		if order <= 0 {
			was, s = s[0], s[1:]
		}
		if order >= 0 {
			is, other = other[0], other[1:]
		}
		f(was, is)
	}
}

func (s members) missing(other members) members {
	var list members
	s.changes(other, func(was, is *view.Member) {
		if is == nil {
			list = append(list, was)
		}
	})
	return list
}

// with returns the set in which others, in order of their keys, take the
// places of those with the same keys, or join.
func (s members) with(others members) members {
	if len(others) == 0 {
		return s
	}
	set := make(members, 0, len(s)+len(others))
	for _, m := range others {
		i, found := s.find(m)
		set = append(append(set, s[:i]...), m)
		if found {
			i++
		}
		s = s[i:]
	}
	return append(set, s...)
}

// without returns the set minus those members. The set must contain all of them.
func (s members) without(gone members) members {
	if len(gone) == 0 {
		return s
	}
	slices.SortFunc(gone, compareKeys)
	set := make(members, 0, len(s))
	for _, m := range gone {
		i, _ := s.find(m)
		set, s = append(set, s[:i]...), s[i+1:]
	}
	return append(set, s...)
}

// values returns the members by value: those of the previous set when it is the same one.
func (s members) values(former members, values []view.Member) []view.Member {
	if slices.Equal(s, former) {
		return values
	}
	list := make([]view.Member, len(s))
	for i, m := range s {
		list[i] = *m
	}
	return list
}

// dedupe keeps the latest (by czxid) of the members with the same key, and returns
// the others as rejected. It sorts its argument.
func dedupe(list members) (members, []view.Rejected) {
	slices.SortFunc(list, func(a, b *view.Member) int {
		return cmp.Or(compareKeys(a, b), cmp.Compare(b.Czxid, a.Czxid), strings.Compare(a.Znode, b.Znode))
	})
	var rejected []view.Rejected
	set := list[:0:0]
	for i, m := range list {
		if i > 0 && compareKeys(set[len(set)-1], m) == 0 {
			rejected = append(rejected, view.Rejected{Znode: clipName(m.Znode), Reason: "the same member as " + clipName(set[len(set)-1].Znode) + ", which is newer"})
			continue
		}
		set = append(set, m)
	}
	return set, rejected
}
