package registry

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/zkagent/zkagent/internal/lists"
	"github.com/zkagent/zkagent/recipe"
	"github.com/zkagent/zkagent/view"
)

// Bounds on the values of a member.
const (
	maxData       = 64 << 10 // bytes of a member's data
	maxNode       = 4096     // bytes of a znode's name
	maxWeight     = 256
	maxPorts      = 64
	maxLabels     = 64
	maxLabelValue = 256 // bytes
)

// ErrIgnore says that a child is not meant to be a member, such as the vector_
// znodes of a server set.
var ErrIgnore = errors.New("not a member")

var (
	keyPattern = regexp.MustCompile(`^[A-Za-z0-9._-]{1,128}$`)
	// nodePattern allows the characters that the formats put into names of znodes,
	// and none with a special meaning in a shell, a path or a configuration file.
	nodePattern = regexp.MustCompile(`^[A-Za-z0-9._:%+=,~*@-]+$`)
)

// validate converts a decoded member to its canonical form or rejects it.
func validate(m *view.Member) error {
	if len(m.Znode) > maxNode || !nodePattern.MatchString(m.Znode) {
		return errors.New("name of the znode has characters that are not allowed")
	}
	host, err := ParseHost(m.Host)
	if err != nil {
		return err
	}
	m.Host = host
	if m.Port < 0 || m.Port > 65535 {
		return fmt.Errorf("port %d is not within 1 to 65535", m.Port)
	}
	if m.Weight < 0 || m.Weight > maxWeight {
		return fmt.Errorf("weight %d is not within 0 to %d", m.Weight, maxWeight)
	}
	m.Status = cmp.Or(m.Status, view.StatusUp)
	for name, port := range m.Ports {
		if port < 1 || port > 65535 {
			return fmt.Errorf("port %.60q: %d is not within 1 to 65535", name, port)
		}
	}
	var left leftOut
	if m.LabelsLeftOut != "" {
		left.add("%s", string(m.LabelsLeftOut))
	}
	left.names(m)
	left.ports(m.Ports)
	left.labels(m.Labels)
	m.LabelsLeftOut = view.RawText(left.first)
	if left.more > 0 {
		m.LabelsLeftOut = view.RawText(fmt.Sprintf("%s; and %d more", left.first, left.more))
	}
	m.SetLabels(m.Labels)
	return nil
}

// leftOut collects what a record says and its member may not have. It never costs the
// member its place.
type leftOut struct {
	first string
	more  int
}

func (l *leftOut) add(format string, args ...any) {
	if l.first != "" {
		l.more++
		return
	}
	l.first = fmt.Sprintf(format, args...)
}

// names replaces the names that are none: by the name of the znode, else the address.
func (l *leftOut) names(m *view.Member) {
	for i, name := range []*string{&m.Name, &m.ID, &m.Node} {
		if *name != "" && !view.IsName(*name) {
			l.add("%s %.60q: only letters, digits and ._:- are allowed, at most 128, and no - at the beginning", []string{"name", "id", "node"}[i], *name)
			*name = ""
		}
	}
	if m.Name == "" && view.IsName(m.Znode) {
		m.Name = m.Znode
	}
	m.Name = cmp.Or(m.Name, asName(m.Address()))
	m.ID, m.Node = cmp.Or(m.ID, m.Name), cmp.Or(m.Node, asName(m.Host))
}

// asName makes an address a name: without brackets, and not longer than a name may be.
func asName(address string) string {
	address = strings.NewReplacer("[", "", "]", "").Replace(address)
	return address[:min(len(address), 128)]
}

func (l *leftOut) ports(ports map[string]int) {
	kept := 0
	for _, name := range slices.Sorted(maps.Keys(ports)) {
		switch {
		case !keyPattern.MatchString(name):
			l.add("port %.60q: its name may have only letters, digits and ._-, at most 128", name)
		case kept == maxPorts:
			l.add("port %s: a member has at most %d ports", name, maxPorts)
		default:
			kept++
			continue
		}
		delete(ports, name)
	}
}

