package template

import (
	"bytes"

	"github.com/zkagent/zkagent/view"
)

// Stale reports whether the text may differ between two views: whether
// anything that the template uses has changed. It is exact for keys, compares
// what lies below a prefix, and takes everything of a kind whose names are
// computed. A changed file or variable is not seen here.
func (t *Template) Stale(old, now *view.View) bool {
	if old == nil || now == nil {
		return old != now
	}
	d := t.uses
	if d.Agent && old.Agent != now.Agent {
		return true
	}
	for _, u := range d.Uses {
		if u.changed(old, now) {
			return true
		}
	}
	if len(d.Dynamic) == 0 {
		return false
	}
	return d.dynamicChanged(old, now) || d.dynamicChanged(now, old)
}

// changed compares one use in two views.
func (u Use) changed(old, now *view.View) bool {
	source := u.Source
	if source.Kind == view.KindGroup && now.Get(source) == nil && old.Get(source) == nil {
		source = u.resolve(now.Sources())
	}
	a, b := old.Get(source), now.Get(source)
	if a == b {
		return false
	}
	if a == nil || b == nil {
		return true
	}
	switch a := a.(type) {
	case *view.Tree:
		b, ok := b.(*view.Tree)
		return !ok || u.treeChanged(a, b)
	case *view.Group:
		b, ok := b.(*view.Group)
		return !ok || a.OnEmpty != b.OnEmpty || a.Path != b.Path || !a.SameMembers(b)
	}
	return !a.Equal(b)
}

func (u Use) treeChanged(a, b *view.Tree) bool {
	switch {
	case u.Version:
		return a.Generation != b.Generation
	case u.Prefix:
		return !a.SharesBelow(b, u.Key)
	}
	ka, oka := a.Get(u.Key)
	kb, okb := b.Get(u.Key)
	return oka != okb || !bytes.Equal(ka.Value, kb.Value)
}

// dynamicChanged compares all sources of the dynamic kinds that a has.
func (d Deps) dynamicChanged(a, b *view.View) bool {
	for _, s := range a.Sources() {
		if !d.dynamic(s.Kind) {
			continue
		}
		ua, ub := a.Get(s), b.Get(s)
		if ua != ub && (ub == nil || !ua.Equal(ub)) {
			return true
		}
	}
	return false
}
