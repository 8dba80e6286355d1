package renderlog

import (
	"fmt"
	"slices"

	"github.com/zkagent/zkagent/internal/term"
	"github.com/zkagent/zkagent/view"
)

// Changes says which of the sources differ between two views, and by how much.
func Changes(old, now *view.View, sources []view.Source) []string {
	var list []string
	for _, s := range sources {
		a, b := old.Get(s), now.Get(s)
		if b == nil || a == b || a != nil && a.Equal(b) {
			continue
		}
		list = append(list, s.String()+changeWords(a, b))
	}
	slices.Sort(list)
	return list
}

func changeWords(a, b view.Update) string {
	switch b := b.(type) {
	case *view.Tree:
		old, ok := a.(*view.Tree)
		if !ok {
			return fmt.Sprintf(": %s at %s", term.Count(b.Len(), "key"), b.Version())
		}
		keys, bytes := 0, 0
		old.Keys().Diff(b.Keys(), func(_ string, was, is *view.Key) {
			keys++
			if was != nil {
				bytes -= len(was.Value)
			}
			if is != nil {
				bytes += len(is.Value)
			}
		})
		return fmt.Sprintf(": %s -> %s, %s, %+d bytes", old.Version(), b.Version(), term.Count(keys, "key"), bytes)
	case *view.Group:
		old, ok := a.(*view.Group)
		if !ok {
			return ": " + term.Count(len(b.Members), "member")
		}
		return memberWords(old.Members, b.Members)
	}
	return ""
}

// memberWords says which members joined and left. It walks along both lists, which are
// sorted, and compares by znode only what stands in one of them.
func memberWords(old, now []view.Member) string {
	gone := map[string]*view.Member{}
	var left, came []*view.Member
	for len(old) > 0 || len(now) > 0 {
		order := 0
		switch {
		case len(old) == 0:
			order = 1
		case len(now) == 0:
			order = -1
		default:
			order = view.CompareMembers(old[0], now[0])
		}
		if order != 0 || !old[0].Equal(now[0]) {
			if order <= 0 {
				left, gone[old[0].Znode] = append(left, &old[0]), &old[0]
			}
			if order >= 0 {
				came = append(came, &now[0])
			}
		}
		if order <= 0 {
			old = old[1:]
		}
		if order >= 0 {
			now = now[1:]
		}
	}
	is := make(map[string]bool, len(came))
	for _, m := range came {
		is[m.Znode] = true
	}
	var text string
	n := 0
	add := func(sign string, m *view.Member) {
		const most = 10
		if n++; n <= most {
			text += " " + sign + m.Address()
		}
	}
	for _, m := range left {
		if !is[m.Znode] {
			add("-", m)
		}
	}
	for _, m := range came {
		was := gone[m.Znode]
		switch {
		case was == nil:
			add("+", m)
		case !was.Equal(*m):
			add("~", m)
		}
	}
	return fmt.Sprintf(": %s,%s", term.Count(n, "member"), text)
}