func (l *leftOut) labels(labels map[string]string) {
	kept := 0
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		switch value := labels[key]; {
		case !keyPattern.MatchString(key):
			l.add("label %.60q: the key may have only letters, digits and ._-, at most 128", key)
		case len(value) > maxLabelValue:
			l.add("label %s: the value is longer than %d bytes", key, maxLabelValue)
		case !printable(value):
			l.add("label %s: the value has characters that cannot be printed", key)
		case kept == maxLabels:
			l.add("label %s: a member has at most %d labels", key, maxLabels)
		default:
			kept++
			continue
		}
		delete(labels, key)
	}
}

// printable reports whether s is text without control, format and other
// invisible characters; the space is the only white space.
func printable(s string) bool {
	if !utf8.ValidString(s) {
		return false
	}
	return !strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) || r == utf8.RuneError })
}

// setLabel stores a label of a foreign format if its key and length are within the
// bounds. Other labels are dropped: such formats contain much that no template
// needs.
func setLabel(m *view.Member, key, value string) {
	if value == "" {
		return
	}
	if m.Labels == nil {
		m.Labels = map[string]string{}
	}
	m.Labels[key] = value
}

// setPort keeps a named port; 0 and -1 are how formats say "none".
func setPort(m *view.Member, name string, port int) {
	if port <= 0 {
		return
	}
	if m.Ports == nil {
		m.Ports = map[string]int{}
	}
	m.Ports[name] = port
}

// memberKey identifies a member: two records with the same key are the same member.
// It does not contain the znode's name, which changes when a member registers
// again.
type memberKey struct {
	host string
	port int
	name string
}

func keyOf(m *view.Member) memberKey {
	name := m.Name
	if _, ok := recipe.ParseSequence(name, "_"); ok && name == m.Znode && name[0] != '_' {
		name = name[:strings.LastIndexByte(name, '_')] // a sequential znode without a member name
	}
	return memberKey{m.Host, m.Port, name}
}

// compareKeys orders members by their keys: host, port, name.
func compareKeys(a, b *view.Member) int {
	if c := view.CompareHosts(a.Host, b.Host); c != 0 {
		return c
	}
	if c := cmp.Compare(a.Port, b.Port); c != 0 {
		return c
	}
	return strings.Compare(keyOf(a).name, keyOf(b).name)
}

// members is a set of members in the order of their keys. Once a stage has passed
// on a set, the set and its members never change. Two sets share equal members, so
// comparing two sets means comparing pointers.
type members []*view.Member

func (s members) find(m *view.Member) (int, bool) { return slices.BinarySearchFunc(s, m, compareKeys) }

func (s members) has(m *view.Member) bool {
	_, ok := s.find(m)
	return ok
}

// changes calls f for each key whose member differs. was is nil for a member that
// is only in other; is is nil for one that is only in s.
func (s members) changes(other members, f func(was, is *view.Member)) {
	for len(s) > 0 || len(other) > 0 {
		order := 0
		switch {
		case len(other) == 0:
			order = -1
		case len(s) == 0:
			order = 1
		case s[0] != other[0]:
			order = compareKeys(s[0], other[0])
		default:
			s, other = s[1:], other[1:]
			continue
		}
		var was, is *view.Member
		if order <= 0 {
			was, s = s[0], s[1:]
		}
		if order >= 0 {
			is, other = other[0], other[1:]
		}
		f(was, is)
	}
}

func (s members) missing(other members) members {
	var list members
	s.changes(other, func(was, is *view.Member) {
		if is == nil {
			list = append(list, was)
		}
	})
	return list
}

// with returns the set in which others, in order of their keys, take the
// places of those with the same keys, or join.
func (s members) with(others members) members {
	if len(others) == 0 {
		return s
	}
	set := make(members, 0, len(s)+len(others))
	for _, m := range others {
		i, found := s.find(m)
		set = append(append(set, s[:i]...), m)
		if found {
			i++
		}
		s = s[i:]
	}
	return append(set, s...)
}

