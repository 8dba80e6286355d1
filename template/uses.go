package template

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"text/template/parse"

	"github.com/zkagent/zkagent/view"
)

// Deps are the data that a template depends on, as its text shows.
type Deps struct {
	// Uses are the names in the text, in its order.
	Uses []Use
	// Dynamic are the kinds of sources with a name that is computed when the
	// template is executed: it depends on all of that kind.
	Dynamic []view.Kind
	// Agent says that the template prints something of its agent.
	Agent bool
	// Files are the names that the function file reads; a computed name is
	// not among them.
	Files []string
	// Env are the variables that it reads.
	Env []string

	template string
}

// Use is one name in a template.
type Use struct {
	Source view.Source
	// Key is the key of a config that is read. With Prefix it is a prefix
	// ("" = all keys).
	Key    string
	Prefix bool
	// Version says that the generation of the config is printed.
	Version      bool
	Line, Column int
}

// Sources returns the sources that the text names, sorted, each once. A group
// named "set/group" counts as its set when declared says that there is one.
func (d Deps) Sources(declared []view.Source) []view.Source {
	var list []view.Source
	for _, u := range d.Uses {
		if s := u.resolve(declared); !slices.Contains(list, s) {
			list = append(list, s)
		}
	}
	for _, s := range declared {
		if d.dynamic(s.Kind) && !slices.Contains(list, s) {
			list = append(list, s)
		}
	}
	slices.SortFunc(list, func(a, b view.Source) int { return strings.Compare(a.String(), b.String()) })
	return list
}

// dynamic reports whether the template may use any source of the kind. A
// computed name of a group may be one in a set of groups.
func (d Deps) dynamic(kind view.Kind) bool {
	return slices.Contains(d.Dynamic, kind) || kind == view.KindGroups && slices.Contains(d.Dynamic, view.KindGroup)
}

// resolve is the declared source that a use means.
func (u Use) resolve(declared []view.Source) view.Source {
	if u.Source.Kind != view.KindGroup || slices.Contains(declared, u.Source) {
		return u.Source
	}
	if set, _, ok := strings.Cut(u.Source.Name, "/"); ok {
		if s := (view.Source{Kind: view.KindGroups, Name: set}); slices.Contains(declared, s) {
			return s
		}
	}
	return u.Source
}

// Undeclared returns an *Error with line and column for each name in the text
// that is not among the declared sources, joined; nil when all are.
func (d Deps) Undeclared(declared []view.Source) error {
	var errs []error
	for _, u := range d.Uses {
		s := u.resolve(declared)
		if slices.Contains(declared, s) {
			continue
		}
		var names []string
		for _, c := range declared {
			if c.Kind == s.Kind {
				names = append(names, c.Name)
			}
		}
		err := fmt.Errorf("%s %q is %w%s", s.Kind, s.Name, ErrUnknown, meant(s.Name, names))
		errs = append(errs, &Error{Template: d.template, Line: u.Line, Column: u.Column, Err: err})
	}
	return errors.Join(errs...)
}

type access struct {
	kind    view.Kind
	prefix  bool
	version bool
}

var accesses = map[string]access{
	"key": {kind: view.KindConfig}, "keyOrDefault": {kind: view.KindConfig}, "keyOrAbsent": {kind: view.KindConfig}, "keyExists": {kind: view.KindConfig},
	"ls": {kind: view.KindConfig, prefix: true}, "safeLs": {kind: view.KindConfig, prefix: true},
	"tree": {kind: view.KindConfig, prefix: true}, "safeTree": {kind: view.KindConfig, prefix: true},
	"version": {kind: view.KindConfig, version: true},
	"members": {kind: view.KindGroup}, "service": {kind: view.KindGroup}, "groups": {kind: view.KindGroups},
	"leader": {kind: view.KindElection}, "isLeader": {kind: view.KindElection}, "rawLeaderID": {kind: view.KindElection}, "rawGroupNames": {kind: view.KindGroups},
}

func findUses(t *Template) Deps {
	d := Deps{template: t.cfg.Name}
	for _, tree := range t.sortedTrees() {
		inspect(tree.Root, func(n parse.Node) {
			if p, ok := n.(*parse.PipeNode); ok {
				t.pipeUses(p, &d)
			}
		})
	}
	slices.SortStableFunc(d.Uses, func(a, b Use) int { return cmp.Or(a.Line-b.Line, a.Column-b.Column) })
	return d
}

// pipeUses finds the functions of one pipeline. A function without arguments
// takes what is piped into it.
func (t *Template) pipeUses(p *parse.PipeNode, d *Deps) {
	for i, c := range p.Cmds {
		for j, arg := range c.Args {
			if chain, isChain := arg.(*parse.ChainNode); isChain { // agent.ID
				arg = chain.Node
			}
			id, ok := arg.(*parse.IdentifierNode)
			if !ok {
				continue
			}
			var name parse.Node
			switch {
			case j == 0 && len(c.Args) > 1:
				name = c.Args[1]
			case j == 0 && i > 0 && len(p.Cmds[i-1].Args) == 1:
				name = p.Cmds[i-1].Args[0]
			}
			t.use(id, name, d)
		}
	}
}

