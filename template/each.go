package template

import (
	"cmp"
	"fmt"
	"reflect"

	"github.com/zkagent/zkagent/view"
)

// Each is the element of a for_each that a template is rendered for. In the
// template it is .Key and .Value.
type Each struct {
	Key string
	// Value is []view.Member for groups, view.Member for a group and the
	// text of the key for a config.
	Value any
	// OnEmpty is the reaction when Value is a list without members: keep, render
	// or fail; empty means that the template says it.
	OnEmpty string
}

// Elements returns the elements of a source in order of their keys: the
// groups of a set, the members of a group by id, or the keys of a config.
func Elements(v *view.View, source view.Source) ([]Each, error) {
	switch u := v.Get(source).(type) {
	case *view.Groups:
		list := make([]Each, len(u.Groups))
		for i, g := range u.Groups {
			list[i] = Each{Key: g.Name, Value: serving(g.Members), OnEmpty: g.OnEmpty}
		}
		return list, nil
	case *view.Group:
		return memberElements(u)
	case *view.Tree:
		var list []Each
		u.Walk("", func(path string, k view.Key) bool {
			list = append(list, Each{Key: path, Value: string(k.Value)})
			return true
		})
		return list, nil
	case nil:
		return nil, fmt.Errorf("%s: %w", source, ErrUnknown)
	}
	return nil, fmt.Errorf("for_each takes a config, a group or groups, not %s", source)
}

// memberElements are the members of a group that may get traffic, of several with one id
// the latest: a member that moves to another address may be registered twice. That there is
// none is an error unless on_empty is render, so that no file is removed for it.
func memberElements(g *view.Group) ([]Each, error) {
	members := serving(g.Members)
	if len(members) == 0 {
		if err := emptyGroup(g.Name, g.OnEmpty, false); err != nil {
			return nil, err
		}
	}
	var list []Each
	at := map[string]int{}
	for _, m := range members {
		e := Each{Key: cmp.Or(m.ID, m.Node), Value: m}
		i, double := at[e.Key]
		switch {
		case !double:
			at[e.Key] = len(list)
			list = append(list, e)
		case list[i].Value.(view.Member).Czxid < m.Czxid: //nolint:forcetypeassert // the line above made it.
			list[i] = e
		}
	}
	return list, nil
}

// Equal reports whether both elements give the same text.
func (e *Each) Equal(o *Each) bool {
	if e == nil || o == nil {
		return e == o
	}
	if e.Key != o.Key || e.OnEmpty != o.OnEmpty {
		return false
	}
	switch a := e.Value.(type) {
	case []view.Member:
		b, ok := o.Value.([]view.Member)
		return ok && (&view.Group{Members: a}).SameMembers(&view.Group{Members: b})
	case view.Member:
		b, ok := o.Value.(view.Member)
		return ok && a.Equal(b)
	}
	return reflect.DeepEqual(e.Value, o.Value)
}

// empty is the error of an element whose group has no members.
func (e *Each) empty(hasElse bool) error {
	if e == nil {
		return nil
	}
	if members, ok := e.Value.([]view.Member); !ok || len(members) > 0 {
		return nil
	}
	return emptyGroup(e.Key, e.OnEmpty, hasElse)
}