// without returns the set minus those members. The set must contain all of them.
func (s members) without(gone members) members {
	if len(gone) == 0 {
		return s
	}
	slices.SortFunc(gone, compareKeys)
	set := make(members, 0, len(s))
	for _, m := range gone {
		i, _ := s.find(m)
		set, s = append(set, s[:i]...), s[i+1:]
	}
	return append(set, s...)
}

// values returns the members by value: those of the previous set when it is the same one.
func (s members) values(former members, values []view.Member) []view.Member {
	if slices.Equal(s, former) {
		return values
	}
	return lists.Map(s, func(m *view.Member) view.Member { return *m })
}

// dedupe keeps the latest (by czxid) of the members with the same key, and returns
// the others as rejected. It sorts its argument.
func dedupe(list members) (members, []view.Rejected) {
	slices.SortFunc(list, func(a, b *view.Member) int {
		return cmp.Or(compareKeys(a, b), cmp.Compare(b.Czxid, a.Czxid), strings.Compare(a.Znode, b.Znode))
	})
	var rejected []view.Rejected
	set := list[:0:0]
	for i, m := range list {
		if i > 0 && compareKeys(set[len(set)-1], m) == 0 {
			rejected = append(rejected, view.Rejected{Znode: clipName(m.Znode), Reason: "the same member as " + clipName(set[len(set)-1].Znode) + ", which is newer"})
			continue
		}
		set = append(set, m)
	}
	return set, rejected
}

// ParseHost validates a host name or IP address and returns its canonical
// form: an IP address without brackets and zone, or an RFC 1123 name.
//
// It rejects addresses that no member can have (unspecified, multicast, broadcast),
// and names that a resolver reads as a number ("127.1", "0x7f000001"), because they
// reach another host than they seem to.
func ParseHost(s string) (string, error) {
	if s == "" {
		return "", errors.New("host is empty")
	}
	if len(s) > 255 {
		return "", errors.New("host is longer than 253 bytes")
	}
	bare := s
	if strings.HasPrefix(s, "[") && strings.HasSuffix(s, "]") {
		bare = s[1 : len(s)-1]
		if !strings.Contains(bare, ":") {
			return "", fmt.Errorf("host %q has brackets and is not an IPv6 address", s)
		}
	}
	if addr, err := netip.ParseAddr(bare); err == nil {
		if addr.Zone() != "" {
			return "", fmt.Errorf("address %q has a zone", addr)
		}
		addr = addr.Unmap()
		if addr.IsUnspecified() || addr.IsMulticast() || addr == netip.AddrFrom4([4]byte{255, 255, 255, 255}) {
			return "", fmt.Errorf("address %s is not the address of a host", addr)
		}
		return addr.String(), nil
	}
	if strings.Contains(bare, ":") {
		return "", fmt.Errorf("host %q is not an IP address", s)
	}
	name := strings.TrimSuffix(s, ".")
	if err := checkName1123(name); err != nil {
		return "", fmt.Errorf("host %q: %w", s, err)
	}
	return name, nil
}

func checkName1123(name string) error {
	if name == "" || len(name) > 253 {
		return errors.New("not a name of 1 to 253 bytes")
	}
	last := ""
	for label := range strings.SplitSeq(name, ".") {
		odd := strings.TrimLeft(label, hostChars)
		switch {
		case label == "" || len(label) > 63:
			return errors.New("a label is not 1 to 63 bytes long")
		case odd != "":
			return fmt.Errorf("byte %#x is not allowed in a name", odd[0])
		case label[0] == '-' || label[len(label)-1] == '-':
			return errors.New("a label begins or ends with a hyphen")
		}
		last = label
	}
	if inetNumber.MatchString(last) {
		return errors.New("a name that is a number would be taken for an address")
	}
	return nil
}

// hostChars are the characters of a label in a host name (RFC 1123).
const hostChars = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-"

// inetNumber matches a label that inet_aton would read as a number.
var inetNumber = regexp.MustCompile(`^([0-9]+|0[xX][0-9a-fA-F]*)$`)
