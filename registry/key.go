package registry

import (
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
	order := make([]*view.Member, 0, len(s))
	for _, m := range s {
		order = append(order, m)
	}
	slices.SortFunc(order, func(a, b *view.Member) int { return view.CompareMembers(*a, *b) })
	list := make([]view.Member, len(order))
	for i, m := range order {
		list[i] = *m
	}
	return list
}

// dedupe keeps of members with the same host, port and name the newest by
// czxid, and says which others were left out.
func dedupe(list []*view.Member) (members, []view.Rejected) {
	set := make(members, len(list))
	for _, m := range list {
		k := keyOf(m)
		if old, ok := set[k]; !ok || newer(m, old) {
			set[k] = m
		}
	}
	if len(set) == len(list) {
		return set, nil
	}
	var rejected []view.Rejected
	for _, m := range list {
		if best := set[keyOf(m)]; best != m {
			rejected = append(rejected, view.Rejected{Node: clipName(m.Node), Reason: "the same member as " + clipName(best.Node) + ", which is newer"})
		}
	}
	return set, rejected
}

// newer reports whether a was registered after b.
func newer(a, b *view.Member) bool {
	return a.Czxid > b.Czxid || a.Czxid == b.Czxid && a.Node < b.Node
}
