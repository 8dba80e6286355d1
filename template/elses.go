package template

import (
	"slices"
	"text/template/parse"
)

// elses are the groups for which a template says, by an else, what to write
// when they have no members:
//
//	{{ range members "api" }}...{{ else }}...{{ end }}
//
// A with and an if about the members count as a range does, and so do members
// that were put into a variable before.
type elses struct {
	names []string // of groups
	named []string // all groups that stand in the text
	any   bool     // of a group whose name is computed
	each  bool     // of the element of for_each
}

// of reports whether the template says what to write when a group is empty.
func (e *elses) of(name string) bool {
	return slices.Contains(e.names, name) || e.any && !slices.Contains(e.named, name)
}

// Else reports whether the template says, by an else, what to write when the
// group of that name has no members.
func (t *Template) Else(group string) bool { return t.elses.of(group) }

// findElses reads the parse trees.
func findElses(t *Template) elses {
	var e elses
	for _, tree := range t.sortedTrees() {
		vars := map[string]elses{}
		inspect(tree.Root, func(n parse.Node) {
			if p, ok := n.(*parse.PipeNode); ok {
				about := aboutGroups(p, vars, false)
				e.named = append(e.named, about.names...)
				for _, d := range p.Decl {
					v := vars[d.Ident[0]]
					v.add(about)
					vars[d.Ident[0]] = v
				}
			}
		})
		e.branches(tree.Root, vars, tree.Name == t.cfg.Name)
	}
	return e
}

func (e *elses) add(o elses) {
	e.names = append(e.names, o.names...)
	e.any, e.each = e.any || o.any, e.each || o.each
}

// branches finds those with an else. The dot is the element of for_each at the
// top of the template.
func (e *elses) branches(list *parse.ListNode, vars map[string]elses, top bool) {
	if list == nil {
		return
	}
	for _, n := range list.Nodes {
		b, isRange := branchOf(n)
		if b == nil {
			continue
		}
		if b.ElseList != nil {
			e.add(aboutGroups(b.Pipe, vars, top))
		}
		_, isWith := n.(*parse.WithNode)
		e.branches(b.List, vars, top && !isRange && !isWith)
		e.branches(b.ElseList, vars, top)
	}
}

// aboutGroups are the groups whose members a pipeline looks at.
func aboutGroups(p *parse.PipeNode, vars map[string]elses, top bool) elses {
	var e elses
	inspect(p, func(n parse.Node) {
		switch n := n.(type) {
		case *parse.CommandNode:
			id, ok := n.Args[0].(*parse.IdentifierNode)
			if !ok || accesses[id.Ident] != accesses["members"] {
				return
			}
			if len(n.Args) < 2 {
				e.any = true
			} else if name, whole, _ := constant(n.Args[1]); whole {
				e.names = append(e.names, name)
			} else {
				e.any = true
			}
		case *parse.VariableNode:
			e.add(vars[n.Ident[0]])
			e.each = e.each || slices.Equal(n.Ident, []string{"$", "Value"})
		case *parse.FieldNode:
			e.each = e.each || top && slices.Equal(n.Ident, []string{"Value"})
		}
	})
	return e
}
