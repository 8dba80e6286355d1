package dns

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/miekg/dns"

	"github.com/zkagent/zkagent/view"
)

// node is the data at one name.
type node struct {
	group   *zone   // non-nil: A, AAAA and SRV of a group's members
	port    string  // with group: only members with this named port
	member  *member // one member
	leader  *view.Leader
	unknown bool // its source has not reported
}

// zone is a group, prepared for answers. It is made once for each state of
// the group.
type zone struct {
	of      *view.Group
	name    string          // "web.group" or "web.all.groups", in lower case
	block   string          // label of the block of the settings
	members []*member       // those that may get traffic, by id
	names   map[string]node // below the group: of every member, and of the ports in lower case
}

// member is one member, prepared for answers.
type member struct {
	view.Member
	label string
	addr  netip.Addr // zero: the host is a name
	host  string     // fully qualified, when it is a name
}

func newZone(g *view.Group, name, block string) *zone {
	z := &zone{of: g, name: name, block: block, names: map[string]node{"node": {}, "port": {}}}
	for _, m := range g.Members {
		id := cmp.Or(m.ID, m.Name)
		e := &member{Member: m, label: NodeLabel(id)}
		if addr, err := netip.ParseAddr(m.Host); err == nil {
			e.addr = addr.Unmap().WithZone("")
		} else if _, ok := dns.IsDomainName(m.Host); ok && m.Host != "" {
			e.host = dns.CanonicalName(m.Host)
		} else {
			continue
		}
		if _, taken := z.names[e.label+".node"]; taken {
			// Two members have one id: give each its own name.
			e.label = NodeLabel(id + "\x00" + m.Address())
		}
		z.names[e.label+".node"] = node{member: e}
		if !m.MayServe() {
			continue
		}
		z.members = append(z.members, e)
		for name := range maps.Keys(m.Ports) {
			name = strings.ToLower(name)
			z.names[name+".port"] = node{group: z, port: name}
		}
	}
	return z
}

// portOf returns the member's port of that name; the empty name means the main
// port.
func (m *member) portOf(name string) (int, bool) {
	if name == "" {
		return m.Port, m.Port > 0
	}
	for n, p := range m.Ports {
		if strings.EqualFold(n, name) {
			return p, true
		}
	}
	return 0, false
}

// tree finds names. Its owner makes a new tree when the view changes, and reuses
// the zones of unchanged groups.
type tree struct {
	groups    map[string]*zone            // by lower-case name; nil: not reported
	sets      map[string]map[string]*zone // likewise
	elections map[string]*view.Leader     // likewise
}

// newTree prepares a view. declared are the sources of the settings.
func newTree(v *view.View, declared []view.Source, old *tree) *tree {
	t := &tree{groups: map[string]*zone{}, sets: map[string]map[string]*zone{}, elections: map[string]*view.Leader{}}
	for _, s := range declared {
		name := strings.ToLower(s.Name)
		switch s.Kind {
		case view.KindGroup:
			g, _ := v.Group(s.Name)
			t.groups[name] = reuse(g, old.groups[name], name+".group", s.Name)
		case view.KindGroups:
			set, _ := v.Groups(s.Name)
			t.sets[name] = zonesOf(set, old, name)
		case view.KindElection:
			l, _ := v.Leader(s.Name)
			t.elections[name] = l
		case view.KindConfig:
		}
	}
	return t
}

func zonesOf(set *view.Groups, old *tree, name string) map[string]*zone {
	if set == nil {
		return nil
	}
	zones := make(map[string]*zone, len(set.Groups))
	for _, g := range set.Groups {
		child := strings.ToLower(g.Name)
		zones[child] = reuse(g, old.sets[name][child], child+"."+name+".groups", set.Name)
	}
	return zones
}

func reuse(g *view.Group, old *zone, name, block string) *zone {
	switch {
	case g == nil:
		return nil
	case old != nil && old.of == g:
		return old
	}
	return newZone(g, name, block)
}

// find returns the node at a name. The labels are those before the domain, in lower
// case. exists is also true of names that only have others below them.
func (t *tree) find(labels []string) (n node, exists bool) { //nolint:nonamedreturns // The names say which is which.
	if len(labels) == 0 {
		return node{}, true
	}
	last := len(labels) - 1
	rest := labels[:last]
	switch labels[last] {
	case "group":
		return t.findIn(rest, t.groups, true)
	case "groups":
		if len(rest) == 0 {
			return node{}, true
		}
		set := rest[len(rest)-1]
		zones, known := t.sets[set]
		switch {
		case !known:
			return node{}, false
		case zones == nil:
			return node{unknown: true}, true
		}
		return t.findIn(rest[:len(rest)-1], zones, false)
	case "election":
		return t.findLeader(rest)
	}
	return node{}, false
}

// findIn finds a name below "group" or below a set of groups.
func (t *tree) findIn(labels []string, zones map[string]*zone, declared bool) (node, bool) {
	if len(labels) == 0 {
		return node{}, true
	}
	last := len(labels) - 1
	if service, ok := strings.CutPrefix(labels[0], "_"); ok && len(labels) == 2 && (labels[1] == "_tcp" || labels[1] == "_udp") {
		return at(zones, service, declared)
	}
	if len(labels) == 1 && (labels[0] == "_tcp" || labels[0] == "_udp") {
		return node{}, true
	}
	n, exists := at(zones, labels[last], declared)
	if !exists || n.unknown || last == 0 {
		return n, exists
	}
	n, exists = n.group.names[strings.Join(labels[:last], ".")]
	return n, exists
}

// at finds a group. A declared group that has not reported is unknown.
func at(zones map[string]*zone, name string, declared bool) (node, bool) {
	z, known := zones[name]
	if z == nil {
		return node{unknown: known && declared}, known
	}
	return node{group: z}, true
}

func (t *tree) findLeader(labels []string) (node, bool) {
	if len(labels) == 0 {
		return node{}, true
	}
	l, known := t.elections[labels[len(labels)-1]]
	switch {
	case !known || len(labels) > 2 || len(labels) == 2 && labels[0] != "leader":
		return node{}, false
	case l == nil:
		return node{unknown: true}, true
	case len(labels) == 1:
		return node{}, true
	}
	return node{leader: l}, true
}

// hostOf finds the addresses of an agent's host from the members that it
// registered.
func (t *tree) hostOf(id string) []netip.Addr {
	zones := slices.Collect(maps.Values(t.groups))
	for _, set := range t.sets {
		zones = slices.AppendSeq(zones, maps.Values(set))
	}
	var found []netip.Addr
	for _, z := range zones {
		if z == nil {
			continue
		}
		for _, n := range z.names {
			if m := n.member; m != nil && m.addr.IsValid() && (m.Node == id || m.ID == id) && !slices.Contains(found, m.addr) {
				found = append(found, m.addr)
			}
		}
	}
	slices.SortFunc(found, netip.Addr.Compare)
	return found
}
