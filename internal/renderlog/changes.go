package renderlog

import (
	"fmt"
	"slices"

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

// changeWords says how a source has changed.
func changeWords(a, b view.Update) string {
	switch b := b.(type) {
	case *view.Tree:
		old, ok := a.(*view.Tree)
		if !ok {
			return fmt.Sprintf(": %s at %s", count(b.Len(), "key"), b.Version())
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
		return fmt.Sprintf(": %s -> %s, %s, %+d bytes", old.Version(), b.Version(), count(keys, "key"), bytes)
	case *view.Group:
		old, ok := a.(*view.Group)
		if !ok {
			return ": " + count(len(b.Members), "member")
		}
		return memberWords(old.Members, b.Members)
	}
	return ""
}

// memberWords says which members joined and left.
func memberWords(old, now []view.Member) string {
	in := func(list []view.Member, m view.Member) *view.Member {
		for i := range list {
			if list[i].Znode == m.Znode {
				return &list[i]
			}
		}
		return nil
	}
	var text string
	n := 0
	add := func(sign string, m view.Member) {
		const most = 10
		if n++; n <= most {
			text += " " + sign + m.Address()
		}
	}
	for _, m := range old {
		if in(now, m) == nil {
			add("-", m)
		}
	}
	for _, m := range now {
		was := in(old, m)
		switch {
		case was == nil:
			add("+", m)
		case !was.Equal(m):
			add("~", m)
		}
	}
	return fmt.Sprintf(": %s,%s", count(n, "member"), text)
}

func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
