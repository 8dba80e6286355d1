package registry

import (
	"fmt"
	"slices"
	"strings"

	"github.com/zkagent/zkagent/view"
)

// touch notes that a child has changed since the last call of members.
func (r *reader) touch(name string, was *view.Member) {
	if _, ok := r.touched[name]; !ok {
		r.touched[name] = was
	}
	r.changed = true
}

// members returns the members and the rejected children.
func (r *reader) members() (members, []view.Rejected) {
	if !r.changed {
		return r.set, r.rejected
	}
	if !r.merge() {
		list := make(members, 0, len(r.nodes))
		for _, c := range r.nodes {
			if c.member != nil {
				list = append(list, c.member)
			}
		}
		r.set, r.doubles = dedupe(list)
	}
	clear(r.touched)
	r.changed = false
	r.rejected = slices.Clone(r.doubles)
	for name, reason := range r.reasons {
		r.rejected = append(r.rejected, view.Rejected{Znode: clipName(name), Reason: reason})
	}
	for _, name := range r.over {
		r.rejected = append(r.rejected, view.Rejected{Znode: clipName(name), Reason: fmt.Sprintf("more than %d children", r.g.cfg.MaxMembers)})
	}
	slices.SortFunc(r.rejected, func(a, b view.Rejected) int { return strings.Compare(a.Znode, b.Znode) })
	return r.set, r.rejected
}

// merge applies the touched children to set. It returns false where two children
// are the same member, because then the one that was left out may have to replace
// the other.
func (r *reader) merge() bool {
	if len(r.doubles) > 0 || len(r.touched) > len(r.set)/2 {
		return false
	}
	var gone, came members
	for name, was := range r.touched {
		if was != nil {
			gone = append(gone, was)
		}
		if c := r.nodes[name]; c != nil && c.member != nil {
			came = append(came, c.member)
		}
	}
	came, doubles := dedupe(came)
	if len(doubles) > 0 {
		return false
	}
	set := r.set.without(gone)
	if slices.ContainsFunc(came, set.has) {
		return false
	}
	r.set = set.with(came)
	return true
}

// clipName shortens the name of a child for display.
func clipName(name string) string {
	if len(name) > 256 {
		return strings.ToValidUTF8(name[:256], "") + "..."
	}
	return name
}
