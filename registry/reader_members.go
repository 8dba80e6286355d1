package registry

import (
	"fmt"
	"slices"
	"strings"

	"github.com/zkagent/zkagent/view"
)

// touch notes that a child is not what it was when members was called.
func (r *reader) touch(name string, was *view.Member) {
	if _, ok := r.touched[name]; !ok {
		r.touched[name] = was
	}
	r.changed = true
}

// members returns the members, and the children that are none.
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

// merge brings set up to date by what was touched. It reports whether it
// could: not where two children are the same member, for then the one that is
// left out may have to take the place of the other.
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

// clipName bounds the name of a child that is shown.
func clipName(name string) string {
	if len(name) > 256 {
		return strings.ToValidUTF8(name[:256], "") + "..."
	}
	return name
}