func (t *Template) use(id *parse.IdentifierNode, arg parse.Node, d *Deps) {
	text, whole, known := constant(arg)
	switch id.Ident {
	case "agent":
		d.Agent = true
		return
	case "file":
		if whole {
			d.Files = append(d.Files, text)
		}
		return
	case "env", "mustEnv", "envOrDefault":
		if whole {
			d.Env = append(d.Env, text)
		}
		return
	}
	a, ok := accesses[id.Ident]
	if !ok {
		return
	}
	name, key := text, ""
	if a.kind == view.KindConfig && !a.version {
		if known && !whole { // "web/%s": anything below the last slash.
			slash := strings.LastIndexByte(text, '/')
			text, whole, a.prefix = text[:max(slash, 0)], slash > 0, true
		}
		name, key, _ = strings.Cut(strings.Trim(text, "/"), "/")
	}
	if !whole {
		if !slices.Contains(d.Dynamic, a.kind) {
			d.Dynamic = append(d.Dynamic, a.kind)
		}
		return
	}
	p := t.at(id)
	d.Uses = append(d.Uses, Use{
		Source: view.Source{Kind: a.kind, Name: name}, Key: key, Prefix: a.prefix, Version: a.version, Line: p.line, Column: p.column,
	})
}

// constant returns the text of a string, or the constant beginning of what
// printf makes; whether that is all of it; and whether it is something.
func constant(n parse.Node) (string, bool, bool) {
	switch n := n.(type) {
	case *parse.StringNode:
		return n.Text, true, true
	case *parse.PipeNode:
		arg, args := single(n)
		if id, ok := arg.(*parse.IdentifierNode); ok && id.Ident == "printf" && len(args) > 1 {
			if format, isText := args[1].(*parse.StringNode); isText {
				begin, _, verb := strings.Cut(format.Text, "%")
				return begin, !verb, begin != ""
			}
		}
		if arg != nil && len(args) == 1 {
			return constant(arg)
		}
	}
	return "", false, false
}

// String returns the use as status shows it: "config.web/timeout".
func (u Use) String() string {
	s := u.Source.String()
	switch {
	case u.Version:
		return s + " (version)"
	case u.Source.Kind == view.KindConfig && u.Prefix:
		return s + "/" + path.Join(u.Key, "*")
	case u.Source.Kind == view.KindConfig:
		return s + "/" + u.Key
	}
	return s
}

// Stale reports whether the text may differ between two views, because data that the
// template uses has changed. It is exact for keys, and compares all keys below a
// prefix. If the template computes a name, any change of that kind of data counts.
// Stale does not see changed files or variables.
func (t *Template) Stale(old, now *view.View) bool {
	if old == nil || now == nil {
		return old != now
	}
	d := t.uses
	if d.Agent && old.Agent != now.Agent || slices.ContainsFunc(d.Uses, func(u Use) bool { return u.changed(old, now) }) {
		return true
	}
	return d.dynamicChanged(old, now) || d.dynamicChanged(now, old)
}

func (u Use) changed(old, now *view.View) bool {
	source := u.Source
	if source.Kind == view.KindGroup && now.Get(source) == nil && old.Get(source) == nil {
		source = u.resolve(now.Sources())
	}
	a, b := old.Get(source), now.Get(source)
	if a == b || a == nil || b == nil {
		return a != b
	}
	switch a := a.(type) {
	case *view.Tree:
		b := b.(*view.Tree) //nolint:forcetypeassert // as all updates of one source, it is of the same type
		switch {
		case u.Version:
			return a.Generation != b.Generation
		case u.Prefix:
			return !a.SharesBelow(b, u.Key)
		}
		ka, oka := a.Get(u.Key)
		kb, okb := b.Get(u.Key)
		return oka != okb || !bytes.Equal(ka.Value, kb.Value)
	case *view.Group:
		b := b.(*view.Group) //nolint:forcetypeassert // see above
		return a.OnEmpty != b.OnEmpty || a.Path != b.Path || !a.SameMembers(b)
	}
	return !a.Equal(b)
}

// dynamicChanged compares all sources of the dynamic kinds that a has.
func (d Deps) dynamicChanged(a, b *view.View) bool {
	return slices.ContainsFunc(a.Sources(), func(s view.Source) bool {
		ua, ub := a.Get(s), b.Get(s)
		return d.dynamic(s.Kind) && ua != ub && (ub == nil || !ua.Equal(ub))
	})
}
