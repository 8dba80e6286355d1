package dns

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"net/netip"
	"regexp"
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
// the zones of unchanged groups. Its names are in lower case.
type tree struct {
	zones     map[string]*zone        // by name, as in "web.group" and "web.all.groups"; nil: not reported
	sets      map[string]bool         // by name, as in "all.groups": whether it has reported
	elections map[string]*view.Leader // nil: not reported
}

// newTree prepares a view. declared are the sources of the settings.
func newTree(v *view.View, declared []view.Source, old *tree) *tree {
	t := &tree{zones: map[string]*zone{}, sets: map[string]bool{}, elections: map[string]*view.Leader{}}
	add := func(g *view.Group, name, block string) {
		z := old.zones[name]
		switch {
		case g == nil:
			z = nil
		case z == nil || z.of != g:
			z = newZone(g, name, block)
		}
		t.zones[name] = z
	}
	for _, s := range declared {
		name := strings.ToLower(s.Name)
		switch s.Kind {
		case view.KindGroup:
			g, _ := v.Group(s.Name)
			add(g, name+".group", s.Name)
		case view.KindGroups:
			name += ".groups"
			set, reported := v.Groups(s.Name)
			if t.sets[name] = reported; !reported {
				continue
			}
			for _, g := range set.Groups {
				if !strings.Contains(g.Name, ".") { // it is no label
					add(g, strings.ToLower(g.Name)+"."+name, set.Name)
				}
			}
		case view.KindElection:
			l, _ := v.Leader(s.Name)
			t.elections[name] = l
		case view.KindConfig:
		}
	}
	return t
}

// find returns the node at a name. The labels are those before the domain, in lower
// case. exists is also true of names that only have others below them.
func (t *tree) find(labels []string) (n node, exists bool) { //nolint:nonamedreturns // The names say which is which.
	if len(labels) == 0 {
		return node{}, true
	}
	last := len(labels) - 1
	switch labels[last] {
	case "group":
		return t.findIn(labels[:last], ".group")
	case "groups":
		if last == 0 {
			return node{}, true
		}
		set := labels[last-1] + ".groups"
		if reported, known := t.sets[set]; !reported {
			return node{unknown: known}, known
		}
		return t.findIn(labels[:last-1], "."+set)
	case "election":
		return t.findLeader(labels[:last])
	}
	return node{}, false
}

// findIn finds a name below "group" or below a set of groups.
func (t *tree) findIn(labels []string, place string) (node, bool) {
	if len(labels) == 0 {
		return node{}, true
	}
	last := len(labels) - 1
	group := labels[last]
	if group == "_tcp" || group == "_udp" {
		service, ok := strings.CutPrefix(labels[0], "_")
		if last != 1 || !ok {
			return node{}, last == 0
		}
		group, last = service, 0
	}
	z, known := t.zones[group+place]
	switch {
	case z == nil:
		return node{unknown: known}, known
	case last == 0:
		return node{group: z}, true
	}
	n, exists := z.names[strings.Join(labels[:last], ".")]
	return n, exists
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
	var found []netip.Addr
	for _, z := range t.zones {
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

// label matches what can stand as one label (RFC 1035, 2.3.4).
var label = regexp.MustCompile(`^[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?$`)

// IsLabel reports whether a name can stand as one label: 1 to 63 letters,
// digits, "-" and "_", not starting or ending with "-". Case does not matter.
func IsLabel(name string) bool { return label.MatchString(name) }

// unreadable are the characters that the readable part of a label does not have.
var unreadable = regexp.MustCompile(`[^a-z0-9-]`)

// digested matches a label that ends as those with a digest do.
var digested = regexp.MustCompile(`-[0-9a-f]{10}$`)

// NodeLabel returns the label of a member below "node". An id that is a valid label in
// lower case is its own label. Any other id becomes a readable part and a digest: one
// with upper case, and one that ends like a digest, too. So two ids do not share a label.
func NodeLabel(id string) string {
	lower := strings.ToLower(id)
	if IsLabel(id) && id == lower && !digested.MatchString(id) {
		return id
	}
	sum := sha256.Sum256([]byte(id))
	readable := unreadable.ReplaceAllString(lower, "-")
	readable = strings.Trim(readable[:min(len(readable), 50)], "-")
	return cmp.Or(readable, "member") + "-" + hex.EncodeToString(sum[:5])
}
