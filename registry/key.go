package registry

import (
	"cmp"
	"slices"
	"strings"

	"github.com/zkagent/zkagent/view"
)

// memberKey says that two records are of the same member. The name of the
// znode is not part of it: it changes when a member registers again.
type memberKey struct {
	host string
	port int
	name string
}

func keyOf(m *view.Member) memberKey {
	name := m.Name
	if i := strings.LastIndexByte(m.Node, '_'); name == m.Node && i > 0 && isSequence(m.Node[i+1:]) {
		name = m.Node[:i] // a sequential name without a name of its own
	}
	return memberKey{m.Host, m.Port, name}
}

// isSequence reports whether s is what ZooKeeper appends to a sequential name.
func isSequence(s string) bool {
	s = strings.TrimPrefix(s, "-")
	return (len(s) == 9 || len(s) == 10) && strings.Trim(s, "0123456789") == ""
}

// members is a set of members. Sets and members are replaced, not changed, once
// they were handed from one stage to the next.
type members map[memberKey]*view.Member

// sorted returns the members by host, port, name and znode.
func (s members) sorted() []view.Member {
	list := make([]view.Member, 0, len(s))
	for _, m := range s {
		list = append(list, *m)
	}
	slices.SortFunc(list, view.CompareMembers)
	return list
}

// dedupe keeps of members with the same host, port and name the newest by
// czxid, and says which others were left out.
func dedupe(list []*view.Member) (members, []view.Rejected) {
	slices.SortFunc(list, func(a, b *view.Member) int {
		return cmp.Or(cmp.Compare(b.Czxid, a.Czxid), cmp.Compare(a.Node, b.Node))
	})
	set := make(members, len(list))
	var rejected []view.Rejected
	for _, m := range list {
		k := keyOf(m)
		if newer, ok := set[k]; ok {
			rejected = append(rejected, view.Rejected{Node: clipName(m.Node), Reason: "the same member as " + clipName(newer.Node) + ", which is newer"})
			continue
		}
		set[k] = m
	}
	return set, rejected
}
